//! The `OTEL_*` variables, parsed according to the specification.
//!
//! An empty variable counts as unset. An invalid one is named in a warning and counts as unset, so that the next
//! source of the setting applies.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// The variables, and warnings about invalid ones.
pub(super) struct Env<'a> {
    read: &'a dyn Fn(&str) -> Option<String>,
    /// One sentence for each ignored value; never with the value of a header.
    pub(super) warnings: Vec<String>,
}

impl<'a> Env<'a> {
    pub(super) fn new(read: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { read, warnings: Vec::new() }
    }

    /// The value of one variable.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let value = (self.read)(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// The first of these variables that is set and valid.
    pub(super) fn first<T>(
        &mut self,
        names: &[&str],
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        names.iter().find_map(|name| {
            let value = self.get(name)?;
            parse(&value).map_err(|why| self.warn(format!("{name} is ignored: `{value}` {why}"))).ok()
        })
    }

    /// An exporter option: from the variable for metrics, else from the one for all signals.
    pub(super) fn option<T>(&mut self, option: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let [own, all] = names("METRICS", option);
        self.first(&[&own, &all], parse)
    }

    /// The headers from the variable for this signal, else from the one for all signals.
    pub(super) fn headers(&mut self, signal: &str) -> Vec<(HeaderName, HeaderValue)> {
        let set = |name: String| self.get(&name).map(|text| (name, text));
        let Some((name, text)) = names(signal, "HEADERS").into_iter().find_map(set) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for (place, member) in text.split(',').enumerate().filter(|(_, member)| !member.trim().is_empty()) {
            let header = member
                .split_once('=')
                .ok_or("has no `=`")
                .and_then(|(key, value)| {
                    Ok((key, percent_decoded(value.trim()).ok_or("is not percent-encoded")?))
                })
                .and_then(|(key, value)| header(key.trim(), &value));
            match header {
                Ok(header) => found.push(header),
                // The member may be the secret itself, so only its position is reported.
                Err(why) => self.warn(format!("{name}: member {} is ignored: it {why}", place + 1)),
            }
        }
        found
    }

    /// Parses `key=value` pairs with percent-encoded values; one mistake discards all of them.
    pub(super) fn pairs(&mut self, name: &str) -> Vec<(String, String)> {
        let Some(text) = self.get(name) else { return Vec::new() };
        let members = text.split(',').filter(|member| !member.trim().is_empty());
        let pairs: Option<Vec<_>> = members
            .map(|member| {
                let (key, value) = member.split_once('=')?;
                let key = percent_decoded(key.trim()).filter(|key| !key.is_empty())?;
                Some((key, percent_decoded(value.trim())?))
            })
            .collect();
        pairs.unwrap_or_else(|| {
            self.warn(format!(
                "{name} is ignored: it is not a list of key=value pairs with percent-encoded values"
            ));
            Vec::new()
        })
    }

    /// Adds a warning, once: a variable can apply to several signals.
    pub(super) fn warn(&mut self, what: String) {
        if !self.warnings.contains(&what) {
            self.warnings.push(what);
        }
    }
}

fn names(signal: &str, option: &str) -> [String; 2] {
    [format!("OTEL_EXPORTER_OTLP_{signal}_{option}"), format!("OTEL_EXPORTER_OTLP_{option}")]
}

/// The value of a word, in any case; `why` is the error for any other.
pub(super) fn word<T: Copy>(text: &str, known: &[(&str, T)], why: &str) -> Result<T, String> {
    let found = known.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    found.map(|(_, value)| *value).ok_or_else(|| why.to_owned())
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    word(text, &[("true", true), ("false", false)], "is neither true nor false")
}

/// Parses milliseconds, from 10 ms to a day as in the configuration file.
pub(super) fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(milliseconds @ 10..=86_400_000) => Ok(Duration::from_millis(milliseconds)),
        _ => Err("is not a number of milliseconds from 10 to 86400000".to_owned()),
    }
}

/// Parses one header; its value is marked as sensitive and never logged.
pub(super) fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), &'static str> {
    /// Headers that define the framing of the message and cannot be set by the operator.
    const FRAMING: [&str; 7] = [
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "te",
        "transfer-encoding",
    ];
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "has no valid header name")?;
    if FRAMING.contains(&name.as_str()) || name.as_str().starts_with("grpc-") {
        return Err("sets a header that the transport controls");
    }
    let mut value = HeaderValue::from_str(value).map_err(|_| "has an invalid header value")?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// Decodes percent-encoded text; absent where it is malformed or not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    // The crate keeps a `%` that two hex digits do not follow.
    let escapes = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    let well_formed = text.split('%').skip(1).all(escapes);
    well_formed.then(|| percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_is_decoded_or_refused() {
        let decoded = |text| percent_decoded(text);
        assert_eq!(decoded("a%20b%2C%3D+c").as_deref(), Some("a b,=+c"));
        assert_eq!(decoded("%C3%A9").as_deref(), Some("é"));
        for wrong in ["%", "%2", "%zz", "%+1", "%FF"] {
            assert_eq!(decoded(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_header_that_frames_the_message_is_refused() {
        for name in ["Host", "content-type", "grpc-timeout", "", "a b"] {
            assert!(header(name, "x").is_err(), "{name}");
        }
        assert!(header("authorization", "a\nb").is_err());
        let (name, value) = header("Authorization", "Bearer s3cret").unwrap();
        assert_eq!(name, "authorization");
        assert!(!format!("{value:?}").contains("s3cret"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".*") {
            let read = |_: &str| Some(text.clone());
            let mut env = Env::new(&read);
            env.headers("LOGS");
            env.pairs("OTEL_RESOURCE_ATTRIBUTES");
            env.option("TIMEOUT", milliseconds);
        }
    }
}
