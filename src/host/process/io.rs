//! Parses `/proc/PID/io` (proc_pid_io(5)).

use super::{field, number};
use crate::model::units::Bytes;

/// Bytes that a process read from and wrote to storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// `read_bytes`: read from storage, without page cache hits.
    pub read: Option<Bytes>,
    /// `write_bytes`: caused to be written to storage.
    pub written: Option<Bytes>,
}

/// Parses `/proc/PID/io`; an incomplete line is ignored.
pub fn io(text: &[u8]) -> Io {
    let mut found = Io::default();
    for line in text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n")) {
        if let Some(value) = field(line, b"read_bytes") {
            found.read = number(value).map(Bytes::new);
        } else if let Some(value) = field(line, b"write_bytes") {
            found.written = number(value).map(Bytes::new);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] =
        b"rchar: 323934931\nwchar: 323929600\nsyscr: 632687\nsyscw: 632675\nread_bytes: 4096\n\
        write_bytes: 323932160\ncancelled_write_bytes: 7\n";

    #[test]
    fn storage_is_read_and_a_truncated_number_is_not() {
        let whole = Io { read: Some(Bytes::new(4096)), written: Some(Bytes::new(323_932_160)) };
        assert_eq!(io(TEXT), whole);
        let cut = TEXT.len() - b"160\ncancelled_write_bytes: 7\n".len();
        assert_eq!(io(&TEXT[..cut]), Io { written: None, ..whole });
        assert_eq!(io(b"read_bytes: -1\nwrite_bytes: 99999999999999999999\n"), Io::default());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = io(&bytes);
        }
    }
}
