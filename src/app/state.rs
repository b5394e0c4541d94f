//! The state of the analyzers and the acknowledged problems, saved across restarts of the daemon.
//!
//! One JSON file, replaced as a whole. A file that is damaged, of another boot or of another version is ignored
//! with a warning: the state only saves the analyzers some minutes of observation. A separate thread serializes the
//! state, and reads and writes the file; nothing waits for it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Deserialize;

use crate::engine::analyze::Kept;
use crate::host::{clock, fs};
use crate::model::analyzer::SavedState;

/// Time between two saves while the daemon runs.
pub(super) const EVERY: Duration = Duration::from_secs(60);
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

/// The thread that reads the file once and writes it at intervals.
pub(super) struct Keeper {
    jobs: SyncSender<SavedStates>,
    loaded: Receiver<Kept>,
    thread: JoinHandle<()>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl Keeper {
    /// Starts the thread, for the file at `path`.
    ///
    /// # Errors
    /// The error of the operating system if the thread cannot be started.
    pub(super) fn start(path: PathBuf, boot_id: String) -> io::Result<Self> {
        let (jobs, inbox) = sync_channel(1);
        let (found, loaded) = channel();
        let run = move || keep_all(&path, &boot_id, &found, &inbox);
        let thread = std::thread::Builder::new().name("state".to_owned()).spawn(run)?;
        Ok(Self { jobs, loaded, thread })
    }

    /// The state of an earlier run, returned once, as soon as it was read.
    pub(super) fn loaded(&self) -> Option<Kept> {
        self.loaded.try_recv().ok()
    }

    /// Queues `saved` for writing; while a write is in progress, later states are dropped.
    pub(super) fn keep(&self, saved: SavedStates) {
        match self.jobs.try_send(saved) {
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => tracing::error!("The state is no longer written."),
        }
    }

    /// Queues the last state, and waits for the write at most this long.
    pub(super) fn finish(self, saved: SavedStates, deadline: Duration) {
        self.keep(saved);
        let Self { jobs, thread, .. } = self;
        drop(jobs);
        let begun = clock::now();
        while !thread.is_finished() && clock::now().since(begun) < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn keep_all(path: &Path, boot_id: &str, found: &Sender<Kept>, inbox: &Receiver<SavedStates>) {
    if let Some(kept) = load(path, boot_id) {
        // The sampler may have ended meanwhile.
        let _ = found.send(kept);
    }
    let mut failing = false;
    while let Ok(keepsakes) = inbox.recv() {
        match fs::write_atomically(path, |out| write(out, boot_id, keepsakes)) {
            Ok(()) if std::mem::take(&mut failing) => tracing::info!("The state can be written again."),
            Ok(()) => {}
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(path = %path.display(), %error, "The state cannot be written.");
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
        let keeper = Keeper::start(path.clone(), "a".to_owned()).unwrap();
        keeper.finish(keepsakes(), Duration::from_secs(60));
        let expected = vec!["exhaustion=\"x\"".to_owned(), "leak=7".to_owned()];
        assert_eq!(shown(load(&path, "a")), Some(expected.clone()));
        assert!(load(&path, "b").is_none());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
        let keeper = Keeper::start(path, "a".to_owned()).unwrap();
        assert_eq!(shown(keeper.loaded.recv().ok()), Some(expected));
    }

    #[test]
    fn a_damaged_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        Keeper::start(path.clone(), "a".to_owned()).unwrap().finish(keepsakes(), Duration::from_secs(60));
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
