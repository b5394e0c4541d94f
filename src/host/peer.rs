//! Identifies the process at the other end of a Unix socket.
//!
//! The kernel keeps the pid of the process that connected, and another process may have that pid when it is queried: a
//! process that fills the listener's queue and forks long enough can choose which. A descriptor of the process that
//! connected (SO_PEERPIDFD, since Linux 6.5) identifies it reliably. On older kernels a process is accepted only if it
//! already existed when the queue was seen empty.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::event::PollFlags;

use super::poll;
use super::process::{self, ProcRoot};
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its pid in the daemon's pid namespace when it connected; absent if it has none there.
    pub pid: Option<u32>,
    /// Its user when it connected.
    pub uid: u32,
}

/// The credentials of the peer of this stream.
pub fn peer(stream: impl AsFd) -> io::Result<Peer> {
    // rustix represents the pid as a number that cannot be 0, which it is for a process of another pid namespace.
    let credentials = getsockopt(&stream, PeerCredentials)?;
    Ok(Peer { pid: u32::try_from(credentials.pid()).ok().filter(|pid| *pid != 0), uid: credentials.uid() })
}

/// The process that connected, as reported by the kernel.
#[derive(Debug)]
enum Held {
    /// The process itself.
    Process(OwnedFd),
    /// It has ended.
    Gone,
    /// The kernel is too old to identify it.
    Unknown,
}

fn held(stream: impl AsFd) -> Held {
    match getsockopt(&stream, PeerPidfd) {
        Ok(process) => Held::Process(process),
        Err(Errno::ESRCH) => Held::Gone,
        Err(_) => Held::Unknown,
    }
}

/// Whether the kernel can reliably identify the peer of this stream.
pub fn is_certain(stream: impl AsFd) -> bool {
    !matches!(held(stream), Held::Unknown)
}

impl Peer {
    /// The process that connected through `stream`, if it is certain that it is this one and that its user
    /// has not changed.
    ///
    /// `quiet` is a time at which the connection is known not to have existed.
    pub fn process(self, stream: impl AsFd, proc: &Path, quiet: Timestamp) -> Option<ProcessKey> {
        self.proven(&held(stream), proc, quiet)
    }

    /// The same with a pidfd of the process, where the kernel has one of it (Linux 6.5).
    pub fn process_and_pidfd(
        self,
        stream: impl AsFd,
        proc: &Path,
        quiet: Timestamp,
    ) -> Option<(ProcessKey, Option<OwnedFd>)> {
        let held = held(stream);
        let key = self.proven(&held, proc, quiet)?;
        Some((key, if let Held::Process(process) = held { Some(process) } else { None }))
    }

    fn proven(self, held: &Held, proc: &Path, quiet: Timestamp) -> Option<ProcessKey> {
        let pid = self.pid?;
        let mut root = ProcRoot::new(proc.to_path_buf());
        root.connect().ok()?;
        let mut buffer = Vec::new();
        let start = process::stat(root.read(pid, "stat", &mut buffer).ok()?)?.start;
        let uid = root.uid(pid).ok()?;
        // Checked last: no other process had the pid while this one existed.
        let certain = match held {
            Held::Process(process) => is_running(process),
            Held::Gone => false,
            Held::Unknown => start < process::ticks(quiet.monotonic()),
        };
        (certain && uid == self.uid).then_some(ProcessKey { pid, start })
    }
}

/// Whether a process has not ended; its descriptor becomes readable when it does.
fn is_running(process: &OwnedFd) -> bool {
    poll::events(process, PollFlags::IN, Duration::ZERO).is_ok_and(|events| events.is_empty())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::host::clock;
    use crate::host::process::testing::{Process, Tree};

    fn own() -> Peer {
        Peer { pid: Some(std::process::id()), uid: rustix::process::geteuid().as_raw() }
    }

    fn real() -> &'static Path {
        Path::new("/proc")
    }

    #[test]
    fn the_peer_is_the_one_that_the_kernel_reports() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(peer(&one).unwrap(), own());
        let found = own().process(&one, real(), clock::now()).unwrap();
        let stat = std::fs::read(format!("/proc/{}/stat", found.pid)).unwrap();
        assert_eq!((found.pid, found.start), (std::process::id(), process::stat(&stat).unwrap().start));
    }

    #[test]
    fn a_process_of_another_user_is_not_the_one_that_connected() {
        let (one, _other) = UnixStream::pair().unwrap();
        let other = Peer { uid: own().uid + 1, ..own() };
        assert_eq!(other.process(&one, real(), clock::now()), None);
    }

    #[test]
    fn a_process_that_has_ended_is_not_found_by_its_pid() {
        // Simulates that the pid of a process that connected and exited is now that of this process.
        assert_eq!(own().proven(&Held::Gone, real(), clock::now()), None);
        #[expect(clippy::disallowed_methods, reason = "a process that ends is the subject of the test")]
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert_eq!(own().proven(&Held::Process(process), real(), clock::now()), None);
    }

    #[test]
    fn without_a_pidfd_only_a_process_older_than_the_connection_counts() {
        let tree = Tree::new();
        tree.add(&Process::new(7, "python").start(4_711));
        let at = |ticks: u64| {
            let quiet = Duration::from_millis(ticks * 1_000 / process::clock_ticks());
            let peer = Peer { pid: Some(7), uid: own().uid };
            peer.proven(&Held::Unknown, &tree.proc(), Timestamp::new(quiet, quiet)).map(|key| key.start)
        };
        assert_eq!([at(4_711), at(4_712)], [None, Some(4_711)]);
    }
}
