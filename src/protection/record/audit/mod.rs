//! The audit log: lines go into a fixed room in memory at once, and to the disk when the disk lets them.
//!
//! Neither a full disk nor one that hangs holds up whoever writes a line. What
//! the disk does not take is tried again; what had no room meanwhile is
//! counted, and the newest lines stay in memory for the incident.

mod file;
mod ring;

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use file::LogFile;
pub use file::Place;
use ring::Ring;

use crate::host::clock;
use crate::model::lock::lock;

/// Room for about 2,000 lines.
const ROOM: usize = 512 * 1024;
/// What is written to the disk at once.
const CHUNK: usize = 16 * 1024;
/// Time between two attempts at a disk that refused.
const PAUSE: Duration = Duration::from_secs(1);

/// How the log fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Why the last attempt to write failed; nothing where it did not, or there was none.
    pub trouble: Option<String>,
    /// Lines that no disk ever had.
    pub lost: u64,
    /// Bytes that wait for the disk.
    pub waiting: u64,
}

#[derive(Debug)]
struct Shared {
    ring: Mutex<Ring>,
    trouble: Mutex<Option<String>>,
    wake: Condvar,
}

/// Where lines are put.
#[derive(Clone, Debug)]
pub struct AuditLog {
    shared: Arc<Shared>,
    /// Gone with the last one who writes, which ends the thread.
    _alive: Arc<()>,
}

impl AuditLog {
    /// Opens the log and starts the thread that writes it; without a place, lines stay in memory only.
    ///
    /// A file that cannot be written is no error here: [`AuditLog::status`] says so, and it is tried again.
    ///
    /// # Errors
    /// The operating system's, where it gives no thread.
    pub fn start(place: Option<Place>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            ring: Mutex::new(Ring::new(ROOM)),
            trouble: Mutex::new(None),
            wake: Condvar::new(),
        });
        let alive = Arc::new(());
        if let Some(place) = place {
            // Opened here, so that the status at start is right.
            let file = LogFile::open(place.clone());
            note(&shared, &place, file.as_ref().err());
            let (theirs, weak) = (Arc::clone(&shared), Arc::downgrade(&alive));
            let write = move || keep_writing(&theirs, place, file.ok(), || weak.strong_count() > 0);
            std::thread::Builder::new().name("audit".to_owned()).spawn(write)?;
        }
        Ok(Self { shared, _alive: alive })
    }

    /// Puts a line in where that can be done at once: whether it could. It ends with its newline, and takes no memory.
    pub fn try_put(&self, line: &[u8]) -> bool {
        let Ok(mut ring) = self.shared.ring.try_lock() else { return false };
        ring.push(line);
        drop(ring);
        self.shared.wake.notify_one();
        true
    }

    /// Puts a line in; it ends with its newline. Takes microseconds, unless a reader was just interrupted.
    pub fn put(&self, line: &[u8]) {
        lock(&self.shared.ring).push(line);
        self.shared.wake.notify_one();
    }

    /// The lines that were put in after `from`, whatever the disk has, as far as they are still in memory, and the
    /// place to ask from the next time; 0 is the beginning.
    pub fn since(&self, from: u64) -> (Vec<u8>, u64) {
        lock(&self.shared.ring).since(from)
    }

    /// How it fares.
    pub fn status(&self) -> Status {
        let trouble = lock(&self.shared.trouble).clone();
        let ring = lock(&self.shared.ring);
        Status { trouble, lost: ring.lost(), waiting: ring.waiting() }
    }

    /// Waits until the disk has everything, for so long at most; whether it has.
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

fn note(shared: &Shared, place: &Place, error: Option<&io::Error>) {
    *lock(&shared.trouble) = error.map(|error| format!("cannot write {}: {error}", place.path.display()));
}

fn keep_writing(shared: &Shared, place: Place, mut file: Option<LogFile>, wanted: impl Fn() -> bool) {
    let mut chunk = Vec::with_capacity(2 * CHUNK);
    loop {
        let end = {
            let ring = lock(&shared.ring);
            let idle = |ring: &mut Ring| ring.waiting() == 0;
            let (ring, _) =
                shared.wake.wait_timeout_while(ring, PAUSE, idle).unwrap_or_else(PoisonError::into_inner);
            ring.unwritten(&mut chunk, CHUNK)
        };
        let open = wanted();
        if !chunk.is_empty() {
            let written = match &mut file {
                Some(file) => file.append(&chunk),
                None => LogFile::open(place.clone()).and_then(|opened| file.insert(opened).append(&chunk)),
            };
            note(shared, &place, written.as_ref().err());
            match written {
                Ok(()) => lock(&shared.ring).wrote(end),
                Err(_) => {
                    // Anew the next time: a folder may have been made, or another disk be there.
                    file = None;
                    if open {
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }
        if !open {
            return;
        }
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
        let place = Place { path: path.clone(), most_bytes: 1 << 20, keep: 1 };
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
    fn a_disk_that_refuses_is_said_and_holds_nobody_up() {
        // Writing to it fails as on a full disk.
        let full = std::path::PathBuf::from("/dev/full");
        if !full.exists() {
            crate::skip::skip("this host has no /dev/full");
            return;
        }
        let log = AuditLog::start(Some(Place { path: full, most_bytes: 1 << 40, keep: 1 })).unwrap();
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
        assert!(status.lost > 400 && status.waiting > 0, "{status:?}");
        assert_eq!(log.since(0).0.len(), 524_000, "the newest are in memory");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_said_at_once_and_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("blocked");
        std::fs::write(&blocked, "").unwrap();
        let path = blocked.join("audit.jsonl");
        let log = AuditLog::start(Some(Place { path: path.clone(), most_bytes: 1 << 20, keep: 1 })).unwrap();
        assert!(log.status().trouble.is_some());
        log.put(b"kept\n");
        std::fs::remove_file(&blocked).unwrap();
        assert!(log.flush(LONG));
        assert_eq!(std::fs::read_to_string(path).unwrap(), "kept\n");
        assert_eq!(log.status().trouble, None);
    }

    #[test]
    fn without_a_place_lines_stay_in_memory() {
        let log = AuditLog::start(None).unwrap();
        log.put(b"here\n");
        assert_eq!((log.since(0).0, log.flush(Duration::ZERO)), (b"here\n".to_vec(), false));
    }
}
