//! Waiting without standing still: for processes to end, groups to empty, a job to say that it has saved.

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
use crate::host::{apart, clock, user_files};
use crate::model::time::Timestamp;

/// How often a file is looked for: a checkpoint takes seconds.
const LOOK: Duration = Duration::from_millis(100);
/// How many looks in a row a file that is empty, or has only the beginning of `saving`, may be on its way: it is opened
/// first, and then written.
const UNFINISHED: u32 = 5;
/// The kernel writes times of files by its tick, which is up to 10 ms old.
const COARSE: Duration = Duration::from_millis(10);

/// Whether a process has ended, by its pidfd.
pub(super) fn ended(process: &OwnedFd) -> bool {
    let mut asked = [PollFd::new(process, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    // It is readable from the end on, also before it is reaped.
    matches!(poll(&mut asked, Some(&at_once)), Ok(1)) && asked[0].revents().contains(PollFlags::IN)
}

/// What is waited for.
#[derive(Debug)]
pub(super) enum Goal {
    /// All of these have ended, and the group is empty.
    End { processes: Vec<OwnedFd>, group: Option<OpenGroup> },
    /// A file says so.
    File { said: Receiver<AckFileState>, _alive: Arc<()> },
    /// Somebody else hears it.
    Elsewhere,
}

/// What a job says in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckFileState {
    Saving,
    Saved,
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting { left: u32 },
    Saving,
    Reached,
}

impl Goal {
    /// How it stands now; those that have ended are let go of.
    pub(super) fn check(&mut self) -> State {
        match self {
            Self::End { processes, group } => {
                processes.retain(|process| !ended(process));
                let left = u32::try_from(processes.len()).unwrap_or(u32::MAX);
                if left == 0 && group.as_ref().is_none_or(OpenGroup::empty) {
                    State::Reached
                } else {
                    State::Waiting { left: left.max(1) }
                }
            }
            Self::File { said, .. } => match said.try_recv() {
                Ok(AckFileState::Saving) => State::Saving,
                Ok(AckFileState::Saved) => State::Reached,
                Err(_) => State::Waiting { left: 0 },
            },
            Self::Elsewhere => State::Waiting { left: 0 },
        }
    }
}

/// Watches a file on a thread of its own, since its file system may hang.
///
/// It counts once it was written after `since` (1970), when the job was asked, or changes later on: on another
/// host's file system times may be off. A file that cannot be read, or that belongs to none of the `users` whose
/// processes were asked, says nothing.
///
/// # Errors
/// The operating system's, where it gives no thread.
pub(super) fn watch(path: &Path, users: &[u32], since: Duration, until: Timestamp) -> std::io::Result<Goal> {
    let (tell, said) = sync_channel(4);
    let alive = Arc::new(());
    let (path, users, weak) = (path.to_owned(), users.to_vec(), Arc::downgrade(&alive));
    apart::spawn("acknowledge", move || look(&path, &users, since, until, &weak, &tell))?;
    Ok(Goal::File { said, _alive: alive })
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
    tell: &SyncSender<AckFileState>,
) {
    // What was there before the request was written for another.
    let first = user_files::status(path).ok().as_ref().map(identity);
    let mut known = first.filter(|(_, seconds, nanos, _)| {
        let seconds = Duration::from_secs(u64::try_from(*seconds).unwrap_or(0));
        let nanos = Duration::from_nanos(u64::try_from(*nanos).unwrap_or(0));
        seconds + nanos + COARSE < since
    });
    let mut unfinished = 0;
    let mut complained = false;
    while alive.strong_count() > 0 && clock::now().since(until) == Duration::ZERO {
        match new_word(path, users, known) {
            Ok(Some((found, word))) => {
                let said = match word {
                    None if unfinished < UNFINISHED => None,
                    said => Some(said.unwrap_or(AckFileState::Saved)),
                };
                unfinished += 1;
                if let Some(said) = said {
                    (known, unfinished) = (Some(found), 0);
                    if tell.try_send(said).is_err() || said == AckFileState::Saved {
                        return;
                    }
                }
            }
            Ok(None) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if !complained => {
                complained = true;
                let file = path.display();
                tracing::warn!(%file, %error, "The file of a checkpoint cannot be read; it does not count as saved.");
            }
            Err(_) => {}
        }
        std::thread::sleep(LOOK);
    }
}

/// What a file says that is another than the known one; nothing for a word where it may be one that is being written.
fn new_word(
    path: &Path,
    users: &[u32],
    known: Option<Identity>,
) -> std::io::Result<Option<(Identity, Option<AckFileState>)>> {
    if Some(identity(&user_files::status(path)?)) == known {
        return Ok(None);
    }
    let (mut file, status) = user_files::owned(path, users)?;
    let mut text = [0; 16];
    let length = file.read(&mut text)?;
    let word = match text[..length].trim_ascii() {
        text if text.starts_with(b"saving") => Some(AckFileState::Saving),
        text if b"saving".starts_with(text) => None,
        _ => Some(AckFileState::Saved),
    };
    Ok(Some((identity(&status), word)))
}

/// A step that goes on.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) goal: Goal,
    pub(super) begun: Timestamp,
    pub(super) within: Duration,
    pub(super) processes: u32,
}

impl Wait {
    /// Whether its time is over.
    pub(super) fn over(&self, now: Timestamp) -> bool {
        now.since(self.begun) >= self.within
    }
}
