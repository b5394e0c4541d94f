//! Exact readings of the memory of a job's processes, which a thread of their own makes for the guard.
//!
//! The guard asks by a flag, and takes the answer where the lock is free. The thread passes each request on to a pool of threads,
//! because a read of `smaps_rollup` waits for a lock of the process, and may never return.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::host::clock;
use crate::host::process::readers::{Pace, Pool, ReadRequests, ReadTarget};
use crate::host::process::{ProcRoot, SetMemory, set_memory};
use crate::host::room::processes::Exact;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// The time limits of reads: 2 TiB of small pages take 12 s.
const PACE: Pace = Pace {
    slow: Duration::from_millis(100),
    deadline: Duration::from_secs(15),
    rest: Duration::from_secs(60),
    patience: Duration::from_millis(5),
};
/// Longest time for one reading; what is not read by then is unknown.
const LONGEST: Duration = Duration::from_secs(10);
/// A reading that takes longer is logged.
const LATE: Duration = Duration::from_secs(2);
/// Time between the two readings that a level needs.
const BETWEEN: Duration = Duration::from_millis(2);
/// Time between two looks at readings that are under way.
const LOOK: Duration = Duration::from_millis(20);

/// An exact reading, with the processes that it is about.
#[derive(Clone, Debug)]
pub struct SetReading {
    /// The reading.
    pub exact: Exact,
    /// The processes that were alive, and whether each is the first with its address space.
    pub found: Vec<(ProcessKey, bool)>,
}

/// The processes of a job whose memory can be read.
#[derive(Debug)]
pub struct ProcessSet {
    /// The process file system.
    proc: PathBuf,
    /// The user of the job.
    user: u32,
    /// The name of the target, for the log.
    name: Label,
    wanted: AtomicBool,
    state: Mutex<SetRequest>,
}

#[derive(Debug, Default)]
struct SetRequest {
    /// Sorted by their start.
    members: Arc<[ProcessKey]>,
    /// The use from which on a second reading must confirm the first.
    confirmed_from: Bytes,
    /// Since when a reading is under way.
    since: Option<Timestamp>,
    /// Whether it was logged that readings are late or incomplete.
    told: bool,
    answer: Option<SetReading>,
}

/// The thread.
struct Helper {
    sets: Mutex<Vec<Weak<ProcessSet>>>,
    thread: OnceLock<Thread>,
}

fn helper() -> &'static Helper {
    static HELPER: Helper = Helper { sets: Mutex::new(Vec::new()), thread: OnceLock::new() };
    &HELPER
}

impl ProcessSet {
    /// A set without members; starts the thread if it does not run. Without the thread, nothing is ever read.
    pub fn new(proc: PathBuf, user: u32, name: Label) -> Arc<Self> {
        let set = Arc::new(Self { proc, user, name, wanted: AtomicBool::default(), state: Mutex::default() });
        let mut sets = lock(&helper().sets);
        sets.retain(|set| set.strong_count() > 0);
        sets.push(Arc::downgrade(&set));
        if helper().thread.get().is_none() {
            match thread::Builder::new().name("set-memory".to_owned()).spawn(serve) {
                Ok(started) => drop(helper().thread.set(started.thread().clone())),
                Err(error) => {
                    tracing::warn!(%error, "Cannot start the thread that reads the memory of jobs.")
                }
            }
        }
        set
    }

    /// Replaces the members; a use of `confirmed_from` or more is read twice.
    pub fn set_members(&self, mut members: Vec<ProcessKey>, confirmed_from: Bytes) {
        members.sort_unstable_by_key(|key| (key.start, key.pid));
        let mut state = lock(&self.state);
        (state.members, state.confirmed_from) = (members.into(), confirmed_from);
    }

    /// Asks for a reading, without waiting and without allocating.
    pub fn ask(&self) {
        #[cfg(test)]
        if crate::host::testing::edges().is_some() {
            return self.read();
        }
        self.wanted.store(true, Ordering::Release);
        if let Some(thread) = helper().thread.get() {
            thread.unpark();
        }
    }

    /// Takes the newest reading, without waiting.
    pub fn take(&self) -> Option<SetReading> {
        self.state.try_lock().ok()?.answer.take()
    }

    /// Begins a reading, if none is under way.
    fn begin(self: &Arc<Self>, requests: &mut ReadRequests<()>) {
        let now = clock::now();
        let mut state = lock(&self.state);
        if let Some(since) = state.since {
            if now.since(since) > LATE && !std::mem::replace(&mut state.told, true) {
                let (target_name, user) = (self.name.as_str(), self.user);
                tracing::warn!(
                    target_name,
                    user,
                    "The memory of a job's processes cannot be read in time: until it can, `memory_limit` ends none of them."
                );
            }
            return;
        }
        let Some(first) = state.members.first() else { return };
        let target = ReadTarget { key: *first, uid: self.user, comm: Label::default(), what: "smaps_rollup" };
        if requests.waits_for(target.key) {
            return;
        }
        state.since = Some(now);
        let reading = UnderWay(Arc::clone(self));
        requests.request(target, move || reading.0.read());
    }

    fn read(&self) {
        let (members, confirmed_from) = {
            let state = lock(&self.state);
            (Arc::clone(&state.members), state.confirmed_from)
        };
        let begun = clock::now();
        let mut root = ProcRoot::new(self.proc.clone());
        if root.connect().is_err() {
            return;
        }
        let until = begun.plus(LONGEST);
        let mut set = set_memory(&root, &members, until);
        if set.used >= confirmed_from {
            thread::sleep(BETWEEN);
            let again = set_memory(&root, &members, until);
            let complete = set.complete && again.complete;
            set = if again.used < set.used { again } else { set };
            set.complete = complete;
        }
        let SetMemory { used, file, complete, found } = set;
        let at = clock::now();
        let exact = Exact { at, took: at.since(begun), used, file, complete };
        let mut state = lock(&self.state);
        if !complete && !std::mem::replace(&mut state.told, true) {
            let (target_name, user) = (self.name.as_str(), self.user);
            tracing::debug!(
                target_name,
                user,
                "The memory of some processes of a job cannot be read; it counts as unknown near a level."
            );
        }
        state.answer = Some(SetReading { exact, found });
    }
}

/// A reading that is under way, or was dropped by the pool.
struct UnderWay(Arc<ProcessSet>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.0.state).since = None;
    }
}

fn serve() {
    let mut requests = ReadRequests::new(Arc::new(Pool::new(PACE)));
    loop {
        let sets: Vec<_> = lock(&helper().sets).iter().filter_map(Weak::upgrade).collect();
        for set in sets {
            if set.wanted.swap(false, Ordering::AcqRel) {
                set.begin(&mut requests);
            }
        }
        requests.answers();
        if requests.are_pending() { thread::park_timeout(LOOK) } else { thread::park() }
    }
}
