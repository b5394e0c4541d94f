//! Bounded reads of the kernel's files, through open descriptors for files that are read at each tick.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::model::source::{Failure, SourceError};

/// Most bytes read of any kernel file. The largest one that is read regularly,
/// `/proc/vmstat`, has about 5 KiB; a v1 `memory.stat` has 2 KiB.
pub const LARGEST: usize = 1 << 20;

/// Reads a small file as text.
///
/// # Errors
/// Errors of the operating system, or `InvalidData` for more than [`LARGEST`] bytes or invalid UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = bounded(File::open(path)?, LARGEST as u64)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// Reads a token from a file of the administrator, without surrounding spaces.
///
/// # Errors
/// As [`read_bounded`], `InvalidData` for a token of less than 16 bytes and for one that is not text, and
/// `PermissionDenied` for a file of another user than root and the daemon's, and for one that other users can read or
/// write.
pub fn read_token(path: &Path) -> io::Result<String> {
    /// Tokens have a few dozen bytes.
    const LONGEST: u64 = 4096;
    /// Who receives a signed request can try all shorter tokens.
    const SHORTEST: usize = 16;
    let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
    let file = open_regular(path)?;
    let status = file.metadata()?;
    let (uid, mode) = (status.uid(), status.mode() & 0o777);
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Err(denied(format!("it belongs to user {uid}, and must belong to root")));
    }
    if mode & 0o077 != 0 {
        return Err(denied(format!(
            "other users can read or write it: its mode is {mode:04o}, and must be 0600"
        )));
    }
    let text = String::from_utf8(bounded(file, LONGEST)?).map_err(|_| invalid("it is not text"))?;
    let token = text.trim();
    if token.len() < SHORTEST {
        return Err(invalid("its token has less than 16 bytes"));
    }
    Ok(token.to_owned())
}

/// The user id that the kernel shows for users that a user namespace does not have.
const OVERFLOW: u32 = 65_534;

/// Checks that no other user than root can replace a folder, or a folder or link on its path; where it is to be the
/// process's own, also that no other user can create files in it. The folder may not exist yet. A group of the number of the
/// calling user is its own; in a user namespace without root, files of root belong to a user that is not known.
///
/// # Errors
/// `PermissionDenied` with the folder that another user can change, or errors of the operating system.
pub fn check_folder(folder: &Path, is_own: bool) -> io::Result<()> {
    let whole = std::path::absolute(folder)?;
    let mut existing = whole.as_path();
    while let (Err(_), Some(above)) = (std::fs::metadata(existing), existing.parent()) {
        existing = above;
    }
    let resolved = existing.canonicalize()?;
    let own = rustix::process::geteuid().as_raw();
    // It is root's everywhere.
    let has_root = std::fs::metadata("/dev/null").is_ok_and(|null| null.uid() != OVERFLOW);
    for part in existing.ancestors().chain(resolved.ancestors()) {
        let status = std::fs::symlink_metadata(part)?;
        let uid = status.uid();
        if ![0, own].contains(&uid) && (has_root || uid != OVERFLOW) {
            return Err(denied(format!("{} belongs to user {uid}, who can change it", part.display())));
        }
        let by_group = status.mode() & 0o020 != 0 && ![0, own].contains(&status.gid());
        let by_others = by_group || status.mode() & 0o002 != 0;
        // In a folder such as /tmp others create files, and replace none; one that does not exist yet could become theirs.
        let is_shared = status.mode() & 0o1000 != 0 && !(is_own && part == resolved);
        if by_others && !is_shared && !status.is_symlink() {
            return Err(denied(format!("other users can write to {}", part.display())));
        }
    }
    Ok(())
}

fn denied(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what)
}

/// Reads a regular file of at most `largest` bytes; links are followed.
///
/// # Errors
/// Errors of the operating system, or `InvalidData` for a larger file.
pub fn read_bounded(path: &Path, largest: u64) -> io::Result<Vec<u8>> {
    bounded(open_regular(path)?, largest)
}

/// Opens a regular file without waiting for anybody.
pub fn open_regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        // Opening a FIFO would block, and a device has no end.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let calm = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let flags = i32::try_from(calm.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        // Another file has replaced it.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

fn bounded(file: File, largest: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(largest.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > largest {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {largest} bytes")));
    }
    Ok(bytes)
}

/// Appends all of these bytes to a file.
///
/// # Errors
/// Errors of the operating system; some of the bytes may be written then.
pub fn append(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    #[cfg(test)]
    if let Some(edges) = super::testing::edges() {
        let (length, result) = edges.write(bytes.len());
        return file.write_all(&bytes[..length]).and(result);
    }
    file.write_all(bytes)
}

/// Appends to a file that only its owner can read, which is created where there is none.
///
/// # Errors
/// As [`append`]; what was written is taken back then, as far as that can be done.
pub fn append_to(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().append(true).create(true).mode(0o600).open(path)?;
    let before = file.metadata()?.len();
    append(&mut file, bytes).inspect_err(|_| drop(file.set_len(before)))
}

/// Replaces a file atomically: a reader sees the old content or the new one, also after a crash.
///
/// # Errors
/// Errors of the operating system or of `write`; the old file is unchanged then, and no other file remains.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
) -> io::Result<()> {
    use std::io::Write as _;
    let mut name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
    name.push(".new");
    let beside = path.with_file_name(name);
    // Removes a file that a crash left or another process created, so that it is never written through.
    let _ = std::fs::remove_file(&beside);
    // The file may name users and jobs, so it is private.
    let file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = (|| {
        let mut out = io::BufWriter::new(file);
        write(&mut out)?;
        out.flush()?;
        #[cfg(test)]
        if let Some(edges) = super::testing::edges() {
            edges.write(0).1?;
        }
        out.get_ref().sync_all()?;
        std::fs::rename(&beside, path)
    })();
    written.inspect_err(|_| {
        // If it cannot be removed either, the next attempt removes it.
        let _ = std::fs::remove_file(&beside);
    })
}

/// Renames a file that cannot be used, and returns its new path; an earlier one of that name is replaced.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let mut name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
    name.push(".damaged");
    let aside = path.with_file_name(name);
    std::fs::rename(path, &aside)?;
    Ok(aside)
}

/// A kernel file that is read at each tick through one descriptor.
///
/// Reading a descriptor of `/proc/PID/…` returns `ESRCH` once the process has
/// ended, even if its pid is in use again.
#[derive(Debug)]
pub struct KeptFile {
    path: PathBuf,
    file: Option<File>,
}

impl KeptFile {
    /// A file that is opened at the first read.
    pub fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    /// Absent before the first read.
    pub const fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the whole file into `buffer`, which is cleared first; opens the file if it is not open.
    ///
    /// # Errors
    /// Errors of the operating system; the descriptor is closed, so that the next read opens the file again.
    pub fn read<'b>(&mut self, buffer: &'b mut Vec<u8>) -> io::Result<&'b [u8]> {
        let file = match self.file.take() {
            Some(file) => file,
            None => File::open(&self.path)?,
        };
        read_at_start(&file, buffer)?;
        self.file = Some(file);
        Ok(buffer)
    }

    /// As [`KeptFile::read`], with the error of a source.
    ///
    /// # Errors
    /// [`SourceError`] with the path.
    pub fn sample<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], SourceError> {
        self.read(buffer).map_err(|error| failed(&self.path, &error))
    }

    /// As [`KeptFile::sample`], of a file that not every kernel has: without it the source is unavailable.
    ///
    /// # Errors
    /// [`SourceError`] with the path.
    pub fn sample_if_there<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], SourceError> {
        let what = |path: &Path| format!("cannot read {}", path.display());
        self.read(buffer).map_err(|error| SourceError::io_or_absent(what(&self.path), &error))
    }

    /// The source's error for content that is not as documented; `what` follows the path.
    pub fn malformed(&self, what: &str) -> SourceError {
        SourceError::failed(Failure::Parse, format!("{} {what}", self.path.display()))
    }
}

/// Reads a whole file from its start with `pread`.
///
/// # Errors
/// Errors of the operating system, or `InvalidData` for more than [`LARGEST`] bytes.
pub fn read_at_start(file: &File, buffer: &mut Vec<u8>) -> io::Result<()> {
    /// Kernel files report no size; most of them are read by one call of this size.
    const FIRST: usize = 4096;
    buffer.clear();
    buffer.resize(buffer.capacity().max(FIRST), 0);
    let mut filled = 0;
    loop {
        if filled == buffer.len() {
            if filled > LARGEST {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {LARGEST} bytes")));
            }
            buffer.resize(filled * 2, 0);
        }
        match file.read_at(&mut buffer[filled..], filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(())
}

/// The source's error for a file that could not be read or parsed.
pub fn failed(path: &Path, error: &io::Error) -> SourceError {
    SourceError::io(format_args!("cannot read {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_file_is_read_whole_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut kept = KeptFile::new(path.clone());
        let mut buffer = Vec::new();
        assert_eq!(kept.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::NotFound);
        let long = "x".repeat(10_000);
        std::fs::write(&path, &long).unwrap();
        assert_eq!(kept.read(&mut buffer).unwrap(), long.as_bytes());
        std::fs::write(&path, "short").unwrap();
        assert_eq!(kept.read(&mut buffer).unwrap(), b"short");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        write_atomically(&path, |out| out.write_all(b"one")).unwrap();
        std::os::unix::fs::symlink("elsewhere", folder.path().join("f.new")).unwrap();
        write_atomically(&path, |out| out.write_all(b"two")).unwrap();
        assert_eq!(read_bounded(&path, 3).unwrap(), b"two");
        assert_eq!(read_bounded(&path, 2).unwrap_err().kind(), io::ErrorKind::InvalidData);
        let nowhere = folder.path().join("none/f");
        assert_eq!(
            write_atomically(&nowhere, |out| out.write_all(b"x")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        std::fs::create_dir(folder.path().join("d")).unwrap();
        assert!(write_atomically(&folder.path().join("d"), |out| out.write_all(b"x")).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_others_can_change_is_not_used() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        std::fs::create_dir(&own).unwrap();
        let mode = |mode| std::fs::set_permissions(&own, std::fs::Permissions::from_mode(mode)).unwrap();
        let check = |path: &Path| [false, true].map(|is_own| check_folder(path, is_own).is_ok());
        assert_eq!(check(&own), [true, true]);
        let new = own.join("new/state");
        assert_eq!(check(&new), [true, true], "a folder that is made later");
        mode(0o1777);
        assert_eq!(check(&own), [true, false], "others create files in it, and replace none");
        mode(0o777);
        assert_eq!((check(&own), check(&new)), ([false, false], [false, false]));
        // Links are followed, and whoever can replace one chooses the folder.
        let link = own.join("link");
        symlink("/", &link).unwrap();
        assert_eq!(check(&link), [false, false]);
        let out = folder.path().join("out");
        symlink(&own, &out).unwrap();
        assert_eq!(check(&out), [false, false]);
        mode(0o755);
        assert_eq!((check(&link), check(&out)), ([true, true], [true, true]));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&own, Some(61_001), None).unwrap();
            assert_eq!(check(&own), [false, false]);
        }
    }

    #[test]
    fn an_endless_file_is_refused() {
        let mut kept = KeptFile::new("/dev/zero".into());
        assert_eq!(kept.read(&mut Vec::new()).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_text(Path::new("/dev/zero")).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
