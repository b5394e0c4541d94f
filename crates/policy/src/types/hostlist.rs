//! Node lists of Slurm (`scontrol show hostnames`): `node[1-3,07],gpu-a`.

/// The hosts of a node list, at most `most`; absent for a list that is not valid, or longer.
pub fn expand(list: &str, most: usize) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    let (mut depth, mut from) = (0_usize, 0);
    for (place, letter) in list.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                hosts.extend(one(&list[from..place], most)?);
                from = place + 1;
            }
            _ => {}
        }
        if depth > 1 || hosts.len() > most {
            return None;
        }
    }
    hosts.extend(one(&list[from..], most)?);
    (depth == 0 && hosts.len() <= most).then_some(hosts)
}

/// The hosts of one part without commas outside brackets.
fn one(part: &str, most: usize) -> Option<Vec<String>> {
    let mut hosts = vec![String::new()];
    let mut rest = part.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (plain, bracket) = match rest.split_once('[') {
            Some((plain, after)) => (plain, Some(after.split_once(']')?)),
            None => (rest, None),
        };
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if !plain.chars().all(letter) {
            return None;
        }
        hosts.iter_mut().for_each(|host| host.push_str(plain));
        let Some((ranges, after)) = bracket else { break };
        let numbers = numbers(ranges, most)?;
        if hosts.len().checked_mul(numbers.len())? > most {
            return None;
        }
        let with = |host: &String| numbers.iter().map(|number| format!("{host}{number}")).collect::<Vec<_>>();
        hosts = hosts.iter().flat_map(with).collect();
        rest = after;
    }
    Some(hosts)
}

/// The numbers of `1-3,07`, with the digits that they are written with.
fn numbers(ranges: &str, most: usize) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let digits =
            |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(first) || !digits(last) {
            return None;
        }
        let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if to < from || to - from >= most || found.len() > most {
            return None;
        }
        let width = first.len();
        found.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_expanded() {
        let expanded = |list| expand(list, 10).map(|hosts| hosts.join(" "));
        assert_eq!(expanded("a"), Some("a".to_owned()));
        assert_eq!(expanded("n[1-3,07],gpu-a"), Some("n1 n2 n3 n07 gpu-a".to_owned()));
        assert_eq!(expanded("n[08-10]"), Some("n08 n09 n10".to_owned()));
        assert_eq!(expanded("r[1-2]n[1-2].x"), Some("r1n1.x r1n2.x r2n1.x r2n2.x".to_owned()));
        for wrong in
            ["", "a,", "n[", "n]", "n[]", "n[2-1]", "n[1-99]", "n[a]", "n[[1]]", "a/b", "a b", "n[1-2]x[1-9]"]
        {
            assert_eq!(expanded(wrong), None, "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text: String, list in "[a-c0-9,\\[\\]-]{0,30}") {
            for text in [text, list] {
                assert!(expand(&text, 50).is_none_or(|hosts| hosts.len() <= 50));
            }
        }
    }
}
