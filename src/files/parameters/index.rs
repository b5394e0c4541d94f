//! The index of a checkpoint in several files, and the check against these files.

use std::collections::{BTreeMap, BTreeSet};

use super::Part;
use super::error::{ParameterError, shortened};

/// Names of tensors and the files that hold them (`*.safetensors.index.json`, `*.bin.index.json`).
#[derive(Debug)]
pub struct Index {
    /// The file of each tensor.
    pub weight_map: BTreeMap<String, String>,
    /// Total bytes of all tensors, where the writer states them.
    pub total_size: Option<u64>,
}

/// Maximum number of files.
const FILES: usize = 100_000;

/// Reads an index.
///
/// # Errors
/// If it is invalid, or names a file outside its own folder.
pub fn read_index(bytes: &[u8]) -> Result<Index, ParameterError> {
    #[derive(serde::Deserialize)]
    struct Raw {
        #[serde(default)]
        metadata: serde_json::Map<String, serde_json::Value>,
        weight_map: BTreeMap<String, String>,
    }
    let raw: Raw =
        serde_json::from_slice(bytes).map_err(|source| ParameterError::Json { what: "index", source })?;
    for (tensor, file) in &raw.weight_map {
        if file.is_empty() || file.contains(['/', '\\', '\0']) || file.starts_with('.') {
            let why = format!("its file {:?} is not in the folder of the index", shortened(file));
            return Err(ParameterError::tensor(tensor, why));
        }
    }
    let index =
        Index { total_size: raw.metadata.get("total_size").and_then(size), weight_map: raw.weight_map };
    if index.files().len() > FILES {
        return Err(ParameterError::Index(format!("more than {FILES} files")));
    }
    Ok(index)
}

/// Some writers store the size with a fraction of zero.
fn size(value: &serde_json::Value) -> Option<u64> {
    value.as_u64().or_else(|| value.to_string().strip_suffix(".0")?.parse().ok())
}

impl Index {
    /// The files, each once, in the order of their names.
    pub fn files(&self) -> Vec<&str> {
        let files: BTreeSet<&str> = self.weight_map.values().map(String::as_str).collect();
        files.into_iter().collect()
    }

    /// Compares the index with the content of its files, named as in [`Index::files`].
    ///
    /// # Errors
    /// If a tensor is missing in its file.
    pub fn check(&self, parts: &[(&str, &Part)]) -> Result<Vec<String>, ParameterError> {
        let held: BTreeSet<(&str, &str)> = parts
            .iter()
            .flat_map(|(file, part)| part.tensors.iter().map(|tensor| (*file, tensor.name.as_str())))
            .collect();
        for (tensor, file) in &self.weight_map {
            if !held.contains(&(file.as_str(), tensor.as_str())) {
                let why = format!("the index lists it in {:?}, which does not contain it", shortened(file));
                return Err(ParameterError::tensor(tensor, why));
            }
        }
        let mut notes = Vec::new();
        let unlisted = held.len().saturating_sub(self.weight_map.len());
        if unlisted > 0 {
            notes.push(format!("{unlisted} tensors of the files are not in the index"));
        }
        let bytes: u64 = parts.iter().flat_map(|(_, part)| &part.tensors).map(|tensor| tensor.bytes).sum();
        if let Some(total) = self.total_size.filter(|total| *total != bytes) {
            notes.push(format!("the index states {total} bytes in total, and the files contain {bytes}"));
        }
        Ok(notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::parameters::safetensors::read_header;
    use crate::files::parameters::testing::safetensors;
    use crate::model::error_chain::error_chain;
    use expect_test::expect;
    use proptest::prelude::*;

    #[test]
    fn an_index_is_compared_with_its_files() {
        let file = safetensors(r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, &[0, 0]);
        let part = read_header(&file[..]).unwrap();
        let check = |index: &str| {
            let index = read_index(index.as_bytes()).unwrap();
            index.check(&[("1.safetensors", &part)])
        };
        assert!(
            check(r#"{"metadata":{"total_size":2.0},"weight_map":{"a":"1.safetensors"}}"#)
                .unwrap()
                .is_empty()
        );
        let notes = check(r#"{"metadata":{"total_size":3},"weight_map":{}}"#).unwrap();
        expect![
            "1 tensors of the files are not in the index; the index states 3 bytes in total, and the files contain 2"
        ]
        .assert_eq(&notes.join("; "));
        let error = check(r#"{"weight_map":{"b":"1.safetensors"}}"#).unwrap_err();
        expect![[r#"tensor "b": the index lists it in "1.safetensors", which does not contain it"#]]
            .assert_eq(&error_chain(&error));
    }

    #[test]
    fn an_index_does_not_name_files_outside_its_folder() {
        for file in ["../secret", "/etc/passwd", "", ".hidden"] {
            let index = format!(r#"{{"weight_map":{{"a":"{file}"}}}}"#);
            assert!(read_index(index.as_bytes()).is_err(), "{file}");
        }
        expect!["index: missing field `weight_map` at line 1 column 2"]
            .assert_eq(&error_chain(&read_index(b"{}").unwrap_err()));
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_index(&bytes);
        }
    }
}
