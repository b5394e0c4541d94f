//! Sees how watched processes end, though they are not our children.
//!
//! A pidfd that is held tells the exit status once the process was reaped, since
//! Linux 6.15. Before that only its parent knows, and [`Deaths::told`] says so.

mod raw;

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid};

use crate::host::process;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;

/// Processes that are watched at most; each takes a descriptor.
const MOST: usize = 1024;

/// A process that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// Which.
    pub key: ProcessKey,
    /// To whom it belonged.
    pub owner: Label,
    /// The signal that ended it; nothing where it ended by itself.
    pub signal: Option<i32>,
}

#[derive(Debug)]
struct Watched {
    process: OwnedFd,
    owner: Label,
}

/// The processes that are watched.
#[derive(Debug, Default)]
pub struct Deaths {
    watched: HashMap<ProcessKey, Watched>,
}

impl Deaths {
    /// Whether this kernel tells how a process ended that is not a child.
    pub fn told() -> bool {
        let own = rustix::process::pidfd_open(getpid(), PidfdFlags::empty());
        own.is_ok_and(|own| raw::status(own.as_fd()).is_ok())
    }

    /// Watches these from now on, beside those that are watched already; `proc` is where processes are.
    ///
    /// Those that have ended, and those beyond the most that are watched, are left out.
    pub fn watch<'k>(&mut self, proc: &Path, keys: impl Iterator<Item = (ProcessKey, &'k Label)>) {
        for (key, owner) in keys {
            if self.watched.len() >= MOST {
                return;
            }
            if self.watched.contains_key(&key) {
                continue;
            }
            let pid = i32::try_from(key.pid).ok().and_then(Pid::from_raw);
            let process = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
            let Some(process) = process else { continue };
            // The descriptor comes first: whoever still has the start time then had the pid all the while.
            let text = std::fs::read(proc.join(key.pid.to_string()).join("stat"));
            let same =
                text.is_ok_and(|text| process::stat(&text).is_some_and(|stat| stat.start == key.start));
            if same {
                self.watched.insert(key, Watched { process, owner: owner.clone() });
            }
        }
    }

    /// Those that ended and were reaped since; they are not watched any more. One whose end is not told is left out.
    pub fn poll(&mut self) -> Vec<Death> {
        let mut found = Vec::new();
        self.watched.retain(|key, watched| {
            if !reaped(&watched.process) {
                return true;
            }
            if let Ok(Some(status)) = raw::status(watched.process.as_fd()) {
                let signal = Some(status & 0x7f).filter(|signal| *signal != 0);
                found.push(Death { key: *key, owner: watched.owner.clone(), signal });
            }
            false
        });
        found.sort_by_key(|death| death.key);
        found
    }
}

/// Whether nothing of a process is left, by its pidfd: a zombie is readable, and without hang-up.
fn reaped(process: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(process, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut asked, Some(&at_once)), Ok(1)) && asked[0].revents().contains(PollFlags::HUP)
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
    fn how_a_process_ended_is_told_once() {
        if !Deaths::told() {
            crate::skip::skip("this kernel does not tell how a process ended (before 6.15)");
            return;
        }
        let mut deaths = Deaths::default();
        let owner = Label::from("job");
        let (mut killed, first) = start("read line");
        let (mut orderly, second) = start("read line; exit 3");
        let gone = ProcessKey { start: first.start + 1, ..first };
        deaths.watch(Path::new("/proc"), [first, second, gone, first].into_iter().map(|key| (key, &owner)));
        assert_eq!((deaths.watched.len(), deaths.poll()), (2, Vec::new()));
        killed.kill().unwrap();
        killed.wait().unwrap();
        drop(orderly.stdin.take());
        orderly.wait().unwrap();
        let mut expected = vec![
            Death { key: first, owner: owner.clone(), signal: Some(9) },
            Death { key: second, owner, signal: None },
        ];
        expected.sort_by_key(|death| death.key);
        assert_eq!((deaths.poll(), deaths.poll()), (expected, Vec::new()));
    }
}
