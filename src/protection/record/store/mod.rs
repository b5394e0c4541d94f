//! The folders of incidents: written as a whole, listed, and few enough.

mod table;

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

pub use table::processes;

use crate::host::fs;

/// The record that makes a folder an incident.
pub const RECORD: &str = "incident.json";
/// The largest file of an incident that is read.
const LARGEST: u64 = 64 << 20;

/// What could not be done with which folder.
#[derive(Debug, thiserror::Error)]
pub enum IncidentError {
    /// It is no name of an incident.
    #[error("`{0}` is no incident's name")]
    Name(String),
    /// A file or folder cannot be read or written.
    #[error("cannot {what} {path}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// An incident's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub id: String,
    /// All its files together.
    pub bytes: u64,
    /// Whether it has its record.
    pub complete: bool,
}

/// Where incidents are kept, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    folder: PathBuf,
    /// How many are kept.
    most: usize,
    /// How large all of them together may be.
    most_bytes: u64,
}

impl Store {
    /// One below `folder`, which need not be there yet.
    pub fn new(folder: PathBuf, most: usize, most_bytes: u64) -> Self {
        Self { folder, most: most.max(1), most_bytes }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether an incident could be written now.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), IncidentError> {
        make(&self.folder)?;
        let probe = self.folder.join(".probe");
        fs::write_atomically(&probe, |out| out.write_all(b"x")).map_err(failed("write", &probe))?;
        std::fs::remove_file(&probe).map_err(failed("remove", &probe))
    }

    /// Writes an incident's files, the record last, and lets go of the oldest where there are too many.
    ///
    /// # Errors
    /// The first that cannot be written; those before it are there.
    pub fn write(&self, id: &str, files: &[(String, Vec<u8>)]) -> Result<PathBuf, IncidentError> {
        let folder = self.place(id)?;
        make(&folder)?;
        let (last, first): (Vec<_>, Vec<_>) = files.iter().partition(|(name, _)| name == RECORD);
        for (name, bytes) in first.into_iter().chain(last) {
            if !plain(name) {
                return Err(IncidentError::Name(name.clone()));
            }
            let path = folder.join(name);
            fs::write_atomically(&path, |out| out.write_all(bytes)).map_err(failed("write", &path))?;
        }
        self.prune(id);
        Ok(folder)
    }

    /// The incidents, oldest first.
    ///
    /// # Errors
    /// Where the folder is there and cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, IncidentError> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed("list", &self.folder))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed("list", &self.folder))?;
            let Ok(id) = entry.file_name().into_string() else { continue };
            if plain(&id) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let path = entry.path();
                found.push(Listed { bytes: size(&path), complete: path.join(RECORD).is_file(), id });
            }
        }
        found.sort_by(|one, next| one.id.cmp(&next.id));
        Ok(found)
    }

    /// One file of an incident.
    ///
    /// # Errors
    /// Where there is none, or it cannot be read.
    pub fn read(&self, id: &str, file: &str) -> Result<Vec<u8>, IncidentError> {
        if !plain(file) {
            return Err(IncidentError::Name(file.to_owned()));
        }
        let path = self.place(id)?.join(file);
        fs::read_bounded(&path, LARGEST).map_err(failed("read", &path))
    }

    fn place(&self, id: &str) -> Result<PathBuf, IncidentError> {
        if plain(id) { Ok(self.folder.join(id)) } else { Err(IncidentError::Name(id.to_owned())) }
    }

    /// Removes the oldest until what is left is within bounds; `newest` stays.
    fn prune(&self, newest: &str) {
        let Ok(mut all) = self.list() else { return };
        let mut bytes: u64 = all.iter().map(|listed| listed.bytes).sum();
        all.retain(|listed| listed.id != newest);
        let mut left = all.len() + 1;
        for listed in all {
            if left <= self.most && bytes <= self.most_bytes {
                return;
            }
            // One that cannot be removed is tried again with the next incident.
            if std::fs::remove_dir_all(self.folder.join(&listed.id)).is_ok() {
                left -= 1;
                bytes = bytes.saturating_sub(listed.bytes);
            }
        }
    }
}

/// A name that leads nowhere else.
fn plain(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.chars().all(fine)
}

fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Makes a folder that only we can read: it names users and jobs.
fn make(folder: &Path) -> Result<(), IncidentError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed("make", folder))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IncidentError {
    let path = path.to_owned();
    move |source| IncidentError::Io { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(length: usize) -> Vec<(String, Vec<u8>)> {
        vec![(RECORD.to_owned(), b"{}".to_vec()), ("report.md".to_owned(), vec![b'x'; length])]
    }

    fn ids(store: &Store) -> Vec<String> {
        store.list().unwrap().into_iter().map(|listed| listed.id).collect()
    }

    #[test]
    fn incidents_are_written_read_and_kept_by_count() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("deep/incidents"), 3, 1 << 30);
        assert_eq!(ids(&store), [""; 0]);
        store.check().unwrap();
        for number in 1..=5 {
            store.write(&format!("i{number}"), &files(10)).unwrap();
        }
        store.write("i5", &files(20)).unwrap();
        assert_eq!(ids(&store), ["i3", "i4", "i5"]);
        let newest = store.list().unwrap().pop().unwrap();
        assert_eq!((newest.bytes, newest.complete), (22, true));
        assert_eq!(store.read("i5", "report.md").unwrap().len(), 20);
        assert!(store.read("i1", "report.md").is_err());
    }

    #[test]
    fn incidents_are_kept_by_size_and_the_newest_in_any_case() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned(), 100, 1000);
        for number in 1..=4 {
            store.write(&format!("i{number}"), &files(400)).unwrap();
        }
        assert_eq!(ids(&store), ["i3", "i4"]);
        store.write("i5", &files(5000)).unwrap();
        assert_eq!(ids(&store), ["i5"]);
    }

    #[test]
    fn no_name_leads_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("incidents"), 3, 1000);
        for name in ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a b", "é"] {
            assert!(matches!(store.write(name, &files(1)), Err(IncidentError::Name(_))), "{name}");
            assert!(matches!(store.read(name, RECORD), Err(IncidentError::Name(_))), "{name}");
            assert!(matches!(store.read("i1", name), Err(IncidentError::Name(_))), "{name}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("blocked");
        std::fs::write(&blocked, "").unwrap();
        let store = Store::new(blocked.join("incidents"), 3, 1000);
        assert!(store.check().unwrap_err().to_string().starts_with("cannot make "));
        assert!(store.write("i1", &files(1)).is_err());
        assert!(store.list().is_err() || ids(&store).is_empty());
    }
}
