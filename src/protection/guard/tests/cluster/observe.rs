//! What the guard of a simulated node passes on: its journal, and its requests to other nodes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::Defect;
use super::machine::Machine;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::protection::enforce::executor::BackgroundExecutor;
use crate::protection::guard::input::SampledReading;
use crate::protection::guard::journal::{CompletedStep, JobTransition, Journal};
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{self, Reason, State};
use crate::protection::types::run_request::RunQuery;
use crate::protection::types::step::{Finished, Step, TargetId, Ticket, Work};

/// What the daemons of this thread's cluster share with its player.
#[derive(Default)]
pub(super) struct Played {
    pub(super) machine: Option<Rc<Machine>>,
    /// Requests to other nodes, by the asking node.
    pub(super) outbox: Vec<(usize, Ticket, Arc<RunQuery>)>,
    /// Their results.
    pub(super) inbox: Vec<(usize, Finished)>,
    /// The nonces that each node has acted on.
    pub(super) heard: BTreeSet<(usize, String)>,
}

thread_local! {
    pub(super) static PLAYED: RefCell<Played> = RefCell::default();
}

fn machine() -> Option<Rc<Machine>> {
    PLAYED.with_borrow(|played| played.machine.clone())
}

/// The network, on a thread that plays a cluster.
pub(in crate::protection::guard) fn network() -> Option<Box<dyn BackgroundExecutor>> {
    let node = machine()?.0.borrow().node;
    Some(Box::new(Network(node)))
}

/// The requests of one node.
#[derive(Debug)]
struct Network(usize);

impl BackgroundExecutor for Network {
    fn begin(&mut self, ticket: Ticket, step: &Step) -> bool {
        let Work::AskRun(query) = &step.work else { return false };
        PLAYED.with_borrow_mut(|played| played.outbox.push((self.0, ticket, Arc::clone(query))));
        true
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        PLAYED.with_borrow_mut(|played| {
            finished
                .extend(played.inbox.extract_if(.., |(node, _)| *node == self.0).map(|(_, result)| result));
        });
    }
}

/// The journal, observed on a thread that plays a cluster.
pub(in crate::protection::guard) fn observed(journal: Box<dyn Journal>) -> Box<dyn Journal> {
    match machine() {
        Some(machine) => {
            let node = machine.0.borrow().node;
            Box::new(Observed { journal, node, reasons: Vec::new() })
        }
        None => journal,
    }
}

/// A journal that checks what it is given.
#[derive(Debug)]
struct Observed {
    journal: Box<dyn Journal>,
    node: usize,
    /// The reason of the newest transition to CHECKPOINT, by slot.
    reasons: Vec<(usize, Reason)>,
}

impl Observed {
    fn with(&self, check: impl FnOnce(&mut super::machine::Cluster)) {
        if let Some(machine) = machine() {
            check(&mut machine.0.borrow_mut());
        }
    }
}

impl Journal for Observed {
    fn moved(&mut self, moved: &JobTransition, workload: &Label) {
        let transition = moved.transition;
        if transition.to == State::Checkpoint {
            self.reasons.retain(|(slot, _)| *slot != moved.slot);
            self.reasons.push((moved.slot, transition.reason));
        }
        self.with(|cluster| {
            let now = cluster.now;
            let Some(place) = cluster.host().jobs.iter().position(|job| job.name == workload.as_str()) else {
                return;
            };
            let (from, to, reason) = (transition.from, transition.to, transition.reason);
            let ends = matches!(to, State::Term | State::Kill) && from != to;
            // A reading of 3 s ago counts; after SIGTERM, memory that is not known to be back is enough.
            let limit = Duration::from_secs(if from == State::Term { 20 } else { 6 });
            let wrong = cluster.wrong_end(place, limit).filter(|_| ends);
            if let Some(wrong) = wrong {
                let read = moved
                    .observed
                    .readings
                    .map(|reading| reading.map(|reading| (reading.age, reading.value.room)));
                cluster.fail(format!("{workload} comes to {} for {reason:?} {wrong}: {read:?}", to.label()));
            }
            if reason == Reason::RunRequest && to != State::Checkpoint {
                cluster.fail(format!("the request of another node leads {workload} to {}", to.label()));
            }
            if reason == Reason::RunRequest && cluster.defect == Some(Defect::Beyond) {
                cluster.host().jobs[place].lies = true;
            }
            if reason == Reason::Saved {
                let saves = cluster.host().processes.iter().filter(|process| process.job == Some(place));
                let saves: Vec<_> = saves.filter_map(|process| process.saves).collect();
                let saved =
                    saves.iter().any(|(_, end)| *end <= now) && saves.iter().all(|(_, end)| *end <= now);
                if !saved {
                    cluster.fail(format!(
                        "{workload} counts as saved while none of its ranks has, or one still saves"
                    ));
                }
            }
        });
        self.journal.moved(moved, workload);
    }

    fn incident(&self, slot: usize) -> Option<&str> {
        self.journal.incident(slot)
    }

    fn requests_checkpoint(&mut self, at: Timestamp, roster: &Arc<Roster>) {
        self.journal.requests_checkpoint(at, roster);
    }

    fn terminates(&mut self, at: Timestamp, target: usize, user: Option<u32>) {
        self.journal.terminates(at, target, user);
    }

    fn before(&mut self, at: Timestamp, step: &Step) -> u64 {
        match &step.work {
            Work::RunRequested { request } => {
                let nonce = (self.node, request.nonce.clone());
                // A known gap: after a restart, a request of a node whose clock is ahead can be sent again.
                let ahead = request.unix_seconds > at.unix().as_secs();
                let again = !ahead && PLAYED.with_borrow_mut(|played| !played.heard.insert(nonce));
                self.with(|cluster| {
                    if again {
                        cluster.fail(format!("the request {} was received twice", request.nonce));
                    }
                    if request.nonce.contains("changed") {
                        cluster.fail("a request that was changed on the network was accepted".to_owned());
                    }
                });
            }
            Work::AskRun(_) => {
                let slot = usize::from(step.target.0);
                let own =
                    self.reasons.iter().any(|(of, reason)| *of == slot && *reason != Reason::RunRequest);
                if !own {
                    self.with(|cluster| cluster.fail("a node that was asked asks others".to_owned()));
                }
            }
            _ => {}
        }
        self.journal.before(at, step)
    }

    fn is_written(&mut self) -> bool {
        self.journal.is_written()
    }

    fn after(&mut self, at: Timestamp, moved: &JobTransition, done: &CompletedStep<'_>) {
        let mut loses = false;
        self.with(|cluster| {
            loses = cluster.defect == Some(Defect::AuditLine) && cluster.random().percent(5);
        });
        if loses {
            return;
        }
        self.journal.after(at, moved, done);
        self.with(|cluster| cluster.check_reached());
    }

    fn ended(&mut self, at: Timestamp, slot: usize, step: (&'static str, Duration), finished: &Finished) {
        self.journal.ended(at, slot, step, finished);
    }

    fn left(&mut self, at: Timestamp, slot: TargetId) {
        self.journal.left(at, slot);
    }

    fn ended_after_incident(&mut self, at: Timestamp, finished: &Finished) {
        self.journal.ended_after_incident(at, finished);
    }

    fn read(&mut self, at: Timestamp, target: usize, reading: &policy::Reading) {
        self.journal.read(at, target, reading);
    }

    fn read_sampled(&mut self, at: Timestamp, target: usize, readings: [SampledReading; 2]) {
        self.journal.read_sampled(at, target, readings);
    }

    fn read_host(&mut self, at: Timestamp, reading: &policy::Reading) {
        self.journal.read_host(at, reading);
    }

    fn settle(&mut self) {
        self.journal.settle();
    }
}
