//! The guard over reloads: the one that runs, the sampler's way to it, and the configuration that waits for its turn.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use super::alerts::Alerts;
use super::desk::Desk;
use super::{Feed, Guard};
use crate::host::child::WorkerCommand;
use crate::host::roots::Roots;
use crate::model::checkpoint::Checkpoints;
use crate::model::facts::Facts as Told;
use crate::model::frame::Frame;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::Reporter;
use crate::model::time::Timestamp;
use crate::protection::options::Protection;
use crate::protection::record::Records;

/// The sampler's way to whichever guard runs.
#[derive(Debug, Default)]
pub struct Post(Mutex<Option<Feed>>);

impl Post {
    /// Tells the guard what a frame says.
    pub fn look(&self, frame: &Frame, told: &Told) {
        let mut feed = lock(&self.0);
        let looked = catch_unwind(AssertUnwindSafe(|| {
            if let Some(feed) = &mut *feed {
                feed.look(frame, told);
            }
        }));
        // The guard goes on with what it knows; its facts grow old, which it says.
        if looked.is_err() {
            tracing::error!("The guard was told nothing of this sample: a defect.");
        }
    }
}

impl Reporter for Post {
    fn report(&self, at: Timestamp, out: &mut Batch) {
        if let Some(feed) = &*lock(&self.0) {
            feed.shared.report(at, out);
        }
    }
}

/// The guard and its configuration.
#[derive(Debug)]
pub struct Warden {
    guard: Option<Guard>,
    post: Arc<Post>,
    running: Option<(Protection, Roots)>,
    waiting: Option<(Protection, Roots)>,
    desk: Arc<Desk>,
    helper: fn() -> Option<WorkerCommand>,
    records: Arc<Records>,
    /// What fires is told again in hours only, so that a reload must not forget it.
    alerts: Arc<Alerts>,
    checkpoints: Arc<Checkpoints>,
}

impl Warden {
    /// Nothing is guarded yet; `helper` tells how the process that starts hooks is started, and `checkpoints` has the
    /// acknowledgements of jobs.
    pub fn new(
        helper: fn() -> Option<WorkerCommand>,
        records: Arc<Records>,
        checkpoints: Arc<Checkpoints>,
    ) -> Self {
        let (post, desk, alerts) = (Arc::default(), Arc::default(), Arc::default());
        Self { guard: None, post, running: None, waiting: None, desk, helper, records, alerts, checkpoints }
    }

    /// What the sampler is given.
    pub const fn post(&self) -> &Arc<Post> {
        &self.post
    }

    /// Where alerts come in.
    pub const fn desk(&self) -> &Arc<Desk> {
        &self.desk
    }

    /// Whether the guard makes its rounds.
    pub fn alive(&self, now: Timestamp) -> bool {
        self.guard.as_ref().is_none_or(|guard| guard.alive(now))
    }

    /// Takes over a configuration; while an incident is under way it waits for [`Warden::catch_up`].
    pub fn configure(&mut self, protection: Protection, roots: &Roots) {
        let wanted = (protection, roots.clone());
        if self.running.as_ref() == Some(&wanted) {
            self.waiting = None;
            return;
        }
        if self.guard.as_ref().is_some_and(|guard| guard.shared().incident()) {
            tracing::warn!("An incident is under way; the new protection takes effect after it.");
            self.waiting = Some(wanted);
            return;
        }
        self.start(wanted);
    }

    /// Begins anew with other records: what could not act for want of them may from now on.
    pub fn rearm(&mut self, records: Arc<Records>) {
        self.records = records;
        if let Some(wanted) = self.waiting.take().or_else(|| self.running.take()) {
            self.start(wanted);
        }
    }

    /// Takes over the configuration that waits, where its time has come.
    pub fn catch_up(&mut self) {
        if let Some((protection, roots)) = self.waiting.take() {
            self.configure(protection, &roots);
        }
    }

    fn start(&mut self, wanted: (Protection, Roots)) {
        let put = |feed| *lock(&self.post.0) = feed;
        put(None);
        self.guard = None;
        let alerts = Arc::clone(&self.alerts);
        let checkpoints = Arc::clone(&self.checkpoints);
        match Guard::start(&wanted.0, &wanted.1, (self.helper)(), &self.records, alerts, checkpoints) {
            Ok(Some((guard, feed))) => {
                put(Some(feed));
                self.guard = Some(guard);
            }
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "Nothing is protected: the guard cannot be started."),
        }
        let shared = self.guard.as_ref().map(|guard| Arc::clone(guard.shared()));
        self.desk.hand_over(shared, wanted.0.alert_token.clone());
        self.running = Some(wanted);
    }
}
