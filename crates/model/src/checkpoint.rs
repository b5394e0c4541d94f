//! The result of each process' last checkpoint, for readers that must never block.
//!
//! A table of fixed size. One thread writes; a reader takes no lock, allocates nothing, and sees an entry either
//! completely or not at all.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::ids::ProcessKey;
use super::lock::lock;
use super::names::named;

named! {
    /// What a process reports of its checkpoint. Of several processes of a job, the least counts.
    pub enum CheckpointState {
        /// It is being written.
        Saving = "saving",
        /// It is on disk.
        Saved = "saved",
        /// It could not be written.
        Failed = "failed",
    }
}

/// The last checkpoint acknowledgement of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    pub state: CheckpointState,
    /// When it was received, in nanoseconds on the monotonic clock of `Timestamp`.
    pub heard_nanos: u64,
    /// How many acknowledgements the process has sent, this one included.
    pub count: u64,
}

/// Maximum number of processes in the table.
const SLOTS: usize = 1_024;

/// How often a reader retries an entry that is being written.
const ATTEMPTS: usize = 64;

/// The entry of one process. `version` is odd while the other fields are being written.
#[derive(Debug)]
struct Slot {
    version: AtomicU64,
    pid: AtomicU64,
    start: AtomicU64,
    /// 0 for a slot that is free.
    state: AtomicU64,
    heard: AtomicU64,
    count: AtomicU64,
}

impl Slot {
    const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            pid: AtomicU64::new(0),
            start: AtomicU64::new(0),
            state: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            count: AtomicU64::new(0),
        }
    }

    fn key(&self) -> Option<ProcessKey> {
        let pid = u32::try_from(self.pid.load(Ordering::Relaxed)).ok()?;
        (self.state.load(Ordering::Relaxed) != 0)
            .then(|| ProcessKey { pid, start: self.start.load(Ordering::Relaxed) })
    }

    /// Writes the entry. Only one thread at a time may call this.
    fn write(&self, key: ProcessKey, state: u64, heard: u64, count: u64) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.pid.store(key.pid.into(), Ordering::Relaxed);
        self.start.store(key.start, Ordering::Relaxed);
        self.state.store(state, Ordering::Relaxed);
        self.heard.store(heard, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The process and its acknowledgement; an error if the entry was written meanwhile.
    fn read(&self) -> Result<Option<(ProcessKey, Acknowledgement)>, ()> {
        let version = self.version.load(Ordering::Acquire);
        if version % 2 == 1 {
            return Err(());
        }
        let found = self.key();
        let code = self.state.load(Ordering::Relaxed);
        let state = CheckpointState::ALL.into_iter().find(|state| code_of(*state) == code);
        let heard_nanos = self.heard.load(Ordering::Relaxed);
        let count = self.count.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        if self.version.load(Ordering::Relaxed) != version {
            return Err(());
        }
        Ok(found.zip(state).map(|(key, state)| (key, Acknowledgement { state, heard_nanos, count })))
    }
}

/// The number that an entry holds for a state; 0 is an empty entry.
const fn code_of(state: CheckpointState) -> u64 {
    state as u64 + 1
}

/// The last checkpoint acknowledgement of each process.
#[derive(Debug)]
pub struct Checkpoints {
    slots: [Slot; SLOTS],
    /// Held by the writer.
    writer: Mutex<()>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self::new()
    }
}

impl Checkpoints {
    /// Creates an empty table.
    pub const fn new() -> Self {
        Self { slots: [const { Slot::new() }; SLOTS], writer: Mutex::new(()) }
    }

    /// Records an acknowledgement; false if the table is full.
    pub fn note(&self, key: ProcessKey, state: CheckpointState, heard_nanos: u64) -> bool {
        let _writer = lock(&self.writer);
        let known = self.slots.iter().find(|slot| slot.key() == Some(key));
        let Some(slot) = known.or_else(|| self.slots.iter().find(|slot| slot.key().is_none())) else {
            return false;
        };
        let before = if known.is_some() { slot.count.load(Ordering::Relaxed) } else { 0 };
        slot.write(key, code_of(state), heard_nanos, before.saturating_add(1));
        true
    }

    /// Removes a process that has ended.
    pub fn forget(&self, key: ProcessKey) {
        let _writer = lock(&self.writer);
        if let Some(slot) = self.slots.iter().find(|slot| slot.key() == Some(key)) {
            slot.write(ProcessKey { pid: 0, start: 0 }, 0, 0, 0);
        }
    }

    /// The last acknowledgement of each process, in no particular order.
    ///
    /// Never blocks: an entry that is written continuously is skipped.
    pub fn all(&self) -> impl Iterator<Item = (ProcessKey, Acknowledgement)> + '_ {
        self.slots.iter().filter_map(|slot| {
            // A free slot takes one read.
            (0..ATTEMPTS).find_map(|_| {
                std::hint::spin_loop();
                slot.read().ok()
            })?
        })
    }

    /// The last acknowledgement of a process; absent before the first one. Never blocks.
    pub fn of(&self, key: ProcessKey) -> Option<Acknowledgement> {
        self.all().find(|(known, _)| *known == key).map(|(_, acknowledgement)| acknowledgement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ProcessKey = ProcessKey { pid: 7, start: 100 };
    const AGAIN: ProcessKey = ProcessKey { pid: 7, start: 200 };

    #[test]
    fn the_last_report_of_each_process_counts() {
        let table = Checkpoints::new();
        assert_eq!(table.of(ONE), None);
        assert!(table.note(ONE, CheckpointState::Saving, 5));
        assert!(table.note(ONE, CheckpointState::Saved, 9));
        assert_eq!(
            table.of(ONE),
            Some(Acknowledgement { state: CheckpointState::Saved, heard_nanos: 9, count: 2 })
        );
        assert_eq!(table.of(AGAIN), None, "another process with the same pid");
        table.forget(ONE);
        assert_eq!(table.of(ONE), None);
    }

    #[test]
    fn a_full_table_reports_it_and_accepts_entries_after_an_exit() {
        let table = Checkpoints::new();
        let key = |pid: usize| ProcessKey { pid: u32::try_from(pid).unwrap(), start: 1 };
        assert!((1..=SLOTS).all(|pid| table.note(key(pid), CheckpointState::Saved, 1)));
        assert!(!table.note(AGAIN, CheckpointState::Saved, 1));
        table.forget(key(500));
        assert!(table.note(AGAIN, CheckpointState::Failed, 2));
        assert_eq!(table.of(AGAIN).unwrap().state, CheckpointState::Failed);
    }

    #[test]
    fn a_reader_never_sees_a_partial_entry() {
        let table = Checkpoints::new();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The time determines the state in this test: a mismatch is a partially written entry.
                for turn in 0..20_000_u64 {
                    let state = if turn % 2 == 0 { CheckpointState::Saving } else { CheckpointState::Saved };
                    table.note(ONE, state, turn);
                }
                done.store(true, Ordering::Release);
            });
            let mut seen = 0_u32;
            while !done.load(Ordering::Acquire) || seen == 0 {
                if let Some(found) = table.of(ONE) {
                    seen += 1;
                    assert_eq!(
                        found.state == CheckpointState::Saving,
                        found.heard_nanos % 2 == 0,
                        "{found:?}"
                    );
                    assert_eq!(found.count, found.heard_nanos + 1);
                }
            }
        });
    }
}
