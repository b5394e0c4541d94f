//! A log file that is turned over at a size, with so many older ones kept beside it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// A file that grows to `largest` bytes, then becomes `NAME.1`, which becomes `NAME.2`, up to `kept` of them.
#[derive(Debug)]
pub struct Rotating {
    path: PathBuf,
    largest: u64,
    kept: u32,
    open: Option<(File, u64)>,
}

impl Rotating {
    /// A file that is opened at the first write.
    pub fn new(path: PathBuf, largest: u64, kept: u32) -> Self {
        Self { path, largest, kept, open: None }
    }

    /// Appends `line`; where the file is new, after `header`.
    ///
    /// # Errors
    /// The operating system's; the next write opens the file anew.
    pub fn write(&mut self, header: impl FnOnce() -> String, line: &[u8]) -> io::Result<()> {
        let (mut file, mut bytes) = match self.open.take() {
            Some(open) => open,
            None => open(&self.path)?,
        };
        if bytes > 0 && bytes.saturating_add(line.len() as u64) > self.largest {
            drop(file);
            self.turn()?;
            (file, bytes) = open(&self.path)?;
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

    fn turn(&self) -> io::Result<()> {
        if self.kept == 0 {
            return std::fs::remove_file(&self.path);
        }
        for age in (1..self.kept).rev() {
            match std::fs::rename(self.older(age), self.older(age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        std::fs::rename(&self.path, self.older(1))
    }

    fn older(&self, age: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{age}"));
        name.into()
    }
}

fn open(path: &Path) -> io::Result<(File, u64)> {
    // A link that somebody put there is not followed: we may be root.
    let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let file = File::options().append(true).create(true).mode(0o644).custom_flags(flags).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_turned_over_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("perf.log");
        let mut log = Rotating::new(path.clone(), 10, 2);
        for line in ["aaaa\n", "bbbb\n", "cccc\n", "dddd\n", "eeee\n"] {
            log.write(|| "h\n".to_owned(), line.as_bytes()).unwrap();
        }
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
        assert_eq!(read("perf.log").as_deref(), Some("h\neeee\n"));
        assert_eq!(read("perf.log.1").as_deref(), Some("h\ndddd\n"));
        assert_eq!(read("perf.log.2").as_deref(), Some("h\ncccc\n"));
        assert_eq!(read("perf.log.3"), None);

        // A restart goes on where the file ends.
        let mut log = Rotating::new(path, 20, 2);
        log.write(|| "h\n".to_owned(), b"ffff\n").unwrap();
        assert_eq!(read("perf.log").as_deref(), Some("h\neeee\nffff\n"));
    }

    #[test]
    fn a_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::os::unix::fs::symlink(&target, folder.path().join("perf.log")).unwrap();
        let mut log = Rotating::new(folder.path().join("perf.log"), 10, 2);
        assert!(log.write(String::new, b"x").is_err());
        assert!(!target.exists());
    }
}
