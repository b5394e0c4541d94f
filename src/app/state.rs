//! What the analyzers know, kept over a restart of the daemon.
//!
//! One JSON file, replaced as a whole. A file that is damaged, of another boot
//! or of another version is ignored with a warning: it can only ever save the
//! analyzers some minutes of looking on. Disks are left to a thread of their own.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::host::{clock, fs};
use crate::model::analyzer::Keepsake;

/// Time between two saves while the daemon runs.
pub(super) const EVERY: Duration = Duration::from_secs(60);
/// Grows when an older file can no longer be understood.
const VERSION: u32 = 1;
/// 12,000 followed subjects take about 40 MiB.
const LARGEST: u64 = 128 << 20;

/// What is kept, by analyzer.
pub(super) type Saved = Map<String, Value>;

/// The same, yet to be written down.
type Keepsakes = Vec<(&'static str, Keepsake)>;

#[derive(Serialize, Deserialize)]
struct File {
    memwarden_state: u32,
    /// The monotonic clock that the times in it are of.
    boot_id: String,
    saved_unix_seconds: f64,
    analyzers: Saved,
}

/// Reads what an earlier run kept; nothing where there is none, or none that is of use.
pub(super) fn load(path: &Path, boot_id: &str) -> Option<Saved> {
    let shown = path.display();
    let bytes = match fs::read_bounded(path, LARGEST) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
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

/// The thread that writes.
#[derive(Debug)]
pub(super) struct Keeper {
    jobs: SyncSender<Keepsakes>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts the thread, which writes to `path`.
    ///
    /// # Errors
    /// The operating system's, where it gives no thread.
    pub(super) fn start(path: PathBuf, boot_id: String) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel(1);
        let run = move || write_all(&path, &boot_id, &inbox);
        let thread = std::thread::Builder::new().name("state".to_owned()).spawn(run)?;
        Ok(Self { jobs, thread })
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
        let Self { jobs, thread } = self;
        drop(jobs);
        let begun = clock::now();
        while !thread.is_finished() && clock::now().since(begun) < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn write_all(path: &Path, boot_id: &str, inbox: &Receiver<Keepsakes>) {
    let mut failing = false;
    for keepsakes in inbox {
        let known =
            keepsakes.into_iter().filter_map(|(name, keepsake)| Some((name.to_owned(), keepsake().ok()?)));
        let analyzers: Saved = known.collect();
        let file = File {
            memwarden_state: VERSION,
            boot_id: boot_id.to_owned(),
            saved_unix_seconds: clock::now().unix().as_secs_f64(),
            analyzers,
        };
        let written = serde_json::to_vec(&file)
            .map_err(std::io::Error::other)
            .and_then(|bytes| fs::write_atomically(path, &bytes));
        match written {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(value: u32) -> Saved {
        [("leak".to_owned(), Value::from(value))].into_iter().collect()
    }

    fn keepsakes(value: u32) -> Keepsakes {
        vec![("leak", Box::new(move || Ok(Value::from(value))))]
    }

    #[test]
    fn what_was_kept_is_read_on_the_same_boot_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert_eq!(load(&path, "a"), None);
        let keeper = Keeper::start(path.clone(), "a".to_owned()).unwrap();
        keeper.finish(keepsakes(7), Duration::from_secs(60));
        assert_eq!(load(&path, "a"), Some(saved(7)));
        assert_eq!(load(&path, "b"), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_damaged_file_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        Keeper::start(path.clone(), "a".to_owned()).unwrap().finish(keepsakes(7), Duration::from_secs(60));
        let whole = std::fs::read(&path).unwrap();
        for end in 0..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(load(&path, "a"), None, "cut at {end}");
        }
        std::fs::write(&path, String::from_utf8(whole).unwrap().replace("state\":1", "state\":2")).unwrap();
        assert_eq!(load(&path, "a"), None);
    }
}
