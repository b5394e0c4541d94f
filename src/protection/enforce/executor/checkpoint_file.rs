//! `memwarden checkpoint-file`: a process that touches a file for a job, or watches for the acknowledgement of a checkpoint.
//!
//! The file system of a user may never answer, and nothing then ends the thread that waits for it. In a process of its own,
//! such a thread keeps neither the daemon from ending nor a descriptor of the daemon open.

use std::fs::{File, Metadata};
use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::PollFlags;

use super::marker::MarkerWatcher;
use crate::host::child::{self, Helper, WorkerCommand};
use crate::host::{poll, user_files};
use crate::model::ids::ProcessKey;
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

/// What the process is asked for: one line of JSON on its standard input.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum Request {
    /// Touch a file with the rights of a process, as long as they are those of `user`.
    Touch { proc: PathBuf, process: ProcessKey, user: u32, path: PathBuf },
    /// Watch for an acknowledgement of a request at `since` (1970).
    ///
    /// A file counts once it was written after the request, or changes later: on another host's file system times may be
    /// off. A file that cannot be read, or that belongs to none of the `users` whose processes received the request, does
    /// not count.
    Await { by: Acknowledgement, users: Vec<u32>, since: Duration },
}

/// What it reports: lines of JSON on its standard output, until one that is the last, or until its input ends.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Report {
    Saving,
    /// The last one: it is saved, or the file is touched.
    Reached,
    /// The last one.
    Failed(String),
    /// The acknowledgement cannot be read at the moment.
    Unreadable {
        path: String,
        error: String,
    },
}

/// A started process with its input and output.
pub(super) struct Connection {
    pub(super) helper: Option<Helper>,
    pub(super) input: File,
    pub(super) output: File,
}

/// Starts the process.
pub(super) fn connect(command: Option<&WorkerCommand>) -> io::Result<Connection> {
    let Some(command) = command else { return without_process() };
    let (helper, input, output) = Helper::start(command, &[])?;
    let (Some(input), Some(output)) = (input, output) else { return Err(io::ErrorKind::BrokenPipe.into()) };
    let (input, output) = (OwnedFd::from(input).into(), OwnedFd::from(output).into());
    Ok(Connection { helper: Some(helper), input, output })
}

#[cfg(not(test))]
fn without_process() -> io::Result<Connection> {
    Err(io::Error::new(io::ErrorKind::NotFound, "the path of this program is not known"))
}

/// The test program has no such command: a thread does its work.
#[cfg(test)]
fn without_process() -> io::Result<Connection> {
    let ((its_input, input), (output, its_output)) = (io::pipe()?, io::pipe()?);
    std::thread::spawn(move || serve(&File::from(OwnedFd::from(its_input)), its_output));
    Ok(Connection { helper: None, input: OwnedFd::from(input).into(), output: OwnedFd::from(output).into() })
}

/// The process: serves one request from standard input.
pub fn run() -> io::Result<()> {
    child::die_with_parent();
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    serve(&File::from(stdin), io::stdout())
}

fn serve(input: &File, mut output: impl Write) -> io::Result<()> {
    let mut line = String::new();
    BufReader::new(input).read_line(&mut line)?;
    let mut tell = |report: &Report| {
        let mut text = serde_json::to_vec(report)?;
        text.push(b'\n');
        output.write_all(&text)?;
        output.flush()
    };
    match serde_json::from_str(&line)? {
        Request::Touch { proc, process, user, path } => {
            tell(&match user_files::touch_as(&proc, process, user, &path) {
                Ok(()) => Report::Reached,
                Err(error) => Report::Failed(error.to_string().chars().take(300).collect()),
            })
        }
        Request::Await { by: Acknowledgement::File(path), users, since } => {
            let mut watcher = FileWatcher::new(path, users, since);
            watch(input, FILE_INTERVAL, || watcher.look(), tell)
        }
        Request::Await { by: Acknowledgement::Marker(marker), users, since } => {
            let mut watcher = MarkerWatcher::new(marker, users, since);
            watch(input, MARKER_INTERVAL, || watcher.look(), tell)
        }
    }
}

/// Reports what `look` finds until the acknowledgement is there, or nobody waits for it.
fn watch(
    input: &File,
    interval: Duration,
    mut look: impl FnMut() -> Option<Report>,
    mut tell: impl FnMut(&Report) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        if let Some(report) = look() {
            tell(&report)?;
            if report == Report::Reached {
                return Ok(());
            }
        }
        // The daemon writes no more: what comes is the end of the input.
        if !poll::events(input, PollFlags::IN, interval)?.is_empty() {
            return Ok(());
        }
    }
}

type Identity = (u64, i64, i64, u64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.size())
}

/// Watches one file.
struct FileWatcher {
    path: PathBuf,
    users: Vec<u32>,
    /// The file that is known already.
    known: Option<Identity>,
    unfinished: u32,
    complained: bool,
}

impl FileWatcher {
    fn new(path: PathBuf, users: Vec<u32>, since: Duration) -> Self {
        // A file that existed before the request acknowledges an earlier one.
        let first = user_files::status(&path).ok().as_ref().map(identity);
        let known = first.filter(|(_, seconds, nanos, _)| {
            let seconds = Duration::from_secs(u64::try_from(*seconds).unwrap_or(0));
            let nanos = Duration::from_nanos(u64::try_from(*nanos).unwrap_or(0));
            seconds + nanos + FILE_TIME_ERROR < since
        });
        Self { path, users, known, unfinished: 0, complained: false }
    }

    /// What the file says now; absent while it says nothing new.
    fn look(&mut self) -> Option<Report> {
        match new_word(&self.path, &self.users, self.known) {
            Ok(Some((_, None))) if self.unfinished < UNFINISHED => {
                self.unfinished += 1;
                None
            }
            Ok(Some((found, word))) => {
                (self.known, self.unfinished) = (Some(found), 0);
                Some(word.unwrap_or(Report::Reached))
            }
            Ok(None) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => unreadable(&mut self.complained, &self.path, &error),
        }
    }
}

/// Reports an error once.
pub(super) fn unreadable(complained: &mut bool, path: &Path, error: &io::Error) -> Option<Report> {
    let (path, error) = (path.display().to_string(), error.to_string());
    (!std::mem::replace(complained, true)).then_some(Report::Unreadable { path, error })
}

/// The identity of a file that differs from the known one, and its content; no content while it may be unfinished.
fn new_word(
    path: &Path,
    users: &[u32],
    known: Option<Identity>,
) -> io::Result<Option<(Identity, Option<Report>)>> {
    if Some(identity(&user_files::status(path)?)) == known {
        return Ok(None);
    }
    let (mut file, status) = user_files::owned(path, users)?;
    let mut text = [0; 16];
    let length = file.read(&mut text)?;
    let word = match text[..length].trim_ascii() {
        text if text.starts_with(b"saving") => Some(Report::Saving),
        text if b"saving".starts_with(text) => None,
        _ => Some(Report::Reached),
    };
    Ok(Some((identity(&status), word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partly_written_acknowledgement_is_not_taken_for_another() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let users = vec![rustix::process::getuid().as_raw()];
        let mut watcher = FileWatcher::new(path.clone(), users, Duration::ZERO);
        // As a job does that opens the file, and is interrupted before it writes.
        std::fs::write(&path, "").unwrap();
        assert!((0..UNFINISHED).all(|_| watcher.look().is_none()));
        std::fs::write(&path, "saving").unwrap();
        assert_eq!(watcher.look(), Some(Report::Saving));
        // An empty file that stays is one that was touched.
        std::fs::write(&path, "").unwrap();
        let said: Vec<Report> = (0..=UNFINISHED).filter_map(|_| watcher.look()).collect();
        assert_eq!(said, [Report::Reached]);
    }
}
