//! The folders of incidents: written, listed and removed.

mod table;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

pub use table::processes;

use crate::host::fs;
use crate::protection::types::incidents::{IncidentError, Incidents, RECORD, is_plain};

/// Maximum size of an incident's file that is read, in bytes.
const LARGEST: u64 = 64 << 20;

/// The folder with the incident folders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// A store below `folder`, which need not exist yet.
    pub const fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Checks that an incident could be written now.
    pub fn check(&self) -> Result<(), IncidentError> {
        make(&self.folder)?;
        let probe = self.folder.join(".probe");
        fs::write_atomically(&probe, |out| out.write_all(b"x")).map_err(failed("write", &probe))?;
        std::fs::remove_file(&probe).map_err(failed("remove", &probe))
    }

    /// Writes files of an incident, the record last; returns the size of all its files in bytes.
    ///
    /// # Errors
    /// The first file that cannot be written; those before it are written.
    pub fn write(&self, id: &str, files: &[(String, Vec<u8>)]) -> Result<u64, IncidentError> {
        let folder = self.place(id)?;
        make(&folder)?;
        let (last, first): (Vec<_>, Vec<_>) = files.iter().partition(|(name, _)| name == RECORD);
        for (name, bytes) in first.into_iter().chain(last) {
            if !is_plain(name) {
                return Err(IncidentError::Name(name.clone()));
            }
            let path = folder.join(name);
            fs::write_atomically(&path, |out| out.write_all(bytes)).map_err(failed("write", &path))?;
        }
        Ok(size(&folder))
    }

    /// Appends to files of an incident, each of which is taken from `pending` once it is written; returns the size of all its
    /// files in bytes.
    ///
    /// # Errors
    /// The first file that cannot be written.
    pub fn append(&self, id: &str, pending: &mut BTreeMap<String, Vec<u8>>) -> Result<u64, IncidentError> {
        let folder = self.place(id)?;
        make(&folder)?;
        while let Some(first) = pending.first_entry() {
            let path = folder.join(first.key());
            fs::append_to(&path, first.get()).map_err(failed("write", &path))?;
            first.remove();
        }
        Ok(size(&folder))
    }

    /// Removes an incident; returns whether it is gone.
    pub fn remove(&self, id: &str) -> bool {
        self.place(id).is_ok_and(|folder| std::fs::remove_dir_all(folder).is_ok())
    }

    fn place(&self, id: &str) -> Result<PathBuf, IncidentError> {
        if is_plain(id) { Ok(self.folder.join(id)) } else { Err(IncidentError::Name(id.to_owned())) }
    }
}

impl Incidents for Store {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn names(&self) -> Result<Vec<(String, u64)>, IncidentError> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(failed("list", &self.folder))?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed("list", &self.folder))?;
            let Ok(id) = entry.file_name().into_string() else { continue };
            if is_plain(&id) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push((id, size(&entry.path())));
            }
        }
        found.sort();
        Ok(found)
    }

    fn file(&self, id: &str, name: &str) -> Result<Vec<u8>, IncidentError> {
        if !is_plain(name) {
            return Err(IncidentError::Name(name.to_owned()));
        }
        let path = self.place(id)?.join(name);
        fs::read_bounded(&path, LARGEST).map_err(failed("read", &path))
    }
}

fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// Creates a folder that only the daemon's user can read, since it names users and jobs.
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
    use crate::protection::types::incident::Incident;
    use crate::protection::types::incidents;

    fn files(length: usize) -> Vec<(String, Vec<u8>)> {
        vec![(RECORD.to_owned(), b"{}".to_vec()), ("report.md".to_owned(), vec![b'x'; length])]
    }

    fn ids(store: &Store) -> Vec<String> {
        store.names().unwrap().into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn incidents_are_written_read_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("deep/incidents"));
        assert_eq!(ids(&store), [""; 0]);
        store.check().unwrap();
        for number in 1..=5 {
            store.write(&format!("i{number}"), &files(10)).unwrap();
        }
        assert_eq!(store.write("i5", &files(20)).unwrap(), 22);
        assert_eq!(["i1", "i2", "../i3"].map(|id| store.remove(id)), [true, true, false]);
        assert_eq!(ids(&store), ["i3", "i4", "i5"]);
        assert_eq!(store.names().unwrap().pop().unwrap().1, 22);
        assert_eq!(store.file("i5", "report.md").unwrap().len(), 20);
        assert!(store.file("i1", "report.md").is_err());
    }

    #[test]
    fn no_name_leads_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("incidents"));
        for name in ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a b", "é"] {
            assert!(matches!(store.write(name, &files(1)), Err(IncidentError::Name(_))), "{name}");
            assert!(matches!(store.file(name, RECORD), Err(IncidentError::Name(_))), "{name}");
            assert!(matches!(store.file("i1", name), Err(IncidentError::Name(_))), "{name}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("blocked");
        std::fs::write(&blocked, "").unwrap();
        let store = Store::new(blocked.join("incidents"));
        assert!(store.check().unwrap_err().to_string().starts_with("cannot make "));
        assert!(store.write("i1", &files(1)).is_err());
        assert!(store.names().is_err() || ids(&store).is_empty());
    }

    #[test]
    fn the_newest_comes_first_and_a_damaged_one_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned());
        let record =
            Incident { target: "job".to_owned(), summary: "It ended.".to_owned(), ..Incident::default() };
        let whole = serde_json::to_vec(&record).unwrap();
        store.write("a", &[(RECORD.to_owned(), whole.clone())]).unwrap();
        store.write("b", &[(RECORD.to_owned(), whole[..20].to_vec())]).unwrap();
        let text = String::from_utf8(incidents::json(Some(&store)).unwrap()).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["schema_version"], 1);
        assert_eq!(read["incidents"][0]["id"], "b");
        assert_eq!(
            (&read["incidents"][0]["complete"], &read["incidents"][0]["summary"]),
            (&false.into(), &serde_json::Value::Null)
        );
        assert_eq!(
            (&read["incidents"][1]["target"], &read["incidents"][1]["steps"]),
            (&"job".into(), &0.into())
        );
    }
}
