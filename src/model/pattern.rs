//! Patterns with `*` (any text) and `?` (one character); everything else stands for itself.

/// Whether all of `text` fits `pattern`.
pub fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last star is, and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some('?') => (p, t) = (p + 1, t + 1),
            Some(wanted) if *wanted == text[t] => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                (p, t) = (place + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|wanted| *wanted == '*')
}

/// Whether `text` contains `pattern`, or fits it where the pattern has `*` or `?`.
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
        }
        assert!(contains("train.py", "python train.py --x") && !contains("train.py*", "python train.py"));
    }

    proptest::proptest! {
        #[test]
        fn a_text_fits_itself_and_its_parts_with_a_star(text in "[a-z]{0,20}", cut in 0_usize..20) {
            let cut = cut.min(text.len());
            proptest::prop_assert!(fits(&text, &text));
            let starred = format!("{}*", &text[..cut]);
            let inner = format!("*{}*", &text[cut..]);
            proptest::prop_assert!(fits(&starred, &text));
            proptest::prop_assert!(fits(&inner, &text));
        }
    }
}
