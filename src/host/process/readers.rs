//! Reads that a process can delay indefinitely, on a pool of threads that may block in them.
//!
//! `cmdline`, `environ`, `io`, `smaps_rollup` and `perf_event_open` wait for locks or pages of the process: a page
//! of a FUSE file system whose server does not respond is waited for in state D indefinitely, and no signal ends
//! that. They are therefore read by the threads of a [`Pool`], and the caller waits for a bounded time. One thread
//! does all reads while they return quickly; if a read is slow, another thread continues with the rest. The
//! processes of one user can block only a few threads: then further reads of this user's processes wait, and those
//! of all others continue.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::host::clock;
use crate::model::facts::ProcessRow;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::subordinate::payer;
use crate::model::time::Timestamp;

/// Most threads. A blocked thread costs its stack, of which a few KiB are touched.
pub const MOST: usize = 16;
/// Most threads that the processes of one user can block, while at most half of all threads are blocked.
const MOST_OF_USER: usize = 3;
/// Stack size; matching a pattern needs little.
const STACK: usize = 256 * 1024;

/// Time limits of reads.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// After this time a read is slow: another thread continues with the others, and callers no longer wait for it.
    pub slow: Duration,
    /// After this time a read hangs, which is reported.
    pub deadline: Duration,
    /// How long a process is not read after a read of it hung and then returned.
    pub rest: Duration,
    /// Longest wait of one call for results.
    pub patience: Duration,
}

impl Pace {
    /// The limits used by the daemon.
    pub const DAEMON: Self = Self {
        slow: Duration::from_millis(50),
        deadline: Duration::from_secs(2),
        rest: Duration::from_secs(60),
        patience: Duration::from_millis(100),
    };

    /// Waits for every result: for tests of what is read, on a busy machine.
    #[cfg(test)]
    pub(crate) const PATIENT: Self = Self {
        slow: Duration::from_secs(60),
        deadline: Duration::from_secs(60),
        rest: Duration::ZERO,
        patience: Duration::from_secs(60),
    };
}

/// The file or call that is read, and its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadTarget {
    pub key: ProcessKey,
    pub uid: u32,
    /// Its name.
    pub comm: Label,
    /// The file or system call.
    pub what: &'static str,
}

impl ReadTarget {
    pub fn of(row: &ProcessRow, what: &'static str) -> Self {
        Self { key: row.key, uid: payer(row.uid), comm: row.comm.clone(), what }
    }
}

/// A read that does not return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hanging {
    pub target: ReadTarget,
    /// When it began.
    pub since: Timestamp,
}

/// The state of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The reads that currently hang, in the order of their processes.
    pub hanging: Vec<Hanging>,
    /// Users whose processes block all threads that they may, and how many of their reads wait.
    pub held_up: Vec<(u32, u64)>,
    /// Number of reads that have hung so far.
    pub hung: u64,
}

struct Job {
    target: ReadTarget,
    run: Box<dyn FnOnce() + Send>,
}

struct Running {
    target: ReadTarget,
    since: Timestamp,
    hangs: bool,
}

#[derive(Default)]
struct ReaderState {
    /// By user, in the order of requests.
    waiting: BTreeMap<u32, VecDeque<Job>>,
    /// By the number of the thread.
    running: BTreeMap<u64, Running>,
    /// The user whose read was started last.
    served: u32,
    threads: usize,
    /// Idle threads.
    free: usize,
    /// Threads that were woken or started and have not begun to work.
    called: usize,
    /// Number of the last thread.
    numbers: u64,
    /// Processes of which a read hung and returned, and until when each is not read.
    resting: HashMap<ProcessKey, Timestamp>,
    hung: u64,
}

/// The pool of threads. Nothing waits for the threads to end, not even the shutdown of the daemon.
pub struct Pool {
    pace: Pace,
    state: Mutex<ReaderState>,
    call: Condvar,
    answered: Condvar,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("pace", &self.pace).finish_non_exhaustive()
    }
}

/// The pool of the daemon: a source that is built again must not block further threads.
pub fn shared() -> Arc<Pool> {
    static SHARED: OnceLock<Arc<Pool>> = OnceLock::new();
    Arc::clone(SHARED.get_or_init(|| Arc::new(Pool::new(Pace::DAEMON))))
}

impl ReaderState {
    fn slow<'s>(&'s self, now: Timestamp, pace: &'s Pace) -> impl Iterator<Item = &'s Running> {
        self.running.values().filter(move |running| now.since(running.since) >= pace.slow)
    }

    fn slow_of(&self, uid: u32, now: Timestamp, pace: &Pace) -> usize {
        self.slow(now, pace).filter(|running| running.target.uid == uid).count()
    }

    /// Most threads that the processes of one user may block now.
    fn most_of_user(&self, now: Timestamp, pace: &Pace) -> usize {
        if self.slow(now, pace).count() * 2 >= MOST { 1 } else { MOST_OF_USER }
    }

    /// The user whose read is next: users take turns, those with slow processes after all others.
    fn turn(&self, now: Timestamp, pace: &Pace) -> Option<u32> {
        let most = self.most_of_user(now, pace);
        let mut second = None;
        let after = self.waiting.range((Excluded(self.served), Unbounded));
        for (uid, _) in after.chain(self.waiting.range(..=self.served)) {
            match self.slow_of(*uid, now, pace) {
                0 => return Some(*uid),
                slow if slow < most => second = second.or(Some(*uid)),
                _ => {}
            }
        }
        second
    }

    /// The next read. A read of a process that hangs or hung recently is dropped, which the caller can see.
    fn next(&mut self, now: Timestamp, pace: &Pace) -> Option<Job> {
        loop {
            let uid = self.turn(now, pace)?;
            self.served = uid;
            let jobs = self.waiting.get_mut(&uid)?;
            let job = jobs.pop_front();
            if jobs.is_empty() {
                self.waiting.remove(&uid);
            }
            let key = job.as_ref()?.target.key;
            let hangs = self.slow(now, pace).any(|running| running.target.key == key);
            let rests = self.resting.get(&key).is_some_and(|until| until.since(now) > Duration::ZERO);
            if !hangs && !rests {
                return job;
            }
        }
    }

    /// Whether a thread makes progress or is about to start.
    fn moves(&self, now: Timestamp, pace: &Pace) -> bool {
        self.called > 0 || self.running.values().any(|running| now.since(running.since) < pace.slow)
    }

    /// Whether a read is pending that is worth waiting for: of a user without slow processes.
    fn awaited(&self, now: Timestamp, pace: &Pace) -> bool {
        let fresh = self.running.values().filter(|running| now.since(running.since) < pace.slow);
        let fresh = fresh.map(|running| running.target.uid);
        fresh.chain(self.waiting.keys().copied()).any(|uid| self.slow_of(uid, now, pace) == 0)
    }

    fn mark(&mut self, now: Timestamp, pace: &Pace) {
        for running in self.running.values_mut() {
            if !running.hangs && now.since(running.since) >= pace.deadline {
                running.hangs = true;
                self.hung += 1;
            }
        }
        self.resting.retain(|_, until| until.since(now) > Duration::ZERO);
    }
}

impl Pool {
    /// A pool without threads: they are started when needed.
    pub fn new(pace: Pace) -> Self {
        Self { pace, state: Mutex::default(), call: Condvar::new(), answered: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ReaderState> {
        // No code under the lock panics halfway through a change.
        lock(&self.state)
    }

    /// The current state of the pool.
    pub fn look(&self) -> Look {
        let now = clock::now();
        let mut state = self.lock();
        state.mark(now, &self.pace);
        let hanging = state.running.values().filter(|running| running.hangs);
        let hanging = hanging.map(|running| Hanging { target: running.target.clone(), since: running.since });
        let mut hanging: Vec<_> = hanging.collect();
        hanging.sort_by_key(|hanging| hanging.target.key);
        let most = state.most_of_user(now, &self.pace);
        let held_up = state.waiting.iter().filter(|(uid, _)| state.slow_of(**uid, now, &self.pace) >= most);
        let held_up = held_up.map(|(uid, jobs)| (*uid, jobs.len() as u64)).collect();
        Look { hanging, held_up, hung: state.hung }
    }

    fn take(self: &Arc<Self>, jobs: Vec<Job>) {
        let mut state = self.lock();
        for job in jobs {
            state.waiting.entry(job.target.uid).or_default().push_back(job);
        }
        self.hire(&mut state, clock::now());
    }

    /// Drops the reads of these processes that have not begun.
    fn withdraw(&self, keys: &BTreeSet<ProcessKey>) {
        self.lock().waiting.retain(|_, jobs| {
            jobs.retain(|job| !keys.contains(&job.target.key));
            !jobs.is_empty()
        });
    }

    /// Makes sure that a thread makes progress if there is work.
    fn hire(self: &Arc<Self>, state: &mut ReaderState, now: Timestamp) {
        if state.moves(now, &self.pace) || state.turn(now, &self.pace).is_none() {
            return;
        }
        if state.free > 0 {
            state.free -= 1;
            state.called += 1;
            self.call.notify_one();
        } else if state.threads < MOST {
            let (pool, number) = (Arc::clone(self), state.numbers);
            let started = std::thread::Builder::new()
                .name("reader".to_owned())
                .stack_size(STACK)
                .spawn(move || pool.work(number));
            // If no thread can be created, the reads wait: the next call tries again.
            if started.is_ok() {
                state.numbers += 1;
                state.threads += 1;
                state.called += 1;
            }
        }
    }

    fn work(self: Arc<Self>, number: u64) {
        let mut state = self.lock();
        loop {
            // Woken, or just started.
            state.called = state.called.saturating_sub(1);
            let mut now = clock::now();
            while let Some(Job { target, run }) = state.next(now, &self.pace) {
                let key = target.key;
                state.running.insert(number, Running { target, since: now, hangs: false });
                drop(state);
                // The caller sees that there is no result.
                let _ = catch_unwind(AssertUnwindSafe(run));
                state = self.lock();
                now = clock::now();
                state.mark(now, &self.pace);
                if state.running.remove(&number).is_some_and(|running| running.hangs) {
                    state.resting.insert(key, now.plus(self.pace.rest));
                }
                if !state.awaited(now, &self.pace) {
                    self.answered.notify_all();
                }
            }
            self.answered.notify_all();
            // One thread is kept for the next call; the others were started because some were blocked.
            if state.free + state.called > 0 {
                state.threads -= 1;
                return;
            }
            state.free += 1;
            let called = |state: &mut ReaderState| state.called == 0;
            state = self.call.wait_while(state, called).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until no further read is worth waiting for.
    fn wait(self: &Arc<Self>) {
        let begun = clock::now();
        let mut now = begun;
        let mut state = self.lock();
        loop {
            state.mark(now, &self.pace);
            self.hire(&mut state, now);
            let left = self.pace.patience.saturating_sub(now.since(begun));
            if left.is_zero() || !state.awaited(now, &self.pace) || !state.moves(now, &self.pace) {
                return;
            }
            let fresh = state.running.values().map(|running| now.since(running.since));
            let soonest = fresh.filter_map(|age| self.pace.slow.checked_sub(age)).min();
            let pause = left.min(soonest.unwrap_or(self.pace.slow)).max(Duration::from_millis(1));
            let waited = self.answered.wait_timeout(state, pause);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            now = clock::now();
        }
    }
}

type Inbox<R> = Arc<Mutex<Vec<(ProcessKey, Option<R>)>>>;

/// Requests one kind of read from a pool, with at most one pending read per process.
pub struct ReadRequests<R> {
    pool: Arc<Pool>,
    target: Vec<Job>,
    out: BTreeSet<ProcessKey>,
    inbox: Inbox<R>,
}

impl<R> std::fmt::Debug for ReadRequests<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadRequests").field("out", &self.out).finish_non_exhaustive()
    }
}

/// Delivers the result of a read to the desk, also if the read was dropped or panicked.
struct Reply<R> {
    key: ProcessKey,
    answer: Option<R>,
    inbox: Inbox<R>,
}

impl<R> Drop for Reply<R> {
    fn drop(&mut self) {
        let answer = (self.key, self.answer.take());
        lock(&self.inbox).push(answer);
    }
}

impl<R: Send + 'static> ReadRequests<R> {
    /// A desk without requests.
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool, target: Vec::new(), out: BTreeSet::new(), inbox: Arc::default() }
    }

    pub const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Whether a read of this process is pending.
    pub fn waits_for(&self, key: ProcessKey) -> bool {
        self.out.contains(&key)
    }

    /// Requests a read, unless one of this process is pending.
    pub fn request(&mut self, target: ReadTarget, read: impl FnOnce() -> R + Send + 'static) {
        if !self.out.insert(target.key) {
            return;
        }
        let reply = Reply { key: target.key, answer: None, inbox: Arc::clone(&self.inbox) };
        let run = move || {
            let mut reply = reply;
            reply.answer = Some(read());
        };
        self.target.push(Job { target, run: Box::new(run) });
    }

    /// The results since the last call, after a bounded wait; nothing as the result of a read that was dropped.
    /// Late results are returned by a later call.
    pub fn answers(&mut self) -> Vec<(ProcessKey, Option<R>)> {
        if self.out.is_empty() {
            return Vec::new();
        }
        if !self.target.is_empty() {
            self.pool.take(std::mem::take(&mut self.target));
        }
        self.pool.wait();
        let answers = std::mem::take(&mut *lock(&self.inbox));
        for (key, _) in &answers {
            self.out.remove(key);
        }
        answers
    }

    /// Whether the results of requests are pending.
    pub fn are_pending(&self) -> bool {
        !self.out.is_empty()
    }

    /// Starts what was requested without waiting, and drops the results so far: for reads that deliver them themselves.
    pub fn start(&mut self) {
        if !self.target.is_empty() {
            self.pool.take(std::mem::take(&mut self.target));
        }
        for (key, _) in std::mem::take(&mut *lock(&self.inbox)) {
            self.out.remove(&key);
        }
    }

    /// Drops requests of processes that no longer exist.
    pub fn keep(&mut self, alive: impl Fn(ProcessKey) -> bool) {
        let gone: BTreeSet<_> = self.out.iter().copied().filter(|key| !alive(*key)).collect();
        if !gone.is_empty() {
            self.pool.withdraw(&gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Short limits for a read, and long ones for the caller.
    const HASTY: Pace = Pace {
        slow: Duration::from_millis(1),
        deadline: Duration::from_millis(2),
        rest: Duration::from_secs(3600),
        patience: Duration::from_secs(30),
    };

    fn target(pid: u32, uid: u32) -> ReadTarget {
        ReadTarget { key: ProcessKey { pid, start: 1 }, uid, comm: "p".into(), what: "cmdline" }
    }

    /// A read that returns only once the sender is dropped.
    fn hang(requests: &mut ReadRequests<u32>, pid: u32, uid: u32) -> Sender<()> {
        let (release, held): (Sender<()>, Receiver<()>) = channel();
        requests.request(target(pid, uid), move || {
            let _ = held.recv();
            pid
        });
        release
    }

    /// Collects results until `enough`; on a busy machine a normal read may be slow.
    fn until(
        requests: &mut ReadRequests<u32>,
        mut enough: impl FnMut(&mut ReadRequests<u32>, &[(u32, Option<u32>)]) -> bool,
    ) -> Vec<(u32, Option<u32>)> {
        let mut found = Vec::new();
        for _ in 0..30_000 {
            found.extend(requests.answers().into_iter().map(|(key, answer)| (key.pid, answer)));
            if enough(requests, &found) {
                return found;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("waited too long, with {found:?} and {:?}", requests.pool.look());
    }

    #[test]
    fn a_batch_is_answered_by_one_thread() {
        let pool = Arc::new(Pool::new(Pace::PATIENT));
        let mut requests = ReadRequests::new(Arc::clone(&pool));
        for round in 0..3 {
            for pid in 0..2_000 {
                requests.request(target(pid, pid % 7), move || pid + round);
            }
            let mut found = until(&mut requests, |_, found| found.len() == 2_000);
            found.sort_unstable();
            assert!(
                found
                    .iter()
                    .enumerate()
                    .all(|(place, (pid, answer))| { place == *pid as usize && *answer == Some(pid + round) })
            );
        }
        assert_eq!(pool.lock().numbers, 1);
    }

    #[test]
    fn a_read_that_hangs_is_reported_and_the_others_complete() {
        let pool = Arc::new(Pool::new(HASTY));
        let mut requests = ReadRequests::new(Arc::clone(&pool));
        let release = hang(&mut requests, 1, 1000);
        for pid in 2..50 {
            requests.request(target(pid, 1000 + pid), move || pid);
        }
        let found = until(&mut requests, |_, found| found.len() == 48);
        assert!(found.iter().all(|(pid, answer)| *answer == Some(*pid) && *pid != 1));
        until(&mut requests, |requests, _| requests.pool.look().hanging.len() == 1);
        let look = pool.look();
        assert_eq!(look.hanging[0].target, target(1, 1000));
        assert!(look.hung >= 1);
        assert!(requests.waits_for(target(1, 1).key) && !requests.waits_for(target(2, 1).key));
        // Another read of the process is not tried.
        let mut other = ReadRequests::new(Arc::clone(&pool));
        other.request(target(1, 1000), || 0);
        assert_eq!(until(&mut other, |_, found| found.len() == 1), [(1, None)]);
        drop(release);
        assert_eq!(until(&mut requests, |_, found| !found.is_empty()), [(1, Some(1))]);
        until(&mut requests, |requests, _| requests.pool.look().hanging.is_empty());
        // The process may be read again.
        requests.request(target(1, 1000), || 0);
        assert_eq!(until(&mut requests, |_, found| found.len() == 1), [(1, None)]);
    }

    #[test]
    fn one_user_blocks_at_most_a_few_threads() {
        let pool = Arc::new(Pool::new(HASTY));
        let mut requests = ReadRequests::new(Arc::clone(&pool));
        let mut held: Vec<_> = (0..40).map(|pid| hang(&mut requests, pid, 1000)).collect();
        let many = MOST_OF_USER as u64;
        until(&mut requests, |requests, _| requests.pool.look().held_up == [(1000, 40 - many)]);
        requests.request(target(99, 1001), || 99);
        assert_eq!(until(&mut requests, |_, found| !found.is_empty()), [(99, Some(99))]);
        // Others block as many threads as they can: one thread remains for users who block none.
        held.extend(
            (100..112).flat_map(|user| [user, user + 100]).map(|pid| hang(&mut requests, pid, pid % 100)),
        );
        until(&mut requests, |requests, _| {
            requests.pool.lock().slow(clock::now(), &HASTY).count() >= MOST - 1
        });
        let gone = |key: ProcessKey| key.pid >= 40;
        requests.keep(gone);
        drop(held);
        until(&mut requests, |requests, _| requests.out.is_empty());
        let state = pool.lock();
        assert!(state.waiting.is_empty() && state.threads <= MOST);
    }

    #[test]
    fn a_panic_is_not_an_answer() {
        let mut requests = ReadRequests::new(Arc::new(Pool::new(HASTY)));
        requests.request(target(1, 1), || -> u32 { panic!("a defect") });
        assert_eq!(until(&mut requests, |_, found| found.len() == 1), [(1, None)]);
        requests.request(target(1, 1), || 5);
        let found = until(&mut requests, |_, found| found.len() == 1);
        assert!(found == [(1, Some(5))] || found == [(1, None)], "slow on a busy machine: {found:?}");
    }
}
