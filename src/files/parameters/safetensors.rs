//! The header of a safetensors file: every tensor's name, type, shape and location.
//!
//! The format is that of the safetensors crate 0.8: a length of 64 bits, little-endian, then JSON, then the data,
//! which the tensors fill without gaps or overlaps. All of this is checked, because readers map the file. The crate is
//! not used: it parses a header into trees of many times its size, and its errors do not name the tensor.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::bytes::{ReadAt, read};
use super::dtype::{Dtype, elements};
use super::error::{ParameterError, shortened};
use super::{DIMENSIONS, Part, StoredAt, Tensor};

/// The largest header, in bytes, that the safetensors crate writes or reads.
pub const HEADER_BYTES: u64 = 100_000_000;
/// Maximum number of free-form entries.
const METADATA: usize = 1_000;

/// Reads the header.
///
/// # Errors
/// If the header is truncated, too large or invalid, or if a tensor's size is inconsistent with its shape, other
/// tensors, or the file.
pub fn read_header(file: &(impl ReadAt + ?Sized)) -> Result<Part, ParameterError> {
    let size = file.size();
    if size < 8 {
        return Err(ParameterError::CutOff { what: "the length of the header", end: 8, len: size });
    }
    let mut len = [0; 8];
    let failed = |source| ParameterError::Read { offset: 0, len: 8, source };
    file.read_exact_at(&mut len, 0).map_err(failed)?;
    let len = u64::from_le_bytes(len);
    if len > HEADER_BYTES {
        return Err(ParameterError::TooLarge { what: "the header", len, limit: HEADER_BYTES });
    }
    let start = 8 + len;
    if start > size {
        return Err(ParameterError::CutOff { what: "the header", end: start, len: size });
    }
    let header = read(file, 8, len)?;
    let json = |source| ParameterError::Json { what: "the header", source };
    let mut deserializer = serde_json::Deserializer::from_slice(&header);
    let Header { mut entries, metadata } =
        serde::de::Deserializer::deserialize_map(&mut deserializer, HeaderVisitor).map_err(json)?;
    deserializer.end().map_err(json)?;
    entries.sort_by_key(|entry| (entry.begin, entry.end));
    let mut tensors = Vec::with_capacity(entries.len());
    let mut before = 0;
    for entry in entries {
        let Entry { name, dtype, shape, begin, end } = entry;
        let fail = |why: String| Err(ParameterError::tensor(&name, why));
        if begin > end {
            return fail(format!("begins at byte {begin} of the data and ends at {end}"));
        }
        if begin != before {
            let what = if begin > before { "a gap" } else { "an overlap" };
            return fail(format!("begins at byte {begin} of the data where {before} was expected: {what}"));
        }
        let Some(count) = elements(&shape) else { return fail(format!("shape {shape:?} is too large")) };
        if dtype.bytes_of(count) != Some(end - begin) {
            let has = end - begin;
            return fail(format!("shape {shape:?} of {} does not take {has} bytes", dtype.name()));
        }
        if end > size - start {
            return Err(ParameterError::tensor(
                &name,
                format!("ends at byte {end} of the data, and the file has {}; it was cut off", size - start),
            ));
        }
        before = end;
        tensors.push(Tensor {
            name,
            dtype,
            shape,
            elements: count,
            bytes: end - begin,
            place: StoredAt::Dense { offset: start + begin },
            row_major: true,
            parameter: None,
            requires_grad: None,
        });
    }
    if before != size - start {
        let why = format!(
            "the tensors end at byte {before} of the data, and the file has {} bytes of it",
            size - start
        );
        return Err(ParameterError::Index(why));
    }
    Ok(Part { tensors, metadata, notes: Vec::new() })
}

struct Entry {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
}

struct Header {
    entries: Vec<Entry>,
    metadata: BTreeMap<String, String>,
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header { entries: Vec::new(), metadata: BTreeMap::new() };
        let mut names = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!("tensor {:?} is listed twice", shortened(&name))));
            }
            if name == "__metadata__" {
                header.metadata = map.next_value()?;
                if header.metadata.len() > METADATA {
                    return Err(A::Error::custom("too many entries in __metadata__"));
                }
                continue;
            }
            let fail = |why: String| A::Error::custom(format!("tensor {:?}: {why}", shortened(&name)));
            let raw: Raw<'_> = map.next_value().map_err(|error: A::Error| fail(error.to_string()))?;
            let (begin, end) = raw.data_offsets;
            let (dtype, shape) = entry(&raw).map_err(fail)?;
            header.entries.push(Entry { name, dtype, shape, begin, end });
        }
        Ok(header)
    }
}

/// An entry as in the file. A later release of the crate may add keys, which it rejects and this ignores.
#[derive(serde::Deserialize)]
struct Raw<'a> {
    dtype: String,
    #[serde(borrow)]
    shape: &'a RawValue,
    data_offsets: (u64, u64),
}

/// Type and shape.
fn entry(raw: &Raw<'_>) -> Result<(Dtype, Vec<u64>), String> {
    let dtype = Dtype::of_safetensors(&raw.dtype);
    let dtype = dtype.ok_or_else(|| format!("unknown dtype {:?}", shortened(&raw.dtype)))?;
    // A header full of numbers must not take many times its size.
    if raw.shape.get().matches(',').count() >= DIMENSIONS {
        return Err(format!("more than {DIMENSIONS} dimensions"));
    }
    let shape = serde_json::from_str(raw.shape.get());
    let shape =
        shape.map_err(|_| format!("its shape is {}, expected lengths", shortened(raw.shape.get())))?;
    Ok((dtype, shape))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::parameters::testing::safetensors;
    use crate::model::error_chain::error_chain;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn check(file: &[u8], expected: Expect) {
        let found = match read_header(file) {
            Ok(part) => {
                let shown = part.tensors.iter().map(|tensor| {
                    format!("{} {:?} {:?} {:?}", tensor.name, tensor.dtype, tensor.shape, tensor.place)
                });
                shown.collect::<Vec<_>>().join("; ")
            }
            Err(error) => error_chain(&error),
        };
        expected.assert_eq(&found);
    }

    fn header(json: &str, data: usize) -> Vec<u8> {
        safetensors(json, &vec![0; data])
    }

    #[test]
    fn tensors_are_found_in_the_order_of_the_data() {
        let json = r#"{"__metadata__":{"format":"pt"},
            "b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},
            "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},
            "none":{"dtype":"F8_E4M3","shape":[0,7],"data_offsets":[4,4]}}   "#;
        check(
            &header(json, 16),
            expect![
                "a F32 [] Dense { offset: 253 }; none F8E4M3 [0, 7] Dense { offset: 257 }; b BF16 [2, 3] Dense { offset: 257 }"
            ],
        );
        check(&header("{}", 0), expect![""]);
    }

    #[test]
    fn an_inconsistent_header_is_an_error_with_the_tensor() {
        let entry = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        check(
            &header(&entry("F32", "[2]", "[0,4]"), 4),
            expect![[r#"tensor "w": shape [2] of F32 does not take 4 bytes"#]],
        );
        check(
            &header(&entry("F32", "[1]", "[4,8]"), 8),
            expect![[r#"tensor "w": begins at byte 4 of the data where 0 was expected: a gap"#]],
        );
        check(
            &header(&entry("F32", "[1]", "[8,4]"), 8),
            expect![[r#"tensor "w": begins at byte 8 of the data and ends at 4"#]],
        );
        check(
            &header(&entry("F32", "[4]", "[0,16]"), 8),
            expect![[r#"tensor "w": ends at byte 16 of the data, and the file has 8; it was cut off"#]],
        );
        check(
            &header(&entry("F32", "[1]", "[0,4]"), 8),
            expect!["the tensors end at byte 4 of the data, and the file has 8 bytes of it"],
        );
        check(
            &header(&entry("F32", "[4294967296,4294967296]", "[0,4]"), 4),
            expect![[r#"tensor "w": shape [4294967296, 4294967296] is too large"#]],
        );
        check(
            &header(&entry("F6_E2M3", "[3]", "[0,2]"), 2),
            expect![[r#"tensor "w": shape [3] of F6_E2M3 does not take 2 bytes"#]],
        );
        check(
            &header(&entry("F33", "[1]", "[0,4]"), 4),
            expect![[r#"the header: tensor "w": unknown dtype "F33" at line 1 column 54"#]],
        );
        check(
            &header(&entry("F32", "[-1]", "[0,4]"), 4),
            expect![[r#"the header: tensor "w": its shape is [-1], expected lengths at line 1 column 55"#]],
        );
        check(
            &header(&entry("F32", "[1]", "[0,18446744073709551615]"), 4),
            expect![[r#"tensor "w": shape [1] of F32 does not take 18446744073709551615 bytes"#]],
        );
        check(
            &header(&entry("F32", &format!("{:?}", [1; 65]), "[0,4]"), 4),
            expect![[r#"the header: tensor "w": more than 64 dimensions at line 1 column 246"#]],
        );
        check(
            &header(r#"{"w":{"dtype":"F32","shape":[1]}}"#, 4),
            expect![[r#"the header: tensor "w": missing field `data_offsets` at line 1 column 32"#]],
        );
        check(
            &header(r#"{"w":7}"#, 4),
            expect![[
                r#"the header: tensor "w": invalid type: integer `7`, expected struct Raw at line 1 column 6"#
            ]],
        );
        let two = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
            "b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#;
        check(
            &header(two, 3),
            expect![[r#"tensor "b": begins at byte 1 of the data where 2 was expected: an overlap"#]],
        );
        let twice = r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},
            "a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
        check(&header(twice, 0), expect![[r#"the header: tensor "a" is listed twice at line 2 column 15"#]]);
    }

    #[test]
    fn other_files_are_rejected() {
        check(b"", expect!["the length of the header ends at byte 8, and the file has 0; it was cut off"]);
        check(
            &u64::MAX.to_le_bytes(),
            expect!["the header has 18446744073709551615 bytes, and at most 100000000 are read"],
        );
        check(
            b"<!DOCTYPE html><html>",
            expect!["the header has 5789751444030890300 bytes, and at most 100000000 are read"],
        );
        check(
            &1000u64.to_le_bytes(),
            expect!["the header ends at byte 1008, and the file has 8; it was cut off"],
        );
        check(
            &header("[]", 0),
            expect!["the header: invalid type: sequence, expected an object of tensors at line 1 column 0"],
        );
        check(&header("{} {}", 0), expect!["the header: trailing characters at line 1 column 4"]);
        check(
            &header(r#"{"a":"#, 0),
            expect![[r#"the header: tensor "a": EOF while parsing a value at line 1 column 5"#]],
        );
        check(&header("\u{feff}{}", 0), expect!["the header: expected value at line 1 column 1"]);
    }

    #[test]
    fn a_file_truncated_anywhere_is_an_error() {
        let whole = header(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 8);
        assert!(read_header(&whole[..]).is_ok());
        for len in 0..whole.len() {
            assert!(read_header(&whole[..len]).is_err(), "cut to {len} of {} bytes", whole.len());
        }
    }

    proptest! {
        #[test]
        fn never_panics(json in r#"\{("[ab]":\{("(dtype|shape|data_offsets)":("F32"|\[[0-9]{0,20},?[0-9]{0,20}\]),?){0,3}\},?){0,3}\}"#, data in 0usize..20) {
            let _ = read_header(&header(&json, data)[..]);
        }

        #[test]
        fn never_panics_on_bytes(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = read_header(&bytes[..]);
        }
    }
}
