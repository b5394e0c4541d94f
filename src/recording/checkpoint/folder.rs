//! Folders: of Hugging Face, `torch.distributed.checkpoint` and DeepSpeed; those of Orbax are only named.

use std::path::{Path, PathBuf};

use super::file::Gentle;
use super::{ADAPTER, Checkpoint, FileKind, Shard, promised};
use crate::files::parameters::torch::distributed::read_metadata;
use crate::files::parameters::torch::{Options, PICKLE_BYTES};
use crate::files::parameters::{ParameterError, Part, ReadAt as _};
use crate::host::fs::read_bounded;
use crate::recording::error::{InFile as _, RecordingError};

/// The file of a distributed checkpoint that names its tensors.
pub(super) const METADATA: &str = ".metadata";
/// The file in which DeepSpeed names the folder of the newest checkpoint, and its maximum size in bytes.
const LATEST: &str = "latest";
const LATEST_BYTES: u64 = 4096;
/// Files that only Orbax writes, in a step's folder or in that of an item.
const ORBAX: [&str; 4] = ["_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt", "default/manifest.ocdbt"];

impl Checkpoint {
    pub(super) fn open_folder(&mut self, folder: &Path, options: &Options) -> Result<(), RecordingError> {
        let name = || folder.display().to_string();
        if folder.join(METADATA).is_file() {
            return self.open_distributed(folder, options);
        }
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(folder).at(name)? {
            paths.push(entry.at(name)?.path());
        }
        paths.sort();
        let ends = |end: &str| {
            let ending: Vec<&PathBuf> =
                paths.iter().filter(|path| path.to_str().is_some_and(|path| path.ends_with(end))).collect();
            ending
        };
        for end in [".safetensors.index.json", ".bin.index.json"] {
            match ends(end)[..] {
                [] => {}
                [index] => return self.open_index(index, options),
                _ => return Err(RecordingError::SeveralIndexes).at(name),
            }
        }
        let of =
            |kind| -> Vec<&PathBuf> { paths.iter().filter(|path| promised(path) == Some(kind)).collect() };
        let (safetensors, archives) = (of(FileKind::Safetensors), of(FileKind::Archive));
        let adapter: Vec<&PathBuf> = safetensors
            .iter()
            .chain(&archives)
            .filter(|path| path.file_stem().is_some_and(|stem| stem == "adapter_model"))
            .copied()
            .collect();
        let chosen = if !adapter.is_empty() && folder.join(ADAPTER).exists() {
            adapter
        } else if !safetensors.is_empty() {
            if !archives.is_empty() {
                let left = archives.len();
                self.notes.push(format!("{left} .pt and .bin files beside the safetensors were left out"));
            }
            safetensors
        } else if let Some(latest) = latest(folder) {
            return self.open_folder(&latest, options);
        } else {
            let of_deepspeed = ends("_states.pt");
            if !ends("_optim_states.pt").is_empty() {
                self.notes.push(
                    "the optimizer states of DeepSpeed, and with ZeRO stage 3 the parameters, are flat parts without the \
                     names of their parameters; zero_to_fp32.py writes the parameters to one file"
                        .to_owned(),
                );
            }
            if of_deepspeed.is_empty() { [archives, of(FileKind::Array)].concat() } else { of_deepspeed }
        };
        if chosen.is_empty() && ORBAX.iter().any(|file| folder.join(file).exists()) {
            let format = ParameterError::Format {
                what: "a checkpoint of Orbax",
                instead: "restore it, write its arrays with numpy.savez or safetensors.flax.save_file, and give that file",
            };
            return Err(format).at(name);
        }
        if chosen.is_empty() {
            let error = if ends(".distcp").is_empty() {
                RecordingError::NoTensors
            } else {
                RecordingError::NoMetadata
            };
            return Err(error).at(name);
        }
        chosen.into_iter().try_for_each(|path| self.open_shard(path, options))
    }

    /// Reads the metadata of a distributed checkpoint, and compares the sizes of its files.
    pub(super) fn open_distributed(
        &mut self,
        folder: &Path,
        options: &Options,
    ) -> Result<(), RecordingError> {
        let path = folder.join(METADATA);
        let name = || path.display().to_string();
        let bytes = read_bounded(&path, PICKLE_BYTES).at(name)?;
        let found = read_metadata(&bytes, options).at(name)?;
        self.shard(&path, found.part).at(name)?;
        let (mut missing, mut short) = (Vec::new(), Vec::new());
        for (file, expected) in found.files {
            match self.shard(&folder.join(&file), Part::default()) {
                Err(_) => missing.push(file),
                Ok(size) if size < expected => short.push(file),
                Ok(_) => {}
            }
        }
        for (files, what) in [(missing, "cannot be opened"), (short, "are shorter than the metadata state")] {
            if let Some(first) = files.first() {
                self.notes.push(format!("files with values that {what}: {}, {first} first", files.len()));
            }
        }
        Ok(())
    }

    /// Adds a file; returns its size in bytes.
    fn shard(&mut self, path: &Path, part: Part) -> Result<u64, RecordingError> {
        let file = Gentle::open(path)?;
        self.files.push(Shard { path: path.to_owned(), size: file.size(), identity: file.identity(), part });
        Ok(file.size())
    }
}

/// The folder of DeepSpeed's newest checkpoint; absent in another folder.
fn latest(folder: &Path) -> Option<PathBuf> {
    let name = String::from_utf8(read_bounded(&folder.join(LATEST), LATEST_BYTES).ok()?).ok()?;
    let name = name.trim();
    let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains('/');
    Some(folder.join(name)).filter(|path| is_plain && path.is_dir())
}
