//! Parses one scalar to a checked value; errors state what is expected.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Opt, OptKind, Settings, Value};
use crate::units::{Amount, Bytes};

impl Opt {
    /// Parses a written value. `quoted` distinguishes `"true"` from `true`.
    ///
    /// # Errors
    /// What is wrong with the text, and what is expected.
    pub fn parse(&self, text: &str, quoted: bool) -> Result<Value, String> {
        if self.optional && text.is_empty() {
            return Ok(Value::Unset);
        }
        let value = scalar(self.kind, text, quoted)?;
        let Some([from, to]) = self.range else { return Ok(value) };
        let inside = match (scalar(self.kind, from, false)?, &value, scalar(self.kind, to, false)?) {
            (Value::Duration(from), Value::Duration(found), Value::Duration(to)) => {
                (from..=to).contains(found)
            }
            (Value::Size(from), Value::Size(found), Value::Size(to)) => (from..=to).contains(found),
            (Value::Count(from), Value::Count(found), Value::Count(to)) => (from..=to).contains(found),
            _ => true,
        };
        if inside { Ok(value) } else { Err(format!("{text} is out of range: {from} to {to}")) }
    }

    /// Checks a value of its kind for its type, such as text that names a signal.
    pub fn accept(&self, value: &Value) -> Result<(), String> {
        (self.accept)(value)
    }

    /// The declared default.
    pub fn declared(&self) -> Result<Value, String> {
        let unquoted = |text: &str| text.trim_matches('"').to_owned();
        Ok(match self.kind {
            OptKind::Section(opts) => {
                let mut settings = Settings::default();
                for opt in opts {
                    settings.set(opt.key, opt.declared()?);
                }
                Value::Section(settings)
            }
            OptKind::Sections(_) => Value::Sections(Vec::new()),
            OptKind::Map => Value::Map(BTreeMap::new()),
            OptKind::Texts => {
                let words =
                    self.default.trim_matches(['[', ']']).split(',').map(|word| unquoted(word.trim()));
                Value::Texts(words.filter(|word| !word.is_empty()).collect())
            }
            _ => self.parse(&unquoted(self.default), false)?,
        })
    }

    /// What it accepts, for error messages.
    pub fn wanted(&self) -> &'static str {
        wanted(self.kind)
    }
}

fn scalar(kind: OptKind, text: &str, quoted: bool) -> Result<Value, String> {
    match kind {
        OptKind::Bool => match (text, quoted) {
            ("true", false) => Ok(Value::Bool(true)),
            ("false", false) => Ok(Value::Bool(false)),
            _ => Err(format!("expected true or false, found {}", shown(text, quoted))),
        },
        OptKind::Duration => duration(text).map(Value::Duration),
        OptKind::Size => size(text).map(Value::Size),
        OptKind::Amount => amount(text).map(Value::Amount),
        OptKind::Count => match text.parse::<u64>() {
            Ok(found) if !quoted => Ok(Value::Count(found)),
            _ => Err(format!("expected a whole number, found {}", shown(text, quoted))),
        },
        OptKind::Choice(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
        OptKind::Choice(words) => {
            Err(format!("expected one of {}, found {}", words.join(", "), shown(text, quoted)))
        }
        OptKind::Text => Ok(Value::Text(text.to_owned())),
        OptKind::Path if text.is_empty() => Err("is empty".to_owned()),
        OptKind::Path => Ok(Value::Path(text.into())),
        OptKind::Texts | OptKind::Map | OptKind::Section(_) | OptKind::Sections(_) => {
            Err(format!("expected {}, found {}", wanted(kind), shown(text, quoted)))
        }
    }
}

/// A size or a percentage.
pub fn amount(text: &str) -> Result<Amount, String> {
    if text.ends_with('%') {
        return ratio(text).map(Amount::Share);
    }
    size(text).map(Amount::Bytes).map_err(|what| format!("{what}; or it is a percentage: 10%"))
}

/// The expected kind of value, for error messages.
const fn wanted(kind: OptKind) -> &'static str {
    match kind {
        OptKind::Bool => "true or false",
        OptKind::Duration => "a duration such as 10s",
        OptKind::Size => "a size such as 2GiB",
        OptKind::Amount => "a size such as 2GiB, or a percentage such as 10%",
        OptKind::Count => "a whole number",
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

/// The sum of numbers with units, such as `1m30s`; `scale` is the length of a unit in seconds.
pub fn time_span(text: &str, scale: impl Fn(&str) -> Option<f64>) -> Option<Duration> {
    let (mut sum, mut rest) = (0.0, text.trim());
    while !rest.is_empty() {
        let (number, after) = split(rest).ok()?;
        let end = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
        sum += number * scale(&after[..end])?;
        rest = after[end..].trim_start();
    }
    Duration::try_from_secs_f64(sum).ok()
}

/// Parses a duration with its unit; an error states what is expected.
pub fn duration(text: &str) -> Result<Duration, String> {
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
pub fn size(text: &str) -> Result<Bytes, String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Setting;

    fn parse<T: Setting>(text: &str) -> Result<T, String> {
        let opt = Opt::new::<T>("x", "", "", None);
        opt.parse(text, false).and_then(|value| T::of(&value))
    }

    #[test]
    fn units_are_read() {
        let second = Duration::from_secs(1);
        assert_eq!(parse("500ms"), Ok(second / 2));
        assert_eq!(parse("1.5m"), Ok(second * 90));
        assert_eq!(parse("2GiB"), Ok(Bytes::new(2 << 30)));
        assert_eq!(parse("1 MB"), Ok(Bytes::new(1_000_000)));
        assert_eq!(parse("12.5%"), Ok(Some(Amount::Share(0.125))));
        assert_eq!(parse::<Option<Amount>>(""), Ok(None));
    }

    #[test]
    fn a_bare_number_is_refused() {
        let wrong = [parse::<Duration>("5").err(), parse::<Bytes>("5").err(), parse::<Amount>("0.9").err()];
        for error in wrong {
            assert!(error.as_ref().is_some_and(|what| what.contains("no unit")), "{error:?}");
        }
    }

    crate::options! {
        /// One option of each kind that has a range.
        struct Ranges {
            /// A duration.
            wait: Duration = 5s in 1s..=1m;
            /// A size.
            room: Bytes = "1KiB" in 1KiB..=2KiB;
            /// A number.
            most: u64 = 3 in 3..=3;
        }
    }

    #[test]
    fn ranges_are_inclusive_and_defaults_apply() {
        let expected = Ranges { wait: Duration::from_secs(5), room: Bytes::new(1024), most: 3 };
        assert_eq!(Ranges::default(), expected);
        let mut settings = Settings::default();
        // A value of another kind.
        settings.set("most", Value::Bool(true));
        assert_eq!(Ranges::read(&settings), expected);
        let [wait, room, most] = Ranges::OPTIONS else { unreachable!("three are declared") };
        assert!(wait.parse("1s", false).is_ok() && wait.parse("60s", false).is_ok());
        assert_eq!(wait.parse("61s", false), Err("61s is out of range: 1s to 1m".to_owned()));
        assert!(room.parse("2KiB", false).is_ok() && room.parse("3KiB", false).is_err());
        assert!(most.parse("2", false).is_err() && most.parse("4", false).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = (parse::<bool>(&text), parse::<Duration>(&text), parse::<Bytes>(&text));
            let _ = (parse::<Option<Amount>>(&text), parse::<u64>(&text));
        }
    }
}
