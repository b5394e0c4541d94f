//! The thread that lists the folders and has the files read, one after the other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::folder::{self, Newest, Stamp};
use crate::formats::snapshot_digest::Digest;
use crate::host::background::Stopped;
use crate::host::child::{self, WorkerCommand};
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::shortage::Shortage;
use crate::model::source::SourceError;
use crate::model::units::Bytes;

/// Maximum time to read a snapshot.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of the reader's output.
const LONGEST: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(super) struct Watch {
    pub(super) name: Label,
    pub(super) path: PathBuf,
}

/// What is known of one folder and of its files.
#[derive(Clone, Debug, Default)]
pub(super) struct FolderState {
    pub(super) name: Label,
    pub(super) read: u64,
    pub(super) errors: u64,
    /// Why the folder cannot be listed.
    pub(super) problem: Option<SourceError>,
    pub(super) files: Vec<File>,
    /// Number of snapshots ignored because of their owner.
    pub(super) of_others: u64,
    /// Entries and ranks beyond the limits.
    pub(super) left_out: Vec<Shortage>,
}

/// The newest file of one rank.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) rank: Label,
    /// Modification time since 1970.
    pub(super) written: Duration,
    /// Absent if the file could not be read.
    pub(super) digest: Option<Arc<Digest>>,
}

/// What the process that reads a snapshot is asked for: one JSON document.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Request {
    pub file: PathBuf,
    /// The required owner, by user ID; without it, any owner.
    pub owner: Option<u32>,
    /// The most memory to take, in bytes.
    pub max_memory: u64,
    /// Mount point of the process file system.
    pub proc: PathBuf,
}

/// Reads a file of this user to a digest; the error is one sentence.
pub(super) type Reader = Box<dyn Fn(&Path, u32) -> Result<Digest, String> + Send>;

/// The users of the ranks' processes, by rank.
pub(super) type Owners = BTreeMap<String, u32>;

/// A reader that runs in a separate process.
pub(super) fn reader(command: WorkerCommand, max_memory: Bytes, proc: PathBuf) -> Reader {
    Box::new(move |file, user| {
        let max_memory = max_memory.get();
        let request = Request { file: file.to_owned(), owner: Some(user), max_memory, proc: proc.clone() };
        let document = serde_json::to_string(&request).map_err(std::io::Error::from);
        let output = document
            .and_then(|document| child::read_output(&command, &[document.into()], LONGEST, READ_TIMEOUT))
            .map_err(|error| error.to_string())?;
        serde_json::from_slice::<Result<Digest, String>>(&output).unwrap_or_else(|_| {
            Err("the reader process ended without a result; it may have run out of memory".to_owned())
        })
    })
}

/// What the sampler and the thread exchange; held only while pointers are copied.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) folders: Mutex<Arc<[FolderState]>>,
    pub(super) owners: Mutex<Owners>,
}

/// Reads the folders until the source is dropped.
pub(super) fn run(watches: &[Watch], every: Duration, reader: &Reader, shared: &Shared, stopped: &Stopped) {
    let round = |watch: &Watch| Round {
        known: FolderState { name: watch.name.clone(), ..FolderState::default() },
        ..Round::default()
    };
    let mut rounds: Vec<Round> = watches.iter().map(round).collect();
    loop {
        for (place, watch) in watches.iter().enumerate() {
            let owners = lock(&shared.owners).clone();
            rounds[place].turn(watch, reader, owners);
            *lock(&shared.folders) = rounds.iter().map(|round| round.known.clone()).collect();
        }
        if !stopped.pause(every) {
            return;
        }
    }
}

/// The state of one folder at the last check, and what was read from it.
#[derive(Default)]
struct Round {
    /// The last known users of the ranks' processes: a snapshot of a job that ended still belongs to its user.
    owners: Owners,
    seen: BTreeMap<String, Newest>,
    read: BTreeMap<String, (Stamp, File)>,
    known: FolderState,
}

impl Round {
    /// Lists the folder once, and reads files that are new and have not changed since the last check.
    fn turn(&mut self, watch: &Watch, reader: &Reader, owners: Owners) {
        self.owners.extend(owners);
        let now = match folder::look(&watch.path, &self.owners) {
            Ok(listed) => {
                self.known.left_out = listed.left_out;
                if self.known.of_others == 0 && listed.of_others > 0 {
                    let (watch, files) = (&watch.name, listed.of_others);
                    tracing::warn!(%watch, files, "Ignoring snapshots that do not belong to the users of the ranks' processes.");
                }
                self.known.of_others = listed.of_others;
                listed.newest
            }
            Err(error) => {
                let what = format!("cannot list {}", watch.path.display());
                self.known.problem = Some(SourceError::io(what, &error));
                if error.kind() == std::io::ErrorKind::NotFound {
                    // The files of a removed folder are dropped; a folder that does not respond may still have them.
                    (self.seen, self.read) = Default::default();
                    self.known.files.clear();
                }
                return;
            }
        };
        self.known.problem = None;
        self.read.retain(|rank, _| now.contains_key(rank));
        self.owners.retain(|rank, _| now.contains_key(rank));
        for (rank, newest) in &now {
            let Newest { path, stamp, user } = newest;
            let settled = self.seen.get(rank).is_some_and(|before| before == newest);
            let known = self.read.get(rank).is_some_and(|(read, _)| read == stamp);
            if !settled || known {
                continue;
            }
            let digest = reader(path, *user);
            match &digest {
                Ok(digest) => {
                    self.known.read += 1;
                    let advice = digest.advice.join("; ");
                    tracing::info!(watch = %watch.name, file = %path.display(), advice, "Read an allocator snapshot.");
                }
                Err(why) => {
                    self.known.errors += 1;
                    tracing::warn!(watch = %watch.name, file = %path.display(), why, "Cannot read an allocator snapshot.");
                }
            }
            let digest = digest.ok().map(Arc::new);
            let file = File { rank: rank.as_str().into(), written: stamp.written, digest };
            self.read.insert(rank.clone(), (*stamp, file));
        }
        self.seen = now;
        self.known.files = self.read.values().map(|(_, file)| file.clone()).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::source::Failure;

    #[test]
    fn a_file_is_read_when_it_stops_changing_and_dropped_when_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let watch = Watch { name: "runs".into(), path: folder.path().to_path_buf() };
        let reader: Reader = Box::new(|path, _| match std::fs::read(path) {
            Ok(bytes) if bytes.starts_with(b"good") => Ok(Digest { failures: 3, ..Digest::default() }),
            _ => Err("bad".to_owned()),
        });
        let path = folder.path().join("rank7.pickle");
        let mut round = Round::default();
        let known = |round: &Round| (round.known.read, round.known.errors, round.known.files.len());

        round.turn(&watch, &reader, Owners::new());
        assert_eq!(known(&round), (0, 0, 0));
        std::fs::write(&path, "go").unwrap();
        round.turn(&watch, &reader, Owners::new());
        assert_eq!(known(&round), (0, 0, 0), "it may still be written");
        std::fs::write(&path, "good").unwrap();
        round.turn(&watch, &reader, Owners::new());
        assert_eq!(known(&round), (0, 0, 0));
        round.turn(&watch, &reader, Owners::new());
        assert_eq!(known(&round), (1, 0, 1));
        round.turn(&watch, &reader, Owners::new());
        assert_eq!(known(&round), (1, 0, 1), "read once");
        assert_eq!(round.known.files[0].digest.as_ref().unwrap().failures, 3);

        std::fs::write(&path, "bad now").unwrap();
        round.turn(&watch, &reader, Owners::new());
        round.turn(&watch, &reader, Owners::new());
        assert_eq!(known(&round), (1, 1, 1));
        assert!(round.known.files[0].digest.is_none(), "an old figure is not shown for a new file");
        std::fs::remove_file(&path).unwrap();
        round.turn(&watch, &reader, Owners::new());
        assert_eq!(known(&round), (1, 1, 0));

        std::fs::write(&path, "good").unwrap();
        round.turn(&watch, &reader, Owners::new());
        round.turn(&watch, &reader, Owners::new());
        assert_eq!(known(&round), (2, 1, 1));
        let gone = Watch { name: "gone".into(), path: folder.path().join("none") };
        round.turn(&gone, &reader, Owners::new());
        assert_eq!(known(&round), (2, 1, 0), "files of a removed folder are dropped");
        assert!(matches!(round.known.problem, Some(SourceError::Failed { kind: Failure::NotFound, .. })));
    }
}
