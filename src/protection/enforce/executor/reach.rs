//! Finds one process, checks it against the scope and signals it, in this order and through one pidfd.
//!
//! The pidfd is opened first. A process that then still has the expected start time had the pid throughout, so that
//! the pidfd refers to it; a later process with the same pid cannot be reached, because the pidfd of an ended process
//! returns `ESRCH`.

use rustix::io::Errno;

use super::handle::{self, Handle};
use super::process_status::{Proc, ProcessStatus};
use crate::model::ids::ProcessKey;
use crate::protection::types::scope::{Candidate, Exempt, Scope};
use crate::protection::types::step::{SignalNumber, Skip, StepError, Touched};

#[derive(Debug)]
pub(super) struct OpenProcess {
    pub(super) pidfd: Handle,
    /// Its status, read after the pidfd was opened.
    pub(super) process: ProcessStatus,
}

/// Why a process was not signalled.
#[derive(Debug)]
pub(super) enum NotSignalled {
    /// It is skipped.
    Skip(Skip),
    /// It may not be signalled, or could not be.
    Error(StepError),
}

impl From<StepError> for NotSignalled {
    fn from(error: StepError) -> Self {
        Self::Error(error)
    }
}

/// Whether signals are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Signals are sent.
    Enforce,
    /// Signal 0 is sent instead, which only checks whether a signal would arrive.
    Drill,
}

fn miss(call: &'static str, pid: u32, error: Errno) -> NotSignalled {
    match error {
        Errno::SRCH | Errno::NOENT => NotSignalled::Skip(Skip::Gone),
        error => NotSignalled::Error(StepError::System { call, pid, errno: error.raw_os_error() }),
    }
}

/// The pidfd of the process that has the pid now.
fn pidfd(key: ProcessKey) -> Result<Handle, NotSignalled> {
    Handle::open(key.pid).map_err(|error| match error {
        // The id of a thread, not of a process.
        Errno::INVAL => NotSignalled::Skip(Skip::Gone),
        error => miss("pidfd_open", key.pid, error),
    })
}

/// The pidfd of the process with this key, if it is alive, to wait for its end.
pub(super) fn watch(proc: &mut Proc, key: ProcessKey) -> Result<Handle, NotSignalled> {
    let pidfd = pidfd(key)?;
    match proc.glance(key.pid).map_err(|error| miss("look at", key.pid, error))? {
        (now, _, false) if now == key => Ok(pidfd),
        _ => Err(NotSignalled::Skip(Skip::Gone)),
    }
}

/// Opens the process with this key, if it is alive, without checking a scope; reads its cgroup where requested.
pub(super) fn open(proc: &mut Proc, key: ProcessKey, group: bool) -> Result<OpenProcess, NotSignalled> {
    let pidfd = pidfd(key)?;
    let process = proc.look(key.pid, group, Some(&pidfd)).map_err(|error| miss("look at", key.pid, error))?;
    if process.key != key || process.dead {
        return Err(NotSignalled::Skip(Skip::Gone));
    }
    Ok(OpenProcess { pidfd, process })
}

/// Opens the process with this key, if it is alive and in the scope.
pub(super) fn find(
    proc: &mut Proc,
    scope: &Scope,
    exempt: &Exempt,
    key: ProcessKey,
) -> Result<OpenProcess, NotSignalled> {
    let group = scope.members.groups().next().is_some();
    let found = open(proc, key, group)?;
    let ProcessStatus { key, users, kernel, .. } = found.process;
    let candidate = Candidate { key, users, kernel, group: proc.group(), ancestors: proc.ancestors() };
    scope
        .admits(&candidate, exempt)
        .map_err(|refusal| NotSignalled::Error(StepError::Refused { pid: key.pid, refusal }))?;
    Ok(found)
}

/// Sends the signal, or checks whether it would arrive.
pub(super) fn send(mode: Mode, found: &OpenProcess, signal: SignalNumber) -> Result<(), NotSignalled> {
    let pid = found.process.key.pid;
    match mode {
        Mode::Enforce => found.pidfd.send(signal).map_err(|error| miss("pidfd_send_signal", pid, error)),
        Mode::Drill => handle::probe(pid).map_err(|error| miss("kill with signal 0", pid, error)),
    }
}

/// Whether a process has this pid, also one that is hidden (`hidepid`, proc(5)).
pub(super) fn exists(pid: u32) -> bool {
    handle::probe(pid) != Err(Errno::SRCH)
}

/// The record of a process that was reached.
pub(super) fn touched(process: &ProcessStatus, errno: i32) -> Touched {
    Touched { key: process.key, uid: process.users[0], comm: process.comm, resident: process.resident, errno }
}
