//! Starts, restarts and reloads the guard, and keeps a new configuration until an incident is over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::alert_receiver::AlertReceiver;
use super::prekill_socket::PrekillSocket;
use super::run_receiver::RunReceiver;
use super::run_requests::RunRequests;
use super::{Feed, Guard, GuardContext};
use crate::host::child::WorkerCommand;
use crate::host::clock;
use crate::host::roots::Roots;
use crate::model::checkpoint::Checkpoints;
use crate::model::facts::Facts;
use crate::model::frame::Frame;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::Reporter;
use crate::model::time::Timestamp;
use crate::protection::options::Protection;
use crate::protection::policy::State;
use crate::protection::record::Records;

/// The sampler's handle to the running guard.
#[derive(Debug, Default)]
pub struct FeedHandle(Mutex<Option<Feed>>);

impl FeedHandle {
    /// Hands the data of a frame to the guard.
    pub fn look(&self, frame: &Frame, facts: &Facts) {
        let mut feed = lock(&self.0);
        let looked = catch_unwind(AssertUnwindSafe(|| {
            if let Some(feed) = &mut *feed {
                feed.look(frame, facts);
            }
        }));
        // The guard continues with older input, and exposes its age.
        if looked.is_err() {
            tracing::error!("The guard did not receive this sample: the code that prepares it panicked.");
        }
    }
}

impl Reporter for FeedHandle {
    fn report(&self, at: Timestamp, out: &mut Batch) {
        if let Some(feed) = &*lock(&self.0) {
            feed.shared.report(at, out);
        }
    }
}

/// The guard and its configuration.
#[derive(Debug)]
pub struct GuardSupervisor {
    guard: Option<Guard>,
    feed: Arc<FeedHandle>,
    running: Option<(Protection, Roots)>,
    waiting: Option<(Protection, Roots)>,
    alert_receiver: Arc<AlertReceiver>,
    context: GuardContext,
    run_receiver: Arc<RunReceiver>,
    prekill_socket: Option<PrekillSocket>,
}

impl GuardSupervisor {
    /// A supervisor without a guard. `own` returns the command of a helper process; `checkpoints` holds the
    /// acknowledgements of jobs.
    pub fn new(
        own: fn(&'static str) -> Option<WorkerCommand>,
        records: Arc<Records>,
        checkpoints: Arc<Checkpoints>,
    ) -> Self {
        let run_requests = Arc::new(RunRequests::new(clock::now()));
        Self {
            guard: None,
            feed: Arc::default(),
            running: None,
            waiting: None,
            alert_receiver: Arc::default(),
            run_receiver: Arc::new(RunReceiver::new(Arc::clone(&run_requests))),
            context: GuardContext { own, records, alerts: Arc::default(), run_requests, checkpoints },
            prekill_socket: None,
        }
    }

    /// The handle for the sampler.
    pub const fn feed(&self) -> &Arc<FeedHandle> {
        &self.feed
    }

    pub const fn alert_receiver(&self) -> &Arc<AlertReceiver> {
        &self.alert_receiver
    }

    /// The receiver of requests of other nodes of runs.
    pub const fn run_receiver(&self) -> &Arc<RunReceiver> {
        &self.run_receiver
    }

    /// Whether the guard makes rounds, or none is configured.
    pub fn alive(&self, now: Timestamp) -> bool {
        self.guard.as_ref().is_none_or(|guard| guard.alive(now))
    }

    /// Applies a configuration; during an incident it is kept for [`GuardSupervisor::catch_up`].
    pub fn configure(&mut self, protection: Protection, roots: &Roots) {
        let wanted = (protection, roots.clone());
        if self.running.as_ref() == Some(&wanted) {
            self.waiting = None;
            return;
        }
        if self.in_incident() {
            tracing::warn!(
                "An incident is in progress; the new protection configuration takes effect after it."
            );
            self.waiting = Some(wanted);
            return;
        }
        self.start(wanted);
    }

    /// Restarts the guard with other records, so that targets disarmed for lack of them may act.
    pub fn rearm(&mut self, records: Arc<Records>) {
        self.context.records = records;
        if let Some(wanted) = self.waiting.take().or_else(|| self.running.take()) {
            self.start(wanted);
        }
    }

    /// Applies the kept configuration, unless an incident is in progress; returns whether one is.
    pub fn catch_up(&mut self) -> bool {
        let in_incident = self.in_incident();
        if !in_incident && let Some((protection, roots)) = self.waiting.take() {
            self.configure(protection, &roots);
        }
        in_incident
    }

    /// Whether a job is being ended, or was ended and its memory is awaited.
    pub fn is_ending(&self) -> bool {
        let ends = |state| matches!(state, State::Term | State::Kill | State::Verify);
        let report = self.guard.as_ref().map(|guard| guard.shared.newest());
        report.is_some_and(|report| report.slots.iter().flatten().any(|slot| ends(slot.state)))
    }

    /// Whether an incident that must not be interrupted is in progress.
    pub fn in_incident(&self) -> bool {
        self.guard.as_ref().is_some_and(|guard| guard.shared.incident())
    }

    fn start(&mut self, wanted: (Protection, Roots)) {
        let put = |feed| *lock(&self.feed.0) = feed;
        put(None);
        self.guard = None;
        self.context.run_requests.no_guard();
        match Guard::start(&wanted.0, &wanted.1, &self.context) {
            Ok(Some((guard, feed))) => {
                put(Some(feed));
                self.guard = Some(guard);
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "Cannot start the guard; no target is protected."),
        }
        let shared = self.guard.as_ref().map(|guard| Arc::clone(&guard.shared));
        self.run_receiver.configure(wanted.0.peer_token.clone(), wanted.0.peer_certificates);
        self.alert_receiver.hand_over(shared, wanted.0.alert_token.clone());
        self.open_prekill_socket(wanted.0.prekill_socket.as_deref(), &wanted.1.passwd);
        self.running = Some(wanted);
    }

    fn open_prekill_socket(&mut self, wanted: Option<&Path>, passwd: &Path) {
        if self.prekill_socket.as_ref().map(PrekillSocket::path) == wanted {
            return;
        }
        self.prekill_socket = None;
        let listen = |path| PrekillSocket::listen(path, Arc::clone(&self.context.run_requests), passwd);
        match wanted.map(listen).transpose() {
            Ok(socket) => self.prekill_socket = socket,
            Err(error) => {
                tracing::error!(%error, "Cannot open the socket protection.prekill_socket; systemd-oomd kills without waiting for checkpoints.");
            }
        }
    }
}
