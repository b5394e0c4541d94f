//! The file of the audit log: appended to, with preallocated space, rotated by size.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use crate::host::fs;

/// Bytes that are preallocated: an incident of 100 steps has about 100 KiB.
const AHEAD: u64 = 1 << 20;

/// The path of the log, and how much of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPath {
    /// The current file; older ones have the suffixes `.1`, `.2` and so on.
    pub path: PathBuf,
    /// Maximum size of a file in bytes.
    pub most_bytes: u64,
    /// Number of older files that are kept.
    pub keep: u32,
}

#[derive(Debug)]
pub(super) struct LogFile {
    place: LogPath,
    file: File,
    length: u64,
    taken: u64,
}

impl LogFile {
    /// Opens the file for appending, and creates its folder where there is none.
    pub(super) fn open(place: LogPath) -> io::Result<Self> {
        if let Some(folder) = place.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let file = append(&place.path)?;
        let length = file.metadata()?.len();
        let mut log = Self { place, file, length, taken: 0 };
        if log.torn() {
            // Ends a line that a full disk or a crash truncated.
            log.file.write_all(b"\n")?;
            log.length += 1;
        }
        log.take_room();
        Ok(log)
    }

    fn torn(&self) -> bool {
        let mut last = [0];
        self.length > 0 && matches!(self.file.read_at(&mut last, self.length - 1), Ok(1)) && last != *b"\n"
    }

    /// Appends whole lines, calls `is_written`, and syncs them to the disk.
    pub(super) fn append(&mut self, lines: &[u8], is_written: impl FnOnce()) -> io::Result<()> {
        if self.length > 0 && self.length + lines.len() as u64 > self.place.most_bytes {
            self.rotate()?;
        }
        let written = fs::append(&mut self.file, lines);
        self.length = self.file.metadata().map_or(self.length, |metadata| metadata.len());
        written?;
        is_written();
        self.file.sync_data()?;
        self.take_room();
        Ok(())
    }

    /// Preallocates space beyond the end, for a disk that becomes full later.
    fn take_room(&mut self) {
        if self.length + AHEAD / 2 > self.taken {
            let end = self.length + AHEAD;
            // Not supported by every file system.
            if rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, end).is_ok() {
                self.taken = end;
            }
        }
    }

    fn rotate(&mut self) -> io::Result<()> {
        let name = |number: u32| {
            let mut name = self.place.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        // Frees preallocated space.
        let _ = self.file.set_len(self.length);
        for number in (1..self.place.keep).rev() {
            match std::fs::rename(name(number), name(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.place.keep > 0 {
            std::fs::rename(&self.place.path, name(1))?;
        } else {
            std::fs::remove_file(&self.place.path)?;
        }
        self.file = append(&self.place.path)?;
        (self.length, self.taken) = (0, 0);
        self.take_room();
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    // Private, since it names users and jobs. Links are not followed, since others may be able to write to the folder.
    let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    File::options().append(true).read(true).create(true).mode(0o600).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_full_file_is_put_aside_and_few_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/audit.jsonl");
        let place = LogPath { path: path.clone(), most_bytes: 20, keep: 2 };
        let mut log = LogFile::open(place.clone()).unwrap();
        for number in 10..18 {
            log.append(format!("line {number}\n").as_bytes(), || ()).unwrap();
        }
        drop(log);
        let mut log = LogFile::open(place).unwrap();
        log.append(b"line 18\n", || ()).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join("deep").join(name)).unwrap();
        assert_eq!(names(&folder.path().join("deep")), ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]);
        assert_eq!(read("audit.jsonl"), "line 18\n");
        assert_eq!(read("audit.jsonl.1"), "line 16\nline 17\n");
        assert_eq!(read("audit.jsonl.2"), "line 14\nline 15\n");
    }

    #[test]
    fn a_line_that_was_cut_short_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::fs::write(&path, "one\ntw").unwrap();
        let place = LogPath { path: path.clone(), most_bytes: 200, keep: 1 };
        LogFile::open(place).unwrap().append(b"three\n", || ()).unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntw\nthree\n");
    }

    #[test]
    fn a_link_is_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(LogFile::open(LogPath { path, most_bytes: 20, keep: 2 }).is_err());
    }
}
