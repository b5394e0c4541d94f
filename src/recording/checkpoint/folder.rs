//! Folders: of Hugging Face, `torch.distributed.checkpoint` and DeepSpeed; those of Orbax are only named.

use std::path::{Path, PathBuf};

use super::file::Gentle;
use super::{ADAPTER, Checkpoint, FileKind, Shard, promised};
use crate::files::parameters::torch::distributed::read_metadata;
use crate::files::parameters::torch::{Options, PICKLE_BYTES};
use crate::files::parameters::{ParameterError, Part, ReadAt as _};
use crate::host::fs::read_bounded;
use crate::recording::error::{InFile as _, RecordingError};

/// Most files that a note names.
const MOST_NAMED: usize = 8;
/// The file of a distributed checkpoint that names its tensors.
pub(super) const METADATA: &str = ".metadata";
/// The file in which DeepSpeed names the folder of the newest checkpoint, and its maximum size in bytes.
const LATEST: &str = "latest";
const LATEST_BYTES: u64 = 4096;
/// The end of the names of DeepSpeed's files.
const STATES: &str = "_states.pt";
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
        let of_deepspeed = latest(folder);
        let leave_out = |notes: &mut Vec<String>, archives: usize| {
            if archives > 0 {
                notes.push(format!("{archives} archives of torch.save or numpy.savez were left out"));
            }
        };
        let is_of_model = |path: &&PathBuf| path.to_str().is_some_and(is_of_model);
        let chosen = if !adapter.is_empty() && folder.join(ADAPTER).exists() {
            adapter
        } else if !safetensors.is_empty() {
            leave_out(&mut self.notes, archives.len());
            safetensors
        } else if let Some(latest) = &of_deepspeed {
            let models: Vec<&PathBuf> = archives.iter().copied().filter(is_of_model).collect();
            leave_out(&mut self.notes, archives.len() - models.len());
            if models.is_empty() {
                return self.open_folder(latest, options);
            }
            models
        } else {
            let states = ends(STATES);
            if !ends("_optim_states.pt").is_empty() {
                self.notes.push(
                    "the optimizer states of DeepSpeed, and with ZeRO stage 3 the parameters, are flat parts without the \
                     names of their parameters; zero_to_fp32.py writes the parameters to one file"
                        .to_owned(),
                );
            }
            if states.is_empty() { [archives, of(FileKind::Array)].concat() } else { states }
        };
        if of_deepspeed.is_some() {
            self.notes.push(format!("the checkpoint of DeepSpeed that `{LATEST}` names was left out"));
        }
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
            if files.is_empty() {
                continue;
            }
            self.is_incomplete = true;
            let more = files.len().saturating_sub(MOST_NAMED);
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            let named: Vec<&str> = files.iter().take(MOST_NAMED).map(String::as_str).collect();
            self.notes.push(format!("files with values that {what}: {}{more}", named.join(", ")));
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

/// Whether an archive beside a checkpoint of DeepSpeed may contain a model, and no other state of a run. The names are
/// those of Transformers (`trainer.py`, `trainer_pt_utils.py`).
fn is_of_model(path: &str) -> bool {
    const STATES_OF_RUN: [&str; 5] = ["optimizer", "scheduler", "scaler", "rng_state", "training_args"];
    let name = path.rsplit('/').next().unwrap_or_default();
    !name.ends_with(STATES) && !STATES_OF_RUN.iter().any(|state| name.starts_with(state))
}

/// The folder of DeepSpeed's newest checkpoint; absent in another folder.
fn latest(folder: &Path) -> Option<PathBuf> {
    let name = String::from_utf8(read_bounded(&folder.join(LATEST), LATEST_BYTES).ok()?).ok()?;
    let name = name.trim();
    let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains('/');
    let path = Some(folder.join(name)).filter(|_| is_plain)?;
    let mut files = std::fs::read_dir(&path).ok()?.flatten();
    let is_states =
        |file: std::fs::DirEntry| file.file_name().to_str().is_some_and(|name| name.ends_with(STATES));
    files.any(is_states).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::parameters::testing::zip;

    fn archive(name: &str) -> Vec<u8> {
        let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }\n";
        let len = u16::try_from(header.len()).unwrap().to_le_bytes();
        let array = [b"\x93NUMPY\x01\0", &len[..], header.as_bytes(), b"7"].concat();
        zip(&[(&format!("{name}.npy"), &array)])
    }

    #[test]
    fn models_beside_a_checkpoint_of_deepspeed_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        let check = |name: &str, left_out: &[&str]| {
            let found = Checkpoint::open(folder.path(), &Options::default()).unwrap();
            assert_eq!(
                (found.names(), found.notes.clone()),
                (vec![name.to_owned()], left_out.iter().map(|note| (*note).to_owned()).collect())
            );
        };
        let archives = "1 archives of torch.save or numpy.savez were left out";
        let deepspeed = "the checkpoint of DeepSpeed that `latest` names was left out";
        write("latest", b"step1\n");
        for step in ["step1", "other"] {
            std::fs::create_dir(folder.path().join(step)).unwrap();
        }
        write("step1/mp_rank_00_model_states.pt", &archive("of_deepspeed"));
        write("other/model.pt", &archive("in_other"));
        write("rng_state_0.pth", &archive("rng"));
        check("of_deepspeed", &[archives]);
        write("pytorch_model.bin", &archive("of_archive"));
        check("of_archive", &[archives, deepspeed]);
        std::fs::remove_file(folder.path().join("rng_state_0.pth")).unwrap();
        write("latest", b"other");
        check("of_archive", &[]);
        let header = br#"{"of_safetensors":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let len = (header.len() as u64).to_le_bytes();
        write("model.safetensors", &[&len[..], header, b"7"].concat());
        write("latest", b"step1");
        check("of_safetensors", &[archives, deepspeed]);
    }
}
