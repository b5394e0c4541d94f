//! Who is at the other end of a Unix socket, by the kernel, and which process that is.
//!
//! The kernel keeps the pid that connected, and another process may have it by the time it is asked: whoever fills the
//! queue of the listener and forks long enough chooses whose. A descriptor of the process that connected (SO_PEERPIDFD,
//! since Linux 6.5) tells for certain. Before, a process counts only if it was there while the queue was seen empty.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::process::{self, ProcRoot};
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;

/// Who connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The pid that it had in the daemon's pid namespace; absent where it has none there.
    pub pid: Option<u32>,
    /// The user that it was.
    pub uid: u32,
}

/// Who connected to us by this stream.
///
/// # Errors
/// The operating system's.
pub fn peer(stream: impl AsFd) -> io::Result<Peer> {
    // rustix takes the pid for one that cannot be 0, which it is for a process of another pid namespace.
    let told = getsockopt(&stream, PeerCredentials)?;
    Ok(Peer { pid: u32::try_from(told.pid()).ok().filter(|pid| *pid != 0), uid: told.uid() })
}

/// What the kernel has of the process that connected.
#[derive(Debug)]
enum Held {
    /// The process itself.
    Process(OwnedFd),
    /// It is gone.
    Gone,
    /// The kernel is too old to tell.
    Unknown,
}

fn held(stream: impl AsFd) -> Held {
    match getsockopt(&stream, PeerPidfd) {
        Ok(process) => Held::Process(process),
        Err(Errno::ESRCH) => Held::Gone,
        Err(_) => Held::Unknown,
    }
}

/// Whether the kernel can tell for certain who is at the other end of this stream.
pub fn is_certain(stream: impl AsFd) -> bool {
    !matches!(held(stream), Held::Unknown)
}

impl Peer {
    /// The process that connected by `stream`, where it is certain that it is this one and still the same user's.
    ///
    /// `quiet` is when the connection is known not to have been made yet.
    pub fn process(self, stream: impl AsFd, proc: &Path, quiet: Timestamp) -> Option<ProcessKey> {
        self.proven(&held(stream), proc, quiet)
    }

    fn proven(self, held: &Held, proc: &Path, quiet: Timestamp) -> Option<ProcessKey> {
        let pid = self.pid?;
        let mut root = ProcRoot::new(proc.to_path_buf());
        root.connect().ok()?;
        let mut buffer = Vec::new();
        let start = process::stat(root.read(pid, "stat", &mut buffer).ok()?)?.start;
        let uid = root.uid(pid).ok()?;
        // Asked last: nobody else had the pid while it lived.
        let certain = match held {
            Held::Process(process) => lives(process),
            Held::Gone => false,
            Held::Unknown => start < process::ticks(quiet.monotonic()),
        };
        (certain && uid == self.uid).then_some(ProcessKey { pid, start })
    }
}

/// Whether a process has not ended, which a descriptor of it tells by becoming readable.
fn lives(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) == Ok(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::host::clock;
    use crate::host::process::fixture::{Process, Tree};

    fn own() -> Peer {
        Peer { pid: Some(std::process::id()), uid: rustix::process::geteuid().as_raw() }
    }

    fn real() -> &'static Path {
        Path::new("/proc")
    }

    #[test]
    fn the_kernel_says_who_connects() {
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
    fn one_that_has_ended_is_nobody_whoever_has_its_pid() {
        // As if the pid of a process that connected and ended were ours by now.
        assert_eq!(own().proven(&Held::Gone, real(), clock::now()), None);
        #[expect(clippy::disallowed_methods, reason = "a process that ends is what this is about")]
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert_eq!(own().proven(&Held::Process(process), real(), clock::now()), None);
    }

    #[test]
    fn without_a_descriptor_only_who_was_there_before_counts() {
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
