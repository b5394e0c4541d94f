//! Recognizes a complete checkpoint by a marker in a folder of the job's user.
//!
//! The folder is opened by `host::user_files`, which follows no link of a user, and entries count only where they belong
//! to a user whose processes received the request.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use super::checkpoint_file::{FILE_TIME_ERROR, Report, unreadable};
use crate::host::user_files::Folder;
use crate::model::pattern;
use crate::protection::types::marker::{Marker, MarkerKind};

/// Maximum number of entries of a folder that are read in one search.
const MOST: usize = 10_000;
/// Maximum number of subfolders that are searched.
const MOST_FOLDERS: usize = 200;

/// Inode, time of the last change, and size of an entry; for a symbolic link also its target.
type Identity = (u64, i64, i64, u64, Vec<u8>);

/// Compares the entries that a marker names with those before the request.
#[derive(Debug)]
pub(super) struct MarkerWatcher {
    marker: Marker,
    users: Vec<u32>,
    /// The entries before the request.
    before: BTreeMap<OsString, Identity>,
    /// Whether an entry appeared that is to be removed again.
    appeared: bool,
    complained: bool,
}

impl MarkerWatcher {
    /// A watcher for a request at `since` (1970).
    pub(super) fn new(marker: Marker, users: Vec<u32>, since: Duration) -> Self {
        let mut watcher = Self { marker, users, before: BTreeMap::new(), appeared: false, complained: false };
        let mut before = watcher.entries().unwrap_or_default();
        // Entries that were changed after the request belong to it, although they are already there.
        before.retain(|_, (_, seconds, nanos, ..)| {
            let whole = Duration::from_secs(u64::try_from(*seconds).unwrap_or(0));
            whole + Duration::from_nanos(u64::try_from(*nanos).unwrap_or(0)) + FILE_TIME_ERROR < since
        });
        watcher.before = before;
        watcher
    }

    /// What the entries show now; absent while they show nothing new.
    pub(super) fn look(&mut self) -> Option<Report> {
        let entries = match self.entries() {
            Ok(entries) => entries,
            Err(error) => {
                if error.kind() == io::ErrorKind::NotFound {
                    return None;
                }
                return unreadable(&mut self.complained, &self.marker.folder, &error);
            }
        };
        let new = entries.iter().any(|(name, identity)| self.before.get(name) != Some(identity));
        match (self.marker.kind, new) {
            (MarkerKind::Written | MarkerKind::Link, true) => Some(Report::Reached),
            (MarkerKind::Removed, true) => {
                (!std::mem::replace(&mut self.appeared, true)).then_some(Report::Saving)
            }
            (MarkerKind::Removed, false) if self.appeared => Some(Report::Reached),
            _ => None,
        }
    }

    fn entries(&self) -> io::Result<BTreeMap<OsString, Identity>> {
        let folder = Folder::open(&self.marker.folder)?;
        let mut found = BTreeMap::new();
        let Some(subfolder) = &self.marker.subfolder else {
            self.add(&folder, OsStr::new(""), &mut found)?;
            return Ok(found);
        };
        let names = folder.names(MOST)?.into_iter().filter(|name| fits(subfolder, name));
        for name in names.take(MOST_FOLDERS) {
            // It may be a file, a link, or be removed meanwhile.
            if let Ok(inside) = folder.inside(&name) {
                let _ = self.add(&inside, &name, &mut found);
            }
        }
        Ok(found)
    }

    fn add(
        &self,
        folder: &Folder,
        below: &OsStr,
        found: &mut BTreeMap<OsString, Identity>,
    ) -> io::Result<()> {
        let named = &self.marker.name;
        let names = match named.contains(['*', '?']) {
            true => folder.names(MOST)?.into_iter().filter(|name| fits(named, name)).collect(),
            false => vec![OsString::from(named)],
        };
        for name in names {
            let Ok(status) = folder.entry(&name) else { continue };
            if !self.users.contains(&status.uid()) && status.uid() != 0 {
                continue;
            }
            if let Some(identity) = self.identity(folder, &name, &status) {
                let mut path = below.to_owned();
                path.push("/");
                path.push(name);
                found.insert(path, identity);
            }
        }
        Ok(())
    }

    fn identity(&self, folder: &Folder, name: &OsStr, status: &Metadata) -> Option<Identity> {
        let target = match self.marker.kind {
            MarkerKind::Link => folder.link(name).ok()?,
            MarkerKind::Written | MarkerKind::Removed if status.is_symlink() => return None,
            MarkerKind::Written | MarkerKind::Removed => Vec::new(),
        };
        // A file that is written for long grows: for markers that are removed, only their existence counts.
        let (time, size) = match self.marker.kind {
            MarkerKind::Removed => ((status.ctime(), 0), 0),
            _ => ((status.mtime(), status.mtime_nsec()), status.size()),
        };
        Some((status.ino(), time.0, time.1, size, target))
    }
}

fn fits(wanted: &str, name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| pattern::fits(wanted, name))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn watcher(kind: MarkerKind, path: &Path) -> MarkerWatcher {
        let own = rustix::process::getuid().as_raw();
        MarkerWatcher::new(Marker::new(kind, path).unwrap(), vec![own], Duration::from_secs(1 << 40))
    }

    #[test]
    fn a_glob_counts_from_the_first_new_file_on() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hpc_ckpt_1.ckpt"), "old").unwrap();
        let mut watcher = watcher(MarkerKind::Written, &folder.path().join("hpc_ckpt_*.ckpt"));
        assert_eq!(watcher.look(), None, "a checkpoint before the request");
        std::fs::write(folder.path().join("other.ckpt"), "x").unwrap();
        assert_eq!(watcher.look(), None);
        std::fs::write(folder.path().join("hpc_ckpt_2.ckpt"), "new").unwrap();
        assert_eq!(watcher.look(), Some(Report::Reached));
    }

    #[test]
    fn the_target_of_a_link_counts_and_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("LATEST");
        std::os::unix::fs::symlink("step_1", &link).unwrap();
        let mut watcher = watcher(MarkerKind::Link, &link);
        assert_eq!(watcher.look(), None);
        std::fs::remove_file(&link).unwrap();
        assert_eq!(watcher.look(), None, "it is being replaced");
        std::os::unix::fs::symlink("step_2", &link).unwrap();
        assert_eq!(watcher.look(), Some(Report::Reached));
    }

    #[test]
    fn a_marker_that_is_removed_must_have_appeared_after_the_request() {
        let folder = tempfile::tempdir().unwrap();
        let incomplete = |step: u32| {
            let inside = folder.path().join(format!("checkpoint-{step}"));
            std::fs::create_dir_all(&inside).unwrap();
            inside.join("checkpoint-is-incomplete.txt")
        };
        // A run that ended while it saved has left it.
        std::fs::write(incomplete(1), "").unwrap();
        let mut watcher =
            watcher(MarkerKind::Removed, &folder.path().join("checkpoint-*/checkpoint-is-incomplete.txt"));
        assert_eq!(watcher.look(), None);
        std::fs::write(incomplete(2), "").unwrap();
        assert_eq!((watcher.look(), watcher.look()), (Some(Report::Saving), None));
        std::fs::remove_file(incomplete(2)).unwrap();
        assert_eq!(watcher.look(), Some(Report::Reached));
    }
}
