//! Waits without blocking: for processes to end, cgroups to become empty, and checkpoint acknowledgements.

use std::fs::Metadata;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::group::OpenGroup;
use super::marker::MarkerWatcher;
use super::threads::Token;
use crate::host::{apart, clock, user_files};
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::protection::types::step::Acknowledgement;

/// Interval at which the acknowledgement file is checked: a checkpoint takes seconds.
const FILE_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which a folder is searched for a marker.
const MARKER_INTERVAL: Duration = Duration::from_millis(250);
/// Number of checks for which an empty file, or one with a prefix of `saving`, counts as unfinished: it is opened
/// first, and then written.
const UNFINISHED: u32 = 5;
/// The kernel sets file times by its tick, which is up to 10 ms old.
pub(super) const FILE_TIME_ERROR: Duration = Duration::from_millis(10);

/// Whether a process has ended, by its pidfd.
pub(super) fn ended(process: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(process, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // It is readable from the end on, also before it is reaped.
    matches!(poll(&mut asked, Some(&at_once)), Ok(1)) && asked[0].revents().contains(PollFlags::IN)
}

/// The event that is awaited.
#[derive(Debug)]
pub(super) enum Goal {
    /// All of these processes have ended, and the cgroup is empty.
    End { processes: Vec<OwnedFd>, group: Option<OpenGroup> },
    /// Another thread sees a checkpoint acknowledgement, or has touched a file.
    Thread { progress: Receiver<Progress>, _alive: Arc<()> },
}

/// The progress of a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Waiting { left: u32 },
    Saving,
    Reached,
    Failed { why: Box<str> },
}

impl Goal {
    /// Evaluates the wait; descriptors of ended processes are closed.
    pub(super) fn check(&mut self) -> Progress {
        match self {
            Self::End { processes, group } => {
                processes.retain(|process| !ended(process));
                let left = u32::try_from(processes.len()).unwrap_or(u32::MAX);
                if left == 0 && group.as_ref().is_none_or(OpenGroup::empty) {
                    Progress::Reached
                } else {
                    Progress::Waiting { left: left.max(1) }
                }
            }
            Self::Thread { progress, .. } => progress.try_recv().unwrap_or(Progress::Waiting { left: 0 }),
        }
    }
}

/// Watches for an acknowledgement on another thread, since the file system may hang.
///
/// A file counts once it was written after the request, at `since` (1970), or changes later: on another host's file system
/// times may be off. A file that cannot be read, or that belongs to none of the `users` whose processes received the
/// request, does not count.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn watch(
    token: Token,
    by: &Acknowledgement,
    users: &[u32],
    since: Duration,
    until: Timestamp,
) -> std::io::Result<Goal> {
    let (by, users) = (by.clone(), users.to_vec());
    start(token, "acknowledge", move |alive, tell| match by {
        Acknowledgement::File(path) => look(&path, &users, since, until, alive, tell),
        Acknowledgement::Marker(marker) => {
            let mut watcher = MarkerWatcher::new(marker, users, since);
            while alive.strong_count() > 0 && clock::now().since(until) == Duration::ZERO {
                if let Some(state) = watcher.look() {
                    let saved = state == Progress::Reached;
                    if tell.try_send(state).is_err() || saved {
                        return;
                    }
                }
                std::thread::sleep(MARKER_INTERVAL);
            }
        }
    })
}

/// Starts a thread that reports its progress until nobody awaits it.
fn start(
    token: Token,
    name: &'static str,
    run: impl FnOnce(&Weak<()>, &SyncSender<Progress>) + Send + 'static,
) -> std::io::Result<Goal> {
    let Token { thread, awaited } = token;
    let (tell, progress) = sync_channel(4);
    let alive = Arc::downgrade(&awaited);
    apart::spawn(name, move || {
        run(&alive, &tell);
        drop(thread);
    })?;
    Ok(Goal::Thread { progress, _alive: awaited })
}

/// Touches a file for a process on another thread, which takes over the rights of the process as long as they are those of
/// `user`.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn touch(
    token: Token,
    proc: &Path,
    process: ProcessKey,
    user: u32,
    path: &Path,
) -> std::io::Result<Goal> {
    let (proc, path) = (proc.to_owned(), path.to_owned());
    start(token, "touch", move |_, tell| {
        let progress = match user_files::touch_as(&proc, process, user, &path) {
            Ok(()) => Progress::Reached,
            Err(error) => Progress::Failed { why: error.to_string().chars().take(300).collect() },
        };
        // Nobody waits for the result any more where it cannot be sent.
        let _ = tell.try_send(progress);
    })
}

type Identity = (u64, i64, i64, u64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.size())
}

fn look(
    path: &Path,
    users: &[u32],
    since: Duration,
    until: Timestamp,
    alive: &Weak<()>,
    tell: &SyncSender<Progress>,
) {
    // A file that existed before the request acknowledges an earlier one.
    let first = user_files::status(path).ok().as_ref().map(identity);
    let mut known = first.filter(|(_, seconds, nanos, _)| {
        let seconds = Duration::from_secs(u64::try_from(*seconds).unwrap_or(0));
        let nanos = Duration::from_nanos(u64::try_from(*nanos).unwrap_or(0));
        seconds + nanos + FILE_TIME_ERROR < since
    });
    let mut unfinished = 0;
    let mut complained = false;
    while alive.strong_count() > 0 && clock::now().since(until) == Duration::ZERO {
        match new_word(path, users, known) {
            Ok(Some((found, word))) => {
                let output = match word {
                    None if unfinished < UNFINISHED => None,
                    output => Some(output.unwrap_or(Progress::Reached)),
                };
                unfinished += 1;
                if let Some(output) = output {
                    (known, unfinished) = (Some(found), 0);
                    let saved = output == Progress::Reached;
                    if tell.try_send(output).is_err() || saved {
                        return;
                    }
                }
            }
            Ok(None) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if !complained => {
                complained = true;
                let file = path.display();
                tracing::warn!(%file, %error, "The acknowledgement file of a checkpoint cannot be read; the checkpoint does not count as saved.");
            }
            Err(_) => {}
        }
        std::thread::sleep(FILE_INTERVAL);
    }
}

/// The identity of a file that differs from the known one, and its content; no content while it may be unfinished.
fn new_word(
    path: &Path,
    users: &[u32],
    known: Option<Identity>,
) -> std::io::Result<Option<(Identity, Option<Progress>)>> {
    if Some(identity(&user_files::status(path)?)) == known {
        return Ok(None);
    }
    let (mut file, status) = user_files::owned(path, users)?;
    let mut text = [0; 16];
    let length = file.read(&mut text)?;
    let word = match text[..length].trim_ascii() {
        text if text.starts_with(b"saving") => Some(Progress::Saving),
        text if b"saving".starts_with(text) => None,
        _ => Some(Progress::Reached),
    };
    Ok(Some((identity(&status), word)))
}

/// A pending step.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) goal: Goal,
    pub(super) begun: Timestamp,
    pub(super) within: Duration,
    pub(super) processes: u32,
}

impl Wait {
    /// Whether its time limit is over.
    pub(super) fn over(&self, now: Timestamp) -> bool {
        now.since(self.begun) >= self.within
    }
}
