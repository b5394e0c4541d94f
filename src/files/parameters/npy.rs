//! Arrays of NumPy: `.npy`, and `.npz`, a zip archive of them.
//!
//! numpy/lib/format.py: a magic string, a version, the length of a header, and the header, a Python dictionary of
//! literals. The header is read as text. Arrays of Python objects, which NumPy stores as pickles, are not read.

use std::collections::BTreeMap;

use super::bytes::{ReadAt, read};
use super::dtype::{Dtype, elements};
use super::error::ParameterError;
use super::zip::Archive;
use super::{DIMENSIONS, Part, StoredAt, Tensor};
use crate::files::pickle::{Budget, Limits};

/// The first bytes of a file.
pub const MAGIC: &[u8] = b"\x93NUMPY";
/// Maximum size of a header in bytes. NumPy itself reads 10,000 characters.
const HEADER: u64 = 64 << 10;
/// Bytes before the header, at most: magic string, version, length of the header.
const START: u64 = 12;
/// Bytes of an array of an archive that are read at first. Headers of arrays of numbers have about 128.
const FIRST: u64 = 4096;
/// The name of the one array of a `.npy` file.
const UNNAMED: &str = "(array)";

/// Reads the header of a `.npy` file.
///
/// # Errors
/// If the header is invalid, or the file is shorter than it states.
pub fn read_npy(file: &(impl ReadAt + ?Sized)) -> Result<Part, ParameterError> {
    let start = read(file, 0, file.size().min(START + HEADER))?;
    let mut part = Part::default();
    let mut skipped = Skipped::default();
    part.tensors.extend(array(UNNAMED, &start, Some(0), file.size(), &mut skipped)?);
    skipped.note(&mut part);
    Ok(part)
}

/// Reads the headers of all arrays of a `.npz` archive.
///
/// # Errors
/// If an entry or its header is invalid, two entries have the same bytes, or more memory is required than
/// [`Limits::for_file`] allows.
pub(super) fn read_npz<F: ReadAt + ?Sized>(archive: &Archive<'_, F>) -> Result<Part, ParameterError> {
    let mut part = Part::default();
    let mut skipped = Skipped::default();
    let mut budget = Budget::new(&Limits::for_file(archive.file.size(), Limits::MEMORY_BYTES), &[]);
    // A directory of a few megabytes could list the same data a million times.
    let mut read: BTreeMap<u64, u64> = BTreeMap::new();
    for (path, entry) in &archive.entries {
        let Some(name) = path.strip_suffix(".npy") else { continue };
        let (from, to) = archive.packed_at(*entry)?;
        if read.range(..to).next_back().is_some_and(|(_, end)| *end > from) {
            return Err(ParameterError::tensor(name, "its data overlap those of another entry"));
        }
        read.insert(from, to);
        let mut start = archive.start(*entry, FIRST)?;
        if let Ok((_, end)) = extent(&start)
            && end > start.len()
        {
            // Never released, so that it limits the work as well.
            budget.take(end as u64)?;
            start = archive.start(*entry, end as u64)?;
        }
        let at = entry.is_stored().then_some(from);
        if let Some(tensor) = array(name, &start, at, entry.size, &mut skipped)? {
            part.push(tensor, &mut budget)?;
        }
    }
    skipped.note(&mut part);
    Ok(part)
}

/// Numbers of arrays whose elements are not numbers.
#[derive(Default)]
struct Skipped {
    /// Those of NumPy's void type.
    void: u64,
    others: u64,
}

impl Skipped {
    fn note(&self, part: &mut Part) {
        if self.void > 0 {
            part.notes.push(format!(
                "{} arrays of the void type (V1, V2) were skipped: NumPy saves bfloat16 and float8 without their type; \
                 convert them to float32 before saving",
                self.void
            ));
        }
        if self.others > 0 {
            part.notes
                .push(format!("{} arrays of text, records or Python objects were skipped", self.others));
        }
    }
}

/// The array of a header. `at` is its first byte in the file, absent where it is compressed; `size` its bytes with the
/// header.
fn array(
    name: &str,
    start: &[u8],
    at: Option<u64>,
    size: u64,
    skipped: &mut Skipped,
) -> Result<Option<Tensor>, ParameterError> {
    let fail = |why: &str| ParameterError::tensor(name, why);
    let (header, data) = header(start).map_err(fail)?;
    let Header { dtype, big, fortran, shape } = match fields(header).map_err(fail)? {
        Elements::Numbers(header) => header,
        Elements::Void => {
            skipped.void += 1;
            return Ok(None);
        }
        Elements::Others => {
            skipped.others += 1;
            return Ok(None);
        }
    };
    let large = || fail("its shape is too large");
    let count = elements(&shape).ok_or_else(large)?;
    let bytes = dtype.bytes_of(count).ok_or_else(large)?;
    let end = (data as u64).checked_add(bytes).ok_or_else(large)?;
    let place = match at {
        None => StoredAt::Elsewhere { why: "compressed" },
        Some(_) if end > size => {
            return Err(fail(&format!("ends at byte {end}, and there are {size}; it was cut off")));
        }
        Some(_) if big && dtype.bits() > 8 => StoredAt::Elsewhere { why: "written by a big-endian machine" },
        Some(at) => StoredAt::Dense { offset: at + data as u64 },
    };
    Ok(Some(Tensor {
        name: name.to_owned(),
        dtype,
        elements: count,
        bytes,
        place,
        row_major: !fortran || shape.iter().filter(|length| **length != 1).count() < 2,
        shape,
        parameter: None,
        requires_grad: None,
    }))
}

/// The text of the header, and the offset of the data.
fn header(start: &[u8]) -> Result<(&[u8], usize), &'static str> {
    let (from, end) = extent(start)?;
    Ok((start.get(from..end).ok_or("the header is cut off")?, end))
}

/// The offsets of the header and of the data.
fn extent(start: &[u8]) -> Result<(usize, usize), &'static str> {
    let rest = start.strip_prefix(MAGIC).ok_or("no array of NumPy")?;
    let (len, from) = match rest {
        [1, _, a, b, ..] => (u32::from(u16::from_le_bytes([*a, *b])), MAGIC.len() + 4),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]), MAGIC.len() + 6),
        [] | [1..=3, ..] => return Err("the header is cut off"),
        _ => return Err("a version of the format that is not known"),
    };
    if u64::from(len) > HEADER {
        return Err("a header of more than 64 KiB");
    }
    Ok((from, from + len as usize))
}

/// The elements of an array.
enum Elements {
    Numbers(Header),
    /// Bytes of NumPy's void type, which has no fields.
    Void,
    /// Text, records, times or Python objects.
    Others,
}

/// What a header says of an array of numbers.
struct Header {
    dtype: Dtype,
    /// Whether numbers are stored big-endian.
    big: bool,
    /// Whether the first dimension is contiguous.
    fortran: bool,
    shape: Vec<u64>,
}

/// Parses the header.
fn fields(header: &[u8]) -> Result<Elements, &'static str> {
    let mut text = Literal(header);
    let (mut dtype, mut fortran, mut shape) = (None, None, None);
    text.expect(b'{')?;
    while !text.has(b'}') {
        let key = text.quoted()?;
        text.expect(b':')?;
        match key {
            b"descr" => match text.next() {
                Some(b'\'' | b'"') => {
                    let descr = text.quoted()?;
                    match number(descr) {
                        Some(found) => dtype = Some(found),
                        None if descr.get(1) == Some(&b'V') => return Ok(Elements::Void),
                        None => return Ok(Elements::Others),
                    }
                }
                _ => return Ok(Elements::Others),
            },
            b"fortran_order" => fortran = Some(text.boolean()?),
            b"shape" => shape = Some(text.tuple()?),
            _ => return Err("a key in the header that is not known"),
        }
        if !text.has(b',') {
            text.expect(b'}')?;
            break;
        }
    }
    match (dtype, fortran, shape) {
        (Some((dtype, big)), Some(fortran), Some(shape)) => {
            Ok(Elements::Numbers(Header { dtype, big, fortran, shape }))
        }
        _ => Err("a header without descr, fortran_order or shape"),
    }
}

/// The type of a `descr` such as `<f4`, and whether it is big-endian.
fn number(descr: &[u8]) -> Option<(Dtype, bool)> {
    let (order, kind) = descr.split_first()?;
    let dtype = Dtype::of_numpy(kind)?;
    matches!(order, b'<' | b'>' | b'|' | b'=').then_some((dtype, *order == b'>'))
}

/// The literals of Python that a header consists of.
struct Literal<'h>(&'h [u8]);

impl<'h> Literal<'h> {
    fn next(&mut self) -> Option<u8> {
        self.0 = self.0.trim_ascii_start();
        self.0.first().copied()
    }

    /// Whether the next character is this one, which is then consumed.
    fn has(&mut self, character: u8) -> bool {
        let found = self.next() == Some(character);
        if found {
            self.0 = &self.0[1..];
        }
        found
    }

    fn expect(&mut self, character: u8) -> Result<(), &'static str> {
        if self.has(character) { Ok(()) } else { Err("the header is not a dictionary of Python") }
    }

    fn quoted(&mut self) -> Result<&'h [u8], &'static str> {
        let wrong = "the header has no text where one is expected";
        let quote = self.next().filter(|quote| matches!(quote, b'\'' | b'"')).ok_or(wrong)?;
        let text = &self.0[1..];
        let end = text.iter().position(|byte| *byte == quote).ok_or(wrong)?;
        self.0 = &text[end + 1..];
        Ok(&text[..end])
    }

    fn boolean(&mut self) -> Result<bool, &'static str> {
        self.next();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if let Some(rest) = self.0.strip_prefix(word) {
                self.0 = rest;
                return Ok(value);
            }
        }
        Err("fortran_order is neither True nor False")
    }

    fn tuple(&mut self) -> Result<Vec<u64>, &'static str> {
        let mut numbers = Vec::new();
        self.expect(b'(')?;
        while !self.has(b')') {
            if numbers.len() == DIMENSIONS {
                return Err("more than 64 dimensions");
            }
            self.next();
            let len = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let digits = std::str::from_utf8(&self.0[..len]).unwrap_or_default();
            numbers.push(digits.parse().map_err(|_| "the shape is not a tuple of lengths")?);
            self.0 = &self.0[len..];
            if !self.has(b',') {
                self.expect(b')')?;
                break;
            }
        }
        Ok(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::parameters::testing::zip;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    /// A file of version 1, as `numpy.save` writes it.
    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let len = (10 + header.len() + 1).next_multiple_of(64) - 10;
        let padded = format!("{header:<width$}\n", width = len - 1);
        let len = u16::try_from(len).unwrap().to_le_bytes();
        [MAGIC, &[1, 0], &len, padded.as_bytes(), data].concat()
    }

    fn shown(part: Result<Part, ParameterError>) -> String {
        let shown = |part: Part| {
            let tensors = part.tensors.iter().map(|tensor| {
                let order = if tensor.row_major { "" } else { " by columns" };
                format!(
                    "{} {} {:?} {:?}{order}",
                    tensor.name,
                    tensor.dtype.name(),
                    tensor.shape,
                    tensor.place
                )
            });
            tensors.chain(part.notes.clone()).collect::<Vec<_>>().join("; ")
        };
        part.map_or_else(|error| error.to_string(), shown)
    }

    fn check(header: &str, data: usize, expected: Expect) {
        expected.assert_eq(&shown(read_npy(&npy(header, &vec![0; data])[..])));
    }

    #[test]
    fn headers_are_read() {
        check(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
            48,
            expect!["(array) F32 [3, 4] Dense { offset: 128 }"],
        );
        check(
            "{'descr': '<c16', 'fortran_order': True, 'shape': (2,3)}",
            96,
            expect!["(array) C128 [2, 3] Dense { offset: 128 } by columns"],
        );
        check(
            "{'descr': '|b1', 'fortran_order': True, 'shape': (), }",
            1,
            expect!["(array) BOOL [] Dense { offset: 128 }"],
        );
        check(
            "{'descr': '>f8', 'fortran_order': False, 'shape': (1,), }",
            8,
            expect![[r#"(array) F64 [1] Elsewhere { why: "written by a big-endian machine" }"#]],
        );
        for descr in ["'|O'", "'<U2'", "'<M8[ns]'", "[('a', '<f4'), ('b', '<i2')]"] {
            let header = format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (2,), }}");
            let skipped = "1 arrays of text, records or Python objects were skipped";
            assert_eq!(shown(read_npy(&npy(&header, b"")[..])), skipped);
        }
        let saved = "{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }";
        let note = "1 arrays of the void type (V1, V2) were skipped: NumPy saves bfloat16 and float8 without their type; \
                    convert them to float32 before saving";
        assert_eq!(shown(read_npy(&npy(saved, &[0; 4])[..])), note);
        let mut second = npy("{'descr': '<u2', 'fortran_order': False, 'shape': (1,)}", &[1, 0]);
        second.splice(6..10, [2, 0, 118, 0, 0, 0]);
        expect!["(array) U16 [1] Dense { offset: 130 }"].assert_eq(&shown(read_npy(&second[..])));
    }

    #[test]
    fn invalid_headers_are_errors() {
        check(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
            47,
            expect![[r#"tensor "(array)": ends at byte 176, and there are 175; it was cut off"#]],
        );
        check(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 4), }",
            0,
            expect![[r#"tensor "(array)": its shape is too large"#]],
        );
        check(
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
            0,
            expect![[r#"tensor "(array)": the shape is not a tuple of lengths"#]],
        );
        check(
            "{'descr': '<f4', 'shape': (1,), }",
            4,
            expect![[r#"tensor "(array)": a header without descr, fortran_order or shape"#]],
        );
        check(
            "__import__('os')",
            0,
            expect![[r#"tensor "(array)": the header is not a dictionary of Python"#]],
        );
        let whole = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", &[0; 4]);
        for len in 0..whole.len() {
            assert!(read_npy(&whole[..len]).is_err(), "cut to {len} of {} bytes", whole.len());
        }
    }

    #[test]
    fn every_array_of_an_archive_is_read_where_it_is() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
        let whole = npy(header, &1.5f32.to_le_bytes());
        let objects = npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"");
        let file = zip(&[("layer/w.npy", &whole), ("o.npy", &objects), ("readme", b"")]);
        let archive = super::super::zip::read_archive(&file[..]).unwrap();
        let part = read_npz(&archive).unwrap();
        let StoredAt::Dense { offset } = part.tensors[0].place else { panic!("{:?}", part.tensors) };
        assert_eq!(read(&file[..], offset, 4).unwrap(), 1.5f32.to_le_bytes());
        assert_eq!((part.tensors[0].name.as_str(), part.tensors.len(), part.notes.len()), ("layer/w", 1, 1));
    }

    #[test]
    fn data_that_two_entries_have_are_an_error() {
        let whole = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", &[0; 4]);
        let mut file = zip(&[("a.npy", &whole), ("b.npy", &whole)]);
        // The directory ends with the offset of the second local header and its name.
        let at = file.len() - 22 - "b.npy".len() - 4;
        file[at..at + 4].fill(0);
        let archive = super::super::zip::read_archive(&file[..]).unwrap();
        let error = read_npz(&archive).unwrap_err().to_string();
        assert_eq!(error, "tensor \"b\": its data overlap those of another entry");
    }

    #[test]
    fn long_headers_take_at_most_ten_times_the_file() {
        let width = 60_000;
        let long = format!("{:<width$}", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }");
        let whole = npy(&long, &[0; 4]);
        let read = |arrays: usize| {
            let names: Vec<String> = (0..arrays).map(|array| format!("{array}.npy")).collect();
            let entries: Vec<(&str, Vec<u8>)> =
                names.iter().map(|name| (name.as_str(), deflated(&whole))).collect();
            let entries: Vec<(&str, &[u8])> = entries.iter().map(|(name, data)| (*name, &data[..])).collect();
            let mut file = zip(&entries);
            for at in 0..file.len() - 4 {
                match &file[at..at + 4] {
                    b"PK\x03\x04" => file[at + 8] = 8,
                    b"PK\x01\x02" => file[at + 10] = 8,
                    _ => {}
                }
            }
            let archive = super::super::zip::read_archive(&file[..]).unwrap();
            read_npz(&archive).map(|part| part.tensors.len())
        };
        assert_eq!(read(10).unwrap(), 10);
        // Those of a small file may have 1 MiB.
        assert!(matches!(read(20), Err(ParameterError::Memory(_))));
    }

    fn deflated(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut encoder, data).unwrap();
        encoder.finish().unwrap()
    }

    proptest! {
        #[test]
        fn never_panics(header in "[{}'():, a-z0-9<>|-]{0,120}", cut in 0usize..200) {
            let whole = npy(&header, b"");
            let _ = read_npy(&whole[..cut.min(whole.len())]);
        }
    }
}
