//! The job socket: its file is taken over from a daemon that is gone, never from one that lives, and the kernel
//! says who connects.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::model::source::Failure;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// Another process listens there.
    #[error("another process listens at {}", .0.display())]
    Taken(PathBuf),
    /// Something else is there, which is not ours to remove.
    #[error("{} is there and is no socket", .0.display())]
    NoSocket(PathBuf),
    /// The operating system's.
    #[error("cannot {what} {}: {error}", .path.display())]
    System {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
    },
}

impl Problem {
    /// The kind of failure.
    pub fn kind(&self) -> Failure {
        match self {
            Self::Taken(_) | Self::NoSocket(_) => Failure::Io,
            Self::System { error, .. } => Failure::of(error),
        }
    }
}

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The permissions of the socket's file.
    pub mode: u32,
    /// User and group, where the file is to be another's than the daemon's.
    pub owner: Option<(u32, Option<u32>)>,
}

/// A socket that listens; its file is removed with it.
#[derive(Debug)]
pub struct Bound {
    /// It accepts without waiting.
    pub listener: UnixListener,
    path: PathBuf,
    /// Device and inode: the file may be another's by the time it is to be removed.
    identity: (u64, u64),
}

impl Bound {
    /// Whether clients still find it: the file may have been removed, or replaced by another's.
    pub fn in_place(&self) -> bool {
        std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.identity)
    }
}

/// Makes the socket, and its folder where that is missing.
///
/// # Errors
/// What was attempted, and why it failed.
pub fn bind(path: &Path, access: Access) -> Result<Bound, Problem> {
    let failed = |what| {
        let path = path.to_path_buf();
        move |error| Problem::System { what, path, error }
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(|error| Problem::System { what: "make the folder", path: folder.to_path_buf(), error })?;
    }
    clear(path)?;
    let listener = UnixListener::bind(path).map_err(failed("listen at"))?;
    // Until here the file is as closed as the daemon's mask makes it: a client that comes early comes again.
    let metadata = std::fs::symlink_metadata(path).map_err(failed("look at"))?;
    let bound = Bound { listener, path: path.to_path_buf(), identity: (metadata.dev(), metadata.ino()) };
    if let Some((user, group)) = access.owner {
        std::os::unix::fs::lchown(path, Some(user), group).map_err(failed("change the owner of"))?;
    }
    let permissions = std::fs::Permissions::from_mode(access.mode);
    std::fs::set_permissions(path, permissions).map_err(failed("change the mode of"))?;
    bound.listener.set_nonblocking(true).map_err(failed("listen at"))?;
    Ok(bound)
}

/// Removes what a daemon that is gone left behind.
fn clear(path: &Path) -> Result<(), Problem> {
    let failed = |what, error| Problem::System { what, path: path.to_path_buf(), error };
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => return Err(Problem::NoSocket(path.to_path_buf())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at", error)),
    }
    match probe(path) {
        // Full of clients that wait is as alive as can be.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Err(Problem::Taken(path.to_path_buf())),
        Err(rustix::io::Errno::CONNREFUSED) => {
            std::fs::remove_file(path).map_err(|error| failed("remove the stale socket", error))
        }
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(failed("look who listens at", error.into())),
    }
}

/// Connects without waiting.
fn probe(path: &Path) -> rustix::io::Result<()> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.in_place() {
            // A file that stays is stale, which the next daemon sees.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Who is at the other end of a connection, by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The pid in the daemon's pid namespace; absent where it has none there.
    pub pid: Option<u32>,
    /// The user it had when it connected.
    pub uid: u32,
}

/// Asks the kernel who connects.
///
/// It asks through tokio: rustix takes the pid for one that cannot be 0, which
/// it is for a process that the daemon's pid namespace does not have.
#[derive(Debug)]
pub struct Peers(tokio::runtime::Runtime);

impl Peers {
    /// Gets ready; the runtime never runs anything.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new() -> io::Result<Self> {
        Ok(Self(tokio::runtime::Builder::new_current_thread().enable_io().build()?))
    }

    /// Who is at the other end of a stream, which it gives back not waiting for anything.
    ///
    /// # Errors
    /// The operating system's.
    pub fn of(&self, stream: UnixStream) -> io::Result<(UnixStream, Peer)> {
        stream.set_nonblocking(true)?;
        let _context = self.0.enter();
        let stream = tokio::net::UnixStream::from_std(stream)?;
        let told = stream.peer_cred()?;
        let pid = told.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
        Ok((stream.into_std()?, Peer { pid, uid: told.uid() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Access = Access { mode: 0o666, owner: None };

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/job.sock");
        let first = bind(&path, ALL).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        let refused = bind(&path, ALL).unwrap_err();
        assert_eq!(refused.to_string(), format!("another process listens at {}", path.display()));
        let Bound { listener, .. } = &first;
        let copy = listener.try_clone().unwrap();
        // What a daemon that was killed leaves: a file nobody listens at.
        let left = folder.path().join("left");
        drop(UnixListener::bind(&left).unwrap());
        let second = bind(&left, ALL).unwrap();
        drop((first, copy, second));
        assert!(!path.exists() && !left.exists());
    }

    #[test]
    fn the_kernel_says_who_connects() {
        let (one, _other) = UnixStream::pair().unwrap();
        let (_, peer) = Peers::new().unwrap().of(one).unwrap();
        assert_eq!(peer.pid, Some(std::process::id()));
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
    }

    #[test]
    fn what_is_no_socket_stays() {
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
}
