//! Patterns with `*` (any text) and `?` (one character); all other characters match themselves.

/// Whether the whole of `text` matches `pattern`.
pub fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    fits_parts(&pattern, &text, |part| *part == '*', |part, one| *part == '?' || part == one)
}

/// Whether the whole of a text, which need not be UTF-8, matches `pattern`; `?` is one byte.
pub fn fits_bytes(pattern: &[u8], text: &[u8]) -> bool {
    fits_parts(pattern, text, |part| *part == b'*', |part, one| *part == b'?' || part == one)
}

/// Whether all parts of `text` match `pattern`. `is_any` returns whether a pattern part matches any number of parts,
/// `is_one` whether it matches a given part.
///
/// Backtracks only to the last wildcard. That is sufficient, and it bounds the time by the product of both lengths,
/// whatever the pattern.
pub fn fits_parts<P, T>(
    pattern: &[P],
    text: &[T],
    is_any: impl Fn(&P) -> bool,
    is_one: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while read < text.len() {
        if at < pattern.len() && is_any(&pattern[at]) {
            at += 1;
            retry = Some((at, read));
        } else if at < pattern.len() && is_one(&pattern[at], &text[read]) {
            at += 1;
            read += 1;
        } else if let Some((after, from)) = retry {
            at = after;
            read = from + 1;
            retry = Some((after, from + 1));
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(is_any)
}

/// Whether `text` contains `pattern`, or matches it if the pattern has `*` or `?`.
pub fn contains(pattern: &str, text: &str) -> bool {
    if pattern.contains(['*', '?']) { fits(pattern, text) } else { text.contains(pattern) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbb", false),
            ("*ab*ab", "xabyabzab", true),
            ("?é", "xé", true),
            ("?", "", false),
            ("python3*", "python3.11", true),
            ("[a]", "a", false),
            ("a**", "a", true),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
            let bytes = fits_bytes(pattern.as_bytes(), text.as_bytes());
            assert_eq!(bytes, expected, "{pattern} {text}");
        }
        assert!(!fits_bytes(b"?", "é".as_bytes()) && fits_bytes(b"a?c*", b"a\xffc"), "`?` is one byte");
        assert!(contains("train.py", "python train.py --x") && !contains("train.py*", "python train.py"));
    }

    proptest::proptest! {
        #[test]
        fn a_text_matches_itself_and_its_parts_with_a_star(text in "[a-z]{0,20}", cut in 0_usize..20) {
            let cut = cut.min(text.len());
            proptest::prop_assert!(fits(&text, &text));
            let starred = format!("{}*", &text[..cut]);
            let inner = format!("*{}*", &text[cut..]);
            proptest::prop_assert!(fits(&starred, &text));
            proptest::prop_assert!(fits(&inner, &text));
        }
    }
}
