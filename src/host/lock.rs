//! A lock that lets only one process at a time use a folder.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// The name of the locked file.
const NAME: &str = "memwarden.lock";

/// Takes the lock of a folder, which is created if it does not exist; nothing if another process holds the lock.
///
/// It is held while the file is open, and is released when the process ends for any reason.
///
/// # Errors
/// The operating system's error if locking fails.
pub fn take(folder: &Path) -> io::Result<Option<File>> {
    take_file(folder, NAME)
}

/// The same for a folder that others can write, who could replace a lock in it: its lock is in the folder `elsewhere`.
///
/// # Errors
/// As [`take`].
pub fn take_elsewhere(elsewhere: &Path, folder: &Path) -> io::Result<Option<File>> {
    let digest = ring::digest::digest(&ring::digest::SHA256, folder.as_os_str().as_encoded_bytes());
    let number = digest.as_ref().iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    take_file(elsewhere, &format!("memwarden-{number:016x}.lock"))
}

fn take_file(folder: &Path, name: &str) -> io::Result<Option<File>> {
    std::fs::create_dir_all(folder)?;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut how = File::options();
    let how = how.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = how.custom_flags(i32::try_from(flags.bits()).unwrap_or(0)).open(folder.join(name))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_by_one_process_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("state");
        let first = take(&folder).unwrap();
        assert!(first.is_some());
        assert!(take(&folder).unwrap().is_none());
        drop(first);
        assert!(take(&folder).unwrap().is_some());
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let elsewhere = folder.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join(NAME)).unwrap();
        assert!(take(folder.path()).is_err());
        assert!(!elsewhere.exists());
    }
}
