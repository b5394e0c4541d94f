//! `.metadata` of `torch.distributed.checkpoint`: the tensors of a folder, and the files with their values.
//!
//! torch/distributed/checkpoint/metadata.py of PyTorch 2.9: a pickled `Metadata` with `state_dict_metadata`
//! (`TensorStorageMetadata` with `properties` and `size`, or `BytesStorageMetadata` of a pickled object) and
//! `storage_data` (`_StorageInfo` of filesystem.py: `relative_path`, `offset`, `length`). A tensor consists of one part for
//! each rank that holds it, each an archive of `torch.save`; these parts are not read.

use std::collections::BTreeMap;

use super::{Options, symbols};
use crate::files::parameters::dtype::{Dtype, elements};
use crate::files::parameters::error::{ParameterError, shortened};
use crate::files::parameters::{DIMENSIONS, Part, StoredAt, Tensor};
use crate::files::pickle::{Arena, Budget, Id, Value};
use crate::model::format;

/// How the values can be read.
const CONVERSION: &str = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER out.pt writes the values to \
                          one file, which can be read completely";

/// What the metadata state.
#[derive(Debug, Default)]
pub struct Metadata {
    pub part: Part,
    /// The files with values by name, each with the bytes that it must have.
    pub files: BTreeMap<String, u64>,
}

/// Reads the metadata.
///
/// # Errors
/// If the pickle is invalid, would call an unknown function, or is not of a distributed checkpoint.
pub fn read_metadata(bytes: &[u8], options: &Options) -> Result<Metadata, ParameterError> {
    let mut found = Metadata::default();
    let (arena, mut budget) = symbols(bytes, options, &mut found.part.notes)?;
    let read = Reading { arena: &arena };
    let no_metadata =
        || ParameterError::Index("it is no metadata of torch.distributed.checkpoint".to_owned());
    let tensors = read.attribute(arena.root(), b"state_dict_metadata").ok_or_else(no_metadata)?;
    let mut others = 0u64;
    for (name, value) in arena.pairs(tensors) {
        let Value::Text(name) = arena.value(name) else { return Err(no_metadata()) };
        match read.class(value) {
            Some(b"TensorStorageMetadata") => {
                let tensor = read.tensor(&String::from_utf8_lossy(name), value)?;
                found.part.push(tensor, &mut budget)?;
            }
            _ => others += 1,
        }
    }
    found.part.notes.push(CONVERSION.to_owned());
    if others > 0 {
        found.part.notes.push(format!("left out: {}", format::counted(others, "value that is not a tensor")));
    }
    if let Some(stored) = read.attribute(arena.root(), b"storage_data") {
        read.files(stored, &mut budget, &mut found.files)?;
    }
    Ok(found)
}

struct Reading<'r> {
    arena: &'r Arena<'r>,
}

impl Reading<'_> {
    fn attribute(&self, object: Id, name: &[u8]) -> Option<Id> {
        let state = self.arena.object(object)?.state;
        let mut pairs = self.arena.pairs(state);
        pairs.find(|(key, _)| self.arena.value(*key) == Value::Text(name)).map(|(_, value)| value)
    }

    /// The name of an object's class, without its module.
    fn class(&self, object: Id) -> Option<&[u8]> {
        Some(self.arena.global(self.arena.object(object)?.function)?.1)
    }

    fn tensor(&self, name: &str, value: Id) -> Result<Tensor, ParameterError> {
        let fail = |why: &str| ParameterError::tensor(name, why);
        let size = self.attribute(value, b"size").ok_or_else(|| fail("no size"))?;
        let shape = self.size(size).ok_or_else(|| fail("its size is not a torch.Size"))?;
        let properties = self.attribute(value, b"properties").and_then(|id| self.arena.object(id));
        let dtype = properties.and_then(|properties| self.arena.items(properties.state).next());
        let dtype = match dtype.and_then(|id| self.arena.global(id)) {
            Some((b"torch", dtype)) => Dtype::of_torch(dtype),
            _ => None,
        };
        let dtype = dtype.ok_or_else(|| fail("elements of a type that is not known"))?;
        let count = elements(&shape);
        let bytes = count.and_then(|count| dtype.bytes_of(count));
        let (Some(elements), Some(bytes)) = (count, bytes) else {
            return Err(fail(&format!("shape {shape:?} is too large")));
        };
        Ok(Tensor {
            name: shortened(name),
            dtype,
            shape,
            elements,
            bytes,
            place: StoredAt::Elsewhere { why: "values of a distributed checkpoint are not read" },
            row_major: true,
            parameter: None,
            requires_grad: None,
        })
    }

    /// The lengths of `torch.Size((2, 3))`.
    fn size(&self, id: Id) -> Option<Vec<u64>> {
        let list = self.arena.items(self.arena.object(id)?.arguments).next()?;
        if self.arena.len(list) > DIMENSIONS {
            return None;
        }
        self.arena.items(list).map(|length| self.number(length)).collect()
    }

    fn number(&self, id: Id) -> Option<u64> {
        let Value::Int(number) = self.arena.value(id) else { return None };
        u64::try_from(number).ok()
    }

    fn files(
        &self,
        stored: Id,
        budget: &mut Budget,
        files: &mut BTreeMap<String, u64>,
    ) -> Result<(), ParameterError> {
        for (_, info) in self.arena.pairs(stored) {
            let path = self.attribute(info, b"relative_path").map(|id| self.arena.value(id));
            let of = |name| self.attribute(info, name).and_then(|id| self.number(id));
            let (Some(Value::Text(path)), Some(offset), Some(len)) = (path, of(b"offset"), of(b"length"))
            else {
                continue;
            };
            let path = String::from_utf8_lossy(path);
            if path.is_empty() || path.starts_with('.') || path.contains('/') {
                let why = format!("its values are in {:?}, which is not a file beside it", shortened(&path));
                return Err(ParameterError::Index(why));
            }
            let end = offset.saturating_add(len);
            match files.get_mut(&*path) {
                Some(known) => *known = end.max(*known),
                None => {
                    budget.take((path.len() + size_of::<(String, u64)>()) as u64)?;
                    files.insert(path.into_owned(), end);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::error_chain::error_chain;
    use proptest::prelude::*;

    const WRITTEN: &[u8] = include_bytes!("../../../../tests/fixtures/parameters/distributed/.metadata");

    #[test]
    fn files_have_the_bytes_of_their_last_part() {
        let found = read_metadata(WRITTEN, &Options::default()).unwrap();
        assert_eq!(
            found.files,
            [("__0_0.distcp".to_owned(), 1577), ("__1_0.distcp".to_owned(), 4415)].into()
        );
    }

    #[test]
    fn metadata_do_not_name_files_elsewhere_and_call_nothing() {
        let changed = |from: &[u8], to: &[u8]| {
            let at = WRITTEN.windows(from.len()).position(|part| part == from).unwrap();
            let mut bytes = WRITTEN.to_vec();
            bytes[at..at + from.len()].copy_from_slice(to);
            error_chain(&read_metadata(&bytes, &Options::default()).unwrap_err())
        };
        assert_eq!(
            changed(b"__0_0.distcp", b"/etc/passwd1"),
            r#"its values are in "/etc/passwd1", which is not a file beside it"#
        );
        let error = changed(b"BytesStorageMetadata", b"BytesStorageMetadatb");
        assert!(
            error.contains("loading it would call torch.distributed.checkpoint.metadata.Bytes"),
            "{error}"
        );
        let error = error_chain(&read_metadata(b"\x80\x04}.", &Options::default()).unwrap_err());
        assert_eq!(error, "it is no metadata of torch.distributed.checkpoint");
    }

    proptest! {
        #[test]
        fn never_panics(at in 0..WRITTEN.len(), bytes in prop::collection::vec(any::<u8>(), 0..8), cut in 0..WRITTEN.len()) {
            let mut file = WRITTEN.to_vec();
            for (to, from) in file.iter_mut().skip(at).zip(bytes) {
                *to = from;
            }
            let _ = read_metadata(&file, &Options::default());
            let _ = read_metadata(&file[..cut], &Options::default());
        }
    }
}
