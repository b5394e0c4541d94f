//! What the guard tells of what it does: each move, and each step before and after it.

use std::sync::Arc;

use super::guard_log::GuardLog;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::Unit as _;
use crate::protection::options::target::Target;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{self, Conditions, Mode, Observed, Reason, Resource, Transition};
use crate::protection::record::ledger::{Ledger, LoggedTransition};
use crate::protection::record::{Memory, SharedFlight};
use crate::protection::words::audit::Reading;
use crate::protection::words::incident::Sample;
use crate::protection::words::step::{Finished, Step, StepDone, StepError, TargetId, Touched, Work};

/// A move, with what it was decided on.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The seat and who sits there.
    pub slot: usize,
    /// Tells this job from the one that sat there before.
    pub serial: u64,
    /// The place of its target.
    pub target: usize,
    /// Whether it acts.
    pub mode: Mode,
    /// The move.
    pub transition: Transition,
    /// Whether an incident is under way with it.
    pub under_way: bool,
    /// What was observed.
    pub observed: Observed,
    /// Condition by condition.
    pub conditions: Conditions,
}

/// Somebody who writes down what the guard does. Nothing here may wait.
pub trait Journal: Send {
    /// A ladder moves; its steps come after.
    fn moved(&mut self, moved: &Moved);
    /// These are about to be asked for a checkpoint, which must not be forgotten. It may wait for that for a moment: 50 ms
    /// at the most, and nothing where a disk hangs.
    fn requests_checkpoint(&mut self, _at: Timestamp, _roster: &Arc<Roster>) {}
    /// A job is about to be ended, which the rate limits count.
    fn terminates(&mut self, _at: Timestamp, _target: usize, _user: Option<u32>) {}
    /// A step is about to be carried out. Returns its number.
    fn before(&mut self, at: Timestamp, step: &Step) -> u64;
    /// It was carried out, or was not, in so many microseconds.
    fn after(&mut self, at: Timestamp, moved: &Moved, done: &CompletedStep<'_>);
    /// A step that went on has ended, or has something to say.
    fn ended(&mut self, at: Timestamp, slot: usize, step: &'static str, finished: &Finished);
    /// The job in a seat is gone for good, whatever was under way there.
    fn left(&mut self, _at: Timestamp, _seat: TargetId) {}
    /// What is left of the group of a job was read.
    fn read(&mut self, _at: Timestamp, _target: usize, _reading: &policy::Reading) {}
    /// What is left of the host was read.
    fn read_host(&mut self, _at: Timestamp, _reading: &policy::Reading) {}
    /// A round is over: what had to wait can be tried again.
    fn settle(&mut self) {}
}

/// A step and what became of it.
#[derive(Clone, Copy, Debug)]
pub struct CompletedStep<'d> {
    /// The number that it was given before.
    pub number: u64,
    /// The step.
    pub step: &'d Step,
    /// How it went.
    pub result: &'d Result<StepDone, StepError>,
    /// How long it took, in microseconds.
    pub micros: u64,
    /// Whom it reached.
    pub touched: &'d [Touched],
}

/// The audit log, the incident folders and the daemon's log.
#[derive(Debug)]
pub(super) struct GuardJournal {
    ledger: Ledger,
    log: GuardLog,
    flight: SharedFlight,
    targets: Arc<[Target]>,
    /// Each target's policy as a sentence, by place.
    policies: Box<[Arc<str>]>,
    /// What the host is called among what was read; absent where no target watches it.
    host: Option<Label>,
    memory: Memory,
}

impl GuardJournal {
    pub(super) fn new(
        ledger: Ledger,
        log: GuardLog,
        flight: SharedFlight,
        memory: Memory,
        targets: Arc<[Target]>,
    ) -> Self {
        let policies = targets.iter().map(|target| target.to_string().into()).collect();
        let watches = |target: &Target| target.limits.levels[Resource::Host.place()].is_some();
        let host = targets.iter().any(watches).then(|| "host".into());
        Self { ledger, log, flight, targets, policies, host, memory }
    }
}

impl Journal for GuardJournal {
    fn moved(&mut self, moved: &Moved) {
        let transition = &moved.transition;
        let known = self.targets.get(moved.target).zip(self.policies.get(moved.target));
        let Some((target, policy)) = known else { return };
        let none = Reading { what: "", value: None, threshold: None, age_seconds: None };
        let mut readings = [none; 6];
        let count = read(target, moved, &mut readings);
        self.ledger.moved(&LoggedTransition {
            at: transition.at,
            slot: TargetId(u16::try_from(moved.slot).unwrap_or(u16::MAX)),
            target: &target.name,
            mode: moved.mode.label(),
            from: transition.from.label(),
            to: transition.to.label(),
            reason: &transition.reason,
            readings: &readings[..count],
            under_way: moved.under_way,
            policy,
        });
        self.log.moved(moved);
    }

    fn requests_checkpoint(&mut self, at: Timestamp, roster: &Arc<Roster>) {
        self.memory.asked(at, roster);
    }

    fn terminates(&mut self, at: Timestamp, target: usize, user: Option<u32>) {
        if let Some(target) = self.targets.get(target) {
            self.memory.ended(at, &target.name, user);
        }
    }

    fn before(&mut self, at: Timestamp, step: &Step) -> u64 {
        self.ledger.before(at, step)
    }

    fn after(&mut self, at: Timestamp, moved: &Moved, completed: &CompletedStep<'_>) {
        if matches!(completed.step.work, Work::KillGroup { .. } | Work::KillTree { .. })
            && moved.mode == Mode::Enforce
        {
            self.memory.killed(at, completed.touched);
        }
        self.ledger.after(
            at,
            completed.number,
            completed.step,
            completed.result,
            completed.micros,
            completed.touched,
        );
        self.log.after(moved, completed);
    }

    fn ended(&mut self, at: Timestamp, slot: usize, step: &'static str, finished: &Finished) {
        self.ledger.ended(at, finished);
        self.log.ended(slot, step, &finished.result);
    }

    fn left(&mut self, at: Timestamp, slot: TargetId) {
        self.ledger.left(at, slot);
    }

    fn read(&mut self, at: Timestamp, target: usize, reading: &policy::Reading) {
        let Some(target) = self.targets.get(target) else { return };
        if let Ok(mut flight) = self.flight.try_lock() {
            let used = Some(reading.total.saturating_sub(reading.headroom));
            flight.push(Sample { at, subject: target.name.clone(), used, limit: Some(reading.total) });
        }
    }

    fn read_host(&mut self, at: Timestamp, reading: &policy::Reading) {
        let Some(host) = &self.host else { return };
        if let Ok(mut flight) = self.flight.try_lock() {
            let used = Some(reading.total.saturating_sub(reading.headroom));
            flight.push(Sample { at, subject: host.clone(), used, limit: Some(reading.total) });
        }
    }

    fn settle(&mut self) {
        self.ledger.settle();
    }
}

/// What a move rests on, as the audit log has it; returns how many there are.
fn read(target: &Target, moved: &Moved, out: &mut [Reading; 6]) -> usize {
    let observed = &moved.observed;
    const WHAT: [&str; 4] =
        ["host_headroom_bytes", "limit_headroom_bytes", "gpu_headroom_bytes", "allocator_headroom_bytes"];
    let mut count = 0;
    for (resource, levels) in target.limits.watched() {
        let reading = observed.reading(resource);
        // The level that it is about: the hard one where that was crossed.
        let level = match (moved.transition.reason, levels.hard) {
            (Reason::Hard(crossed), Some(hard)) if crossed == resource => hard,
            _ => levels.soft,
        };
        out[count] = Reading {
            what: WHAT[resource.place()],
            value: reading.map(|reading| reading.value.headroom.value()),
            threshold: reading.map(|reading| level.of(reading.value.total).value()),
            age_seconds: reading.map(|reading| reading.age.as_secs_f64()),
        };
        count += 1;
    }
    if let Some(forecast) = observed.forecast {
        out[count] = Reading {
            what: "foreseen_seconds",
            value: forecast.value.map(|forecast| forecast.p50),
            threshold: Some(target.limits.soft_within.as_secs_f64()),
            age_seconds: Some(forecast.age.as_secs_f64()),
        };
        count += 1;
    }
    debug_assert!(count <= Resource::ALL.len() + 1);
    count
}
