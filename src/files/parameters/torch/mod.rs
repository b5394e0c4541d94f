//! Archives of `torch.save`: tensors found by reading their pickle as symbols.
//!
//! Nothing is called, so the content of a file can do no harm here. A file that would call an unknown function when
//! Python loads it is rejected nevertheless, because a user who inspects a checkpoint is likely to load it.

mod harmless;
mod rebuild;
mod walk;

use super::Part;
use super::bytes::{ReadAt, read};
use super::error::{ParameterError, shortened};
use super::zip::{self, Archive};
use crate::files::pickle::{self, Arena, Budget, Id, Limits};

/// Maximum size of data.pkl in bytes: about a million tensors.
const PICKLE_BYTES: u64 = 256 << 20;
/// Hard memory limit for one pickle, in bytes.
const MEMORY_BYTES: u64 = 1 << 30;
/// Maximum number of listed unknown functions.
const NAMES_LISTED: usize = 8;

/// Options of reading an archive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether to continue if loading would call functions that are not known to be harmless. They are not called in
    /// either case.
    pub any_class: bool,
}

/// Reads the tensors of an archive.
///
/// # Errors
/// If the archive or its pickle is invalid, would call an unknown function, or if a tensor is inconsistent with its
/// storage.
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
    let bytes = read(file, archive.data_at(*pickle)?, pickle.size)?;
    let big = match archive.entries.get(&format!("{folder}byteorder")) {
        Some(entry) if entry.size <= 16 => read(file, archive.data_at(*entry)?, entry.size)? == b"big",
        _ => false,
    };
    let limits = Limits::for_file(pickle.size, MEMORY_BYTES);
    let mut budget = Budget::new(&limits, &bytes);
    let arena = pickle::read_symbols(&bytes, &limits, &mut budget)?;
    let mut part = Part::default();
    harmless::check(&arena, options, &mut part.notes)?;
    let mut storages = Storages { archive: &archive, folder, big, known: Default::default() };
    walk::tensors(&arena, &mut budget, &mut storages, &mut part)?;
    Ok(part)
}

fn is_folder(path: &str) -> bool {
    path.is_empty() || path.ends_with('/') && !path[..path.len() - 1].contains('/')
}

/// The storages of the archive, by their keys in the pickle.
struct Storages<'s, F: ?Sized> {
    archive: &'s Archive<'s, F>,
    folder: &'s str,
    /// Whether numbers are stored big-endian.
    big: bool,
    known: std::collections::HashMap<String, (u64, u64)>,
}

impl<F: ReadAt + ?Sized> Storages<'_, F> {
    /// Offset and size of a storage, in bytes.
    fn find(&mut self, tensor: &str, key: &str) -> Result<(u64, u64), ParameterError> {
        if let Some(known) = self.known.get(key) {
            return Ok(*known);
        }
        let entry = self.archive.entries.get(&format!("{}data/{key}", self.folder)).copied();
        let why = || format!("its storage {:?} is not in the archive", shortened(key));
        let entry = entry.ok_or_else(|| ParameterError::tensor(tensor, why()))?;
        let found = (self.archive.data_at(entry)?, entry.size);
        self.known.insert(key.to_owned(), found);
        Ok(found)
    }
}

/// Module and name, joined by a dot and escaped for display.
fn dotted(arena: &Arena<'_>, function: Id) -> Option<String> {
    let (module, name) = arena.global(function)?;
    let text = format!("{}.{}", String::from_utf8_lossy(module), String::from_utf8_lossy(name));
    Some(shortened(&text).escape_debug().to_string())
}

#[cfg(test)]
mod tests;
