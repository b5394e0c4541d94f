//! What the analyzers know, kept over a restart of the daemon.
//!
//! One JSON file, replaced as a whole. A file that is damaged, of another boot
//! or of another version is ignored with a warning: it can only ever save the
//! analyzers some minutes of looking on. Disks are left to a thread of their own,
//! and nothing waits for it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Deserialize;

use crate::engine::analyze::Kept;
use crate::host::{clock, fs};
use crate::model::analyzer::Keepsake;

/// Time between two saves while the daemon runs.
pub(super) const EVERY: Duration = Duration::from_secs(60);
/// Grows when an older file can no longer be understood.
const VERSION: u32 = 1;
/// A followed subject takes about 10 KiB, and there are 8,000 at most.
const LARGEST: u64 = 128 << 20;

/// What is to be kept, by analyzer, yet to be written down.
pub(super) type Keepsakes = Vec<(&'static str, Keepsake)>;

#[derive(Deserialize)]
struct File {
    memwarden_state: u32,
    /// The monotonic clock that the times in it are of.
    boot_id: String,
    analyzers: Kept,
}

/// Reads what an earlier run kept; nothing where there is none, or none that is of use.
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

/// The thread that reads once and writes now and then.
pub(super) struct Keeper {
    jobs: SyncSender<Keepsakes>,
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
    /// The operating system's, where it gives no thread.
    pub(super) fn start(path: PathBuf, boot_id: String) -> io::Result<Self> {
        let (jobs, inbox) = sync_channel(1);
        let (found, loaded) = channel();
        let run = move || keep_all(&path, &boot_id, &found, &inbox);
        let thread = std::thread::Builder::new().name("state".to_owned()).spawn(run)?;
        Ok(Self { jobs, loaded, thread })
    }

    /// What an earlier run kept, once, as soon as it was read.
    pub(super) fn loaded(&self) -> Option<Kept> {
        self.loaded.try_recv().ok()
    }

    /// Has `saved` written; while a disk is slow, what comes meanwhile is left out.
    pub(super) fn keep(&self, saved: Keepsakes) {
        match self.jobs.try_send(saved) {
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => tracing::error!("The state is no longer written."),
        }
    }

    /// Has the last state written, and waits for it at most so long.
    pub(super) fn finish(self, saved: Keepsakes, deadline: Duration) {
        self.keep(saved);
        let Self { jobs, thread, .. } = self;
        drop(jobs);
        let begun = clock::now();
        while !thread.is_finished() && clock::now().since(begun) < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn keep_all(path: &Path, boot_id: &str, found: &Sender<Kept>, inbox: &Receiver<Keepsakes>) {
    if let Some(kept) = load(path, boot_id) {
        // The sampler may have ended meanwhile.
        let _ = found.send(kept);
    }
    let mut failing = false;
    for keepsakes in inbox {
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

/// Writes the file piece by piece: as a tree it would take ten times the memory of what it holds.
fn write(out: &mut dyn Write, boot_id: &str, keepsakes: Keepsakes) -> io::Result<()> {
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

    fn keepsakes() -> Keepsakes {
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
