//! The scenario in effect, read again when its file has changed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::Instant;

use crate::clock;
use crate::loaded::{Loaded, Slots};
use crate::scenario::Scenario;

const CHECK_EVERY_NANOS: u64 = 5_000_000;

/// A file changed this recently may change again within the same tick of its timestamp.
const UNSETTLED_SECONDS: f64 = 0.05;

static MACHINE: LazyLock<Machine> = LazyLock::new(Machine::new);

/// The scenario in force now.
pub(crate) fn current() -> Arc<Loaded> {
    MACHINE.check();
    let loaded = MACHINE.loaded.read().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(&loaded)
}

#[derive(Debug)]
struct Machine {
    path: Option<PathBuf>,
    started: Instant,
    born: f64,
    checked: AtomicU64,
    loaded: RwLock<Arc<Loaded>>,
    file: Mutex<File>,
}

/// The file at the last check.
#[derive(Debug, Default)]
struct File {
    signature: Option<Signature>,
    text: String,
    complaint: String,
    slots: Slots,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Signature {
    seconds: i64,
    nanos: i64,
    size: u64,
    inode: u64,
    settled: bool,
}

impl Machine {
    fn new() -> Self {
        let path = std::env::var_os("FAKE_NVML_SCENARIO").map(PathBuf::from);
        let born = clock::unix_seconds();
        let mut file = File::default();
        let scenario = match &path {
            None => Scenario::built_in(),
            Some(path) => file.read(path).unwrap_or_else(Scenario::unreadable),
        };
        let loaded = Loaded::new(scenario, None, &mut file.slots, born);
        Self {
            path,
            started: clock::monotonic(),
            born,
            checked: AtomicU64::new(0),
            loaded: RwLock::new(Arc::new(loaded)),
            file: Mutex::new(file),
        }
    }

    fn check(&self) {
        let Some(path) = &self.path else { return };
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let last = self.checked.load(Ordering::Relaxed);
        if now.saturating_sub(last) < CHECK_EVERY_NANOS {
            return;
        }
        // The thread that reads the file does this for all.
        let Ok(mut file) = self.file.try_lock() else { return };
        self.checked.store(now, Ordering::Relaxed);
        let Some(scenario) = file.read(path) else { return };
        let mut loaded = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        let next = Loaded::new(scenario, Some(&loaded), &mut file.slots, self.born);
        *loaded = Arc::new(next);
    }
}

impl File {
    /// The scenario, if the file has changed and can be read.
    fn read(&mut self, path: &Path) -> Option<Scenario> {
        let signature = Signature::of(path);
        if signature == self.signature && signature.is_some_and(|signature| signature.settled) {
            return None;
        }
        self.signature = signature;
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                self.complain(path, error.to_string());
                return None;
            }
        };
        if text == self.text {
            return None;
        }
        self.text = text;
        match Scenario::parse(&self.text) {
            Ok(scenario) => {
                self.complaint.clear();
                Some(scenario)
            }
            Err(message) => {
                self.complain(path, message);
                None
            }
        }
    }

    /// Prints a message once, however often the file is checked.
    #[expect(
        clippy::print_stderr,
        reason = "the library has no other way to report an error of the file to a test's author"
    )]
    fn complain(&mut self, path: &Path, message: String) {
        if self.complaint != message {
            eprintln!("fake-nvml: {}: {message}", path.display());
            self.complaint = message;
        }
    }
}

impl Signature {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        let changed = metadata.modified().ok()?;
        Some(Self {
            seconds: metadata.mtime(),
            nanos: metadata.mtime_nsec(),
            size: metadata.size(),
            inode: metadata.ino(),
            settled: changed.elapsed().is_ok_and(|age| age.as_secs_f64() > UNSETTLED_SECONDS),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_file_is_ignored_until_it_is_complete() {
        let path = std::env::temp_dir().join(format!("fake-nvml-{}.json", std::process::id()));
        let mut file = File::default();
        let mut read = |text: &str| {
            fs::write(&path, text).unwrap();
            file.read(&path).map(|scenario| scenario.devices.len())
        };
        assert_eq!(read(r#"{"devices": [{}]}"#), Some(1));
        assert_eq!(read(r#"{"devices": [{}]}"#), None);
        assert_eq!(read(r#"{"devices": [{}"#), None);
        assert_eq!(read(r#"{"devices": [{}, {}]}"#), Some(2));
        fs::remove_file(&path).unwrap();
        assert!(file.read(&path).is_none());
    }
}
