//! The central directory of a zip archive of stored entries, as `torch.save` writes it.
//!
//! PKWARE's APPNOTE 6.3.10: sections 4.3.7 (local header), 4.3.12 (directory),
//! 4.3.14 to 4.3.16 (its end, in 64 bits and 32), 4.5.3 (64-bit extra field).

use std::collections::BTreeMap;

use super::bytes::{ReadAt, read};
use super::error::ParameterError;

/// Maximum size of the directory in bytes: a million entries with names like PyTorch's.
const DIRECTORY_BYTES: u64 = 100_000_000;
/// Size of the end record without its comment, in bytes.
const END: usize = 22;

/// Location of an entry's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Offset of its local header, in bytes from the start of the file.
    header: u64,
    /// The size of its data, in bytes.
    pub(super) size: u64,
    /// Whether its data are stored, that is neither compressed nor encrypted.
    stored: bool,
}

/// The entries of an archive by their names.
#[derive(Debug)]
pub(super) struct Archive {
    pub(super) entries: BTreeMap<String, Entry>,
    /// Start of the directory; all data are before it.
    directory: u64,
}

/// Reads the directory.
///
/// # Errors
/// If there is none, or an entry extends beyond the start of the directory.
pub(super) fn read_archive(file: &(impl ReadAt + ?Sized)) -> Result<Archive, ParameterError> {
    let size = file.size();
    let tail_len = size.min(END as u64 + u64::from(u16::MAX));
    let tail = read(file, size - tail_len, tail_len)?;
    let found = (0..=tail.len().saturating_sub(END)).rev().find(|at| tail[*at..].starts_with(b"PK\x05\x06"));
    let Some(at) = found.filter(|at| tail.len() - at >= END) else {
        let mut start = [0; 2];
        let legacy = size > 2 && file.read_exact_at(&mut start, 0).is_ok() && start == [0x80, 2];
        if legacy {
            let why = "the format of torch.save before 1.6 is not supported: load the file and save it again";
            return Err(ParameterError::zip(0, why));
        }
        let why = match tail.starts_with(b"PK") || size > tail_len {
            true => {
                "the end of the zip directory is missing; the file is truncated, or is not a torch.save archive"
            }
            false => "not a zip archive as torch.save writes since 1.6",
        };
        return Err(ParameterError::zip(size, why));
    };
    let end = Fields(&tail[at..]);
    let end_at = size - tail_len + at as u64;
    let (mut count, mut len, mut start) =
        (u64::from(end.u16(10)), u64::from(end.u32(12)), u64::from(end.u32(16)));
    if count == u64::from(u16::MAX) || len == u64::from(u32::MAX) || start == u64::from(u32::MAX) {
        (count, len, start) = end_in_64_bits(file, end_at)?;
    }
    if len > DIRECTORY_BYTES {
        return Err(ParameterError::TooLarge { what: "the zip directory", len, limit: DIRECTORY_BYTES });
    }
    if start.checked_add(len).is_none_or(|end| end > end_at) {
        return Err(ParameterError::zip(end_at, "the zip directory extends beyond the end of the file"));
    }
    let directory = read(file, start, len)?;
    let mut entries = BTreeMap::new();
    let mut rest = &directory[..];
    for _ in 0..count {
        let offset = start + (directory.len() - rest.len()) as u64;
        let (name, entry, after) = entry(rest, offset)?;
        let fits = entry.header.checked_add(entry.size).is_some_and(|end| end <= start);
        if !fits {
            let why = format!("{name:?} has {} bytes, which overlap the directory", entry.size);
            return Err(ParameterError::zip(offset, why));
        }
        if let Some(twice) = entries.insert(name, entry) {
            return Err(ParameterError::zip(
                offset,
                format!("the entry at byte {} is listed twice", twice.header),
            ));
        }
        rest = after;
    }
    Ok(Archive { entries, directory: start })
}

/// Number of entries, size and offset of the directory, from the 64-bit end record.
fn end_in_64_bits(file: &(impl ReadAt + ?Sized), end: u64) -> Result<(u64, u64, u64), ParameterError> {
    let missing = || ParameterError::zip(end, "the 64-bit end of the zip directory is missing");
    let locator = read(file, end.checked_sub(20).ok_or_else(missing)?, 20)?;
    if !locator.starts_with(b"PK\x06\x07") {
        return Err(missing());
    }
    let at = Fields(&locator).u64(8);
    if at.checked_add(56).is_none_or(|after| after > end) {
        return Err(missing());
    }
    let record = read(file, at, 56)?;
    if !record.starts_with(b"PK\x06\x06") {
        return Err(missing());
    }
    let record = Fields(&record);
    Ok((record.u64(32), record.u64(40), record.u64(48)))
}

/// The first entry of the directory, and the rest.
fn entry(directory: &[u8], offset: u64) -> Result<(String, Entry, &[u8]), ParameterError> {
    let fail = |why: &str| ParameterError::zip(offset, why);
    if directory.len() < 46 || !directory.starts_with(b"PK\x01\x02") {
        return Err(fail("an entry of the zip directory is missing"));
    }
    let fields = Fields(directory);
    let [name_len, extra_len, comment_len] = [28, 30, 32].map(|at| usize::from(fields.u16(at)));
    let extra_at = 46 + name_len;
    let comment_at = extra_at + extra_len;
    let name = directory.get(46..extra_at).ok_or_else(|| fail("the name of an entry is truncated"))?;
    let extra = directory.get(extra_at..comment_at).ok_or_else(|| fail("an extra field is truncated"))?;
    let rest = directory.get(comment_at + comment_len..).ok_or_else(|| fail("a comment is truncated"))?;
    let name = String::from_utf8(name.to_vec()).map_err(|_| fail("the name of an entry is not UTF-8"))?;
    // The 64-bit field has the values that are all ones here, in this order.
    let mut wide = wide(extra).chunks_exact(8).map(|bytes| Fields(bytes).u64(0));
    let mut value = |at: usize| match fields.u32(at) {
        u32::MAX => wide.next().ok_or_else(|| fail("a size of 64 bits is missing")),
        narrow => Ok(u64::from(narrow)),
    };
    let (_, size, header) = (value(24)?, value(20)?, value(42)?);
    // TorchScript's archives have compressed entries, which are not read.
    let stored = fields.u16(8) & 1 == 0 && fields.u16(10) == 0;
    Ok((name, Entry { header, size, stored }, rest))
}

/// The content of the 64-bit extra field.
fn wide(mut extra: &[u8]) -> &[u8] {
    while extra.len() >= 4 {
        let (id, len) = (Fields(extra).u16(0), usize::from(Fields(extra).u16(2)));
        let Some(content) = extra.get(4..4 + len) else { break };
        if id == 1 {
            return content;
        }
        extra = &extra[4 + len..];
    }
    &[]
}

impl Archive {
    /// The offset of an entry's data, in bytes from the start of the file.
    ///
    /// # Errors
    /// If its local header is missing, it is compressed or encrypted, or its data overlap the directory.
    pub(super) fn data_at(&self, file: &(impl ReadAt + ?Sized), entry: Entry) -> Result<u64, ParameterError> {
        let fail = |why: &str| ParameterError::zip(entry.header, why);
        if !entry.stored {
            return Err(fail(
                "an entry is compressed or encrypted, and torch.save only stores; unpack it first",
            ));
        }
        if entry.header.saturating_add(30) > self.directory {
            return Err(fail("the header of an entry is not at the offset in the directory"));
        }
        let local = read(file, entry.header, 30)?;
        if !local.starts_with(b"PK\x03\x04") {
            return Err(fail("the header of an entry is not at the offset in the directory"));
        }
        let fields = Fields(&local);
        let at = entry.header + 30 + u64::from(fields.u16(26)) + u64::from(fields.u16(28));
        match at.checked_add(entry.size) {
            Some(end) if end <= self.directory => Ok(at),
            _ => Err(fail("the data of an entry overlap the directory")),
        }
    }
}

/// Little-endian numbers at offsets of a record, whose length the caller has checked.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.0[at..].first_chunk().expect("the record is long enough, or it would not be read")
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.bytes(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::parameters::testing::zip;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn shown(file: &[u8]) -> String {
        let found = read_archive(file).and_then(|archive| {
            let entries = archive.entries.iter();
            let shown = entries.map(|(name, entry)| {
                Ok(format!("{name}: {} at {}", entry.size, archive.data_at(file, *entry)?))
            });
            Ok(shown.collect::<Result<Vec<_>, ParameterError>>()?.join(", "))
        });
        found.unwrap_or_else(|error| error.to_string())
    }

    fn check(file: &[u8], expected: Expect) {
        expected.assert_eq(&shown(file));
    }

    fn small() -> Vec<u8> {
        zip(&[("m/data.pkl", b"abc"), ("m/data/0", &[7; 100])])
    }

    /// The file with `bytes` written `by` bytes after the last `mark`.
    fn changed(mark: &[u8], by: usize, bytes: &[u8]) -> Vec<u8> {
        let mut file = small();
        let at = file.windows(4).rposition(|window| window == mark).unwrap() + by;
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    }

    #[test]
    fn entries_are_found() {
        check(&small(), expect!["m/data.pkl: 3 at 64, m/data/0: 100 at 128"]);
        let commented = [changed(b"PK\x05\x06", 20, &[5, 0]), b"hello".to_vec()].concat();
        check(&commented, expect!["m/data.pkl: 3 at 64, m/data/0: 100 at 128"]);
    }

    #[test]
    fn sizes_of_64_bits_are_read() {
        let mut file = small();
        let start = file.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        let end = file.len() - END;
        let (len, start, at) = ((end - start) as u64, start as u64, end as u64);
        let mut record = b"PK\x06\x06".to_vec();
        record.extend([0; 28]);
        record.extend([2, len, start].map(u64::to_le_bytes).concat());
        record.extend(b"PK\x06\x07\0\0\0\0");
        record.extend(at.to_le_bytes());
        record.extend([1, 0, 0, 0]);
        file.splice(end..end, record);
        let last = file.len() - END;
        file[last + 10..last + 20].fill(0xff);
        check(&file, expect!["m/data.pkl: 3 at 64, m/data/0: 100 at 128"]);
        file[end + 64..end + 72].fill(0xff);
        check(&file, expect!["byte 414: the 64-bit end of the zip directory is missing"]);
    }

    #[test]
    fn inconsistent_records_are_errors() {
        check(b"", expect!["byte 0: not a zip archive as torch.save writes since 1.6"]);
        check(
            b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
            expect![
                "byte 0: the format of torch.save before 1.6 is not supported: load the file and save it again"
            ],
        );
        check(
            &changed(b"PK\x01\x02", 10, &[8]),
            expect![
                "byte 67: an entry is compressed or encrypted, and torch.save only stores; unpack it first"
            ],
        );
        check(
            &changed(b"PK\x01\x02", 8, &[1]),
            expect![
                "byte 67: an entry is compressed or encrypted, and torch.save only stores; unpack it first"
            ],
        );
        check(&changed(b"PK\x01\x02", 24, &[99]), expect!["m/data.pkl: 3 at 64, m/data/0: 100 at 128"]);
        check(
            &changed(b"PK\x01\x02", 20, &[0, 1, 0, 0, 0, 1]),
            expect![[r#"byte 284: "m/data/0" has 256 bytes, which overlap the directory"#]],
        );
        check(
            &changed(b"PK\x01\x02", 42, &[3]),
            expect!["byte 3: the header of an entry is not at the offset in the directory"],
        );
        check(&changed(b"PK\x01\x02", 28, &[200]), expect!["byte 284: the name of an entry is truncated"]);
        check(
            &changed(b"PK\x05\x06", 10, &[3]),
            expect!["byte 338: an entry of the zip directory is missing"],
        );
        check(
            &changed(b"PK\x05\x06", 16, &[0xf0, 0xff]),
            expect!["byte 338: the zip directory extends beyond the end of the file"],
        );
        check(
            &changed(b"PK\x05\x06", 12, &[0, 0, 0, 0x10]),
            expect!["the zip directory has 268435456 bytes, and at most 100000000 are read"],
        );
        check(
            &changed(b"PK\x05\x06", 10, &[0xff; 10]),
            expect!["byte 338: the 64-bit end of the zip directory is missing"],
        );
    }

    #[test]
    fn a_file_truncated_anywhere_is_an_error() {
        let whole = small();
        for len in 0..whole.len() {
            assert!(read_archive(&whole[..len]).is_err(), "cut to {len} of {} bytes", whole.len());
        }
    }

    proptest! {
        #[test]
        fn never_panics(at in 0usize..400, bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let mut file = small();
            for (to, from) in file.iter_mut().skip(at).zip(bytes) {
                *to = from;
            }
            shown(&file);
        }
    }
}
