//! A log file that is rotated at a size, with a number of older files.

use std::fs::File;
use std::io::{self, Write as _};

use crate::host::user_files::Folder;

/// A file that grows to `largest` bytes, then becomes `NAME.1`, which becomes `NAME.2`, up to `kept` files.
#[derive(Debug)]
pub struct Rotating {
    name: String,
    largest: u64,
    kept: u32,
    open: Option<(File, u64)>,
}

impl Rotating {
    /// A file that is opened at the first write.
    pub fn new(name: impl Into<String>, largest: u64, kept: u32) -> Self {
        Self { name: name.into(), largest, kept, open: None }
    }

    /// Appends `line`; where the file is new, after `header`.
    ///
    /// # Errors
    /// Errors of the operating system, or if the existing file is not accepted; the next write opens the file again.
    pub fn write(&mut self, folder: &Folder, header: impl FnOnce() -> String, line: &[u8]) -> io::Result<()> {
        let (mut file, mut bytes) = match self.open.take() {
            Some(open) => open,
            None => self.open(folder)?,
        };
        if bytes > 0 && bytes.saturating_add(line.len() as u64) > self.largest {
            drop(file);
            self.rotate(folder)?;
            (file, bytes) = self.open(folder)?;
        }
        if bytes == 0 {
            let header = header();
            file.write_all(header.as_bytes())?;
            bytes = header.len() as u64;
        }
        file.write_all(line)?;
        self.open = Some((file, bytes + line.len() as u64));
        Ok(())
    }

    fn open(&self, folder: &Folder) -> io::Result<(File, u64)> {
        let file = folder.append(&self.name)?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    }

    fn rotate(&self, folder: &Folder) -> io::Result<()> {
        if self.kept == 0 {
            return folder.remove(&self.name);
        }
        for age in (1..self.kept).rev() {
            match folder.rename(self.older(age), self.older(age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        folder.rename(&self.name, self.older(1))
    }

    fn older(&self, age: u32) -> String {
        format!("{}.{age}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_rotated_and_the_oldest_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let open = Folder::open(folder.path()).unwrap();
        let mut log = Rotating::new("perf.log", 10, 2);
        for line in ["aaaa\n", "bbbb\n", "cccc\n", "dddd\n", "eeee\n"] {
            log.write(&open, || "h\n".to_owned(), line.as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
        assert_eq!(read("perf.log").as_deref(), Some("h\neeee\n"));
        assert_eq!(read("perf.log.1").as_deref(), Some("h\ndddd\n"));
        assert_eq!(read("perf.log.2").as_deref(), Some("h\ncccc\n"));
        assert_eq!(read("perf.log.3"), None);

        // A restart continues at the end of the file.
        let mut log = Rotating::new("perf.log", 20, 2);
        log.write(&open, || "h\n".to_owned(), b"ffff\n").unwrap();
        assert_eq!(read("perf.log").as_deref(), Some("h\neeee\nffff\n"));
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::os::unix::fs::symlink(&target, folder.path().join("perf.log")).unwrap();
        let open = Folder::open(folder.path()).unwrap();
        let mut log = Rotating::new("perf.log", 10, 2);
        assert!(log.write(&open, String::new, b"x").is_err());
        assert!(!target.exists());
    }
}
