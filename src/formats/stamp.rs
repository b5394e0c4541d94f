//! Dates and times in front of log lines and in JSON.

use time::format_description::BorrowedFormatItem;
use time::macros::format_description;
use time::parsing::Parsed;
use time::{Date, Time, UtcDateTime};

/// A date and a time, with a fraction after a dot or a comma where there is one.
const FORM: &[BorrowedFormatItem<'_>] = format_description!(
    version = 2,
    "[year]-[month]-[day][first [ ][T]][hour]:[minute]:[second][optional [[first [.][,]][subsecond]]]"
);

/// Seconds since 1970 of the first `YYYY-MM-DD HH:MM:SS` (or with a `T`) in a text, with a fraction after a dot or
/// comma. A zone is ignored, because these tools log none.
pub fn find(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    // A timestamp is at the beginning, after a prefix such as a rank; a later one belongs to the message.
    (0..bytes.len().min(64)).find_map(|at| stamp(bytes.get(at..)?))
}

/// Seconds since 1970 of a cell: a date and a time, with dashes or slashes, or a number of seconds, milliseconds,
/// microseconds or nanoseconds, which its size tells.
pub fn cell(text: &str) -> Option<f64> {
    match text.parse::<f64>() {
        Ok(number) => Some(number / unit_of(number)).filter(|number| number.is_finite()),
        Err(_) => find(&text.replace('/', "-")),
    }
}

/// Units in one second of a time since 1970: that of the year 5138 in seconds is one of 1973 in milliseconds.
fn unit_of(number: f64) -> f64 {
    [1e17, 1e14, 1e11]
        .into_iter()
        .zip([1e9, 1e6, 1e3])
        .find(|(from, _)| number >= *from)
        .map_or(1.0, |(_, unit)| unit)
}

fn stamp(bytes: &[u8]) -> Option<f64> {
    // A year may have a sign in ISO 8601; before a log line it is a dash between words.
    bytes.first().filter(|first| first.is_ascii_digit())?;
    let mut parsed = Parsed::new();
    parsed.parse_items(bytes, FORM).ok()?;
    let at = UtcDateTime::new(Date::try_from(parsed).ok()?, Time::try_from(parsed).ok()?);
    #[expect(clippy::cast_precision_loss, reason = "seconds of four-digit years are exact in a double")]
    let seconds = at.unix_timestamp() as f64;
    Some(seconds + f64::from(at.nanosecond()) / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_found_and_counted() {
        assert_eq!(find("1970-01-01 00:00:00"), Some(0.0));
        assert_eq!(find("[rank0]: 2024-02-29 23:30:00 x"), Some(1_709_249_400.0));
        assert_eq!(find("2024-02-29T23:30:00.250"), Some(1_709_249_400.25));
        assert_eq!(
            find("run -2024-02-29 23:30:00.5.1"),
            Some(1_709_249_400.5),
            "a dash is not a sign of the year"
        );
        let comma = find("2024-02-29 23:30:00,455 - INFO").unwrap();
        assert!((comma - 1_709_249_400.455).abs() < 1e-6);
        assert_eq!(find("0000-01-01 00:00:00"), Some(-62_167_219_200.0));
        for none in [
            "",
            "2024-13-01 00:00:00",
            "2024-02-29 24:30:00",
            "2024-02-29 23:30",
            "2023-02-29 10:00:00",
            "no time",
        ] {
            assert_eq!(find(none), None, "{none}");
        }
    }

    #[test]
    fn cells_have_a_date_or_a_number_of_any_unit() {
        for (text, expected) in [
            ("12.5", Some(12.5)),
            ("1790000000", Some(1_790_000_000.0)),
            ("1790000000000", Some(1_790_000_000.0)),
            ("1790000000000000", Some(1_790_000_000.0)),
            ("1790000000000000000", Some(1_790_000_000.0)),
            ("2026/09/01 10:00:05.000", Some(1_788_256_805.0)),
            ("2026-09-01T10:00:05Z", Some(1_788_256_805.0)),
            ("noon", None),
        ] {
            assert_eq!(cell(text), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String) {
            let _ = find(&text);
            let _ = find(&format!("2024-02-29 23:30:00{text}"));
        }
    }
}
