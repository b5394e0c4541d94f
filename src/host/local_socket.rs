//! Creates the sockets of the daemon, for jobs and for commands, and connects to them; a socket file that a terminated
//! daemon left is replaced, one of a running daemon never.
//!
//! The folder must be one that no other user can change, which is checked on an open descriptor
//! of it; all operations on the file are relative to that descriptor and follow no link.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::sys::stat::{FchmodatFlags, fchmodat};
use rustix::fs::{self as rfs, AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{getegid, geteuid};

use super::peer;
use crate::model::source::Failure;

/// Why the socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Another process listens on it.
    #[error("another process listens on {}", .0.display())]
    Taken(PathBuf),
    /// The path is something else, which is not removed.
    #[error("{} exists and is not a socket of memwarden", .0.display())]
    NoSocket(PathBuf),
    /// Others could replace the socket.
    #[error("the folder {} {why}; others could replace the socket", .folder.display())]
    Folder { folder: PathBuf, why: &'static str },
    /// An error of the operating system.
    #[error("cannot {what} {}: {error}", .path.display())]
    System {
        /// The failed operation.
        what: &'static str,
        path: PathBuf,
        error: io::Error,
    },
}

impl Problem {
    /// The kind of failure, for the status of the source.
    pub fn kind(&self) -> Failure {
        match self {
            Self::Taken(_) | Self::NoSocket(_) => Failure::Io,
            Self::Folder { .. } => Failure::Permission,
            Self::System { error, .. } => Failure::of(error),
        }
    }
}

/// Permissions and owner of the socket file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The permissions of the socket's file.
    pub mode: u32,
    /// User and group, if they differ from the daemon's.
    pub owner: Option<(u32, Option<u32>)>,
}

/// A listening socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct Bound {
    /// The listener, which is non-blocking.
    pub listener: UnixListener,
    path: PathBuf,
    place: SocketFolder,
    /// Device and inode: the file may have been replaced when it is to be removed.
    identity: (u64, u64),
}

impl Bound {
    /// Whether clients still find it: the file may have been removed or replaced.
    pub fn in_place(&self) -> bool {
        rfs::lstat(&self.path).is_ok_and(|status| identity(&status) == self.identity)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.place.look().is_ok_and(|status| identity(&status) == self.identity) {
            // A file that cannot be removed is stale, and the next daemon replaces it.
            let _ = self.place.remove();
        }
    }
}

/// A name in a folder that is kept open.
#[derive(Debug)]
struct SocketFolder {
    folder: OwnedFd,
    name: OsString,
    /// Whether others may have files in the folder, with which they cannot replace the socket.
    shared: bool,
}

impl SocketFolder {
    /// Opens the folder, creates it if it does not exist, and checks that no other user can change the daemon's files
    /// in it.
    fn open(path: &Path) -> Result<Self, Problem> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(failed("create the folder", folder))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rfs::open(folder, flags, Mode::empty())
            .map_err(failed("open the folder (symbolic links are not followed)", folder))?;
        let status = rfs::fstat(&opened).map_err(failed("read the status of the folder", folder))?;
        let refused = |why| Problem::Folder { folder: folder.to_path_buf(), why };
        if ![0, geteuid().as_raw()].contains(&status.st_uid) {
            return Err(refused("belongs to another user"));
        }
        let mode = Mode::from_raw_mode(status.st_mode);
        let by_group = mode.contains(Mode::WGRP) && ![0, getegid().as_raw()].contains(&status.st_gid);
        let shared = by_group || mode.contains(Mode::WOTH);
        if shared && !mode.contains(Mode::SVTX) {
            return Err(refused("is writable by others"));
        }
        let name = path.file_name().unwrap_or_else(|| OsStr::new("")).to_owned();
        Ok(Self { folder: opened, name, shared })
    }

    fn look(&self) -> rustix::io::Result<Stat> {
        rfs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn remove(&self) -> rustix::io::Result<()> {
        rfs::unlinkat(&self.folder, &self.name, AtFlags::empty())
    }

    /// Whether this may be the socket file of a terminated daemon.
    fn may_be_stale(&self, status: &Stat, access: Access) -> bool {
        let users = [Some(geteuid().as_raw()), access.owner.map(|(user, _)| user)];
        is_socket(status) && (!self.shared || users.contains(&Some(status.st_uid)))
    }
}

/// Creates the socket, and its folder if it does not exist.
pub fn bind(path: &Path, access: Access) -> Result<Bound, Problem> {
    let place = SocketFolder::open(path)?;
    clear(path, &place, access)?;
    let listener = UnixListener::bind(path).map_err(failed("listen on", path))?;
    // Until now the umask restricts the file: a client that connects too early tries again.
    // It was created in the folder as it is now, where it did not exist before and only we can create files:
    // it is the daemon's.
    let status = place.look().map_err(failed("read the status of", path))?;
    if !is_socket(&status) || status.st_uid != geteuid().as_raw() || status.st_nlink != 1 {
        return Err(Problem::NoSocket(path.to_path_buf()));
    }
    let bound = Bound { listener, path: path.to_path_buf(), place, identity: identity(&status) };
    let SocketFolder { folder, name, .. } = &bound.place;
    if let Some((user, group)) = access.owner {
        let (user, group) = (Some(Uid::from_raw(user)), group.map(Gid::from_raw));
        rfs::chownat(folder, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(failed("change the owner of", path))?;
    }
    let mode = nix::sys::stat::Mode::from_bits_truncate(access.mode);
    fchmodat(folder, name.as_os_str(), mode, FchmodatFlags::NoFollowSymlink)
        .map_err(failed("change the mode of", path))?;
    if !bound.in_place() {
        return Err(Problem::NoSocket(path.to_path_buf()));
    }
    bound.listener.set_nonblocking(true).map_err(failed("listen on", path))?;
    Ok(bound)
}

/// The error of an operation on a path.
pub fn failed<E: Into<io::Error>>(what: &'static str, path: &Path) -> impl FnOnce(E) -> Problem {
    let path = path.to_owned();
    move |error| Problem::System { what, path, error: error.into() }
}

/// Removes the socket file that a terminated daemon left.
fn clear(path: &Path, place: &SocketFolder, access: Access) -> Result<(), Problem> {
    match place.look() {
        Ok(status) if place.may_be_stale(&status, access) => {}
        Ok(_) => return Err(Problem::NoSocket(path.to_path_buf())),
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(failed("read the status of", path)(error)),
    }
    match probe(path) {
        // A full queue of waiting clients means that the other daemon is running.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Err(Problem::Taken(path.to_path_buf())),
        Err(rustix::io::Errno::CONNREFUSED) => {
            place.remove().map_err(failed("remove the stale socket", path))
        }
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(failed("check for a listener on", path)(error)),
    }
}

/// Whether a process listens on the socket.
pub fn is_served(path: &Path) -> bool {
    // A full queue of waiting clients means that it does.
    matches!(probe(path), Ok(()) | Err(rustix::io::Errno::AGAIN))
}

/// Checks that a connected socket is served by root, or by the owner of its folder: who else can create it could answer
/// in place of the daemon.
///
/// # Errors
/// Another user, as the end of a sentence, or an error of the operating system.
pub fn check_server(stream: impl AsFd, path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (server, owner) = (peer::peer(stream)?.uid, rfs::stat(folder)?.st_uid);
    if server == 0 || server == owner {
        return Ok(());
    }
    let why = format!("it is served by user {server}, and not by root or the owner of its folder");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Connects without blocking.
fn probe(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

fn is_socket(status: &Stat) -> bool {
    FileType::from_raw_mode(status.st_mode) == FileType::Socket
}

const fn identity(status: &Stat) -> (u64, u64) {
    (status.st_dev, status.st_ino)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;

    const ALL: Access = Access { mode: 0o666, owner: None };

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/job.sock");
        let first = bind(&path, ALL).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        let refused = bind(&path, ALL).unwrap_err();
        assert_eq!(refused.to_string(), format!("another process listens on {}", path.display()));
        let Bound { listener, .. } = &first;
        let copy = listener.try_clone().unwrap();
        // The file that a killed daemon leaves, without a listener.
        let left = folder.path().join("left");
        drop(UnixListener::bind(&left).unwrap());
        let second = bind(&left, ALL).unwrap();
        drop((first, copy, second));
        assert!(!path.exists() && !left.exists());
    }

    #[test]
    fn a_file_that_is_not_a_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.sock");
        std::fs::write(&path, "precious").unwrap();
        assert!(matches!(bind(&path, ALL).unwrap_err(), Problem::NoSocket(_)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
        let long = folder.path().join("x".repeat(200));
        assert!(bind(&long, ALL).is_err());
    }

    #[test]
    fn another_daemons_file_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job.sock");
        let first = bind(&path, ALL).unwrap();
        assert!(first.in_place());
        std::fs::remove_file(&path).unwrap();
        assert!(!first.in_place());
        let second = bind(&path, ALL).unwrap();
        assert!(!first.in_place() && second.in_place());
        drop(first);
        assert!(path.exists());
        drop(second);
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, within) = (folder.path().join("open/job.sock"), folder.path().join("open"));
        std::fs::create_dir(&within).unwrap();
        let mode = |mode| std::fs::set_permissions(&within, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        let refused = bind(&path, ALL).unwrap_err().to_string();
        assert!(refused.contains("is writable by others"), "{refused}");
        assert!(!path.exists());
        // If no other user can remove another user's file, the socket is safe.
        mode(0o1777);
        drop(bind(&path, ALL).unwrap());
        mode(0o755);
        drop(bind(&path, ALL).unwrap());
        symlink(&within, folder.path().join("link")).unwrap();
        let refused = bind(&folder.path().join("link/job.sock"), ALL).unwrap_err().to_string();
        assert!(refused.contains("symbolic links are not followed"), "{refused}");
        if geteuid().is_root() {
            std::os::unix::fs::chown(&within, Some(61_002), None).unwrap();
            let refused = bind(&path, ALL).unwrap_err().to_string();
            assert!(refused.contains("belongs to another user"), "{refused}");
        }
    }

    #[test]
    fn a_link_is_neither_removed_nor_given_a_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (path, secret) = (folder.path().join("job.sock"), folder.path().join("secret"));
        std::fs::write(&secret, "x").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        symlink(&secret, &path).unwrap();
        assert!(matches!(bind(&path, ALL).unwrap_err(), Problem::NoSocket(_)));
        symlink(folder.path().join("nothing"), folder.path().join("dangling")).unwrap();
        assert!(matches!(bind(&folder.path().join("dangling"), ALL).unwrap_err(), Problem::NoSocket(_)));
        assert!(!folder.path().join("nothing").exists());
        // The same check by the step itself, as if the link had been created after the socket.
        let place = SocketFolder::open(&path).unwrap();
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o666);
        assert!(fchmodat(&place.folder, "job.sock", mode, FchmodatFlags::NoFollowSymlink).is_err());
        assert_eq!(std::fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn another_users_socket_in_a_shared_folder_is_kept() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let path = folder.path().join("job.sock");
        drop(UnixListener::bind(&path).unwrap());
        std::os::unix::fs::chown(&path, Some(61_002), None).unwrap();
        assert!(matches!(bind(&path, ALL).unwrap_err(), Problem::NoSocket(_)));
        let other = Access { owner: Some((61_002, None)), ..ALL };
        let bound = bind(&path, other).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().uid(), 61_002);
        drop(bound);
    }
}
