//! One record of the kernel log (Documentation/ABI/testing/dev-kmsg).
//!
//! `prio,seq,usec,flags[,…];message`, with `\xNN` for characters that are not
//! printable, followed by the lines of a dictionary, which begin with a space.

use std::borrow::Cow;

/// A record without its dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Whether the kernel wrote it; a process that writes to the log cannot claim this facility.
    pub from_kernel: bool,
    /// Sequence number, counted from boot.
    pub sequence: u64,
    /// Microseconds on the kernel log's clock.
    pub kernel_us: u64,
    /// Whether it continues a line, or begins one that is continued.
    pub is_continuation: bool,
    /// The message, with escapes decoded and invalid UTF-8 replaced.
    pub message: Cow<'a, str>,
}

/// Parses a record; nothing if it is invalid.
pub fn record(bytes: &[u8]) -> Option<Record<'_>> {
    let line = bytes.split(|byte| *byte == b'\n').next()?;
    let middle = line.iter().position(|byte| *byte == b';')?;
    let mut head = std::str::from_utf8(&line[..middle]).ok()?.split(',');
    let priority: u64 = head.next()?.parse().ok()?;
    let sequence = head.next()?.parse().ok()?;
    let kernel_us = head.next()?.parse().ok()?;
    // `c` for a part of a line that begins or continues it, `+` on Linux before 4.9 for one that continues it; newer kernels add fields.
    let is_continuation = matches!(head.next()?, "c" | "+");
    // The low three bits are the level, the rest is the facility, 0 for the kernel.
    Some(Record {
        from_kernel: priority >> 3 == 0,
        sequence,
        kernel_us,
        is_continuation,
        message: unescaped(&line[middle + 1..]),
    })
}

/// Decodes `\xNN`.
fn unescaped(text: &[u8]) -> Cow<'_, str> {
    if !text.contains(&b'\\') {
        return String::from_utf8_lossy(text);
    }
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let escaped = rest.strip_prefix(b"\\x").and_then(|digits| {
            let (digits, after) = digits.split_at_checked(2)?;
            let [high, low] = [digits[0], digits[1]].map(|digit| char::from(digit).to_digit(16));
            Some((u8::try_from(high? * 16 + low?).ok()?, after))
        });
        let (byte, after) = escaped.unwrap_or((*first, after));
        plain.push(byte);
        rest = after;
    }
    Cow::Owned(String::from_utf8_lossy(&plain).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(text: &[u8], expected: Expect) {
        expected.assert_eq(&record(text).map_or("none".to_owned(), |found| format!("{found:?}")));
    }

    #[test]
    fn a_record_as_the_device_gives_it() {
        check(
            b"6,339,5140900,-;NET: Registered protocol family 10\n",
            expect![[
                r#"Record { from_kernel: true, sequence: 339, kernel_us: 5140900, is_continuation: false, message: "NET: Registered protocol family 10" }"#
            ]],
        );
        check(
            b"4,702,8123456,-,caller=T1432;e1000e: link is down\n SUBSYSTEM=net\n DEVICE=n2\n",
            expect![[
                r#"Record { from_kernel: true, sequence: 702, kernel_us: 8123456, is_continuation: false, message: "e1000e: link is down" }"#
            ]],
        );
    }

    #[test]
    fn escapes_are_decoded() {
        check(
            br"6,1,2,-;caf\xc3\xa9 a\x5cx2db \x0a \xff \xg1 \x4",
            expect![[
                r#"Record { from_kernel: true, sequence: 1, kernel_us: 2, is_continuation: false, message: "café a\\x2db \n � \\xg1 \\x4" }"#
            ]],
        );
    }

    #[test]
    fn records_of_processes_are_not_those_of_the_kernel() {
        check(
            b"12,1,2,-;Out of memory: Killed process 1 (x)\n",
            expect![[
                r#"Record { from_kernel: false, sequence: 1, kernel_us: 2, is_continuation: false, message: "Out of memory: Killed process 1 (x)" }"#
            ]],
        );
    }

    #[test]
    fn records_truncated_before_the_message_are_invalid() {
        for text in [
            "",
            ";",
            "6",
            "6,339,5140900",
            "6,339;x",
            "6,339,514;x",
            "-6,339,514,-;x",
            " SUBSYSTEM=net",
            "6,99999999999999999999,1,-;x",
        ] {
            assert_eq!(record(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>, message in "[\\\\xa-f0-9]{0,20}") {
            record(&bytes);
            record(format!("6,1,2,-;{message}").as_bytes());
        }
    }
}
