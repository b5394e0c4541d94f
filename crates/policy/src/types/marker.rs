//! The marker of a complete checkpoint, where that is not one file that is written.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use crate::model::names::named;

named! {
    /// What completes a checkpoint.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum MarkerKind {
        /// A file is written after the request.
        Written = "written",
        /// The target of a symbolic link changes after the request.
        Link = "link",
        /// Files appear after the request, and all of them are removed again.
        Removed = "removed",
    }
}

/// A marker: files in a folder, or in subfolders of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Marker {
    /// What completes the checkpoint.
    pub kind: MarkerKind,
    /// The folder, without wildcards.
    pub folder: PathBuf,
    /// The pattern of subfolders, where the files are in subfolders.
    pub subfolder: Option<String>,
    /// The pattern of the files' names.
    pub name: String,
}

/// Whether a path contains a wildcard.
pub fn is_pattern(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b'*' | b'?'))
}

impl Marker {
    /// The marker at a path, whose last two components can contain wildcards.
    ///
    /// # Errors
    /// Why the path cannot be used, as the end of a sentence.
    pub fn new(kind: MarkerKind, path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let name = match path.components().next_back() {
            Some(Component::Normal(name)) => name.to_str().map(str::to_owned),
            _ => None,
        };
        let (Some(name), Some(parent)) = (name, path.parent()) else {
            return Err(format!("`{shown}` is not the path of a file"));
        };
        let own = parent.file_name().and_then(|name| name.to_str()).filter(|name| name.contains(['*', '?']));
        let folder = if own.is_some() { parent.parent().unwrap_or(parent) } else { parent };
        if is_pattern(folder) {
            return Err(format!("`{shown}` has wildcards before its last two components"));
        }
        if kind == MarkerKind::Link && is_pattern(path) {
            return Err(format!("`{shown}` has wildcards; a symbolic link is named in full"));
        }
        Ok(Self { kind, folder: folder.to_owned(), subfolder: own.map(str::to_owned), name })
    }

    fn path(&self) -> PathBuf {
        self.folder.join(self.subfolder.as_deref().unwrap_or_default()).join(&self.name)
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        let path = path.display();
        match self.kind {
            MarkerKind::Written => write!(f, "{path} is written"),
            MarkerKind::Link => write!(f, "the target of {path} changes"),
            MarkerKind::Removed => write!(f, "a new {path} is removed again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_are_in_the_last_two_components() {
        let new = |kind, path: &str| Marker::new(kind, Path::new(path));
        let marker = new(MarkerKind::Removed, "/c/checkpoint-*/incomplete.txt").unwrap();
        assert_eq!(
            (marker.folder.as_path(), marker.subfolder.as_deref()),
            (Path::new("/c"), Some("checkpoint-*"))
        );
        assert_eq!(marker.to_string(), "a new /c/checkpoint-*/incomplete.txt is removed again");
        let marker = new(MarkerKind::Written, "/c/hpc_ckpt_*.ckpt").unwrap();
        assert_eq!((marker.folder.as_path(), marker.subfolder), (Path::new("/c"), None));
        for (kind, path) in [
            (MarkerKind::Written, "/c/*/a/b"),
            (MarkerKind::Link, "/c/LATEST*"),
            (MarkerKind::Written, "/"),
            (MarkerKind::Written, "/c/.."),
        ] {
            assert!(new(kind, path).is_err(), "{path}");
        }
    }
}
