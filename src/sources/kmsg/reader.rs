//! Reads new records of the kernel log without blocking.
//!
//! Reading starts at the end: records from before the daemon started are not
//! counted. A fixture (regular file or FIFO) behaves the same, with one record
//! per line; lines that are appended are the new records.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Buffer size: the kernel formats a record into at most 8 KiB (CONSOLE_EXT_LOG_MAX),
/// and returns EINVAL for a smaller buffer.
const LONGEST: usize = 8192;

#[derive(Debug)]
pub struct KernelLog {
    path: PathBuf,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    device: bool,
    buffer: Vec<u8>,
    /// The part of `buffer` that was read but not yet returned: a partial line, or several lines.
    pending: std::ops::Range<usize>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Next<R> {
    /// A record, to be parsed by [`super::record::record`].
    Record(R),
    /// The kernel overwrote records before they were read.
    Overwritten,
    /// No new record.
    Nothing,
}

impl KernelLog {
    /// A log that is opened at the first read.
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the log if it is not open, so that everything logged from now on is read.
    ///
    /// # Errors
    /// The operating system's error, or `Unsupported` for a device that is not the kernel log.
    pub fn open(&mut self) -> io::Result<()> {
        if self.open.is_none() {
            self.open = Some(Open::at_end(&self.path)?);
        }
        Ok(())
    }

    /// Reads the next record.
    ///
    /// # Errors
    /// The operating system's error; the descriptor is closed, so that [`KernelLog::open`] opens the log again.
    pub fn poll(&mut self) -> io::Result<Next<&[u8]>> {
        let Some(mut open) = self.open.take() else { return Ok(Next::Nothing) };
        let found = open.advance()?;
        let open = self.open.insert(open);
        Ok(match found {
            Next::Record(place) => Next::Record(&open.buffer[place]),
            Next::Overwritten => Next::Overwritten,
            Next::Nothing => Next::Nothing,
        })
    }
}

impl Open {
    fn at_end(path: &Path) -> io::Result<Self> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        let device = metadata.file_type().is_char_device();
        // Containers may have another device at its path: the null device to hide it, or the console for syslog.
        let number = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        if device && number != (1, 11) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "is a device other than the kernel log"));
        }
        if !metadata.file_type().is_fifo() {
            file.seek(SeekFrom::End(0))?;
        }
        Ok(Self { file, device, buffer: vec![0; LONGEST], pending: 0..0 })
    }

    fn advance(&mut self) -> io::Result<Next<std::ops::Range<usize>>> {
        loop {
            if let Some(line) = self.line() {
                return Ok(Next::Record(line));
            }
            if self.pending.len() == self.buffer.len() {
                // No record is that long: the line is discarded.
                self.pending = 0..0;
            }
            self.buffer.copy_within(self.pending.clone(), 0);
            self.pending = 0..self.pending.len();
            match self.file.read(&mut self.buffer[self.pending.end..]) {
                Ok(0) => return Ok(Next::Nothing),
                Ok(read) if self.device => return Ok(Next::Record(0..read)),
                Ok(read) => self.pending.end += read,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(Next::Nothing),
                    io::ErrorKind::BrokenPipe => return Ok(Next::Overwritten),
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// The next complete line that is a record and not part of a dictionary.
    fn line(&mut self) -> Option<std::ops::Range<usize>> {
        loop {
            let pending = &self.buffer[self.pending.clone()];
            let length = pending.iter().position(|byte| *byte == b'\n')?;
            let dictionary = pending.first() == Some(&b' ');
            let line = self.pending.start..self.pending.start + length;
            self.pending.start = line.end + 1;
            if !dictionary {
                return Some(line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::testing::root;
    use std::io::Write as _;

    fn all(log: &mut KernelLog) -> Vec<String> {
        log.open().unwrap();
        let mut found = Vec::new();
        while let Next::Record(record) = log.poll().unwrap() {
            found.push(String::from_utf8_lossy(record).into_owned());
        }
        found
    }

    #[test]
    fn only_appended_records_are_read() {
        let root = root(&[("kmsg", "6,1,2,-;old\n")]);
        let mut log = KernelLog::new(root.path().join("kmsg"));
        assert_eq!(all(&mut log), [""; 0]);
        root.append("kmsg", "6,2,2,-;new\n SUBSYSTEM=net\n6,3,2,-;newer\n6,4,2,-;ha");
        assert_eq!(all(&mut log), ["6,2,2,-;new", "6,3,2,-;newer"]);
        root.append("kmsg", "lf\n");
        assert_eq!(all(&mut log), ["6,4,2,-;half"]);
    }

    #[test]
    fn an_endless_line_is_dropped() {
        let root = root(&[("kmsg", "")]);
        let mut log = KernelLog::new(root.path().join("kmsg"));
        log.open().unwrap();
        root.write("kmsg", format!("{}\n6,1,2,-;after\n", "x".repeat(3 * LONGEST)));
        assert_eq!(all(&mut log), ["", "6,1,2,-;after"]);
    }

    #[test]
    fn a_fifo_is_read_from_its_beginning() {
        let root = root(&[]);
        let path = root.path().join("kmsg");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut log = KernelLog::new(path.clone());
        assert_eq!(all(&mut log), [""; 0]);
        let mut writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        assert_eq!(all(&mut log), [""; 0]);
        writer.write_all(b"6,1,2,-;through\n").unwrap();
        assert_eq!(all(&mut log), ["6,1,2,-;through"]);
    }

    #[test]
    fn another_device_is_not_the_log() {
        let mut log = KernelLog::new("/dev/null".into());
        assert_eq!(log.open().unwrap_err().kind(), io::ErrorKind::Unsupported);
    }
}
