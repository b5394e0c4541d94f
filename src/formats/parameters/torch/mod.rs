//! Archives of `torch.save`: tensors found by reading their pickle as symbols.
//!
//! Nothing is called, so nothing a file holds can do harm here. A file that
//! would call something unknown when Python loads it is refused all the same,
//! because whoever asks about a checkpoint is about to load it.

mod harmless;
mod rebuild;
mod walk;

use super::Part;
use super::bytes::{ReadAt, read};
use super::error::{ParameterError, shortened};
use super::zip::{self, Archive};
use crate::formats::pickle::{self, Arena, Budget, Id, Limits};

/// The largest data.pkl that is read, in bytes: about a million tensors.
const PICKLE_BYTES: u64 = 256 << 20;
/// The hard cap on memory for one pickle, in bytes.
const MEMORY_BYTES: u64 = 1 << 30;
/// Names of unknown classes that are told one by one.
const NAMES_TOLD: usize = 8;

/// How strictly an archive is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether to read on where loading would call what is not known to be harmless. It is not called either way.
    pub any_class: bool,
}

/// Reads what tensors an archive holds.
///
/// # Errors
/// Where the archive or its pickle is damaged, would call something unknown, or a tensor contradicts its storage.
pub fn read_archive(file: &(impl ReadAt + ?Sized), options: &Options) -> Result<Part, ParameterError> {
    let archive = zip::read_archive(file)?;
    let missing = || ParameterError::zip(file.size(), "no data.pkl in the archive");
    let (path, pickle) = archive
        .entries
        .iter()
        .find(|(path, _)| path.strip_suffix("data.pkl").is_some_and(is_folder))
        .ok_or_else(missing)?;
    if pickle.size > PICKLE_BYTES {
        return Err(ParameterError::TooLarge { what: "data.pkl", len: pickle.size, limit: PICKLE_BYTES });
    }
    let folder = path.strip_suffix("data.pkl").unwrap_or_default();
    let bytes = read(file, archive.data_at(file, *pickle)?, pickle.size)?;
    let big = match archive.entries.get(&format!("{folder}byteorder")) {
        Some(entry) if entry.size <= 16 => read(file, archive.data_at(file, *entry)?, entry.size)? == b"big",
        _ => false,
    };
    let limits = Limits::for_file(pickle.size, MEMORY_BYTES);
    let mut budget = Budget::new(&limits, &bytes);
    let arena = pickle::read_symbols(&bytes, &limits, &mut budget)?;
    let mut part = Part::default();
    harmless::check(&arena, options, &mut part.notes)?;
    let mut storages = Storages { file, archive: &archive, folder, big, known: Default::default() };
    walk::tensors(&arena, &mut budget, &mut storages, &mut part)?;
    Ok(part)
}

fn is_folder(path: &str) -> bool {
    path.is_empty() || path.ends_with('/') && !path[..path.len() - 1].contains('/')
}

/// The data of the archive, by the keys that the pickle has for them.
struct Storages<'s, F: ?Sized> {
    file: &'s F,
    archive: &'s Archive,
    folder: &'s str,
    /// Whether numbers are stored with the high byte first.
    big: bool,
    known: std::collections::HashMap<String, (u64, u64)>,
}

impl<F: ReadAt + ?Sized> Storages<'_, F> {
    /// Place and size of a storage, in bytes.
    fn find(&mut self, tensor: &str, key: &str) -> Result<(u64, u64), ParameterError> {
        if let Some(known) = self.known.get(key) {
            return Ok(*known);
        }
        let entry = self.archive.entries.get(&format!("{}data/{key}", self.folder)).copied();
        let why = || format!("its storage {:?} is not in the archive", shortened(key));
        let entry = entry.ok_or_else(|| ParameterError::tensor(tensor, why()))?;
        let found = (self.archive.data_at(self.file, entry)?, entry.size);
        self.known.insert(key.to_owned(), found);
        Ok(found)
    }
}

/// Module and name with a dot between, fit to be shown.
fn dotted(arena: &Arena<'_>, function: Id) -> Option<String> {
    let (module, name) = arena.global(function)?;
    let text = format!("{}.{}", String::from_utf8_lossy(module), String::from_utf8_lossy(name));
    Some(shortened(&text).escape_debug().to_string())
}

#[cfg(test)]
mod tests;
