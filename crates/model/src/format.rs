//! Values as text: the only place that formats amounts, rates, shares, durations and times for people, the same on the
//! page, in the terminal and in reports. Labels of chart axes are in `plot::ticks`.

use time::UtcDateTime;

use super::units::{self, Bytes, MIB};

/// Text in place of a value that is not known.
pub const UNKNOWN: &str = "–";

/// Seconds in a minute, an hour and a day.
const MINUTE: f64 = 60.0;
const HOUR: f64 = 3_600.0;
const DAY: f64 = 86_400.0;

/// An amount of memory, such as `57.3 GiB`; a decrease has a minus sign.
pub fn bytes(bytes: f64) -> String {
    let sign = if bytes < 0.0 { "\u{2212}" } else { "" };
    format!("{sign}{}", Bytes::of(bytes.abs()))
}

/// An amount in MiB, or in bytes below one, for two amounts that [`bytes()`] shows alike.
pub fn exact_bytes(bytes: f64) -> String {
    const MIB: f64 = 1_048_576.0;
    if bytes < MIB { format!("{} B", whole(bytes)) } else { format!("{} MiB", whole(bytes / MIB)) }
}

/// A growth rate with its sign, in the unit of time in which it is at least 1 MiB, such as `+55.4 MiB/s`.
pub fn rate(per_second: f64) -> String {
    rate_beside(per_second, per_second)
}

/// Growth rates of one column: all in the unit of time of the largest.
pub fn rates(all: &[Option<f64>]) -> impl Fn(f64) -> String + use<> {
    let largest = all.iter().flatten().copied().map(f64::abs).fold(0.0, f64::max);
    move |per_second| rate_beside(per_second, largest)
}

fn rate_beside(per_second: f64, largest: f64) -> String {
    let sign = if per_second > 0.0 { "+" } else { "" };
    let (factor, unit) = match largest.abs() {
        rate if rate >= MIB => (1.0, "s"),
        rate if rate * MINUTE >= MIB => (MINUTE, "min"),
        _ => (HOUR, "h"),
    };
    format!("{sign}{}/{unit}", bytes(per_second * factor))
}

/// A change of an amount of memory, with its sign.
pub fn change(amount: f64) -> String {
    format!("{}{}", if amount > 0.0 { "+" } else { "" }, bytes(amount))
}

/// A share in percent; one below 10 % has a decimal.
pub fn percent(share: f64) -> String {
    let decimals = usize::from(share > 0.0 && share < 0.0995);
    format!("{:.decimals$} %", share * 100.0)
}

/// A value as text, or [`UNKNOWN`] where there is none.
pub fn shown(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), show)
}

/// A text, or [`UNKNOWN`] where it is empty.
pub fn or_unknown(text: &str) -> &str {
    if text.is_empty() { UNKNOWN } else { text }
}

/// A count without decimals.
pub fn whole(count: f64) -> String {
    format!("{count:.0}")
}

/// A number of things, such as `1 node` and `2 nodes`.
pub fn counted(count: impl TryInto<u64>, what: &str) -> String {
    match count.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {what}"),
        many => format!("{many} {what}s"),
    }
}

/// A share in percent of a whole; absent where the whole is not known or zero.
pub fn share(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    let (part, whole) = (part?, whole?);
    (whole > 0.0).then(|| (part / whole).clamp(0.0, 1.0))
}

/// The unit in which a duration is shown: its length in seconds, its sign, and its number of decimals.
fn unit(seconds: f64) -> (f64, &'static str, usize) {
    match seconds {
        seconds if seconds > 0.0 && seconds < 0.001 => (0.001, "ms", 2),
        seconds if seconds > 0.0 && seconds < 0.9995 => (0.001, "ms", 0),
        seconds if seconds < 9.95 && (seconds - seconds.round()).abs() > 0.005 => (1.0, "s", 1),
        seconds if seconds < 1.5 * MINUTE => (1.0, "s", 0),
        seconds if seconds < 1.5 * HOUR => (MINUTE, "min", 0),
        seconds if seconds < 10.0 * HOUR => (HOUR, "h", 1),
        seconds if seconds < 2.0 * DAY => (HOUR, "h", 0),
        _ => (DAY, "d", 1),
    }
}

/// A duration in its largest unit, such as `4 min`.
pub fn duration(seconds: f64) -> String {
    let (length, sign, decimals) = unit(seconds);
    format!("{:.decimals$} {sign}", seconds / length)
}

/// A duration that somebody has chosen, in its largest unit without a fraction, such as `90 s`.
pub fn chosen(duration: std::time::Duration) -> String {
    let micros = duration.as_micros();
    let units = [(3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms"), (1, "µs")];
    let whole = units.into_iter().find(|(length, _)| micros > 0 && micros.is_multiple_of(*length));
    whole.map_or_else(|| "0 s".to_owned(), |(length, sign)| format!("{} {sign}", micros / length))
}

/// A time since a start in hours, minutes and seconds, such as `00:01:02`.
pub fn elapsed(seconds: f64) -> String {
    let seconds = units::whole(seconds);
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// A time to exhaustion with its quantiles, such as `4 min (3 to 7)`. Seconds are rounded to 5, so that a sentence read
/// aloud does not change at each sample.
pub fn time_left(p50: f64, p10: Option<f64>, p90: Option<f64>) -> String {
    let (length, sign, decimals) = unit(if p50 < 10.0 { p50.round() } else { p50 });
    let shown = |seconds: f64| {
        let value = seconds / length;
        let value = if sign == "s" && value > 10.0 { (value / 5.0).round() * 5.0 } else { value };
        format!("{value:.decimals$}")
    };
    let between = match (p10, p90) {
        (Some(p10), Some(p90)) if shown(p10) == shown(p90) => String::new(),
        (Some(p10), Some(p90)) => format!(" ({} to {})", shown(p10), shown(p90)),
        (Some(p10), None) => format!(" ({} or more)", shown(p10)),
        _ => String::new(),
    };
    format!("{} {sign}{between}", shown(p50))
}

/// A moment in UTC: `14:02 UTC`, with the date where it is not within 20 hours before `now`.
pub fn clock(unix_seconds: f64, now: f64) -> String {
    let Some(moment) = utc(unix_seconds) else { return UNKNOWN.to_owned() };
    let (hour, minute) = (moment.hour(), moment.minute());
    if (-HOUR..20.0 * HOUR).contains(&(now - unix_seconds)) {
        return format!("{hour:02}:{minute:02} UTC");
    }
    format!(
        "{:04}-{:02}-{:02} {hour:02}:{minute:02} UTC",
        moment.year(),
        u8::from(moment.month()),
        moment.day()
    )
}

/// A moment in UTC as `2026-11-22T14:02:11Z`, for machines and lists.
pub fn timestamp(unix_seconds: f64) -> String {
    let Some(moment) = utc(unix_seconds) else { return UNKNOWN.to_owned() };
    let (hour, minute, second) = moment.as_hms();
    let (year, month, day) = (moment.year(), u8::from(moment.month()), moment.day());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

fn utc(unix_seconds: f64) -> Option<UtcDateTime> {
    #[expect(clippy::cast_possible_truncation, reason = "a time beyond what a date can hold is not shown")]
    let seconds = unix_seconds.floor() as i64;
    UtcDateTime::from_unix_timestamp(seconds).ok().filter(|_| unix_seconds.is_finite())
}

/// A name of at most `most` characters; a longer one is cut in the middle.
pub fn short(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    let ends = most.saturating_sub(1) / 2;
    let begin: String = name.chars().take(most - 1 - ends).collect();
    let end: String = name.chars().skip(length - ends).collect();
    format!("{begin}…{end}")
}

/// The beginning of a sentence, of at most `most` characters; a longer one is cut between words where it has any.
pub fn beginning(sentence: &str, most: usize) -> String {
    let Some((end, _)) = sentence.char_indices().nth(most) else { return sentence.to_owned() };
    let kept = sentence.char_indices().nth(most - 1).map_or("", |(last, _)| &sentence[..last]);
    let is_cut = !sentence[kept.len()..end].starts_with(' ');
    let whole = kept.rfind(' ').filter(|_| is_cut).map_or(kept, |space| &kept[..space]);
    format!("{}…", whole.trim_end())
}

/// The name of a signal.
pub fn signal(number: u64) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        5 => "SIGTRAP",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        number => return format!("signal {number}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit() {
        let chosen = [0, 100, 1_500, 90_000, 120_000, 7_200_000]
            .map(|millis| super::chosen(std::time::Duration::from_millis(millis)));
        assert_eq!(chosen, ["0 s", "100 ms", "1500 ms", "90 s", "2 min", "2 h"]);
        let shown = [0.0, 42.4, 89.0, 240.0, 3_600.0, 9_000.0, 40_000.0, 500_000.0].map(duration);
        assert_eq!(shown, ["0 s", "42 s", "89 s", "4 min", "60 min", "2.5 h", "11 h", "5.8 d"]);
        let short = [0.000_25, 0.025, 0.9999, 1.24, 5.0, 9.99].map(duration);
        assert_eq!(short, ["0.25 ms", "25 ms", "1 s", "1.2 s", "5 s", "10 s"]);
        assert_eq!(elapsed(3725.9), "01:02:05");
    }

    #[test]
    fn a_time_left_has_its_quantiles_in_its_own_unit() {
        assert_eq!(time_left(250.0, Some(185.0), Some(420.0)), "4 min (3 to 7)");
        assert_eq!(time_left(250.0, Some(185.0), None), "4 min (3 or more)");
        assert_eq!(time_left(250.0, Some(245.0), Some(255.0)), "4 min");
        assert_eq!(time_left(63.0, Some(41.0), Some(99.0)), "65 s (40 to 100)");
        assert_eq!(time_left(7.0, None, None), "7 s");
        assert_eq!(time_left(9_000.0, Some(3_600.0), Some(18_000.0)), "2.5 h (1.0 to 5.0)");
    }

    #[test]
    fn moments_are_in_utc() {
        assert_eq!(clock(1_700_000_000.9, 1_700_000_100.0), "22:13 UTC");
        assert_eq!(clock(1_700_000_000.0, 1_700_100_000.0), "2023-11-14 22:13 UTC");
        assert_eq!(timestamp(1_700_000_000.9), "2023-11-14T22:13:20Z");
        assert_eq!((clock(f64::NAN, 0.0), timestamp(1e300)), (UNKNOWN.to_owned(), UNKNOWN.to_owned()));
    }

    #[test]
    fn rates_and_sizes_are_short() {
        assert_eq!(rate(58_076_527.8), "+55.4 MiB/s");
        assert_eq!(rate(-30_000.0), "\u{2212}1.7 MiB/min");
        assert_eq!(rate(1_000.0), "+3.4 MiB/h");
        let all = [Some(1_000.0), None, Some(30_000.0)];
        let column: Vec<String> = all.into_iter().flatten().map(rates(&all)).collect();
        assert_eq!(column, ["+58.6 KiB/min", "+1.7 MiB/min"], "one unit of time for a column");
        assert_eq!(bytes(57.25 * 1024.0_f64.powi(3)), "57.2 GiB");
        assert_eq!([0.0, 0.034, 0.0996, 0.994].map(percent), ["0 %", "3.4 %", "10 %", "99 %"]);
        assert_eq!([2e7, 0.0, -5e9].map(change), ["+19.1 MiB", "0 B", "\u{2212}4.7 GiB"]);
        assert_eq!(
            (counted(1_u64, "node"), counted(0_usize, "node")),
            ("1 node".to_owned(), "0 nodes".to_owned())
        );
        assert_eq!((shown(None, bytes), shown(Some(3.0), whole)), (UNKNOWN.to_owned(), "3".to_owned()));
        assert_eq!((share(Some(1.0), Some(0.0)), share(Some(3.0), Some(4.0))), (None, Some(0.75)));
    }

    #[test]
    fn a_long_name_keeps_both_ends() {
        assert_eq!(short("slurm/4711", 40), "slurm/4711");
        assert_eq!(short("abcdefghij", 7), "abc…hij");
        assert_eq!(short("éééééééé", 4).chars().count(), 4);
    }

    #[test]
    fn a_long_sentence_is_cut_between_words() {
        for (most, expected) in
            [(5, "GPU…"), (7, "GPU 0…"), (8, "GPU 0…"), (9, "GPU 0 is…"), (13, "GPU 0 is full")]
        {
            assert_eq!(beginning("GPU 0 is full", most), expected, "{most}");
        }
        assert_eq!(beginning("éééé", 3), "éé…");
    }
}
