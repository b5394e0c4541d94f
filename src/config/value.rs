//! Parses one scalar to a checked value; errors state what is expected.

use std::time::Duration;

use crate::model::setting::{OptKind, Value};
use crate::model::units::{Amount, Bytes};

/// Parses `text`; an error states what is wrong. `quoted` distinguishes `"true"` from `true`.
pub(super) fn parse(kind: OptKind, text: &str, quoted: bool) -> Result<Value, String> {
    match kind {
        OptKind::Bool => match (text, quoted) {
            ("true", false) => Ok(Value::Bool(true)),
            ("false", false) => Ok(Value::Bool(false)),
            _ => Err(format!("expected true or false, found {}", shown(text, quoted))),
        },
        OptKind::Duration(from, to) => duration(text).and_then(|found| {
            if found < from || found > to {
                Err(format!("{text} is out of range: {} to {}", show_duration(from), show_duration(to)))
            } else {
                Ok(Value::Duration(found))
            }
        }),
        OptKind::Size => size(text).map(Value::Size),
        OptKind::Ratio => ratio(text).map(Value::Ratio),
        OptKind::Amount if text.is_empty() => Ok(Value::Amount(None)),
        OptKind::Amount if text.ends_with('%') => ratio(text).map(Amount::Share).map(some),
        OptKind::Amount => size(text)
            .map(Amount::Bytes)
            .map(some)
            .map_err(|what| format!("{what}; or it is a percentage: 10%")),
        OptKind::Count(from, to) => match text.parse::<u64>() {
            Ok(found) if !quoted && (from..=to).contains(&found) => Ok(Value::Count(found)),
            Ok(found) if !quoted => Err(format!("{found} is out of range: {from} to {to}")),
            _ => Err(format!("expected a whole number, found {}", shown(text, quoted))),
        },
        OptKind::Choice(words) => {
            if words.contains(&text) {
                Ok(Value::Text(text.to_owned()))
            } else {
                Err(format!("expected one of {}, found {}", words.join(", "), shown(text, quoted)))
            }
        }
        OptKind::Text => Ok(Value::Text(text.to_owned())),
        OptKind::Path => Ok(Value::Path(text.into())),
        OptKind::Texts | OptKind::Map | OptKind::Section(_) | OptKind::Sections(_) => {
            Err(format!("expected {}, found {}", wanted(kind), shown(text, quoted)))
        }
    }
}

const fn some(amount: Amount) -> Value {
    Value::Amount(Some(amount))
}

/// The expected kind of value, for error messages.
pub(super) fn wanted(kind: OptKind) -> &'static str {
    match kind {
        OptKind::Bool => "true or false",
        OptKind::Duration(..) => "a duration such as 10s",
        OptKind::Size => "a size such as 2GiB",
        OptKind::Ratio => "a percentage such as 90%",
        OptKind::Amount => "a size such as 2GiB, or a percentage such as 10%",
        OptKind::Count(..) => "a whole number",
        OptKind::Text => "text",
        OptKind::Path => "a path",
        OptKind::Choice(_) => "a word",
        OptKind::Texts => "a list of texts",
        OptKind::Map => "a section of names and texts",
        OptKind::Section(_) => "a section",
        OptKind::Sections(_) => "a list of sections",
    }
}

fn shown(text: &str, quoted: bool) -> String {
    match (text, quoted) {
        ("", false) => "nothing".to_owned(),
        (_, true) => format!("the text {text:?}"),
        (_, false) => format!("`{text}`"),
    }
}

/// Splits `2.5GiB` into number and unit.
fn split(text: &str) -> Result<(f64, &str), ()> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number = text[..end].parse::<f64>().map_err(|_| ())?;
    Ok((number, text[end..].trim_start()))
}

/// Parses a duration with its unit; an error states what is expected.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const EXAMPLE: &str = "a duration needs a unit: 500ms, 10s, 5m, 1h or 1d";
    let (number, unit) = split(text).map_err(|()| format!("`{text}` is not a duration; {EXAMPLE}"))?;
    let scale = match unit {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        "" => return Err(format!("`{text}` has no unit; {EXAMPLE}")),
        _ => return Err(format!("`{unit}` is not a unit of time; {EXAMPLE}")),
    };
    Duration::try_from_secs_f64(number * scale).map_err(|_| format!("`{text}` is too long"))
}

/// Parses a size with its unit; an error states what is expected.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be within 0 and 2^53"
)]
pub(super) fn size(text: &str) -> Result<Bytes, String> {
    const EXAMPLE: &str =
        "a size needs a unit: 512KiB, 100MiB, 2GiB, 1TiB (or kB, MB, GB, TB for powers of 1000)";
    let (number, unit) = split(text).map_err(|()| format!("`{text}` is not a size; {EXAMPLE}"))?;
    let scale = match unit {
        "B" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1_048_576.0,
        "GiB" => 1_073_741_824.0,
        "TiB" => 1_099_511_627_776.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "" => return Err(format!("`{text}` has no unit; {EXAMPLE}")),
        _ => return Err(format!("`{unit}` is not a unit of size; {EXAMPLE}")),
    };
    let bytes = number * scale;
    if bytes > 9_007_199_254_740_992.0 {
        return Err(format!("`{text}` is too large"));
    }
    Ok(Bytes::new(bytes as u64))
}

fn ratio(text: &str) -> Result<f64, String> {
    let number = text
        .strip_suffix('%')
        .ok_or_else(|| format!("`{text}` has no unit; a share is written as a percentage: 90%"))?
        .trim_end()
        .parse::<f64>()
        .map_err(|_| format!("`{text}` is not a percentage"))?;
    if (0.0..=100.0).contains(&number) {
        Ok(number / 100.0)
    } else {
        Err(format!("`{text}` is out of range: 0% to 100%"))
    }
}

fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    match ms {
        _ if ms.is_multiple_of(86_400_000) && ms > 0 => format!("{}d", ms / 86_400_000),
        _ if ms.is_multiple_of(3_600_000) && ms > 0 => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) && ms > 0 => format!("{}m", ms / 60_000),
        _ if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        _ => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::setting::seconds;

    #[test]
    fn units_are_read() {
        let second = Duration::from_secs(1);
        assert_eq!(parse(seconds(0, 86_400), "500ms", false), Ok(Value::Duration(second / 2)));
        assert_eq!(parse(seconds(0, 86_400), "1.5m", false), Ok(Value::Duration(second * 90)));
        assert_eq!(parse(OptKind::Size, "2GiB", false), Ok(Value::Size(Bytes::new(2 << 30))));
        assert_eq!(parse(OptKind::Size, "1 MB", false), Ok(Value::Size(Bytes::new(1_000_000))));
        assert_eq!(parse(OptKind::Ratio, "12.5%", false), Ok(Value::Ratio(0.125)));
    }

    #[test]
    fn a_bare_number_is_refused() {
        for (kind, text) in [(seconds(0, 9), "5"), (OptKind::Size, "5"), (OptKind::Ratio, "0.9")] {
            let error = parse(kind, text, false).unwrap_err();
            assert!(error.contains("no unit"), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            for kind in [OptKind::Bool, seconds(0, 9), OptKind::Size, OptKind::Ratio, OptKind::Amount, OptKind::Count(0, 9)] {
                let _ = parse(kind, &text, false);
            }
        }
    }
}
