//! The state of the analyzers, the acknowledged problems and the memory of past runs, saved across restarts of the daemon.
//!
//! The past runs have a JSON file of their own, which also outlasts a restart of the node; one that is damaged is renamed
//! and reported. All else is one JSON file, replaced as a whole. A file that is damaged, of another boot or of another
//! version is ignored with a warning: the state only saves the analyzers some minutes of observation. A separate thread
//! serializes the state, and reads and writes the files; nothing waits for it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Deserialize;

use crate::engine::analyze::Kept;
use crate::host::{apart, clock, fs};
use crate::model::analyzer::SavedState;
use crate::model::error_chain::error_chain;
use crate::past_runs::PastRuns;

/// Time between two saves while the daemon runs.
pub(super) const EVERY: Duration = Duration::from_secs(60);
/// Time between two saves of past runs, if any has ended.
pub(super) const EVERY_PAST: Duration = Duration::from_secs(5);
/// The file of past runs, beside the file of the state.
const PAST_RUNS: &str = "past-runs.json";
/// 256 commands have 8 runs of about 2 KiB at most.
const LARGEST_PAST: u64 = 16 << 20;
/// The version of the format; a file of another version is ignored.
const VERSION: u32 = 1;
/// A tracked subject takes about 10 KiB, and there are 8,000 at most.
const LARGEST: u64 = 128 << 20;

/// The states to write, by analyzer, not yet serialized.
pub(super) type SavedStates = Vec<(&'static str, SavedState)>;

#[derive(Deserialize)]
struct File {
    memwarden_state: u32,
    /// The boot whose monotonic clock the times refer to.
    boot_id: String,
    analyzers: Kept,
}

/// Reads the state of an earlier run; absent where there is none that can be used.
fn load(path: &Path, boot_id: &str) -> Option<Kept> {
    let shown = path.display();
    let bytes = match fs::read_bounded(path, LARGEST) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %shown, %error, "The state of an earlier run cannot be read; beginning anew.");
            return None;
        }
    };
    let file: File = match serde_json::from_slice(&bytes) {
        Ok(file) => file,
        Err(error) => {
            tracing::warn!(path = %shown, %error, "The state of an earlier run is damaged; beginning anew.");
            return None;
        }
    };
    if file.memwarden_state != VERSION {
        let version = file.memwarden_state;
        tracing::warn!(path = %shown, version, "The state is of another version; beginning anew.");
        return None;
    }
    if file.boot_id != boot_id {
        tracing::info!(path = %shown, "The state is from before the last boot; beginning anew.");
        return None;
    }
    tracing::info!(path = %shown, "Going on from the state of an earlier run.");
    Some(file.analyzers)
}

/// What the thread is to write.
enum Job {
    State(SavedStates),
    PastRuns,
}

/// Reads the past runs of earlier daemons.
fn load_past(path: &Path, past_runs: &PastRuns) {
    let shown = path.display();
    let error = match fs::read_bounded(path, LARGEST_PAST) {
        Ok(text) => match past_runs.restore(&text) {
            Ok(()) => return,
            Err(error) => error_chain(&error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return,
        Err(error) => error.to_string(),
    };
    match fs::set_aside(path) {
        Ok(aside) => {
            let aside = aside.display();
            tracing::error!(path = %shown, error, %aside, "The past runs cannot be read; the file was renamed.");
        }
        Err(rename) => {
            tracing::error!(path = %shown, error, %rename, "The past runs cannot be read, and the file not be renamed.");
        }
    }
}

/// The thread that reads the files once and writes them at intervals.
pub(super) struct Keeper {
    jobs: SyncSender<Job>,
    past_runs: Arc<PastRuns>,
    loaded: Receiver<Kept>,
    thread: JoinHandle<()>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// Starts the thread, for the file at `path` and that of past runs beside it.
    pub(super) fn start(path: PathBuf, boot_id: String, past_runs: Arc<PastRuns>) -> io::Result<Self> {
        let (jobs, inbox) = sync_channel(1);
        let (found, loaded) = channel();
        let kept = Arc::clone(&past_runs);
        let run = move || keep_all(&path, &boot_id, &kept, &found, &inbox);
        let thread = std::thread::Builder::new().name("state".to_owned()).spawn(run)?;
        Ok(Self { jobs, past_runs, loaded, thread })
    }

    /// The state of an earlier run, returned once, as soon as it was read.
    pub(super) fn loaded(&self) -> Option<Kept> {
        self.loaded.try_recv().ok()
    }

    /// Queues `saved` for writing; while a write is in progress, later states are dropped.
    pub(super) fn keep(&self, saved: SavedStates) {
        self.send(Job::State(saved));
    }

    /// Lets the past runs be written if they have changed.
    pub(super) fn keep_past_runs(&self) {
        if self.past_runs.has_changed() {
            self.send(Job::PastRuns);
        }
    }

    fn send(&self, job: Job) {
        match self.jobs.try_send(job) {
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => tracing::error!("The state is no longer written."),
        }
    }

    /// Queues the last state, and waits for the write at most this long.
    pub(super) fn finish(self, saved: SavedStates, deadline: Duration) {
        self.keep(saved);
        let Self { jobs, thread, .. } = self;
        drop(jobs);
        apart::ended(&thread, deadline);
    }
}

fn keep_all(path: &Path, boot_id: &str, past_runs: &PastRuns, found: &Sender<Kept>, inbox: &Receiver<Job>) {
    let of_past = path.with_file_name(PAST_RUNS);
    load_past(&of_past, past_runs);
    if let Some(kept) = load(path, boot_id) {
        // The sampler may have ended meanwhile.
        let _ = found.send(kept);
    }
    let (mut state, mut past) = (Target::new(path), Target::new(&of_past));
    loop {
        let job = inbox.recv();
        let is_last = job.is_err();
        if let Ok(Job::State(keepsakes)) = job {
            state.write(|out| write(out, boot_id, keepsakes));
        }
        // They are complete in memory: what could not be written is written with the next run that ends.
        if let Some(text) = past_runs.changed() {
            past.write(|out| out.write_all(text.as_bytes()));
        }
        if is_last {
            return;
        }
    }
}

/// A file that is written again and again.
struct Target<'p> {
    path: &'p Path,
    /// Whether the last write failed, which is reported once.
    fails: bool,
}

impl<'p> Target<'p> {
    const fn new(path: &'p Path) -> Self {
        Self { path, fails: false }
    }

    fn write(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) {
        let path = self.path.display();
        match fs::write_atomically(self.path, write) {
            Ok(()) if std::mem::take(&mut self.fails) => {
                tracing::info!(%path, "The file can be written again.");
            }
            Ok(()) => {}
            Err(error) => {
                if !std::mem::replace(&mut self.fails, true) {
                    tracing::warn!(%path, %error, "The file cannot be written.");
                }
            }
        }
    }
}

/// Writes the file as a stream: a tree of JSON values would take ten times the memory.
fn write(out: &mut dyn Write, boot_id: &str, keepsakes: SavedStates) -> io::Result<()> {
    let saved = clock::now().unix().as_secs_f64();
    write!(out, "{{\"memwarden_state\":{VERSION},\"boot_id\":")?;
    serde_json::to_writer(&mut *out, boot_id)?;
    write!(out, ",\"saved_unix_seconds\":{saved},\"analyzers\":{{")?;
    for (place, (name, keepsake)) in keepsakes.into_iter().enumerate() {
        out.write_all(if place == 0 { b"" } else { b"," })?;
        serde_json::to_writer(&mut *out, name)?;
        out.write_all(b":")?;
        keepsake(out)?;
    }
    out.write_all(b"}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keepsakes() -> SavedStates {
        vec![
            ("leak", Box::new(|out| serde_json::to_writer(out, &7))),
            ("exhaustion", Box::new(|out| serde_json::to_writer(out, "x"))),
        ]
    }

    fn shown(kept: Option<Kept>) -> Option<Vec<String>> {
        Some(kept?.iter().map(|(name, saved)| format!("{name}={}", saved.get())).collect())
    }

    #[test]
    fn what_was_kept_is_read_on_the_same_boot_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert!(load(&path, "a").is_none());
        let keeper = Keeper::start(path.clone(), "a".to_owned(), Arc::default()).unwrap();
        keeper.finish(keepsakes(), Duration::from_secs(60));
        let expected = vec!["exhaustion=\"x\"".to_owned(), "leak=7".to_owned()];
        assert_eq!(shown(load(&path, "a")), Some(expected.clone()));
        assert!(load(&path, "b").is_none());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        let keeper = Keeper::start(path, "a".to_owned(), Arc::default()).unwrap();
        assert_eq!(shown(keeper.loaded.recv().ok()), Some(expected));
    }

    #[test]
    fn past_runs_outlast_a_boot_and_a_damaged_file_is_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, past) = (folder.path().join("state.json"), folder.path().join(PAST_RUNS));
        let file = r#"{"memwarden_past_runs":2,"last_number":7,"commands":[[1000,{"user_id":1000,"script":"train.py",
            "arguments_hash":"a","world_size":1,"parameters":null,"trainable":null},[{"number":7,"run":"r","ranks":1,
            "started_unix_seconds":1.0,"ended_unix_seconds":2.0,"step":261,"cause":"gpu_memory","peaks":[],
            "bytes_per_token":null}]]]}"#;
        let restarted = |boot: &str| {
            let past_runs: Arc<PastRuns> = Arc::default();
            let keeper = Keeper::start(path.clone(), boot.to_owned(), Arc::clone(&past_runs)).unwrap();
            keeper.finish(keepsakes(), Duration::from_secs(60));
            past_runs.shown(None).runs.len()
        };
        std::fs::write(&past, file).unwrap();
        assert_eq!([restarted("a"), restarted("b")], [1, 1]);
        std::fs::write(&past, &file[..200]).unwrap();
        assert_eq!(restarted("b"), 0);
        assert_eq!(
            std::fs::read_to_string(folder.path().join("past-runs.json.damaged")).unwrap(),
            file[..200]
        );
        assert!(load(&path, "b").is_some(), "nothing else is lost");
    }

    #[test]
    fn a_damaged_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        Keeper::start(path.clone(), "a".to_owned(), Arc::default())
            .unwrap()
            .finish(keepsakes(), Duration::from_secs(60));
        let whole = std::fs::read(&path).unwrap();
        for end in 0..whole.len() - 1 {
            std::fs::write(&path, &whole[..end]).unwrap();
            assert!(load(&path, "a").is_none(), "cut at {end}");
        }
        std::fs::write(&path, String::from_utf8(whole).unwrap().replace("state\":1", "state\":2")).unwrap();
        assert!(load(&path, "a").is_none());
        assert!(load(folder.path(), "a").is_none(), "a folder");
    }
}
