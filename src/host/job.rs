//! Runs a command of the user, and forwards signals to it.
//!
//! The command stays in the process group of memwarden, so that the terminal's keys, job control and the shell's
//! `kill %1` reach it directly. Signals sent to memwarden alone are forwarded. A signal that a process sends to a
//! whole group, or to every process of a job one by one, cannot be distinguished from one sent to memwarden alone:
//! the command then gets it twice.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;

use super::process;
use crate::model::facts::ExitedProcess;
use crate::model::ids::ProcessKey;

/// Signals that are forwarded, except those that were ignored at the start.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// A command that runs or has run.
#[derive(Debug)]
pub struct Job {
    child: Child,
    /// When it started, in clock ticks after boot; absent where the process file system is not readable.
    start: Option<u64>,
}

/// An event of [`Inbox::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A child may have ended.
    Child,
    /// A signal that was sent to this process alone.
    Sent(i32),
    /// A signal of the terminal or the kernel, which the whole process group received.
    Group(i32),
}

/// Received signals.
pub struct Inbox {
    signals: SignalsInfo<WithOrigin>,
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").finish_non_exhaustive()
    }
}

impl Inbox {
    /// Handles the signals that are forwarded. Ignored signals, as under `nohup`, remain ignored.
    pub fn open(proc: &Path) -> io::Result<Self> {
        let ignored = std::fs::read_to_string(proc.join("self/status")).map_or(0, |text| ignored(&text));
        let wanted = FORWARDED.iter().copied().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        let signals = SignalsInfo::new(wanted.chain([SIGCHLD]))?;
        Ok(Self { signals })
    }

    /// Waits for the next events.
    pub fn wait(&mut self) -> Vec<Event> {
        let events = self.signals.wait().map(|origin| match (origin.signal, origin.process) {
            (SIGCHLD, _) => Event::Child,
            (signal, Some(_)) => Event::Sent(signal),
            (signal, None) => Event::Group(signal),
        });
        events.collect()
    }
}

/// The ignored signals, as bits, from the text of `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

impl Job {
    /// Starts a command with the input, output and environment of this process, and additional variables.
    ///
    /// # Errors
    /// Errors of the operating system: not found, not executable.
    #[expect(clippy::disallowed_methods, reason = "this is where the user's command is started")]
    pub fn start(
        program: &OsString,
        arguments: &[OsString],
        variables: Vec<(&'static str, OsString)>,
        proc: &Path,
    ) -> io::Result<Self> {
        let child = Command::new(program).args(arguments).envs(variables).spawn()?;
        // Not reaped, so that it has its pid still.
        let stat = std::fs::read(proc.join(child.id().to_string()).join("stat")).ok();
        Ok(Self { start: stat.and_then(|text| Some(process::stat(&text)?.start)), child })
    }

    /// Its identity, and a status that it ended with.
    pub fn exited(&self, status: ExitStatus) -> Option<ExitedProcess> {
        let process = ProcessKey { pid: self.child.id(), start: self.start? };
        Some(ExitedProcess { process, tid: process.pid, status: status.into_raw() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Forwards a signal. It is an unreaped child, so that the pid cannot belong to another process.
    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
            // It may have exited meanwhile, or run as another user now; both are ignored.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Its exit status, if it has exited; reaps it.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

/// Makes this process the parent of all descendants that lose theirs, as a daemon does by forking twice (`PR_SET_CHILD_SUBREAPER`,
/// prctl(2)). Returns whether it is: not where it has children that were there before, whose descendants would be taken for those
/// of the command.
pub fn adopt_orphans() -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let is_alone = rustix::process::waitid(WaitId::All, look).is_err_and(|error| error == Errno::CHILD);
    is_alone && rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_ok()
}

/// Whether this process is the parent of descendants that lose theirs.
pub fn adopts_orphans() -> bool {
    rustix::process::child_subreaper().is_ok_and(|reaper| reaper.is_some())
}

/// Reaps an adopted process that has ended.
pub fn reap(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It is no child, or was reaped.
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
    }
}

/// The exit code that a shell would return: 128 plus the signal number if a signal ended it.
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}

/// CPU time of all children that were reaped, and of their children, in clock ticks; absent if the kernel
/// does not report it (`cutime` and `cstime` of proc_pid_stat(5)).
pub fn ticks_of_children(proc: &Path) -> Option<u64> {
    children(&std::fs::read_to_string(proc.join("self/stat")).ok()?)
}

fn children(stat: &str) -> Option<u64> {
    // The name before may contain spaces and parentheses.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(13);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored(""), 0);
        assert_eq!(ignored("SigIgn:\tzz"), 0);
    }

    #[test]
    fn the_time_of_children_is_found_behind_any_name() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 30 12 20 0 1";
        assert_eq!(children(stat), Some(42));
        assert_eq!(children("7 (a) S 1"), None);
    }
}
