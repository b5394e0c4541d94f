//! The calls of the kernel that reach one process, by its pidfd.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::raw;
#[cfg(test)]
use crate::host::testing::edges;
use crate::host::{pidfd, poll};
use crate::protection::types::step::SignalNumber;

/// A process, whichever process has its pid by now.
#[derive(Debug)]
pub(super) enum Handle {
    /// Its pidfd.
    Pidfd(OwnedFd),
    /// A process of a simulated machine.
    #[cfg(test)]
    Simulated(u64),
}

fn pid_of(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

impl Handle {
    /// The process that has this pid now.
    ///
    /// # Errors
    /// `ESRCH` where there is none, `EINVAL` for the id of a thread; others of the operating system.
    pub(super) fn open(pid: u32) -> Result<Self, Errno> {
        #[cfg(test)]
        if let Some(edges) = edges() {
            return edges.open(pid).map(Self::Simulated);
        }
        rustix::process::pidfd_open(pid_of(pid).ok_or(Errno::SRCH)?, PidfdFlags::empty()).map(Self::Pidfd)
    }

    /// Its real, effective and saved user, where the kernel reports them.
    pub(super) fn users(&self) -> Option<[u32; 3]> {
        match self {
            Self::Pidfd(process) => pidfd::users(process.as_fd()),
            #[cfg(test)]
            Self::Simulated(process) => edges()?.users(*process),
        }
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// `ESRCH` where it has ended; others of the operating system.
    pub(super) fn send(&self, signal: SignalNumber) -> Result<(), Errno> {
        match self {
            Self::Pidfd(process) => {
                let signal = Signal::from_named_raw(i32::from(signal.get())).ok_or(Errno::INVAL)?;
                rustix::process::pidfd_send_signal(process, signal)
            }
            #[cfg(test)]
            Self::Simulated(process) => {
                edges().map_or(Err(Errno::SRCH), |edges| edges.send(*process, signal.get()))
            }
        }
    }

    /// Whether it has ended.
    pub(super) fn ended(&self) -> bool {
        match self {
            Self::Pidfd(process) => {
                // It is readable from the end on, also before it is reaped.
                poll::events(process, PollFlags::IN, Duration::ZERO)
                    .is_ok_and(|events| events.contains(PollFlags::IN))
            }
            #[cfg(test)]
            Self::Simulated(process) => edges().is_none_or(|edges| edges.ended(*process)),
        }
    }

    /// Releases its memory, if it is being killed; blocks.
    ///
    /// # Errors
    /// As of [`raw::mrelease`].
    pub(super) fn release(&self) -> std::io::Result<()> {
        match self {
            Self::Pidfd(process) => raw::mrelease(process.as_fd()),
            #[cfg(test)]
            Self::Simulated(_) => Ok(()),
        }
    }
}

/// Checks with signal 0 whether a process has this pid, also one that is hidden (`hidepid`, proc(5)).
///
/// # Errors
/// `ESRCH` where there is none, `EPERM` where it may not be signalled.
pub(super) fn probe(pid: u32) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(edges) = edges() {
        return if edges.exists(pid) { Ok(()) } else { Err(Errno::SRCH) };
    }
    rustix::process::test_kill_process(pid_of(pid).ok_or(Errno::SRCH)?)
}
