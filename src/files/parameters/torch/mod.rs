//! Files of PyTorch: tensors found by reading a pickle as symbols.
//!
//! Nothing is called, so the content of a file can do no harm here. A file that would call an unknown function when
//! Python loads it is rejected nevertheless, because a user who inspects a checkpoint is likely to load it.

pub mod distributed;
mod harmless;
mod rebuild;
mod walk;

use super::Part;
use super::bytes::{ReadAt, read};
use super::error::{ParameterError, shortened};
use super::zip::Archive;
use crate::files::pickle::{self, Arena, Budget, Id, Limits};

/// The pickle of an archive.
const PICKLE: &str = "data.pkl";
/// Maximum size of a pickle in bytes: about a million tensors.
pub const PICKLE_BYTES: u64 = 256 << 20;
/// Hard memory limit for one pickle, in bytes.
const MEMORY_BYTES: u64 = 1 << 30;
/// Maximum number of listed unknown functions.
const NAMES_LISTED: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether to continue if loading would call functions that are not known to be harmless. They are not called in
    /// either case.
    pub any_class: bool,
}

/// The path of the pickle in an archive of `torch.save`; absent in another archive.
pub(super) fn pickle_of<'a, F: ?Sized>(archive: &'a Archive<'_, F>) -> Option<&'a str> {
    let mut paths = archive.entries.keys().map(String::as_str);
    paths.find(|path| path.strip_suffix(PICKLE).is_some_and(is_folder))
}

/// Reads the tensors of an archive, whose pickle has this path.
///
/// # Errors
/// If the pickle is invalid, would call an unknown function, or if a tensor is inconsistent with its storage.
pub(super) fn read_pickle<F: ReadAt + ?Sized>(
    archive: &Archive<'_, F>,
    path: &str,
    options: &Options,
) -> Result<Part, ParameterError> {
    let pickle = archive.entries[path];
    if pickle.size > PICKLE_BYTES {
        return Err(ParameterError::TooLarge { what: PICKLE, len: pickle.size, limit: PICKLE_BYTES });
    }
    let bytes = read(archive.file, archive.data_at(pickle)?, pickle.size)?;
    let folder = path.strip_suffix(PICKLE).unwrap_or_default();
    let big = match archive.entries.get(&format!("{folder}byteorder")) {
        Some(entry) if entry.size <= 16 => {
            read(archive.file, archive.data_at(*entry)?, entry.size)? == b"big"
        }
        _ => false,
    };
    let mut part = Part::default();
    let (arena, mut budget) = symbols(&bytes, options, &mut part.notes)?;
    let mut storages = Storages { archive, folder, big, known: Default::default() };
    walk::tensors(&arena, &mut budget, &mut storages, &mut part)?;
    Ok(part)
}

/// Reads a pickle, and rejects one that would call an unknown function.
fn symbols<'b>(
    bytes: &'b [u8],
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<(Arena<'b>, Budget), ParameterError> {
    let limits = Limits::for_file(bytes.len() as u64, MEMORY_BYTES);
    let mut budget = Budget::new(&limits, bytes);
    let arena = pickle::read_symbols(bytes, &limits, &mut budget)?;
    harmless::check(&arena, options, notes)?;
    Ok((arena, budget))
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
