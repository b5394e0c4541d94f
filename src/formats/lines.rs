//! Splits a stream into lines; only the incomplete line is kept.

use std::time::Duration;

use crate::model::time::Timestamp;

/// How long a line may stay incomplete.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a line is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineError {
    /// It is too long.
    Length,
    /// Its incomplete part would take too much memory.
    Memory,
}

/// The incomplete line of one stream.
#[derive(Debug, Default)]
pub struct Lines {
    tail: Vec<u8>,
    /// Whether the rest of the line is discarded.
    skipping: bool,
    /// When the incomplete line began.
    since: Option<Timestamp>,
}

/// How many bytes may be kept.
#[derive(Clone, Copy, Debug)]
pub struct LineLimits {
    /// Bytes of a line, its newline included.
    pub line: usize,
    /// Bytes of the incomplete line that the limit of its user still allows.
    pub tail: usize,
}

impl Lines {
    /// Bytes of the incomplete line.
    pub fn kept(&self) -> usize {
        self.tail.len()
    }

    /// Adds the next piece and calls `each` with every line that it completes, without newline, or with the
    /// error in it.
    pub fn feed(
        &mut self,
        piece: &[u8],
        limits: LineLimits,
        now: Timestamp,
        mut each: impl FnMut(Result<&[u8], LineError>),
    ) {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            self.since = None;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if self.tail.len() + line.len() >= limits.line {
                each(Err(LineError::Length));
            } else if self.tail.is_empty() {
                each(Ok(line));
            } else {
                self.tail.extend_from_slice(line);
                each(Ok(&self.tail));
            }
            self.release();
        }
        if rest.is_empty() || self.skipping {
            return;
        }
        let long = self.tail.len() + rest.len();
        let wrong = if long >= limits.line {
            LineError::Length
        } else if long > limits.tail {
            LineError::Memory
        } else {
            self.tail.extend_from_slice(rest);
            self.since.get_or_insert(now);
            return;
        };
        each(Err(wrong));
        self.skip();
    }

    /// Whether the incomplete line has taken too long; it is discarded in that case.
    pub fn stalled(&mut self, now: Timestamp) -> bool {
        let stalled = self.since.is_some_and(|since| now.since(since) >= LINE_TIMEOUT);
        if stalled {
            self.skip();
        }
        stalled
    }

    /// Whether the stream ended within a line.
    pub fn torn(&self) -> bool {
        !self.tail.is_empty()
    }

    fn skip(&mut self) {
        self.skipping = true;
        self.since = None;
        self.release();
    }

    /// Frees the buffer: most pieces end with a line, so that an idle client uses no memory.
    fn release(&mut self) {
        self.tail = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    const LIMITS: LineLimits = LineLimits { line: 8, tail: 100 };

    fn check(pieces: &[&str], limits: LineLimits, expected: Expect) {
        let mut lines = Lines::default();
        let mut found_lines = String::new();
        for piece in pieces {
            lines.feed(piece.as_bytes(), limits, Timestamp::from_secs(1), |line| match line {
                Ok(line) => found_lines.push_str(&format!("{} ", String::from_utf8_lossy(line))),
                Err(wrong) => found_lines.push_str(&format!("<{wrong:?}> ")),
            });
            found_lines.push_str(&format!("[{}]\n", lines.kept()));
        }
        expected.assert_eq(&found_lines);
    }

    #[test]
    fn lines_come_in_any_pieces() {
        check(
            &["one\ntwo\nth", "re", "e\n\nfour\n", ""],
            LIMITS,
            expect![[r#"
                one two [2]
                [4]
                three  four [0]
                [0]
            "#]],
        );
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        check(
            &[
                "1234567\n12345678\nok\n",
                "1234",
                "5678",
                "90123456789012345",
                "67\nafter\n12345678",
                "9\nx\n",
            ],
            LIMITS,
            expect![[r#"
                1234567 <Length> ok [0]
                [4]
                <Length> [0]
                [0]
                after <Length> [0]
                x [0]
            "#]],
        );
        check(
            &["123456", "7\nok\n12", "345", "6\nx\n"],
            LineLimits { line: 8, tail: 4 },
            expect![[r#"
                <Memory> [0]
                ok [2]
                <Memory> [0]
                x [0]
            "#]],
        );
    }

    #[test]
    fn a_line_that_stalls_is_dropped() {
        let mut lines = Lines::default();
        let feed = |lines: &mut Lines, piece: &str, second| {
            let mut found = 0;
            lines.feed(piece.as_bytes(), LIMITS, Timestamp::from_secs(second), |_| found += 1);
            found
        };
        assert_eq!(feed(&mut lines, "ab", 10), 0);
        assert_eq!(feed(&mut lines, "c", 30), 0);
        assert!(!lines.stalled(Timestamp::from_secs(39)) && lines.torn());
        assert!(lines.stalled(Timestamp::from_secs(40)) && !lines.torn());
        assert_eq!(feed(&mut lines, "rest\nok\n", 50), 1);
    }

    proptest::proptest! {
        #[test]
        fn division_into_pieces_does_not_change_the_lines(text in "[a\n]{0,60}", cuts: Vec<proptest::sample::Index>) {
            let whole = |pieces: &[&str]| {
                let mut lines = Lines::default();
                let mut found = Vec::new();
                for piece in pieces {
                    lines.feed(piece.as_bytes(), LIMITS, Timestamp::from_secs(1), |line| found.push(line.map(<[u8]>::to_vec)));
                    proptest::prop_assert!(lines.kept() < LIMITS.line);
                }
                Ok(found)
            };
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            places.extend([0, text.len()]);
            places.sort_unstable();
            let pieces: Vec<&str> = places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            // A line that is too long is reported when it becomes too long, or when it ends.
            let ended = format!("{text}\n");
            let mut with_end = pieces.clone();
            with_end.push("\n");
            proptest::prop_assert_eq!(whole(&with_end)?, whole(&[&ended])?);
        }
    }
}
