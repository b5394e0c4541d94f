//! A ring buffer of lines between their writers and the disk; the newest lines replace the oldest.

/// A ring buffer of whole lines.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: Box<[u8]>,
    /// Bytes that were added so far.
    head: u64,
    /// Bytes that were written to the disk so far.
    written: u64,
    /// The position of the oldest whole line.
    oldest: u64,
    lost: u64,
}

impl Ring {
    pub(super) fn new(room: usize) -> Self {
        Self { bytes: vec![0; room].into(), head: 0, written: 0, oldest: 0, lost: 0 }
    }

    fn room(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn place(&self, at: u64) -> usize {
        usize::try_from(at % self.room()).unwrap_or(0)
    }

    /// Adds a line in place of the oldest ones, which are lost if they were not written. A line that is too long is
    /// lost.
    pub(super) fn push(&mut self, line: &[u8]) {
        let length = line.len() as u64;
        if length > self.room() / 2 || line.last() != Some(&b'\n') {
            self.lost += 1;
            return;
        }
        while self.head + length - self.oldest > self.room() {
            let end = self.end_of_line(self.oldest);
            if self.oldest >= self.written {
                self.lost += 1;
                self.written = end;
            } else if end > self.written {
                // The beginning of the line is on the disk, and the rest is being written from a copy.
                self.written = end;
            }
            self.oldest = end;
        }
        let place = self.place(self.head);
        let first = line.len().min(self.bytes.len() - place);
        self.bytes[place..place + first].copy_from_slice(&line[..first]);
        self.bytes[..line.len() - first].copy_from_slice(&line[first..]);
        self.head += length;
    }

    /// The bytes between two positions, as two slices.
    fn pieces(&self, from: u64, to: u64) -> [&[u8]; 2] {
        let (place, length) = (self.place(from), usize::try_from(to - from).unwrap_or(0));
        let first = length.min(self.bytes.len() - place);
        [&self.bytes[place..place + first], &self.bytes[..length - first]]
    }

    fn end_of_line(&self, from: u64) -> u64 {
        let mut end = from;
        for piece in self.pieces(from, self.head) {
            match piece.iter().position(|byte| *byte == b'\n') {
                Some(place) => return end + place as u64 + 1,
                None => end += piece.len() as u64,
            }
        }
        end
    }

    /// Copies lines that are not written, as many as fit, into `out`, which is cleared first; returns their end.
    pub(super) fn unwritten(&self, out: &mut Vec<u8>, most: usize) -> u64 {
        out.clear();
        let mut at = self.written;
        while at < self.head {
            let end = self.end_of_line(at);
            if !out.is_empty() && out.len() as u64 + (end - at) > most as u64 {
                break;
            }
            for piece in self.pieces(at, end) {
                out.extend_from_slice(piece);
            }
            at = end;
        }
        at
    }

    /// Marks the bytes up to a position as written.
    pub(super) fn wrote(&mut self, end: u64) {
        self.written = self.written.max(end);
    }

    /// The lines after position `from` that are still in the buffer, oldest first, and their end.
    pub(super) fn since(&self, from: u64) -> (Vec<u8>, u64) {
        (self.pieces(from.clamp(self.oldest, self.head), self.head).concat(), self.head)
    }

    /// Bytes that were added so far.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Bytes that are not written to the disk yet.
    pub(super) fn waiting(&self) -> u64 {
        self.head - self.written
    }

    /// Lines that were lost before they were written to the disk.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_and_in_order() {
        let mut ring = Ring::new(32);
        let mut out = Vec::new();
        ring.push(b"one\n");
        ring.push(b"two\n");
        let end = ring.unwritten(&mut out, 5);
        assert_eq!((out.as_slice(), ring.waiting()), (b"one\n".as_slice(), 8));
        ring.wrote(end);
        let end = ring.unwritten(&mut out, 100);
        assert_eq!(out, b"two\n");
        ring.wrote(end);
        assert_eq!((ring.waiting(), ring.lost()), (0, 0));
        assert_eq!(ring.since(0).0, b"one\ntwo\n");
    }

    #[test]
    fn what_a_hung_disk_never_had_is_counted_and_the_newest_is_kept() {
        let mut ring = Ring::new(32);
        for number in 0..100 {
            ring.push(format!("line {number}\n").as_bytes());
        }
        assert_eq!(ring.since(0).0, b"line 96\nline 97\nline 98\nline 99\n");
        assert_eq!(ring.lost(), 96);
        let mut out = Vec::new();
        let end = ring.unwritten(&mut out, 100);
        assert_eq!(out, ring.since(0).0);
        ring.wrote(end);
        ring.push(b"more\n");
        assert_eq!(ring.lost(), 96, "what was written is not lost");
        ring.push(&[b'x'; 40]);
        assert_eq!(ring.lost(), 97, "a line that is too long is");
    }

    proptest::proptest! {
        #[test]
        fn every_line_is_written_or_lost(
            lines in proptest::collection::vec((0_usize..14, proptest::bool::ANY, 1_usize..40), 0..80),
        ) {
            let mut ring = Ring::new(32);
            let (mut out, mut disk) = (Vec::new(), Vec::new());
            let mut pushed = 0;
            for (length, write, most) in lines {
                let mut line = vec![b'a'; length];
                line.push(b'\n');
                ring.push(&line);
                pushed += 1;
                if write {
                    let end = ring.unwritten(&mut out, most);
                    disk.extend_from_slice(&out);
                    ring.wrote(end);
                }
            }
            ring.unwritten(&mut out, usize::MAX);
            disk.extend_from_slice(&out);
            let written = disk.iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(written + ring.lost(), pushed);
            assert!(ring.since(0).0.len() <= 32);
        }
    }
}
