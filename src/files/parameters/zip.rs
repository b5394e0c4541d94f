//! The entries of a zip archive. Data are read where they are stored, as `torch.save` and `numpy.savez` write them.
//!
//! `rawzip` reads the records: it holds one of them at a time. The crate `zip` is not used, because it keeps every entry
//! of a directory of any size, with several times the bytes that the entry has in the file.

use std::collections::BTreeMap;
use std::io::{self, Read as _};

use rawzip::{
    CompressionMethod, Error, ErrorKind, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ReaderAt, ZipArchive,
    ZipArchiveEntryWayfinder, ZipLocator,
};

use super::bytes::{ReadAt, read};
use super::error::ParameterError;

/// Maximum size of the directory in bytes: a million entries with names like PyTorch's.
const DIRECTORY_BYTES: u64 = 100_000_000;
/// Size of the end record with the longest comment, in bytes.
const END: u64 = 22 + u16::MAX as u64;

/// Location of an entry's data.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    record: ZipArchiveEntryWayfinder,
    /// Offset of its record in the directory, in bytes from the start of the file.
    at: u64,
    /// The size of its data as they are in the archive, in bytes.
    pub(super) size: u64,
    packing: Packing,
}

/// How the data of an entry are in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    Stored,
    Deflated,
    /// Compressed in another way, or encrypted.
    Other,
}

impl Entry {
    /// Whether its data are neither compressed nor encrypted.
    pub(super) fn is_stored(&self) -> bool {
        self.packing == Packing::Stored
    }
}

/// The entries of an archive by their names.
pub(super) struct Archive<'f, F: ?Sized> {
    pub(super) entries: BTreeMap<String, Entry>,
    records: ZipArchive<Source<'f, F>>,
    pub(super) file: &'f F,
}

struct Source<'f, F: ?Sized>(&'f F);

impl<F: ReadAt + ?Sized> ReaderAt for Source<'_, F> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.0.size().saturating_sub(offset);
        let len = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.0.read_exact_at(&mut buffer[..len], offset)?;
        Ok(len)
    }
}

/// Reads the directory.
///
/// # Errors
/// If there is none, or it is inconsistent.
pub(super) fn read_archive<F: ReadAt + ?Sized>(file: &F) -> Result<Archive<'_, F>, ParameterError> {
    let size = file.size();
    let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
    let located = ZipLocator::new().max_search_space(END).locate_in_reader(Source(file), &mut buffer, size);
    let records = located.map_err(|(_, error)| not_an_archive(file, &error))?;
    let len = records.eocd_offset().saturating_sub(records.directory_offset());
    if len > DIRECTORY_BYTES {
        return Err(ParameterError::TooLarge { what: "the zip directory", len, limit: DIRECTORY_BYTES });
    }
    let mut entries = BTreeMap::new();
    let mut listed = records.entries(&mut buffer);
    let mut at = records.directory_offset();
    while let Some(record) = listed.next_entry().map_err(|error| invalid(at, &error))? {
        at = record.central_directory_offset();
        let name = String::from_utf8(record.file_path().as_ref().to_vec());
        let name = name.map_err(|_| ParameterError::zip(at, "the name of an entry is not UTF-8"))?;
        let packing = match record.compression_method() {
            _ if record.flags().is_encrypted() => Packing::Other,
            CompressionMethod::STORE => Packing::Stored,
            CompressionMethod::DEFLATE => Packing::Deflated,
            _ => Packing::Other,
        };
        let (size, record) = (record.compressed_size_hint(), record.wayfinder());
        if let Some(twice) = entries.insert(name, Entry { record, at, size, packing }) {
            let why = format!("the entry of byte {} is listed twice", twice.at);
            return Err(ParameterError::zip(at, why));
        }
    }
    Ok(Archive { entries, records, file })
}

fn invalid(offset: u64, error: &Error) -> ParameterError {
    ParameterError::zip(offset, format!("the zip directory cannot be read: {error}"))
}

fn not_an_archive(file: &(impl ReadAt + ?Sized), error: &Error) -> ParameterError {
    let mut start = [0; 2];
    let read = file.size() > 2 && file.read_exact_at(&mut start, 0).is_ok();
    match error.kind() {
        ErrorKind::MissingEndOfCentralDirectory if read && start == [0x80, 2] => {
            let why = "the format of torch.save before 1.6 is not supported: load the file and save it again";
            ParameterError::zip(0, why)
        }
        ErrorKind::MissingEndOfCentralDirectory => ParameterError::zip(
            file.size(),
            "no end of a zip directory: the file is truncated, or is neither an archive of torch.save since 1.6 nor of numpy.savez",
        ),
        _ => invalid(error.eocd_offset().unwrap_or(0), error),
    }
}

impl<F: ReadAt + ?Sized> Archive<'_, F> {
    /// The offset of an entry's data, in bytes from the start of the file.
    ///
    /// # Errors
    /// If its local header is missing, it is compressed or encrypted, or its data overlap the directory.
    pub(super) fn data_at(&self, entry: Entry) -> Result<u64, ParameterError> {
        if !entry.is_stored() {
            let why = "the entry is compressed or encrypted, and torch.save only stores; unpack it first";
            return Err(ParameterError::zip(entry.at, why));
        }
        Ok(self.packed_at(entry)?.0)
    }

    /// The first `len` bytes of an entry's data, or all; they may be compressed as `numpy.savez_compressed` does.
    ///
    /// # Errors
    /// Those of [`Self::data_at`], except for data that are deflated.
    pub(super) fn start(&self, entry: Entry, len: u64) -> Result<Vec<u8>, ParameterError> {
        /// Bytes by which compressed data may be longer than what they hold: headers of blocks.
        const BLOCKS: u64 = 64;
        if entry.packing != Packing::Deflated {
            return read(self.file, self.data_at(entry)?, entry.size.min(len));
        }
        let bytes = read(self.file, self.packed_at(entry)?.0, entry.size.min(len + BLOCKS))?;
        let mut unpacked = Vec::new();
        let mut decoder = flate2::read::DeflateDecoder::new(&bytes[..]).take(len);
        match decoder.read_to_end(&mut unpacked) {
            // The data continue after the part that was read.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                Err(ParameterError::zip(entry.at, "the data of the entry cannot be decompressed"))
            }
            _ => Ok(unpacked),
        }
    }

    /// The offsets of the first byte of an entry's data and of the one after its last, as they are in the archive.
    ///
    /// # Errors
    /// Those of [`Self::data_at`], except for data that are compressed or encrypted.
    pub(super) fn packed_at(&self, entry: Entry) -> Result<(u64, u64), ParameterError> {
        let fail = |why: &str| Err(ParameterError::zip(entry.at, why));
        match self.records.get_entry(entry.record).map(|found| found.compressed_data_range()) {
            Ok((start, end)) if end <= self.records.directory_offset() => Ok((start, end)),
            Ok(_) => fail("the data of the entry overlap the directory"),
            Err(error) => fail(&format!("the header of the entry cannot be read: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::parameters::testing::zip;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn shown(file: &[u8]) -> String {
        let found = read_archive(file).and_then(|archive| {
            let entries = archive.entries.iter();
            let shown = entries
                .map(|(name, entry)| Ok(format!("{name}: {} at {}", entry.size, archive.data_at(*entry)?)));
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
        // The directory extends to its end record, whatever number of entries and size this states.
        for (field, value) in [(10, &[3][..]), (12, &[0, 0, 0, 0x10])] {
            assert_eq!(
                shown(&changed(b"PK\x05\x06", field, value)),
                "m/data.pkl: 3 at 64, m/data/0: 100 at 128"
            );
        }
    }

    #[test]
    fn sizes_of_64_bits_are_read() {
        let mut file = small();
        let start = file.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        let end = file.len() - 22;
        let (len, start, at) = ((end - start) as u64, start as u64, end as u64);
        let mut record = b"PK\x06\x06\x2c".to_vec();
        record.extend([0; 19]);
        record.extend([2, 2, len, start].map(u64::to_le_bytes).concat());
        record.extend(b"PK\x06\x07\0\0\0\0");
        record.extend(at.to_le_bytes());
        record.extend([1, 0, 0, 0]);
        file.splice(end..end, record);
        let last = file.len() - 22;
        file[last + 10..last + 20].fill(0xff);
        check(&file, expect!["m/data.pkl: 3 at 64, m/data/0: 100 at 128"]);
        file[end + 64..end + 72].fill(0xff);
        check(&file, expect!["byte 414: the zip directory cannot be read: Invalid end of central directory"]);
    }

    #[test]
    fn inconsistent_records_are_errors() {
        check(
            b"",
            expect![
                "byte 0: no end of a zip directory: the file is truncated, or is neither an archive of torch.save since 1.6 nor of numpy.savez"
            ],
        );
        check(
            b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.",
            expect![
                "byte 0: the format of torch.save before 1.6 is not supported: load the file and save it again"
            ],
        );
        let packed =
            "byte 284: the entry is compressed or encrypted, and torch.save only stores; unpack it first";
        assert_eq!(shown(&changed(b"PK\x01\x02", 10, &[8])), packed);
        assert_eq!(shown(&changed(b"PK\x01\x02", 8, &[1])), packed);
        check(&changed(b"PK\x01\x02", 24, &[99]), expect!["m/data.pkl: 3 at 64, m/data/0: 100 at 128"]);
        check(
            &changed(b"PK\x01\x02", 20, &[0, 1, 0, 0, 0, 1]),
            expect!["byte 284: the data of the entry overlap the directory"],
        );
        check(
            &changed(b"PK\x01\x02", 42, &[3]),
            expect![
                "byte 284: the header of the entry cannot be read: Invalid signature: expected 0x04034b50, got 0x00000004"
            ],
        );
        check(
            &changed(b"PK\x01\x02", 28, &[200]),
            expect!["byte 228: the zip directory cannot be read: Unexpected end of file"],
        );
        let end = "byte 338: the zip directory cannot be read: Invalid end of central directory";
        assert_eq!(shown(&changed(b"PK\x05\x06", 16, &[0xf0, 0xff])), end);
        assert_eq!(shown(&changed(b"PK\x05\x06", 10, &[0xff; 10])), end);
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
