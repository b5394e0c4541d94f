//! The audit log: lines are put into a ring buffer in memory, and written to the disk by another thread.
//!
//! Only this module writes audit lines. A freeze, which a later daemon must know of, waits until its line is in the file, for at
//! most 50 ms; no other step waits for its line. Neither a full disk nor one that hangs blocks the writer of a line. Failed writes
//! are tried again; lines that had no room meanwhile are counted, and the newest lines stay in memory for the incident.

mod file;
mod ring;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

use file::LogFile;
pub use file::LogPath;
use ring::Ring;

use crate::host::clock;
use crate::host::task::{self, Task};
use crate::model::lock::lock;

/// Size of the ring buffer in bytes, for about 2,000 lines.
const ROOM: usize = 512 * 1024;
/// Maximum size of one write to the disk in bytes.
const CHUNK: usize = 16 * 1024;
/// Longest time for which [`AuditLog::is_written`] waits.
const WRITE_TIMEOUT: Duration = Duration::from_millis(50);
/// Time between two attempts after a failed write.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The status of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Why the last write failed; absent where it did not, or there was none.
    pub trouble: Option<String>,
    /// Lines that were lost before they were written to the disk.
    pub lost: u64,
    /// Bytes that are not written to the disk yet.
    pub waiting: u64,
}

#[derive(Debug)]
struct LogState {
    ring: Mutex<Ring>,
    trouble: Mutex<Option<String>>,
    wake: Condvar,
    /// Bytes that are in the file, on the disk or not: a crash of the daemon does not lose them.
    in_file: AtomicU64,
    /// Bytes that were not in the file when [`AuditLog::is_written`] last gave up.
    missed: AtomicU64,
}

/// The handle for adding lines.
#[derive(Clone, Debug)]
pub struct AuditLog {
    shared: Arc<LogState>,
    /// Absent where lines stay in memory.
    has_file: bool,
    /// Dropped with the last handle, which ends the thread.
    _alive: Arc<()>,
}

impl AuditLog {
    /// Opens the log and starts the writing thread; without a path, lines stay in memory only.
    ///
    /// A file that cannot be written is not an error: [`AuditLog::status`] reports it, and writing is tried again.
    pub fn start(place: Option<LogPath>) -> io::Result<Self> {
        let shared = Arc::new(LogState {
            ring: Mutex::new(Ring::new(ROOM)),
            trouble: Mutex::new(None),
            wake: Condvar::new(),
            in_file: AtomicU64::new(0),
            missed: AtomicU64::new(0),
        });
        let (alive, has_file) = (Arc::new(()), place.is_some());
        if let Some(place) = place {
            // Opened here, so that the status at start is correct.
            let file = LogFile::open(place.clone());
            note(&shared, &place, file.as_ref().err());
            let (theirs, weak) = (Arc::clone(&shared), Arc::downgrade(&alive));
            let (file, chunk) = (file.ok(), Vec::with_capacity(2 * CHUNK));
            task::start("audit", LogWriter { shared: theirs, place, file, chunk, alive: weak })?;
        }
        Ok(Self { shared, has_file, _alive: alive })
    }

    /// Adds a line, which ends with a newline, if the lock is free; returns whether it was added. Allocates nothing.
    pub fn try_put(&self, line: &[u8]) -> bool {
        let Ok(mut ring) = self.shared.ring.try_lock() else { return false };
        ring.push(line);
        drop(ring);
        self.shared.wake.notify_one();
        true
    }

    /// Adds a line, which ends with a newline. Takes microseconds, unless a reader holds the lock.
    pub fn put(&self, line: &[u8]) {
        lock(&self.shared.ring).push(line);
        self.shared.wake.notify_one();
    }

    /// The lines after position `from` that are still in memory, written to the disk or not, and the position for the
    /// next call; 0 is the beginning.
    pub fn since(&self, from: u64) -> (Vec<u8>, u64) {
        lock(&self.shared.ring).since(from)
    }

    pub fn status(&self) -> Status {
        let trouble = lock(&self.shared.trouble).clone();
        let ring = lock(&self.shared.ring);
        Status { trouble, lost: ring.lost(), waiting: ring.waiting() }
    }

    /// Whether all lines are in the file, on the disk or not. Waits for it for at most 50 ms, and not at all while lines for
    /// which it waited in vain are still not there.
    pub fn is_written(&self) -> bool {
        let LogState { ring, wake, in_file, missed, .. } = &*self.shared;
        let in_file = || in_file.load(Ordering::Acquire);
        let (begun, mut head) = (clock::now(), None);
        while self.has_file && missed.load(Ordering::Relaxed) <= in_file() {
            // A reader holds the lock while it copies.
            head = head.or_else(|| Some(ring.try_lock().ok()?.head()));
            if head.is_some_and(|head| head <= in_file()) {
                return true;
            }
            if clock::now().since(begun) >= WRITE_TIMEOUT {
                missed.store(head.unwrap_or(0), Ordering::Relaxed);
                return false;
            }
            wake.notify_one();
            clock::sleep(Duration::from_micros(100));
        }
        false
    }

    /// Waits for at most this time until everything is written; returns whether it is.
    pub fn flush(&self, within: Duration) -> bool {
        let begun = clock::now();
        while lock(&self.shared.ring).waiting() > 0 {
            if clock::now().since(begun) >= within {
                return false;
            }
            self.shared.wake.notify_one();
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

fn note(shared: &LogState, place: &LogPath, error: Option<&io::Error>) {
    *lock(&shared.trouble) = error.map(|error| format!("cannot write {}: {error}", place.path.display()));
}

/// The work of the thread.
struct LogWriter {
    shared: Arc<LogState>,
    place: LogPath,
    file: Option<LogFile>,
    chunk: Vec<u8>,
    alive: Weak<()>,
}

impl Task for LogWriter {
    fn step(&mut self, wait: bool) -> bool {
        let Self { shared, place, file, chunk, alive } = self;
        let end = {
            let ring = lock(&shared.ring);
            let idle = |ring: &mut Ring| ring.waiting() == 0;
            let longest = if wait { RETRY_INTERVAL } else { Duration::ZERO };
            let (ring, _) =
                shared.wake.wait_timeout_while(ring, longest, idle).unwrap_or_else(PoisonError::into_inner);
            ring.unwritten(chunk, CHUNK)
        };
        let open = alive.strong_count() > 0;
        if !chunk.is_empty() {
            let in_file = || shared.in_file.store(end, Ordering::Release);
            let written = match file {
                Some(file) => file.append(chunk, in_file),
                None => {
                    LogFile::open(place.clone()).and_then(|opened| file.insert(opened).append(chunk, in_file))
                }
            };
            note(shared, place, written.as_ref().err());
            match written {
                Ok(()) => lock(&shared.ring).wrote(end),
                Err(_) => {
                    // Opened again next time: the folder may have been created, or another disk mounted.
                    *file = None;
                    if open {
                        clock::sleep(RETRY_INTERVAL);
                    }
                }
            }
        }
        open && (wait || !chunk.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn lines_reach_the_disk_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let place = LogPath { path: path.clone(), most_bytes: 1 << 20, keep: 1 };
        let log = AuditLog::start(Some(place)).unwrap();
        let expected: String = (0..500).map(|number| format!("{{\"n\":{number}}}\n")).collect();
        for line in expected.split_inclusive('\n') {
            log.put(line.as_bytes());
        }
        assert!(log.flush(LONG));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(log.status(), Status::default());
        assert_eq!(log.since(0).0, expected.as_bytes());
    }

    #[test]
    fn a_disk_that_refuses_is_reported_and_delays_nothing() {
        // Writing to it fails as on a full disk.
        let full = std::path::PathBuf::from("/dev/full");
        if !full.exists() {
            crate::skip::skip("this host has no /dev/full");
            return;
        }
        let log = AuditLog::start(Some(LogPath { path: full, most_bytes: 1 << 40, keep: 1 })).unwrap();
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        for _ in 0..1000 {
            log.put(&line);
        }
        let begun = clock::now();
        while log.status().trouble.is_none() {
            assert!(clock::now().since(begun) < LONG, "{:?}", log.status());
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = log.status();
        assert!(status.trouble.as_ref().unwrap().contains("No space left"), "{status:?}");
        assert!(status.lost > 400 && status.waiting > 0 && !log.is_written(), "{status:?}");
        assert_eq!(log.since(0).0.len(), 524_000, "the newest are in memory");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_reported_at_once_and_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("blocked");
        std::fs::write(&blocked, "").unwrap();
        let path = blocked.join("audit.jsonl");
        let log =
            AuditLog::start(Some(LogPath { path: path.clone(), most_bytes: 1 << 20, keep: 1 })).unwrap();
        assert!(log.status().trouble.is_some());
        log.put(b"kept\n");
        std::fs::remove_file(&blocked).unwrap();
        assert!(log.flush(LONG) && log.is_written());
        assert_eq!(std::fs::read_to_string(path).unwrap(), "kept\n");
        assert_eq!(log.status().trouble, None);
    }

    #[test]
    fn without_a_place_lines_stay_in_memory() {
        let log = AuditLog::start(None).unwrap();
        log.put(b"here\n");
        assert_eq!((log.since(0).0, log.flush(Duration::ZERO)), (b"here\n".to_vec(), false));
        assert!(!log.is_written());
    }
}
