//! Reading what a process can hold up, on threads that may be lost to it.
//!
//! `cmdline`, `environ`, `io`, `smaps_rollup` and `perf_event_open` wait for locks or pages of the process: a page of a
//! FUSE file system whose server does not answer is waited for in state D, for good, and no signal ends that. They are
//! therefore read by the threads of a [`Pool`], and whoever asks waits for a bounded time. One thread works as long as
//! it gets on; where a read is slow, another goes on with the rest. One user's processes can hold up a few threads
//! only: after that this user's processes wait, and all others are read.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::host::clock;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::time::Timestamp;

/// Threads at most. One that is held up costs its stack, of which a few KiB are touched.
pub const MOST: usize = 16;
/// Threads that one user's processes can hold up, while no more than half of all are held up.
const MOST_OF_USER: usize = 3;
/// Matching a pattern needs little.
const STACK: usize = 256 * 1024;

/// How long what may take.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From here on a read is slow: another thread goes on with the others, and nobody waits for it.
    pub slow: Duration,
    /// From here on it hangs, which is stated.
    pub deadline: Duration,
    /// For so long a process that hung is left alone after it answered.
    pub rest: Duration,
    /// The longest that one call waits for answers.
    pub patience: Duration,
}

impl Pace {
    /// The daemon's.
    pub const DAEMON: Self = Self {
        slow: Duration::from_millis(50),
        deadline: Duration::from_secs(2),
        rest: Duration::from_secs(60),
        patience: Duration::from_millis(100),
    };

    /// Waits for every answer: tests of what is read, on a busy machine.
    #[cfg(test)]
    pub(crate) const PATIENT: Self = Self {
        slow: Duration::from_secs(60),
        deadline: Duration::from_secs(60),
        rest: Duration::ZERO,
        patience: Duration::from_secs(60),
    };
}

/// What is read, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The process.
    pub key: ProcessKey,
    /// Its user.
    pub uid: u32,
    /// Its name.
    pub comm: Label,
    /// The file, or the call.
    pub what: &'static str,
}

/// A read that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hanging {
    /// What is read, and whose it is.
    pub asked: Asked,
    /// When it began.
    pub since: Timestamp,
}

/// How reading goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The reads that hang now, in the order of their processes.
    pub hanging: Vec<Hanging>,
    /// Users whose processes hold up all threads that they may, and how many reads wait for that.
    pub held_up: Vec<(u32, u64)>,
    /// Reads that ever hung.
    pub hung: u64,
}

struct Job {
    asked: Asked,
    run: Box<dyn FnOnce() + Send>,
}

struct Running {
    asked: Asked,
    since: Timestamp,
    hangs: bool,
}

#[derive(Default)]
struct State {
    /// By user, in the order of asking.
    waiting: BTreeMap<u32, VecDeque<Job>>,
    /// By the thread's number.
    running: BTreeMap<u64, Running>,
    /// The user who was served last.
    served: u32,
    threads: usize,
    /// Threads that wait for a call.
    free: usize,
    /// Threads that were called or started and have not begun.
    called: usize,
    /// Counts threads.
    numbers: u64,
    /// Processes that hung and answered, and until when each is left alone.
    resting: HashMap<ProcessKey, Timestamp>,
    hung: u64,
}

/// The threads. They are never waited for, also not at the end of the daemon.
pub struct Pool {
    pace: Pace,
    state: Mutex<State>,
    call: Condvar,
    answered: Condvar,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("pace", &self.pace).finish_non_exhaustive()
    }
}

/// The daemon's threads: a source that is built anew must not lose as many again.
pub fn shared() -> Arc<Pool> {
    static SHARED: OnceLock<Arc<Pool>> = OnceLock::new();
    Arc::clone(SHARED.get_or_init(|| Arc::new(Pool::new(Pace::DAEMON))))
}

impl State {
    fn slow<'s>(&'s self, now: Timestamp, pace: &'s Pace) -> impl Iterator<Item = &'s Running> {
        self.running.values().filter(move |running| now.since(running.since) >= pace.slow)
    }

    fn slow_of(&self, uid: u32, now: Timestamp, pace: &Pace) -> usize {
        self.slow(now, pace).filter(|running| running.asked.uid == uid).count()
    }

    /// How many threads one user's processes may hold up.
    fn most_of_user(&self, now: Timestamp, pace: &Pace) -> usize {
        if self.slow(now, pace).count() * 2 >= MOST { 1 } else { MOST_OF_USER }
    }

    /// Whose turn it is: users take turns, those whose processes are slow after all others.
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

    /// The next read. What would hang, or hung lately, is dropped, which its asker sees.
    fn next(&mut self, now: Timestamp, pace: &Pace) -> Option<Job> {
        loop {
            let uid = self.turn(now, pace)?;
            self.served = uid;
            let jobs = self.waiting.get_mut(&uid)?;
            let job = jobs.pop_front();
            if jobs.is_empty() {
                self.waiting.remove(&uid);
            }
            let key = job.as_ref()?.asked.key;
            let hangs = self.slow(now, pace).any(|running| running.asked.key == key);
            let rests = self.resting.get(&key).is_some_and(|until| until.since(now) > Duration::ZERO);
            if !hangs && !rests {
                return job;
            }
        }
    }

    /// Whether a thread gets on, or is about to.
    fn moves(&self, now: Timestamp, pace: &Pace) -> bool {
        self.called > 0 || self.running.values().any(|running| now.since(running.since) < pace.slow)
    }

    /// Whether something is on its way that is worth waiting for: of a user none of whose processes is slow.
    fn awaited(&self, now: Timestamp, pace: &Pace) -> bool {
        let fresh = self.running.values().filter(|running| now.since(running.since) < pace.slow);
        let fresh = fresh.map(|running| running.asked.uid);
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
    /// No thread yet: they are started as they are needed.
    pub fn new(pace: Pace) -> Self {
        Self { pace, state: Mutex::default(), call: Condvar::new(), answered: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is called under the lock panics half way.
        lock(&self.state)
    }

    /// How reading goes now.
    pub fn look(&self) -> Look {
        let now = clock::now();
        let mut state = self.lock();
        state.mark(now, &self.pace);
        let hanging = state.running.values().filter(|running| running.hangs);
        let hanging = hanging.map(|running| Hanging { asked: running.asked.clone(), since: running.since });
        let mut hanging: Vec<_> = hanging.collect();
        hanging.sort_by_key(|hanging| hanging.asked.key);
        let most = state.most_of_user(now, &self.pace);
        let held_up = state.waiting.iter().filter(|(uid, _)| state.slow_of(**uid, now, &self.pace) >= most);
        let held_up = held_up.map(|(uid, jobs)| (*uid, jobs.len() as u64)).collect();
        Look { hanging, held_up, hung: state.hung }
    }

    fn take(self: &Arc<Self>, jobs: Vec<Job>) {
        let mut state = self.lock();
        for job in jobs {
            state.waiting.entry(job.asked.uid).or_default().push_back(job);
        }
        self.hire(&mut state, clock::now());
    }

    /// Drops the reads of these processes that have not begun.
    fn withdraw(&self, keys: &BTreeSet<ProcessKey>) {
        self.lock().waiting.retain(|_, jobs| {
            jobs.retain(|job| !keys.contains(&job.asked.key));
            !jobs.is_empty()
        });
    }

    /// Sees to it that a thread gets on where there is something to do.
    fn hire(self: &Arc<Self>, state: &mut State, now: Timestamp) {
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
            // Without a thread the reads wait: the next call tries again.
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
            // Called, or just started.
            state.called = state.called.saturating_sub(1);
            let mut now = clock::now();
            while let Some(Job { asked, run }) = state.next(now, &self.pace) {
                let key = asked.key;
                state.running.insert(number, Running { asked, since: now, hangs: false });
                drop(state);
                // The asker sees that there is no answer.
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
            // One is kept for the next call; the others were started because some were held up.
            if state.free + state.called > 0 {
                state.threads -= 1;
                return;
            }
            state.free += 1;
            let called = |state: &mut State| state.called == 0;
            state = self.call.wait_while(state, called).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until nothing more is worth waiting for.
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

/// Asks a pool for one kind of answer, for each process at most once at a time.
pub struct Desk<R> {
    pool: Arc<Pool>,
    asked: Vec<Job>,
    out: BTreeSet<ProcessKey>,
    inbox: Inbox<R>,
}

impl<R> std::fmt::Debug for Desk<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("out", &self.out).finish_non_exhaustive()
    }
}

/// Tells the desk what became of a read, also where it was dropped or panicked.
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

impl<R: Send + 'static> Desk<R> {
    /// Nothing is asked yet.
    pub fn new(pool: Arc<Pool>) -> Self {
        Self { pool, asked: Vec::new(), out: BTreeSet::new(), inbox: Arc::default() }
    }

    /// The threads.
    pub const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Whether an answer of this process is still to come.
    pub fn waits_for(&self, key: ProcessKey) -> bool {
        self.out.contains(&key)
    }

    /// Asks for one answer, where none of this process is still to come.
    pub fn ask(&mut self, asked: Asked, read: impl FnOnce() -> R + Send + 'static) {
        if !self.out.insert(asked.key) {
            return;
        }
        let reply = Reply { key: asked.key, answer: None, inbox: Arc::clone(&self.inbox) };
        let run = move || {
            let mut reply = reply;
            reply.answer = Some(read());
        };
        self.asked.push(Job { asked, run: Box::new(run) });
    }

    /// The answers since the last call, after a bounded wait; nothing in place of an answer where none was tried.
    /// What is late is among those of a later call.
    pub fn answers(&mut self) -> Vec<(ProcessKey, Option<R>)> {
        if self.out.is_empty() {
            return Vec::new();
        }
        if !self.asked.is_empty() {
            self.pool.take(std::mem::take(&mut self.asked));
        }
        self.pool.wait();
        let answers = std::mem::take(&mut *lock(&self.inbox));
        for (key, _) in &answers {
            self.out.remove(key);
        }
        answers
    }

    /// Drops what was asked of processes that are no more.
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

    /// Little time for an answer, and much for whoever waits.
    const HASTY: Pace = Pace {
        slow: Duration::from_millis(1),
        deadline: Duration::from_millis(2),
        rest: Duration::from_secs(3600),
        patience: Duration::from_secs(30),
    };

    fn asked(pid: u32, uid: u32) -> Asked {
        Asked { key: ProcessKey { pid, start: 1 }, uid, comm: "p".into(), what: "cmdline" }
    }

    /// A read that answers only once the sender is gone.
    fn hang(desk: &mut Desk<u32>, pid: u32, uid: u32) -> Sender<()> {
        let (release, held): (Sender<()>, Receiver<()>) = channel();
        desk.ask(asked(pid, uid), move || {
            let _ = held.recv();
            pid
        });
        release
    }

    /// Collects until `enough`; a busy machine makes an answer slow that is not.
    fn until(
        desk: &mut Desk<u32>,
        mut enough: impl FnMut(&mut Desk<u32>, &[(u32, Option<u32>)]) -> bool,
    ) -> Vec<(u32, Option<u32>)> {
        let mut found = Vec::new();
        for _ in 0..30_000 {
            found.extend(desk.answers().into_iter().map(|(key, answer)| (key.pid, answer)));
            if enough(desk, &found) {
                return found;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("waited too long, with {found:?} and {:?}", desk.pool.look());
    }

    #[test]
    fn a_batch_is_answered_by_one_thread() {
        let pool = Arc::new(Pool::new(Pace::PATIENT));
        let mut desk = Desk::new(Arc::clone(&pool));
        for round in 0..3 {
            for pid in 0..2_000 {
                desk.ask(asked(pid, pid % 7), move || pid + round);
            }
            let mut found = until(&mut desk, |_, found| found.len() == 2_000);
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
    fn what_hangs_is_named_and_the_others_are_read() {
        let pool = Arc::new(Pool::new(HASTY));
        let mut desk = Desk::new(Arc::clone(&pool));
        let release = hang(&mut desk, 1, 1000);
        for pid in 2..50 {
            desk.ask(asked(pid, 1000 + pid), move || pid);
        }
        let found = until(&mut desk, |_, found| found.len() == 48);
        assert!(found.iter().all(|(pid, answer)| *answer == Some(*pid) && *pid != 1));
        until(&mut desk, |desk, _| desk.pool.look().hanging.len() == 1);
        let look = pool.look();
        assert_eq!(look.hanging[0].asked, asked(1, 1000));
        assert!(look.hung >= 1);
        assert!(desk.waits_for(asked(1, 1).key) && !desk.waits_for(asked(2, 1).key));
        // Another question about it is not even tried.
        let mut other = Desk::new(Arc::clone(&pool));
        other.ask(asked(1, 1000), || 0);
        assert_eq!(until(&mut other, |_, found| found.len() == 1), [(1, None)]);
        drop(release);
        assert_eq!(until(&mut desk, |_, found| !found.is_empty()), [(1, Some(1))]);
        until(&mut desk, |desk, _| desk.pool.look().hanging.is_empty());
        // It may do so again.
        desk.ask(asked(1, 1000), || 0);
        assert_eq!(until(&mut desk, |_, found| found.len() == 1), [(1, None)]);
    }

    #[test]
    fn one_user_holds_up_a_few_threads_and_no_other_user() {
        let pool = Arc::new(Pool::new(HASTY));
        let mut desk = Desk::new(Arc::clone(&pool));
        let mut held: Vec<_> = (0..40).map(|pid| hang(&mut desk, pid, 1000)).collect();
        let many = MOST_OF_USER as u64;
        until(&mut desk, |desk, _| desk.pool.look().held_up == [(1000, 40 - many)]);
        desk.ask(asked(99, 1001), || 99);
        assert_eq!(until(&mut desk, |_, found| !found.is_empty()), [(99, Some(99))]);
        // Others hold up as many as they can: a thread is left for who does not.
        held.extend(
            (100..112).flat_map(|user| [user, user + 100]).map(|pid| hang(&mut desk, pid, pid % 100)),
        );
        until(&mut desk, |desk, _| desk.pool.lock().slow(clock::now(), &HASTY).count() >= MOST - 1);
        let gone = |key: ProcessKey| key.pid >= 40;
        desk.keep(gone);
        drop(held);
        until(&mut desk, |desk, _| desk.out.is_empty());
        let state = pool.lock();
        assert!(state.waiting.is_empty() && state.threads <= MOST);
    }

    #[test]
    fn a_panic_is_no_answer() {
        let mut desk = Desk::new(Arc::new(Pool::new(HASTY)));
        desk.ask(asked(1, 1), || -> u32 { panic!("a defect") });
        assert_eq!(until(&mut desk, |_, found| found.len() == 1), [(1, None)]);
        desk.ask(asked(1, 1), || 5);
        let found = until(&mut desk, |_, found| found.len() == 1);
        assert!(found == [(1, Some(5))] || found == [(1, None)], "slow on a busy machine: {found:?}");
    }
}
