//! Numbers that people like on an axis, and how values are written in their unit.

/// What the values of a panel count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, written with binary prefixes.
    #[default]
    Bytes,
    /// Bytes per second, written with binary prefixes.
    BytesPerSecond,
    /// A share, 0 to 1, written as percent.
    Ratio,
    /// Seconds, written as durations.
    Seconds,
    /// Anything else, by its sign ("W", "°C", or nothing for a count).
    Other(String),
}

/// A place on an axis and what stands there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    /// As people read it, with its unit.
    pub(super) label: String,
}

const BINARY: [(f64, &str); 7] = [
    (1_152_921_504_606_846_976.0, "EiB"),
    (1_125_899_906_842_624.0, "PiB"),
    (1_099_511_627_776.0, "TiB"),
    (1_073_741_824.0, "GiB"),
    (1_048_576.0, "MiB"),
    (1024.0, "KiB"),
    (1.0, "B"),
];
const DECIMAL: [(f64, &str); 5] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];

impl Unit {
    /// A value as people read it, to three digits or so.
    pub fn show(&self, value: f64) -> String {
        if !value.is_finite() {
            return "unknown".to_owned();
        }
        if *self == Self::Seconds {
            return super::times::duration(value);
        }
        let (scale, sign) = self.scale(value.abs());
        let amount = value / scale;
        let digits = match amount.abs() {
            large if large >= 100.0 || (sign == "B" || sign == "B/s") => 0,
            _ if (amount - amount.round()).abs() < 1e-9 => 0,
            medium if medium >= 10.0 => 1,
            _ => 2,
        };
        join(amount, digits, &sign)
    }

    /// What a value of this size is divided by, and the sign that says so.
    fn scale(&self, size: f64) -> (f64, String) {
        let fitting = |table: &[(f64, &'static str)]| {
            let last = table.last().copied().unwrap_or((1.0, ""));
            table.iter().copied().find(|(scale, _)| size >= *scale).unwrap_or(last)
        };
        match self {
            Self::Bytes | Self::BytesPerSecond => {
                let (scale, sign) = fitting(&BINARY);
                let per = if *self == Self::Bytes { "" } else { "/s" };
                (scale, format!("{sign}{per}"))
            }
            Self::Ratio => (0.01, "%".to_owned()),
            Self::Seconds => (1.0, "s".to_owned()),
            Self::Other(unit) => {
                // Thousands of a plain count read well up to five digits.
                let (scale, sign) = if size < 1e5 { (1.0, "") } else { fitting(&DECIMAL) };
                (scale, format!("{sign}{unit}"))
            }
        }
    }
}

fn join(amount: f64, digits: usize, sign: &str) -> String {
    // Adding zero makes a negative zero positive.
    let number = format!("{:.digits$}", amount + 0.0);
    if sign.is_empty() { number } else { format!("{number} {sign}") }
}

/// About `wanted` round values from `low` to `high`, both ends counted where they are round.
pub(super) fn ticks(unit: &Unit, low: f64, high: f64, wanted: usize) -> Vec<Tick> {
    let span = high - low;
    // Of less than a billionth of a unit nobody wants to know.
    if !span.is_finite() || span < 1e-9 || wanted == 0 {
        return Vec::new();
    }
    let (scale, sign) = unit.scale(low.abs().max(high.abs()));
    let whole = matches!(sign.as_str(), "B" | "B/s");
    let mut step = round_step(span / scale / count(wanted));
    if *unit == Unit::Seconds {
        step = super::times::step(span, wanted);
    } else if whole {
        step = step.max(1.0);
    }
    let digits = decimals(step);
    let first = (low / scale / step - 1e-9).ceil();
    let last = (high / scale / step + 1e-9).floor();
    // A range far from zero and next to nothing wide has steps that its numbers cannot carry.
    if !(last - first).is_finite() || last - first > 100.0 || first.abs() > 1e9 {
        return Vec::new();
    }
    steps(first, last, |at| {
        let amount = at * step;
        let label = match unit {
            Unit::Seconds => super::times::duration(amount),
            _ => join(amount, digits, &sign),
        };
        Tick { value: amount * scale, label }
    })
}

/// The ticks at the multiples `first` to `last` of a step.
pub(super) fn steps(first: f64, last: f64, tick: impl Fn(f64) -> Tick) -> Vec<Tick> {
    let places = std::iter::successors(Some(first), |at| Some(at + 1.0));
    places.take_while(|at| *at <= last).map(tick).collect()
}

/// The step of 1, 2 or 5 times a power of ten that is nearest above.
pub(super) fn round_step(raw: f64) -> f64 {
    let power = 10_f64.powf(raw.log10().floor());
    let lead = raw / power;
    let nice = [1.0, 2.0, 5.0].into_iter().find(|nice| lead <= nice * 1.000_001).unwrap_or(10.0);
    nice * power
}

fn decimals(step: f64) -> usize {
    (0..9)
        .find(|digits| step * 10_f64.powi(*digits) >= 0.999)
        .and_then(|digits| digits.try_into().ok())
        .unwrap_or(9)
}

fn count(wanted: usize) -> f64 {
    u32::try_from(wanted).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(unit: &Unit, low: f64, high: f64, expected: &[&str]) {
        let found: Vec<String> = ticks(unit, low, high, 5).into_iter().map(|tick| tick.label).collect();
        assert_eq!(found, expected, "{low} to {high}");
    }

    #[test]
    fn ticks_are_round_in_their_unit() {
        const GIB: f64 = 1_073_741_824.0;
        check(&Unit::Bytes, 0.0, 80.0 * GIB, &["0 GiB", "20 GiB", "40 GiB", "60 GiB", "80 GiB"]);
        check(&Unit::Bytes, 0.0, 1.3 * GIB, &["0.0 GiB", "0.5 GiB", "1.0 GiB"]);
        check(
            &Unit::Bytes,
            55.0 * GIB,
            55.2 * GIB,
            &["55.00 GiB", "55.05 GiB", "55.10 GiB", "55.15 GiB", "55.20 GiB"],
        );
        check(&Unit::Bytes, 0.0, 3.0, &["0 B", "1 B", "2 B", "3 B"]);
        check(&Unit::BytesPerSecond, -2e6, 2e6, &["-1 MiB/s", "0 MiB/s", "1 MiB/s"]);
        check(&Unit::Ratio, 0.0, 1.0, &["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]);
        check(&Unit::Seconds, 0.0, 90.0, &["0 s", "20 s", "40 s", "1 min", "1 min 20 s"]);
        check(&Unit::Other("W".to_owned()), 0.0, 700.0, &["0 W", "200 W", "400 W", "600 W"]);
        check(&Unit::Other(String::new()), 0.0, 4e6, &["0 M", "1 M", "2 M", "3 M", "4 M"]);
    }

    #[test]
    fn values_have_three_digits_or_so() {
        let shown = [0.0, 999.0, 1536.0, 1_073_741_824.0, 8.59e10, 1.1e11, -2e6, 1e300, f64::NAN];
        let shown = shown.map(|value| Unit::Bytes.show(value));
        assert_eq!(&shown[..7], ["0 B", "999 B", "1.50 KiB", "1 GiB", "80.0 GiB", "102 GiB", "-1.91 MiB"]);
        assert!(shown[7].ends_with(" EiB"));
        assert_eq!(shown[8], "unknown");
        assert_eq!(Unit::Ratio.show(0.8125), "81.2 %");
        assert_eq!(Unit::Other(String::new()).show(12_345.0), "12345");
    }

    proptest::proptest! {
        #[test]
        fn ticks_lie_within_and_are_few(low: f64, span: f64, wanted in 0_usize..20) {
            for unit in [Unit::Bytes, Unit::Ratio, Unit::Seconds, Unit::Other(String::new())] {
                let high = low + span;
                let found = ticks(&unit, low, high, wanted);
                assert!(found.len() <= 102);
                for tick in found {
                    let slack = 1e-6 * (high - low);
                    assert!(tick.value >= low - slack && tick.value <= high + slack);
                }
            }
        }
    }
}
