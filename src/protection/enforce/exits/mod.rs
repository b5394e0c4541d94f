//! Detects how watched processes ended that are not children of memwarden.
//!
//! Since Linux 6.15, an open pidfd returns the exit status once the process was reaped. Before, only the parent knows
//! it, and [`ProcessExits::supported`] returns false.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, getpid};

use crate::host::{pidfd, poll, process};
use crate::model::ends::ExitStatus;
use crate::model::fair;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;

/// Maximum number of watched processes; each needs a descriptor.
const MOST: usize = 1024;

/// A job whose processes are watched: the name of its target, its user where the target names a job, and its processes,
/// the most important first.
pub type WatchedJob<'k> = (&'k Label, Option<u32>, &'k [ProcessKey]);

/// A process that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    /// The process.
    pub key: ProcessKey,
    /// The target and the user of the job that it belonged to.
    pub owner: (Label, Option<u32>),
    /// The signal that terminated it; absent where it exited.
    pub signal: Option<i32>,
}

#[derive(Debug)]
struct Watched {
    process: OwnedFd,
    owner: (Label, Option<u32>),
}

/// The processes that are watched.
#[derive(Debug)]
pub struct ProcessExits {
    /// The process file system.
    proc: PathBuf,
    watched: HashMap<ProcessKey, Watched>,
}

impl ProcessExits {
    /// Watches no process yet; `proc` is the process file system.
    pub fn new(proc: PathBuf) -> Self {
        Self { proc, watched: HashMap::new() }
    }

    /// Whether this kernel returns the exit status of a process that is not a child.
    pub fn supported() -> bool {
        let own = rustix::process::pidfd_open(getpid(), PidfdFlags::empty());
        own.is_ok_and(|own| pidfd::exit_status(own.as_fd()).is_ok())
    }

    /// Replaces the watched processes; a process that is terminated by `SIGKILL` is an incident. The maximum number is
    /// divided between the jobs.
    ///
    /// Those that have ended are left out.
    pub fn watch<'k>(&mut self, jobs: impl Iterator<Item = WatchedJob<'k>>) {
        let (mut wanted, mut places) = (Vec::new(), Vec::new());
        for (place, (target, user, keys)) in jobs.enumerate() {
            wanted.extend(keys.iter().map(|key| (*key, (target, user))));
            places.resize(wanted.len(), place);
        }
        let placed = fair::divide(&places, MOST);
        let wanted = wanted.into_iter().zip(placed).filter(|(_, placed)| *placed);
        let wanted: HashMap<_, _> = wanted.map(|(wanted, _)| wanted).collect();
        // A process that is no longer wanted because it has ended is still to be reported.
        let mut untold = 0;
        self.watched.retain(|key, watched| {
            let kept = wanted.contains_key(key) || (untold < MOST && ended(&watched.process));
            untold += usize::from(kept && !wanted.contains_key(key));
            kept
        });
        for (key, (target, user)) in wanted {
            if self.watched.contains_key(&key) {
                continue;
            }
            let pid = i32::try_from(key.pid).ok().and_then(Pid::from_raw);
            let process = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
            let Some(process) = process else { continue };
            // The descriptor is opened first: a process that still has the start time then had the pid throughout.
            let text = std::fs::read(self.proc.join(key.pid.to_string()).join("stat"));
            let same =
                text.is_ok_and(|text| process::stat(&text).is_some_and(|stat| stat.start == key.start));
            if same {
                self.watched.insert(key, Watched { process, owner: (target.clone(), user) });
            }
        }
    }

    /// The processes that have ended and were reaped since the last call; they are no longer watched. Those without an
    /// exit status are left out.
    pub fn poll(&mut self) -> Vec<ProcessExit> {
        let mut found = Vec::new();
        self.watched.retain(|key, watched| {
            if !reaped(&watched.process) {
                return true;
            }
            if let Ok(Some(status)) = pidfd::exit_status(watched.process.as_fd()) {
                let signal = match ExitStatus::of_wait(status) {
                    ExitStatus::Signal(signal) => Some(signal),
                    ExitStatus::Code(_) => None,
                };
                found.push(ProcessExit { key: *key, owner: watched.owner.clone(), signal });
            }
            false
        });
        found.sort_by_key(|exit| exit.key);
        found
    }
}

/// Whether a process was reaped, by its pidfd: for a zombie it is readable without hang-up.
fn reaped(process: &OwnedFd) -> bool {
    events(process).contains(PollFlags::HUP)
}

/// Whether a process has ended, by its pidfd, reaped or not.
fn ended(process: &OwnedFd) -> bool {
    !events(process).is_empty()
}

fn events(process: &OwnedFd) -> PollFlags {
    poll::events(process, PollFlags::IN, Duration::ZERO).unwrap_or(PollFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    #[expect(clippy::disallowed_methods, reason = "the test's own process")]
    fn start(script: &str) -> (Child, ProcessKey) {
        let child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let text = std::fs::read(format!("/proc/{}/stat", child.id())).unwrap();
        let key = ProcessKey { pid: child.id(), start: process::stat(&text).unwrap().start };
        (child, key)
    }

    #[test]
    fn a_job_of_many_processes_leaves_places_to_others() {
        let own = std::process::id();
        let start = process::stat(&std::fs::read("/proc/self/stat").unwrap()).unwrap().start;
        // Nobody has these pids; the descriptors are asked for all the same.
        let many: Vec<_> = (0..3_000).map(|pid| ProcessKey { pid: 5_000_000 + pid, start: 1 }).collect();
        let (job, other) = (Label::from("many"), Label::from("other"));
        let key = ProcessKey { pid: own, start };
        let mut exits = ProcessExits::new("/proc".into());
        let jobs = [(&job, None, many.as_slice()), (&other, None, &[key][..])];
        exits.watch(jobs.into_iter());
        assert!(exits.watched.contains_key(&key));
        exits.watch(jobs.into_iter().take(1));
        assert!(exits.watched.is_empty(), "whoever is wanted no more takes no place");
    }

    #[test]
    fn how_a_process_ended_is_reported_once() {
        if !ProcessExits::supported() {
            crate::skip::skip("this kernel does not tell how a process ended (before 6.15)");
            return;
        }
        let mut exits = ProcessExits::new("/proc".into());
        let (target, user) = (Label::from("job"), Some(7));
        let (mut killed, first) = start("read line");
        let (mut orderly, second) = start("read line; exit 3");
        let gone = ProcessKey { start: first.start + 1, ..first };
        exits.watch([(&target, user, &[first, second, gone, first][..])].into_iter());
        assert_eq!((exits.watched.len(), exits.poll()), (2, Vec::new()));
        killed.kill().unwrap();
        killed.wait().unwrap();
        // It belongs to nobody any more before its end was told.
        exits.watch([(&target, user, &[second][..])].into_iter());
        drop(orderly.stdin.take());
        orderly.wait().unwrap();
        let owner = (target, user);
        let mut expected = vec![
            ProcessExit { key: first, owner: owner.clone(), signal: Some(9) },
            ProcessExit { key: second, owner, signal: None },
        ];
        expected.sort_by_key(|exit| exit.key);
        assert_eq!((exits.poll(), exits.poll()), (expected, Vec::new()));
    }
}
