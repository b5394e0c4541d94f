//! Selects the format and the encoding by `Accept` and `Accept-Encoding`.
//!
//! RFC 9110 section 12.5: the most specific range that matches an offer gives its quality, 0 excludes. Invalid
//! elements are ignored, and a client that accepts no available format gets text 0.0.4: a readable scrape is
//! preferred to status 406.

use super::encode::Format;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Not compressed.
    Identity,
    Gzip,
}

/// The format for a client that sent these `Accept` values; OpenMetrics only where it is `offered`.
pub fn format<'h>(accept: impl Iterator<Item = &'h str>, offered: bool) -> Format {
    if !offered {
        return Format::Text;
    }
    let mut text = Preference::default();
    let mut open = Preference::default();
    for (place, range) in accept.flat_map(|value| split(value, ',')).enumerate() {
        let Some(range) = Range::parse(range) else { continue };
        text.consider(range.matches(Format::Text), range.quality, place);
        open.consider(range.matches(Format::OpenMetrics), range.quality, place);
    }
    if open.quality == 0 {
        return Format::Text;
    }
    // At equal quality the client's order decides; a wildcard alone never selects OpenMetrics.
    let named = open.specific >= NAMED;
    let preferred = open.quality > text.quality
        || (open.quality == text.quality && named && (text.specific < NAMED || open.place < text.place));
    if preferred { Format::OpenMetrics } else { Format::Text }
}

/// The encoding for a client that sent these `Accept-Encoding` values.
pub fn encoding<'h>(accept: impl Iterator<Item = &'h str>) -> Encoding {
    let mut gzip = Preference::default();
    let mut identity = Preference::default();
    for (place, coding) in accept.flat_map(|value| split(value, ',')).enumerate() {
        let Some((name, quality)) = parameters(coding) else { continue };
        let specific = |names: &[&str]| match name {
            "*" => Some(1),
            _ => names.iter().any(|known| name.eq_ignore_ascii_case(known)).then_some(2),
        };
        gzip.consider(specific(&["gzip", "x-gzip"]), quality, place);
        identity.consider(specific(&["identity"]), quality, place);
    }
    let explicit = identity.specific == 2;
    if gzip.quality > 0 && (!explicit || gzip.quality >= identity.quality) {
        Encoding::Gzip
    } else {
        Encoding::Identity
    }
}

/// Minimum specificity of a range that names the media type itself.
const NAMED: u8 = 3;

/// The client's preference for one offer.
#[derive(Default)]
struct Preference {
    /// In thousandths; 0 excludes the offer.
    quality: u16,
    /// Specificity of the matching range; 0 where none matched yet.
    specific: u8,
    place: usize,
}

impl Preference {
    fn consider(&mut self, specific: Option<u8>, quality: u16, place: usize) {
        if let Some(specific) = specific
            && specific > self.specific
        {
            *self = Self { quality, specific, place };
        }
    }
}

/// One element of an `Accept` header.
struct Range<'h> {
    kind: &'h str,
    subtype: &'h str,
    version: Option<&'h str>,
    quality: u16,
}

impl<'h> Range<'h> {
    fn parse(text: &'h str) -> Option<Self> {
        let (name, quality) = parameters(text)?;
        let (kind, subtype) = name.split_once('/')?;
        if kind.is_empty() || subtype.is_empty() || (kind == "*" && subtype != "*") {
            return None;
        }
        let version = split(text, ';').skip(1).find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("version").then(|| value.trim().trim_matches('"'))
        });
        Some(Self { kind, subtype, version, quality })
    }

    /// The specificity with which this range matches `format`; absent where it does not match.
    fn matches(&self, format: Format) -> Option<u8> {
        let (kind, subtype, version) = match format {
            Format::Text => ("text", "plain", "0.0.4"),
            Format::OpenMetrics => ("application", "openmetrics-text", "1.0.0"),
        };
        if self.kind == "*" {
            return Some(1);
        }
        if !self.kind.eq_ignore_ascii_case(kind) {
            return None;
        }
        match self.version {
            _ if self.subtype == "*" => Some(2),
            _ if !self.subtype.eq_ignore_ascii_case(subtype) => None,
            None => Some(NAMED),
            Some(asked) => (asked == version).then_some(NAMED + 1),
        }
    }
}

/// The name before the first `;`, and the quality in thousandths; absent where either is invalid.
fn parameters(element: &str) -> Option<(&str, u16)> {
    let mut parts = split(element, ';');
    let name = parts.next()?.trim();
    if name.is_empty() {
        return None;
    }
    for part in parts {
        if let Some((key, value)) = part.split_once('=')
            && key.trim().eq_ignore_ascii_case("q")
        {
            return quality(value.trim()).map(|quality| (name, quality));
        }
    }
    Some((name, 1000))
}

/// `0`, `1`, `0.5`, `0.123`, `1.000`: at most three digits after the point, at most 1.
fn quality(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let thousandths = match fraction.len() {
        0 => 0,
        digits => fraction.parse::<u16>().ok()? * [100, 10, 1][digits - 1],
    };
    match whole {
        "0" => Some(thousandths),
        "1" if thousandths == 0 => Some(1000),
        _ => None,
    }
}

/// Splits at `separator`, but not within a quoted string.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let mut escaped = false;
    text.split(move |character| {
        if escaped {
            escaped = false;
            return false;
        }
        match character {
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        !quoted && character == separator
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(accept: &str) -> Format {
        format(std::iter::once(accept), true)
    }

    #[test]
    fn scrapers_get_what_they_prefer() {
        let openmetrics = [
            // Prometheus 2.42, 2.53 and 3.5, as captured.
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=\"1.0.0\"; charset=utf-8; Q=0.9, text/plain;q=0.1",
            "application/openmetrics-text, text/plain",
            "*/*, text/plain;q=0",
        ];
        for accept in openmetrics {
            assert_eq!(asked(accept), Format::OpenMetrics, "{accept}");
            assert_eq!(format(std::iter::once(accept), false), Format::Text, "{accept}");
        }
        let text = [
            // vmagent 1.112, as captured; curl; a browser.
            "text/plain;version=0.0.4;q=1,*/*;q=0.1",
            "*/*",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "",
            "text/plain, application/openmetrics-text",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0, */*",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=1.5",
            "application/openmetrics-text;q=high",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
            "text/*",
            ";;;,,,=/;q",
        ];
        for accept in text {
            assert_eq!(asked(accept), Format::Text, "{accept}");
        }
        assert_eq!(format(std::iter::empty(), true), Format::Text);
        let two_headers = ["text/plain;q=0.5", "application/openmetrics-text;version=1.0.0"];
        assert_eq!(format(two_headers.into_iter(), true), Format::OpenMetrics);
    }

    #[test]
    fn gzip_is_used_where_it_is_accepted() {
        let check = |accept: &str| encoding(std::iter::once(accept));
        for accept in
            ["gzip", "GZIP", "x-gzip", "deflate, gzip;q=0.5, br", "*", "gzip, identity;q=0.5", "*;q=0.1"]
        {
            assert_eq!(check(accept), Encoding::Gzip, "{accept}");
        }
        for accept in [
            "",
            "identity",
            "gzip;q=0",
            "gzip;q=0.0, *",
            "br, zstd",
            "identity, gzip;q=0.5",
            "gzip;q=x",
            "*;q=0",
        ] {
            assert_eq!(check(accept), Encoding::Identity, "{accept}");
        }
        assert_eq!(encoding(std::iter::empty()), Encoding::Identity);
    }

    proptest::proptest! {
        #[test]
        fn no_header_panics(accept in "[ -~]{0,80}", likely in "([a-z*]{0,3}[/;,=\"\\\\]|q=[01.]{1,5}|gzip|text/plain|version=){0,12}") {
            for header in [accept.as_str(), likely.as_str()] {
                let _ = format(std::iter::once(header), true);
                let _ = encoding(std::iter::once(header));
            }
        }

        #[test]
        fn a_quality_decides_between_the_two(open in 0_u16..=1000, text in 0_u16..=1000) {
            let show = |quality: u16| format!("{}.{:03}", quality / 1000, quality % 1000);
            let accept = format!("text/plain;q={}, application/openmetrics-text;q={}", show(text), show(open));
            let expected = if open > text { Format::OpenMetrics } else { Format::Text };
            proptest::prop_assert_eq!(asked(&accept), expected);
        }
    }
}
