//! Times and durations as people read them, and round steps between them.

use time::{Month, UtcDateTime};

use super::chart::TimeAxis;
use super::ticks::{Tick, Unit, round_step};

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
const DAY: f64 = 86_400.0;
/// Beyond this (9999-12-31 23:59:59 UTC) a number of seconds is a mistake; it is written as it is.
const LONGEST: f64 = 253_402_300_799.0;

/// Steps that divide the next larger unit, as multiples of it.
const STEPS: [(f64, &[f64]); 4] = [
    (1.0, &[10.0, 20.0, 30.0]),
    (MINUTE, &[1.0, 2.0, 5.0, 10.0, 20.0, 30.0]),
    (HOUR, &[1.0, 2.0, 3.0, 6.0, 12.0]),
    (DAY, &[1.0, 2.0, 7.0]),
];
/// Up to this, steps are decimal.
const LONGEST_DECIMAL: f64 = 5.0;
const SHORTEST: f64 = 0.001;

/// A duration in its two largest units.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds.abs() > LONGEST {
        return format!("{seconds:.0e} s");
    }
    if seconds < 0.0 {
        return format!("-{}", duration(-seconds));
    }
    if seconds < 1.0 {
        let millis = seconds * 1000.0;
        return match millis {
            0.0 => "0 s".to_owned(),
            small if small < 1.0 => format!("{small:.2} ms"),
            _ => format!("{} ms", millis.round()),
        };
    }
    if seconds < 10.0 && (seconds - seconds.round()).abs() > 0.005 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round();
    let parts = [(DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1.0, "s")];
    let at = parts.iter().position(|(size, _)| whole >= *size).unwrap_or(3);
    let (size, name) = parts[at];
    let large = (whole / size).floor();
    match parts.get(at + 1) {
        Some((small, small_name)) if whole - large * size >= *small => {
            format!("{large} {name} {} {small_name}", ((whole - large * size) / small).floor())
        }
        _ => format!("{large} {name}"),
    }
}

/// The shortest step that cuts a span into `wanted` pieces or fewer, in seconds.
pub(super) fn step(span: f64, wanted: usize) -> f64 {
    let raw = span / u32::try_from(wanted.max(1)).map_or(1.0, f64::from);
    if raw * 0.999 <= LONGEST_DECIMAL {
        return round_step((raw * 0.999).max(SHORTEST));
    }
    let mut steps = STEPS.into_iter().flat_map(|(unit, steps)| steps.iter().map(move |step| step * unit));
    steps.find(|step| *step >= raw * 0.999).unwrap_or_else(|| {
        let weeks = 7.0 * DAY;
        (raw / weeks).ceil() * weeks
    })
}

/// Round moments from `low` to `high`, about `wanted`.
pub(super) fn ticks(axis: TimeAxis, low: f64, high: f64, wanted: usize) -> Vec<Tick> {
    if axis == TimeAxis::Order {
        let mut found = super::ticks::ticks(&Unit::Other(String::new()), low, high, wanted);
        // There is no half of a sample.
        found.retain(|tick| (tick.value - tick.value.round()).abs() < 1e-6);
        for tick in &mut found {
            tick.label = format!("{:.0}", tick.value);
        }
        return found;
    }
    let span = high - low;
    if !span.is_finite() || span <= 0.0 || low.abs().max(high.abs()) > LONGEST || wanted == 0 {
        return Vec::new();
    }
    let step = step(span, wanted);
    let (first, last) = ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor());
    if last - first > 1000.0 || first.abs() > 1e14 {
        return Vec::new();
    }
    super::ticks::steps(first, last, |at| {
        let value = at * step;
        let label = match axis {
            TimeAxis::Utc | TimeAxis::Local => wall(value, step),
            TimeAxis::Elapsed | TimeAxis::Order => duration(value),
        };
        Tick { value, label }
    })
}

/// A moment in full: wall time, the duration since the start, or the number of the sample.
pub fn moment(axis: TimeAxis, seconds: f64) -> String {
    match axis {
        TimeAxis::Order => format!("sample {seconds:.0}"),
        TimeAxis::Utc | TimeAxis::Local => date(seconds).map_or_else(
            || duration(seconds),
            |(year, month, day)| {
                format!("{year:04}-{:02}-{day:02} {}", u8::from(month), clock(seconds, true))
            },
        ),
        TimeAxis::Elapsed => duration(seconds),
    }
}

fn wall(seconds: f64, step: f64) -> String {
    let midnight = seconds.rem_euclid(DAY) < 0.000_5;
    if let Some((_, month, day)) = date(seconds).filter(|_| midnight) {
        return format!("{} {day}", month.to_string().get(..3).unwrap_or_default());
    }
    if step < 1.0 {
        return format!(
            "{}{}",
            clock(seconds, true),
            format!("{:.3}", seconds.rem_euclid(1.0)).trim_start_matches('0')
        );
    }
    clock(seconds, step < MINUTE)
}

fn clock(seconds: f64, with_seconds: bool) -> String {
    let of_day = (seconds + 0.000_5).rem_euclid(DAY);
    let (hour, minute) = ((of_day / HOUR).floor(), (of_day % HOUR / MINUTE).floor());
    let second = (of_day % MINUTE).floor();
    if with_seconds { format!("{hour:02}:{minute:02}:{second:02}") } else { format!("{hour:02}:{minute:02}") }
}

/// Year, month and day in UTC; nothing for a time that is none.
#[expect(clippy::cast_possible_truncation, reason = "a whole number that a double has exactly")]
fn date(seconds: f64) -> Option<(i32, Month, u8)> {
    let whole = (seconds.abs() <= LONGEST).then_some((seconds + 0.000_5).floor() as i64)?;
    let date = UtcDateTime::from_unix_timestamp(whole).ok()?.date();
    Some((date.year(), date.month(), date.day()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        let shown: Vec<String> =
            [0.0, 0.0005, 0.25, 2.5, 59.6, 60.0, 90.0, 3600.0, 5430.0, 100_000.0, 1e7, -30.0]
                .map(duration)
                .into();
        assert_eq!(
            shown,
            [
                "0 s",
                "0.50 ms",
                "250 ms",
                "2.5 s",
                "1 min",
                "1 min",
                "1 min 30 s",
                "1 h",
                "1 h 30 min",
                "1 d 3 h",
                "115 d 17 h",
                "-30 s"
            ]
        );
        assert_eq!(duration(f64::INFINITY), "inf s");
    }

    fn check(axis: TimeAxis, low: f64, high: f64, expected: &[&str]) {
        let found: Vec<String> = ticks(axis, low, high, 4).into_iter().map(|tick| tick.label).collect();
        assert_eq!(found, expected, "{low} to {high}");
    }

    #[test]
    fn moments_are_round() {
        check(TimeAxis::Elapsed, 0.0, 300.0, &["0 s", "2 min", "4 min"]);
        check(TimeAxis::Elapsed, 0.0, 7200.0, &["0 s", "30 min", "1 h", "1 h 30 min", "2 h"]);
        // 2024-02-29 23:30:00 UTC.
        let leap = 1_709_249_400.0;
        check(TimeAxis::Utc, leap, leap + 3600.0, &["23:40", "Mar 1", "00:20"]);
        check(TimeAxis::Utc, leap, leap + 4.0 * DAY, &["Mar 1", "Mar 2", "Mar 3", "Mar 4"]);
        check(
            TimeAxis::Utc,
            leap,
            leap + 2.0,
            &["23:30:00.000", "23:30:00.500", "23:30:01.000", "23:30:01.500", "23:30:02.000"],
        );
        check(TimeAxis::Order, 1.0, 2.0, &["1", "2"]);
        check(TimeAxis::Order, 1.0, 900.0, &["500"]);
        assert_eq!(moment(TimeAxis::Utc, leap), "2024-02-29 23:30:00");
        assert_eq!(moment(TimeAxis::Utc, -1.0), "1969-12-31 23:59:59");
        assert_eq!(moment(TimeAxis::Utc, 253_402_300_799.0), "9999-12-31 23:59:59");
        assert_eq!(moment(TimeAxis::Utc, 1e12), duration(1e12), "no year of four digits");
        assert_eq!(moment(TimeAxis::Elapsed, 90.0), "1 min 30 s");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(low: f64, high: f64, wanted in 0_usize..30) {
            for axis in [TimeAxis::Elapsed, TimeAxis::Utc, TimeAxis::Order] {
                assert!(ticks(axis, low, high, wanted).len() <= 1001);
                moment(axis, low);
            }
        }
    }
}
