//! Parsers of text fragments: numbers as frameworks print them, sizes, fields after a name.

const UNITS: [(&str, f64); 12] = [
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    // All frameworks that print these units use powers of 1024.
    ("KB", 1024.0),
    ("MB", 1_048_576.0),
    ("GB", 1_073_741_824.0),
    ("TB", 1_099_511_627_776.0),
    ("bytes", 1.0),
    ("M", 1_048_576.0),
    ("G", 1_073_741_824.0),
    ("B", 1.0),
];

/// Upper limit of numbers: converted to a base unit a larger one would not be finite.
const LARGEST: f64 = 1e290;

/// A printed number; exact up to 2^53.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Finite(f64),
    /// `nan`, `inf` or `-inf`, in any case.
    NotFinite,
}

/// The text after a name that is not the end of a longer one: `loss:` is not in `eval_loss:`.
pub(super) fn after<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let (at, _) = text
        .match_indices(name)
        .find(|(at, _)| !(name.starts_with(is_word) && text[..*at].ends_with(is_word)))?;
    Some(&text[at + name.len()..])
}

/// The number at the beginning of a text, after white space and a quote, and the rest of the text.
pub(super) fn front(text: &str) -> Option<(Number, &str)> {
    let text = text.trim_start().trim_start_matches(['\'', '"']);
    let unsigned = text.trim_start_matches(['-', '+']);
    for special in ["nan", "infinity", "inf"] {
        if unsigned.get(..special.len()).is_some_and(|start| start.eq_ignore_ascii_case(special)) {
            return Some((Number::NotFinite, &unsigned[special.len()..]));
        }
    }
    let end = end(text.as_bytes());
    let digits = &text[..end];
    let number: f64 =
        if digits.contains(',') { digits.replace(',', "").parse().ok()? } else { digits.parse().ok()? };
    let found = if number.abs() < LARGEST { Number::Finite(number) } else { Number::NotFinite };
    Some((found, &text[end..]))
}

/// End of the number at the beginning of a text; a comma belongs to it only before exactly three digits.
fn end(bytes: &[u8]) -> usize {
    let digits =
        |from: usize| bytes[from.min(bytes.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut at = usize::from(matches!(bytes.first(), Some(b'-' | b'+')));
    let first = digits(at);
    at += first;
    if (1..=3).contains(&first) {
        while bytes.get(at) == Some(&b',') && digits(at + 1) == 3 {
            at += 4;
        }
    }
    if bytes.get(at) == Some(&b'.') {
        at += 1 + digits(at + 1);
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(at + 1), Some(b'-' | b'+')));
        let exponent = digits(at + 1 + sign);
        if exponent > 0 {
            at += 1 + sign + exponent;
        }
    }
    at
}

/// The finite number at the beginning of a text.
pub(super) fn number(text: &str) -> Option<f64> {
    match front(text)?.0 {
        Number::Finite(number) => Some(number),
        Number::NotFinite => None,
    }
}

/// The whole number at the beginning of a text, only if printed exactly: `25600.0` is accepted, `2.56e+5` is not.
pub(super) fn whole(text: &str) -> Option<u64> {
    let text = text.trim_start().trim_start_matches(['\'', '"']);
    let printed = &text[..end(text.as_bytes())];
    if printed.contains(['e', 'E']) {
        return None;
    }
    let (whole, fraction) = printed.split_once('.').unwrap_or((printed, ""));
    if fraction.bytes().any(|digit| digit != b'0') {
        return None;
    }
    whole.replace(',', "").parse().ok()
}

/// The number after `name`, if it is finite.
pub(super) fn field(text: &str, name: &str) -> Option<f64> {
    number(after(text, name)?)
}

/// `a/b`, both whole.
pub(super) fn of(text: &str) -> Option<(u64, u64)> {
    let (done, rest) = front(text)?;
    let all = whole(rest.trim_start().strip_prefix('/')?)?;
    matches!(done, Number::Finite(_)).then_some((whole(text)?, all))
}

/// An amount of memory with its unit, in bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (Number::Finite(amount), rest) = front(text)? else { return None };
    let rest = rest.trim_start();
    let (_, factor) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit))?;
    scaled(amount, *factor)
}

/// The memory after `name`, in bytes.
pub(super) fn memory(text: &str, name: &str) -> Option<u64> {
    bytes(after(text, name)?)
}

/// `amount` times `unit` in whole bytes; absent below zero or beyond 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
pub(super) fn scaled(amount: f64, unit: f64) -> Option<u64> {
    let all = amount * unit;
    (0.0..=9_007_199_254_740_992.0).contains(&all).then_some(all.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_printed() {
        for (text, expected) in [
            ("1", Some(1.0)),
            ("  7.500000E-08 |", Some(7.5e-8)),
            ("4,376  tflops", Some(4376.0)),
            ("1,234,567.5", Some(1_234_567.5)),
            ("0.07GB, Max", Some(0.07)),
            ("12, 345", Some(12.0)),
            ("1234,567", Some(1234.0)),
            ("-100.00%", Some(-100.0)),
            ("'0.4231'", Some(0.4231)),
            ("4.9e-05,", Some(4.9e-5)),
            ("3e", Some(3.0)),
            ("5.", Some(5.0)),
            ("nan", None),
            ("-inf", None),
            ("1e999", None),
            ("1e300", None),
            ("", None),
            ("-", None),
            (".", None),
            ("é", None),
        ] {
            assert_eq!(number(text), expected, "{text}");
        }
        assert_eq!(front("NaN,").unwrap(), (Number::NotFinite, ","));
        assert_eq!(
            [whole("25600.0,"), whole("2.56e+5"), whole("1.5"), whole("-1"), whole("4,376")],
            [Some(25600), None, None, None, Some(4376)]
        );
        assert_eq!(of("  4/   25000 |"), Some((4, 25000)));
        assert_eq!(of("4 25000"), None);
        assert_eq!(bytes("48.87GiB(51.44%)"), Some(52_473_762_939));
        assert_eq!([bytes("1.36 GB "), bytes("7 x"), bytes("-1 GB")], [Some(1_460_288_881), None, None]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, digits in "[-+,.e0-9nai/ é]{0,20}") {
            for text in [text.as_str(), digits.as_str()] {
                let _ = (front(text), whole(text), of(text), bytes(text));
            }
        }
    }
}
