//! Requests of other nodes for a checkpoint of a run: what was received, and the way to the guard.
//!
//! A request counts once: its incident and its nonce are remembered, longer than the window of the sender's clock that is
//! accepted, by the clock of this node, which is monotonic. Within the window, a repeated request is refused because it is
//! remembered, and beyond it because of its time, whether or not clocks agree. One from before this daemon started may have
//! been received by the daemon before it, and is refused, as are those of a node whose clock is behind, for as long as it is. Jobs of one run and user are
//! asked at most every `ASK_INTERVAL`, so that requests that arrive together, from several nodes, lead to one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::Thread;
use std::time::Duration;

use super::input::GuardInput;
use super::prekill::Prekills;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::protection::types::run_request::{RunCounts, RunOutcome, RunRequest};

/// Maximum difference between the clocks of two nodes.
const CLOCK_WINDOW: Duration = Duration::from_secs(15 * 60);
/// Time for which a request is remembered: twice the window, since a clock may be ahead by it.
const REQUEST_RETENTION: Duration = Duration::from_secs(31 * 60);
/// Maximum number of remembered requests; further ones are refused until the oldest are forgotten.
const MOST: usize = 4096;
/// Minimum time between two requests that are passed on, for one run and user.
const ASK_INTERVAL: Duration = Duration::from_secs(30);
/// Capacity of the queue to the guard.
const QUEUE: usize = 64;

/// A protected job with a run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RunJob {
    slot: usize,
    serial: u64,
    run: Label,
    user: Label,
    namespace: Label,
}

/// A request on its way to the guard.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) request: Arc<RunRequest>,
    /// The slots of the jobs, with their serial numbers.
    pub(super) jobs: Vec<(usize, u64)>,
    /// Takes the outcome, and the number of processes.
    pub(super) reply: SyncSender<(RunOutcome, u32)>,
}

#[derive(Debug, Default)]
struct ReceivedRequests {
    jobs: Vec<RunJob>,
    /// Incidents and nonces, the oldest first.
    seen: VecDeque<(String, Timestamp)>,
    /// When jobs were last asked, by run and user.
    asked: BTreeMap<(String, String), Timestamp>,
}

/// The requests of other nodes.
#[derive(Debug, Default)]
pub struct RunRequests {
    /// When the daemon started, in seconds since 1970.
    started: u64,
    state: Mutex<ReceivedRequests>,
    pending: Mutex<Vec<Pending>>,
    guard: Mutex<Option<Thread>>,
    /// Whether the guard was woken and has not looked since.
    woken: AtomicBool,
    /// Counts of requests to other nodes.
    pub sent: Arc<RunCounts>,
    /// Counts of requests of other nodes.
    pub received: RunCounts,
    /// The notifications of systemd-oomd, which reach the guard in the same way.
    pub prekills: Prekills,
}

impl RunRequests {
    /// No requests yet, at the start of the daemon.
    pub fn new(started: Timestamp) -> Self {
        Self { started: started.unix().as_secs(), ..Self::default() }
    }

    /// Forgets which requests were received, as one that does not check nonces.
    #[cfg(test)]
    pub(super) fn forget_seen(&self) {
        lock(&self.state).seen.clear();
    }

    /// Sets the thread that is woken by a request.
    pub(super) fn guard_is(&self, thread: Thread) {
        *lock(&self.guard) = Some(thread);
    }

    /// Replaces the jobs with those of a sample.
    pub(super) fn jobs_are(&self, input: &GuardInput) {
        let jobs = input.slots.iter().enumerate().filter_map(|(slot, job)| {
            let job = job.as_ref()?;
            let owner = &job.names.owner;
            (!owner.run.name.as_str().is_empty()).then(|| RunJob {
                slot,
                serial: job.serial,
                run: owner.run.name.clone(),
                user: owner.user.clone(),
                namespace: owner.pod.namespace.clone(),
            })
        });
        lock(&self.state).jobs = jobs.collect();
        self.prekills.jobs_are(input);
    }

    /// Removes all jobs: there is no guard.
    pub(super) fn no_guard(&self) {
        lock(&self.state).jobs.clear();
        lock(&self.pending).clear();
        *lock(&self.guard) = None;
        self.prekills.no_guard();
    }

    /// Passes a cgroup that is about to be killed to the guard, as [`Prekills::notify`].
    pub(super) fn notify_prekill(&self, cgroup: String) -> Option<Receiver<()>> {
        let answer = self.prekills.notify(cgroup)?;
        self.wake();
        Some(answer)
    }

    /// Whether nothing was passed to the guard since it last took what waits.
    pub(super) fn is_idle(&self) -> bool {
        !self.woken.load(Ordering::Acquire)
    }

    fn wake(&self) {
        self.woken.store(true, Ordering::Release);
        if let Some(guard) = &*lock(&self.guard) {
            guard.unpark();
        }
    }

    /// Checks a request of an authenticated sender, and passes it to the guard, which sends the outcome.
    ///
    /// # Errors
    /// The outcome of a request that is not passed on.
    pub(super) fn take(
        &self,
        run: &str,
        request: RunRequest,
        now: Timestamp,
    ) -> Result<Receiver<(RunOutcome, u32)>, RunOutcome> {
        if !request.is_sound() {
            return Err(RunOutcome::Invalid);
        }
        if now.unix().as_secs().abs_diff(request.unix_seconds) > CLOCK_WINDOW.as_secs() {
            return Err(RunOutcome::Clock);
        }
        if request.unix_seconds < self.started {
            return Err(RunOutcome::Replayed);
        }
        let (reply, answer) = sync_channel(1);
        {
            // A request that is refused because the queue is full is not kept as one that was seen.
            let mut pending = lock(&self.pending);
            if pending.len() >= QUEUE {
                return Err(RunOutcome::Busy);
            }
            let jobs = self.admit(run, &request, now)?;
            pending.push(Pending { request: Arc::new(request), jobs, reply });
        }
        self.wake();
        Ok(answer)
    }

    /// The jobs that the request is passed on for.
    fn admit(
        &self,
        run: &str,
        request: &RunRequest,
        now: Timestamp,
    ) -> Result<Vec<(usize, u64)>, RunOutcome> {
        let RunRequest { incident, user, namespace, nonce, dry_run, .. } = request;
        let mut state = lock(&self.state);
        while state.seen.front().is_some_and(|(_, at)| now.since(*at) > REQUEST_RETENTION) {
            state.seen.pop_front();
        }
        state.asked.retain(|_, at| now.since(*at) < ASK_INTERVAL);
        if state.seen.iter().any(|(seen, _)| seen == nonce || (!dry_run && seen == incident)) {
            return Err(RunOutcome::Replayed);
        }
        if state.seen.len() + 2 > MOST {
            return Err(RunOutcome::Busy);
        }
        state.seen.push_back((nonce.clone(), now));
        if !dry_run {
            state.seen.push_back((incident.clone(), now));
        }
        let named: Vec<&RunJob> = state.jobs.iter().filter(|job| job.run.as_str() == run).collect();
        if named.is_empty() {
            return Err(RunOutcome::NoJob);
        }
        // A run can be named by its user: the name alone authorizes nothing.
        let of_user = |job: &&&RunJob| {
            (*dry_run && user.is_empty())
                || (job.user.as_str() == user && job.namespace.as_str() == namespace)
        };
        let jobs: Vec<(usize, u64)> =
            named.iter().filter(of_user).map(|job| (job.slot, job.serial)).collect();
        if jobs.is_empty() {
            return Err(RunOutcome::OtherUser);
        }
        if !dry_run {
            let key = (run.to_owned(), user.clone());
            if state.asked.contains_key(&key) {
                return Err(RunOutcome::Already);
            }
            state.asked.insert(key, now);
        }
        Ok(jobs)
    }

    /// Takes the requests that wait, if the lock is free.
    pub(super) fn waiting(&self) -> Vec<Pending> {
        self.woken.store(false, Ordering::Release);
        self.pending.try_lock().map(|mut pending| std::mem::take(&mut *pending)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(jobs: &[(&str, &str)]) -> RunRequests {
        let requests = RunRequests::default();
        let job = |(slot, (run, user)): (usize, &(&str, &str))| RunJob {
            slot,
            serial: 1,
            run: (*run).into(),
            user: (*user).into(),
            namespace: Label::default(),
        };
        lock(&requests.state).jobs = jobs.iter().enumerate().map(job).collect();
        requests
    }

    fn request(number: u64, seconds: u64) -> RunRequest {
        RunRequest {
            incident: format!("incident-{number}@node"),
            from: "node".to_owned(),
            user: "alice".to_owned(),
            nonce: format!("{number:032x}"),
            unix_seconds: seconds,
            ..RunRequest::default()
        }
    }

    #[track_caller]
    fn check(
        requests: &RunRequests,
        run: &str,
        request: RunRequest,
        second: u64,
        expected: Option<RunOutcome>,
    ) {
        let taken = requests.take(run, request, Timestamp::from_secs(second)).err();
        assert_eq!(taken, expected);
    }

    const T: u64 = 1_000_000;

    #[test]
    fn a_request_counts_once() {
        let requests = requests(&[("r", "alice")]);
        check(&requests, "r", request(1, T), T, None);
        check(&requests, "r", request(1, T), T, Some(RunOutcome::Replayed));
        // Another nonce for the same incident, and the same nonce for another incident.
        let nonce = RunRequest { nonce: "f".repeat(32), ..request(1, T) };
        check(&requests, "r", nonce, T, Some(RunOutcome::Replayed));
        let incident = RunRequest { incident: "other@node".to_owned(), ..request(1, T) };
        check(&requests, "r", incident, T, Some(RunOutcome::Replayed));
        // While it is remembered, and after its time is outside the window.
        check(&requests, "r", request(1, T), T + 900, Some(RunOutcome::Replayed));
        check(&requests, "r", request(1, T), T + 3600, Some(RunOutcome::Clock));
    }

    #[test]
    fn a_request_from_before_the_start_is_refused() {
        let requests = RunRequests { started: T, ..requests(&[("r", "alice")]) };
        check(&requests, "r", request(1, T - 1), T + 1, Some(RunOutcome::Replayed));
        check(&requests, "r", request(2, T), T + 1, None);
    }

    #[test]
    fn clocks_may_differ_by_minutes() {
        let requests = requests(&[("r", "alice")]);
        check(&requests, "r", request(1, T - 600), T, None);
        check(&requests, "r", request(2, T + 600), T + 60, None);
        check(&requests, "r", request(2, T + 600), T + 1400, Some(RunOutcome::Replayed));
        check(&requests, "r", request(3, T + 1900), T + 60, Some(RunOutcome::Clock));
    }

    #[test]
    fn two_nodes_that_ask_at_once_lead_to_one_request() {
        let requests = requests(&[("r", "alice"), ("r", "alice")]);
        check(&requests, "r", request(1, T), T, None);
        check(&requests, "r", request(2, T), T, Some(RunOutcome::Already));
        check(&requests, "r", request(3, T), T + 31, None);
        let waiting = requests.waiting();
        assert_eq!(waiting.len(), 2);
        assert_eq!(waiting[0].jobs, [(0, 1), (1, 1)]);
    }

    #[test]
    fn a_run_of_another_user_is_not_asked() {
        let requests = requests(&[("r", "bob"), ("s", "alice")]);
        check(&requests, "r", request(1, T), T, Some(RunOutcome::OtherUser));
        check(&requests, "none", request(2, T), T, Some(RunOutcome::NoJob));
        check(&requests, "", request(3, T), T, Some(RunOutcome::NoJob));
        let namespace = RunRequest { namespace: "team".to_owned(), ..request(4, T) };
        check(&requests, "s", namespace, T, Some(RunOutcome::OtherUser));
        check(
            &requests,
            "r",
            RunRequest { user: String::new(), ..request(5, T) },
            T,
            Some(RunOutcome::Invalid),
        );
        assert!(requests.waiting().is_empty());
        check(&requests, "s", request(6, T), T, None);
    }

    #[test]
    fn a_dry_run_keeps_no_request_from_being_sent() {
        let requests = requests(&[("r", "bob")]);
        let dry = RunRequest { dry_run: true, user: String::new(), ..request(1, T) };
        check(&requests, "r", dry, T, None);
        check(&requests, "r", RunRequest { user: "bob".to_owned(), ..request(2, T) }, T, None);
    }

    #[test]
    fn memory_is_bounded_and_frees_itself() {
        let requests = requests(&[]);
        for number in 0..(MOST as u64) / 2 {
            check(&requests, "r", request(number, T), T, Some(RunOutcome::NoJob));
        }
        check(&requests, "r", request(9_999, T), T, Some(RunOutcome::Busy));
        let later = T + REQUEST_RETENTION.as_secs() + 1;
        check(&requests, "r", request(9_999, later), later, Some(RunOutcome::NoJob));
    }
}
