//! Splits the bytes of a log into lines of text with a bounded length, without colors and launcher prefixes.

use std::borrow::Cow;

/// Maximum length of a line in bytes: no framework writes longer ones, but a file may have no line ends.
pub const LONGEST: usize = 64 * 1024;

/// A line without decoration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub text: String,
    /// The rank that a launcher's prefix names.
    pub rank: Option<u32>,
}

/// Splits a stream of log bytes into lines.
///
/// Lines end with a line feed or a carriage return, which progress bars write. The part of a line above [`LONGEST`]
/// is dropped.
#[derive(Debug, Default)]
pub struct Splitter {
    partial: Vec<u8>,
    /// Whether the current line is over the limit.
    over: bool,
    /// Lines that were longer than [`LONGEST`].
    pub cut: u64,
}

impl Splitter {
    /// Adds bytes and passes each complete line to `take`, except empty ones.
    pub fn feed(&mut self, mut bytes: &[u8], mut take: impl FnMut(&[u8])) {
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.partial.is_empty() && line.len() <= LONGEST {
                if !line.is_empty() {
                    take(line);
                }
                continue;
            }
            self.hold(line);
            take(&self.partial);
            self.forget();
        }
        self.hold(bytes);
    }

    /// Drops the incomplete line, because the next bytes belong to another file.
    pub fn forget(&mut self) {
        // The buffer of a long line is not kept for the following ones.
        self.partial = Vec::new();
        self.over = false;
    }

    fn hold(&mut self, bytes: &[u8]) {
        let free = LONGEST - self.partial.len();
        self.partial.extend_from_slice(&bytes[..bytes.len().min(free)]);
        if bytes.len() > free && !std::mem::replace(&mut self.over, true) {
            self.cut += 1;
        }
    }
}

/// Converts a line to text: replaces bytes that are not UTF-8, and removes colors and prefixes.
pub fn clean(bytes: &[u8]) -> Line {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST)]);
    let text = plain(unwrapped(text));
    let mut rest = text.as_str();
    let mut rank = None;
    // The timestamp of a container runtime, then the rank prefix of torchrun or srun: no launcher adds more.
    for _ in 0..4 {
        let Some((stripped, found)) = container(rest).or_else(|| launcher(rest)) else { break };
        rest = stripped;
        rank = found.or(rank);
    }
    Line { text: rest.trim_end().to_owned(), rank: rank.or_else(|| primus(rest)) }
}

/// The line inside Docker's `{"log":"…\n","stream":"stdout","time":"…"}`.
fn unwrapped(text: Cow<'_, str>) -> Cow<'_, str> {
    #[derive(serde::Deserialize)]
    struct Wrapped {
        log: String,
    }
    if text.starts_with("{\"log\":")
        && let Ok(wrapped) = serde_json::from_str::<Wrapped>(&text)
    {
        return Cow::Owned(wrapped.log);
    }
    text
}

/// Removes terminal escape sequences: `ESC [ … letter`, and incomplete ones.
fn plain(text: Cow<'_, str>) -> String {
    if !text.contains('\u{1b}') {
        return text.into_owned();
    }
    let mut parts = text.split('\u{1b}');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some(sequence) = part.strip_prefix('[') else {
            out.push_str(part);
            continue;
        };
        // Parameters and intermediates are 0x20 to 0x3f; the first byte after them ends it (ECMA-48).
        let end = sequence.bytes().position(|byte| !(0x20..0x40).contains(&byte)).unwrap_or(sequence.len());
        let mut rest = sequence[end..].chars();
        if rest.clone().next().is_some_and(|letter| letter.is_ascii()) {
            rest.next();
        }
        out.push_str(rest.as_str());
    }
    out
}

/// Without a container runtime's `2024-08-21T10:19:42.123456789Z stdout F `, or the time alone (`kubectl logs
/// --timestamps`).
fn container(text: &str) -> Option<(&str, Option<u32>)> {
    let (time, rest) = text.split_once(' ')?;
    let bytes = time.as_bytes();
    let time = (20..=35).contains(&bytes.len())
        && bytes[10] == b'T'
        && bytes[4] == b'-'
        && (time.ends_with('Z') || bytes[bytes.len() - 6] == b'+')
        && bytes[0].is_ascii_digit();
    if !time {
        return None;
    }
    let streams = ["stdout F ", "stderr F ", "stdout P ", "stderr P "];
    Some((streams.iter().find_map(|stream| rest.strip_prefix(stream)).unwrap_or(rest), None))
}

/// Without `[default0]:`, `[rank0]:` (torchrun), or `0: ` (srun --label).
fn launcher(text: &str) -> Option<(&str, Option<u32>)> {
    let text = text.trim_start_matches(' ');
    if let Some(inner) = text.strip_prefix('[') {
        let (name, rest) = inner.split_once("]:")?;
        let start = name.find(|letter: char| letter.is_ascii_digit())?;
        let (role, digits) = name.split_at(start);
        let role = role.trim_end_matches([':', ' ']);
        let known =
            !role.is_empty() && role.len() <= 32 && role.bytes().all(|byte| byte.is_ascii_alphabetic());
        return known.then(|| rank(digits))?.map(|rank| (rest.trim_start_matches(' '), Some(rank)));
    }
    let (digits, rest) = text.split_once(':')?;
    let rest = rest.strip_prefix(' ')?;
    Some((rest, Some(rank(digits)?)))
}

/// The rank in Primus' `[20251023 12:39:12][rank-63/64][INFO ]`.
fn primus(text: &str) -> Option<u32> {
    let end = (0..=text.len().min(80)).rev().find(|end| text.is_char_boundary(*end))?;
    let front = &text[..end];
    let digits = front.split_once("[rank-")?.1.split_once('/')?.0;
    rank(digits)
}

fn rank(digits: &str) -> Option<u32> {
    (1..=6).contains(&digits.len()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> (Vec<String>, u64) {
        let mut splitter = Splitter::default();
        let mut found = Vec::new();
        for piece in pieces {
            splitter.feed(piece, |line| found.push(String::from_utf8_lossy(line).into_owned()));
        }
        (found, splitter.cut)
    }

    #[test]
    fn lines_end_with_lf_or_cr_and_arrive_in_pieces() {
        let expected = ["one", "two", "three"].map(str::to_owned);
        assert_eq!(lines(&[b"one\ntwo\r\nthree\rfour"]).0, expected);
        assert_eq!(lines(&[b"on", b"e\r", b"\ntw", b"o\n\n\nthree\n"]).0, expected);
    }

    #[test]
    fn a_line_without_end_is_truncated_and_the_next_is_complete() {
        let long = vec![b'x'; LONGEST + 1];
        let (found, cut) = lines(&[&long, &long, b"y\nnext\n", &long, b"\nlast\n"]);
        assert_eq!(found.iter().map(String::len).collect::<Vec<_>>(), [LONGEST, 4, LONGEST, 4]);
        assert_eq!(cut, 2);
    }

    #[test]
    fn launcher_prefixes_are_removed() {
        for (raw, text, rank) in [
            ("plain", "plain", None),
            ("[default3]:step: 1", "step: 1", Some(3)),
            ("[rank12]: step: 1  ", "step: 1", Some(12)),
            ("[rank:1]:x", "x", Some(1)),
            (" [default7]: iteration 5", "iteration 5", Some(7)),
            ("3:  iteration 1", " iteration 1", Some(3)),
            (" 3: x", "x", Some(3)),
            ("2024-08-21T10:19:42.123456789Z stdout F [rank0]: x", "x", Some(0)),
            ("2024-08-21T10:19:42.123456+08:00 x", "x", None),
            ("{\"log\":\"0: x\\n\",\"stream\":\"stdout\"}", "x", Some(0)),
            ("\u{1b}[31mred\u{1b}[0m and \u{1b}[38;5;2mgreen\u{1b}[K", "red and green", None),
            ("\u{1b}", "", None),
            ("\u{1b}[3é", "é", None),
            (
                "[20251023 12:39:12][rank-63/64][INFO ] : x",
                "[20251023 12:39:12][rank-63/64][INFO ] : x",
                Some(63),
            ),
            // Neither is a rank.
            ("12:30:00 x", "12:30:00 x", None),
            ("[2024-08-21 10:19:42]: x", "[2024-08-21 10:19:42]: x", None),
        ] {
            assert_eq!(clean(raw.as_bytes()), Line { text: text.to_owned(), rank }, "{raw}");
        }
        assert_eq!(clean(b"a\xff\xfeb").text, "a\u{fffd}\u{fffd}b");
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>, text in "[\u{1b}\\[;0-9a-zé:\\] Z+TF-]{0,60}") {
            let _ = clean(&bytes);
            let _ = clean(text.as_bytes());
        }

        #[test]
        fn division_into_pieces_does_not_change_the_lines(bytes in proptest::collection::vec(proptest::sample::select(b"ab\r\n".to_vec()), 0..60), cut in 0_usize..60) {
            let cut = cut.min(bytes.len());
            proptest::prop_assert_eq!(lines(&[&bytes[..cut], &bytes[cut..]]), lines(&[&bytes]));
        }
    }
}
