//! The content of a path: one file, a folder of shards, an adapter.
//!
//! No page of a file stays in the page cache that was not there before.

pub(crate) mod compare;
mod file;
mod folder;
pub(crate) mod scan;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::file::Gentle;
use super::error::{InFile as _, RecordingError};
use crate::files::parameters::adapter::{Adapter, read_config};
use crate::files::parameters::archive::read_archive;
use crate::files::parameters::index::{Index, read_index};
use crate::files::parameters::{
    Group, ParameterError, Part, ReadAt as _, StoredAt, Tensor, group_of, npy, safetensors, torch,
};
use crate::host::fs::read_bounded;

/// Maximum size of an index or a configuration, in bytes.
const JSON_BYTES: u64 = 100_000_000;
/// The configuration beside the tensors of an adapter.
const ADAPTER: &str = "adapter_config.json";

/// A checkpoint of one or more files.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) path: PathBuf,
    pub(crate) files: Vec<Shard>,
    /// Anomalies, a sentence each.
    pub(crate) notes: Vec<String>,
    /// Whether files with values are missing or too short.
    pub(crate) is_incomplete: bool,
    pub(crate) adapter: Option<Adapter>,
}

/// One file with tensors.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) identity: [u64; 4],
    pub(crate) part: Part,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Safetensors,
    /// Of torch.save or numpy.savez.
    Archive,
    /// Of numpy.save.
    Array,
    /// A part of a checkpoint of torch.distributed.checkpoint.
    Distributed,
}

const HDF5: ParameterError = ParameterError::Format {
    what: "an HDF5 file",
    instead: "load it with its framework, write the arrays with numpy.savez, and give the .npz file",
};
const GGUF: ParameterError = ParameterError::Format {
    what: "a GGUF file",
    instead: "give the safetensors or .pt files that it was converted from",
};

/// The format according to the name of the file.
fn promised(path: &Path) -> Option<FileKind> {
    match path.extension()?.to_str()? {
        "safetensors" => Some(FileKind::Safetensors),
        "pt" | "pth" | "bin" | "ckpt" | "npz" => Some(FileKind::Archive),
        "npy" => Some(FileKind::Array),
        "distcp" => Some(FileKind::Distributed),
        _ => None,
    }
}

impl Checkpoint {
    /// Reads everything except values.
    pub(crate) fn open(path: &Path, options: &torch::Options) -> Result<Self, RecordingError> {
        let is_folder = std::fs::metadata(path).at(|| path.display().to_string())?.is_dir();
        let (own, files, notes) = (path.to_owned(), Vec::new(), Vec::new());
        let mut found = Self { path: own, files, notes, is_incomplete: false, adapter: None };
        let beside = if is_folder { path } else { path.parent().unwrap_or(Path::new("")) };
        if is_folder {
            found.open_folder(path, options)?;
        } else if path.file_name().is_some_and(|name| name == folder::METADATA) {
            found.open_distributed(beside, options)?;
        } else if path.extension().is_some_and(|extension| extension == "json") {
            found.open_index(path, options)?;
        } else {
            found.open_shard(path, options)?;
        }
        let is_adapter = found.files.iter().any(|shard| {
            let name = shard.path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("adapter_model"))
        });
        let config = beside.join(ADAPTER);
        if is_adapter && config.exists() {
            let name = || config.display().to_string();
            let bytes = read_bounded(&config, JSON_BYTES).at(name)?;
            found.adapter = Some(read_config(&bytes).at(name)?);
        } else if is_adapter {
            found.adapter = Some(Adapter::default());
            found.notes.push(format!("no {ADAPTER} beside the adapter"));
        }
        for shard in &found.files {
            let name = shard.path.file_name().unwrap_or_default().display().to_string();
            found.notes.extend(shard.part.notes.iter().map(|note| format!("{name}: {note}")));
        }
        Ok(found)
    }

    fn open_index(&mut self, path: &Path, options: &torch::Options) -> Result<(), RecordingError> {
        let name = || path.display().to_string();
        let index: Index = read_bounded(path, JSON_BYTES)
            .map_err(RecordingError::from)
            .and_then(|bytes| Ok(read_index(&bytes)?))
            .at(name)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for file in index.files() {
            self.open_shard(&folder.join(file), options)?;
        }
        let names = index.files();
        let parts: Vec<(&str, &Part)> =
            names.iter().copied().zip(self.files.iter().map(|shard| &shard.part)).collect();
        self.notes.extend(index.check(&parts).at(name)?);
        Ok(())
    }

    fn open_shard(&mut self, path: &Path, options: &torch::Options) -> Result<(), RecordingError> {
        let open = || {
            let file = Gentle::open(path)?;
            let part = read(path, &file, options)?;
            Ok(Shard { path: path.to_owned(), size: file.size(), identity: file.identity(), part })
        };
        let shard: Result<Shard, RecordingError> = open();
        self.files.push(shard.at(|| path.display().to_string())?);
        Ok(())
    }

    /// Every tensor, with the number of its file.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (usize, &Tensor)> {
        let numbered = self.files.iter().enumerate();
        numbered.flat_map(|(file, shard)| shard.part.tensors.iter().map(move |tensor| (file, tensor)))
    }

    /// The elements of a model, without optimizer state and tied tensors.
    pub(crate) fn elements(&self) -> u64 {
        let mut places = std::collections::HashSet::new();
        let counted = self.tensors().filter(|(file, tensor)| {
            let own = matches!(tensor.place, StoredAt::Elsewhere { .. })
                || places.insert((*file, tensor.place, tensor.bytes));
            group_of(&tensor.name) != Group::Optimizer && own
        });
        counted.fold(0, |sum, (_, tensor)| sum.saturating_add(tensor.elements))
    }

    /// The names of all tensors; shards of the same name (tensor parallelism) are distinguished by their file.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        self.tensors().for_each(|(_, tensor)| *times.entry(&tensor.name).or_default() += 1);
        let name = |(file, tensor): (usize, &Tensor)| match times.get(tensor.name.as_str()) {
            Some(2..) => {
                let file = self.files[file].path.file_name().unwrap_or_default().display();
                format!("{file}:{}", tensor.name)
            }
            _ => tensor.name.clone(),
        };
        self.tensors().map(name).collect()
    }
}

fn read(path: &Path, file: &Gentle, options: &torch::Options) -> Result<Part, RecordingError> {
    let mut start = [0; 9];
    let known = usize::try_from(file.size()).unwrap_or(usize::MAX).min(start.len());
    file.read_exact_at(&mut start[..known], 0)?;
    let kind = match start {
        // Each begins as an archive, and consists of several.
        _ if promised(path) == Some(FileKind::Distributed) => return Err(RecordingError::Distributed),
        [b'P', b'K', 3, 4, ..] => Some(FileKind::Archive),
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Some(FileKind::Array),
        [0x89, b'H', b'D', b'F', ..] => return Err(HDF5.into()),
        [b'G', b'G', b'U', b'F', ..] => return Err(GGUF.into()),
        [.., b'{'] => Some(FileKind::Safetensors),
        _ => promised(path),
    };
    match kind {
        Some(FileKind::Safetensors) => Ok(safetensors::read_header(file)?),
        Some(FileKind::Archive) => Ok(read_archive(file, options)?),
        Some(FileKind::Array) => Ok(npy::read_npy(file)?),
        Some(FileKind::Distributed) | None => Err(RecordingError::UnknownFormat),
    }
}
