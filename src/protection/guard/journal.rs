//! The journal of the guard: each transition, and each step before and after it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Signalled;
use super::guard_log::GuardLog;
use super::input::SampledReading;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::Unit as _;
use crate::protection::options::target::Target;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{self, Conditions, Mode, Observed, Reason, Resource, Transition};
pub use crate::protection::record::ledger::CompletedStep;
use crate::protection::record::ledger::{Ledger, LoggedTransition};
use crate::protection::record::{Memory, Records, SharedFlight};
use crate::protection::types::audit::{Quantity, Reading};
use crate::protection::types::incident::{Sample, target_subjects};
use crate::protection::types::step::{Finished, SignalNumber, Step, TargetId, Work};

/// A transition, with the observations that it is based on.
#[derive(Clone, Copy, Debug)]
pub struct JobTransition {
    /// The slot of the job.
    pub slot: usize,
    /// Distinguishes the job from earlier jobs in the same slot.
    pub serial: u64,
    /// The index of its target.
    pub target: usize,
    /// The user of the job; absent where the target names no job.
    pub user: Option<u32>,
    /// Whether the target is observed or acted on.
    pub mode: Mode,
    pub transition: Transition,
    /// Whether an incident is in progress after it.
    pub under_way: bool,
    /// The observations.
    pub observed: Observed,
    /// The truth of each condition.
    pub conditions: Conditions,
}

impl JobTransition {
    /// Whether both are the same transition of the same job.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        (self.slot, self.serial, self.transition) == (other.slot, other.serial, other.transition)
    }
}

/// Records what the guard does. No method may block, unless stated.
pub trait Journal: Send + std::fmt::Debug {
    /// Records a transition, before its steps. `workload` is that of [`super::input::JobNames`].
    fn moved(&mut self, moved: &JobTransition, workload: &Label);
    /// The id of the incident that is in progress in a slot.
    fn incident(&self, _slot: usize) -> Option<&str> {
        None
    }
    /// Records a checkpoint request, before it is sent. May block for at most 50 ms until it is written, and not at
    /// all where an earlier write hangs.
    fn requests_checkpoint(&mut self, _at: Timestamp, _roster: &Arc<Roster>) {}
    /// Records that a job is about to be terminated, for the rate limits.
    fn terminates(&mut self, _at: Timestamp, _target: usize, _user: Option<u32>) {}
    /// Records a step before it is carried out. Returns its number.
    fn before(&mut self, at: Timestamp, step: &Step) -> u64;
    /// Whether all records are in the file of the audit log. May block for at most 50 ms, and not at all where an earlier write
    /// hangs.
    fn is_written(&mut self) -> bool;
    /// Records the result of a step.
    fn after(&mut self, at: Timestamp, moved: &JobTransition, done: &CompletedStep<'_>);
    /// Records the result of a step that has ended later, or that the job is saving; `step` is its label, and the time since it
    /// was begun.
    fn ended(&mut self, at: Timestamp, slot: usize, step: (&'static str, Duration), finished: &Finished);
    /// Records that the job has left its slot, an incident or not.
    fn left(&mut self, _at: Timestamp, _seat: TargetId) {}
    /// Records the result of a step whose incident is over, or whose job has left.
    fn ended_after_incident(&mut self, _at: Timestamp, _finished: &Finished) {}
    /// Records a reading of the memory left below a job's cgroup limit.
    fn read(&mut self, _at: Timestamp, _target: usize, _reading: &policy::Reading) {}
    /// Records what the sampler knows of the memory of a job's GPU and of its allocator, in this order.
    fn read_sampled(&mut self, _at: Timestamp, _target: usize, _readings: [SampledReading; 2]) {}
    /// Records a reading of the host's memory.
    fn read_host(&mut self, _at: Timestamp, _reading: &policy::Reading) {}
    /// Ends a round: lines that could not be handed over are tried again.
    fn settle(&mut self) {}
}

/// Most processes that are handed to the sampler between two frames.
pub(super) const MOST_SIGNALLED: usize = 8_192;

/// The audit log, the incident folders and the daemon's log.
#[derive(Debug)]
pub(super) struct GuardJournal {
    ledger: Ledger,
    log: GuardLog,
    flight: SharedFlight,
    targets: Arc<[Target]>,
    /// Each target's policy as a sentence, by index.
    policies: Box<[Arc<str>]>,
    /// The subjects of readings of each target's GPU and allocator, by index.
    subjects: Box<[[Label; 2]]>,
    /// The subject of readings of the host; absent where no target watches it.
    host: Option<Label>,
    memory: Memory,
    signalled: Arc<Signalled>,
}

impl GuardJournal {
    /// Begins a journal; `config` is the first digits of the configuration's hash.
    ///
    /// # Errors
    /// If the thread of the log cannot be started.
    pub(super) fn new(
        records: &Records,
        config: &str,
        targets: Arc<[Target]>,
        signalled: Arc<Signalled>,
    ) -> io::Result<Self> {
        let (ledger, memory, flight) =
            (records.ledger(config), records.memory(), Arc::clone(&records.flight));
        let log = GuardLog::start(Arc::clone(&targets))?;
        let policies = targets.iter().map(|target| target.to_string().into()).collect();
        let subjects = targets.iter().map(|target| target_subjects(target.name.as_str())).collect();
        let watches = |target: &Target| target.limits.levels[Resource::Host.place()].is_some();
        let host = targets.iter().any(watches).then(|| "host".into());
        Ok(Self { ledger, log, flight, targets, policies, subjects, host, memory, signalled })
    }
}

impl Journal for GuardJournal {
    fn incident(&self, slot: usize) -> Option<&str> {
        self.ledger.incident(TargetId(u16::try_from(slot).unwrap_or(u16::MAX)))
    }

    fn moved(&mut self, moved: &JobTransition, workload: &Label) {
        let transition = &moved.transition;
        let known = self.targets.get(moved.target).zip(self.policies.get(moved.target));
        let Some((target, policy)) = known else { return };
        let none = Reading {
            what: Quantity::TimeToExhaustionSeconds,
            value: None,
            threshold: None,
            age_seconds: None,
        };
        let mut readings = [none; Resource::ALL.len() + 2];
        let count = read(target, moved, &mut readings);
        let reading = transition.reason.resource().and_then(|resource| moved.observed.reading(resource));
        self.ledger.moved(&LoggedTransition {
            at: transition.at,
            slot: TargetId(u16::try_from(moved.slot).unwrap_or(u16::MAX)),
            target: &target.name,
            workload,
            user: moved.user,
            mode: moved.mode.label(),
            from: transition.from,
            to: transition.to,
            reason: transition.reason,
            readings: &readings[..count],
            reading: reading.map(|reading| reading.value),
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

    fn is_written(&mut self) -> bool {
        self.ledger.is_written()
    }

    fn after(&mut self, at: Timestamp, moved: &JobTransition, completed: &CompletedStep<'_>) {
        let work = &completed.step.work;
        let ends =
            work.kills() || matches!(work, Work::Signal { signal, .. } if *signal == SignalNumber::TERM);
        // The sampler holds the lock for a moment only.
        if ends
            && moved.mode == Mode::Enforce
            && let Ok(mut signalled) = self.signalled.try_lock()
        {
            let room = MOST_SIGNALLED.saturating_sub(signalled.len());
            let reached = completed.touched.iter().filter(|touched| touched.errno == 0);
            signalled.extend(reached.map(|touched| touched.key).take(room));
        }
        self.ledger.after(at, completed);
        self.log.after(moved, completed);
    }

    fn ended(&mut self, at: Timestamp, slot: usize, step: (&'static str, Duration), finished: &Finished) {
        self.ledger.ended(at, finished);
        self.log.ended(slot, step, &finished.result);
    }

    fn ended_after_incident(&mut self, at: Timestamp, finished: &Finished) {
        self.ledger.ended(at, finished);
    }

    fn left(&mut self, at: Timestamp, slot: TargetId) {
        self.ledger.left(at, slot);
    }

    fn read(&mut self, at: Timestamp, target: usize, reading: &policy::Reading) {
        let Some(target) = self.targets.get(target) else { return };
        if let Ok(mut flight) = self.flight.try_lock() {
            flight.push(sample(at, &target.name, Some(*reading)));
        }
    }

    fn read_sampled(&mut self, at: Timestamp, target: usize, readings: [SampledReading; 2]) {
        let Some(subjects) = self.subjects.get(target) else { return };
        let Ok(mut flight) = self.flight.try_lock() else { return };
        samples(subjects, at, readings).for_each(|sample| flight.push(sample));
    }

    fn read_host(&mut self, at: Timestamp, reading: &policy::Reading) {
        let Some(host) = &self.host else { return };
        if let Ok(mut flight) = self.flight.try_lock() {
            flight.push(sample(at, host, Some(*reading)));
        }
    }

    fn settle(&mut self) {
        self.ledger.settle();
    }
}

/// The samples of readings; one that is unknown is a gap, and one of what the job does not have is none.
fn samples(
    subjects: &[Label; 2],
    at: Timestamp,
    readings: [SampledReading; 2],
) -> impl Iterator<Item = Sample> {
    subjects.iter().zip(readings).filter_map(move |(subject, known)| {
        let reading = match known {
            SampledReading::Absent => return None,
            SampledReading::Unknown => None,
            SampledReading::Read(reading) => Some(reading),
        };
        Some(sample(at, subject, reading))
    })
}

fn sample(at: Timestamp, subject: &Label, reading: Option<policy::Reading>) -> Sample {
    let used = reading.map(|reading| reading.room.used());
    Sample { at, subject: subject.clone(), used, limit: reading.map(|reading| reading.room.limit) }
}

/// The readings that a transition is based on, for the audit log; returns their number.
fn read(target: &Target, moved: &JobTransition, out: &mut [Reading; Resource::ALL.len() + 2]) -> usize {
    let observed = &moved.observed;
    let mut count = 0;
    for (resource, levels) in target.limits.watched() {
        let reading = observed.reading(resource);
        // The hard level where that was crossed, otherwise the soft one.
        let level = match (moved.transition.reason, levels.hard) {
            (Reason::Hard(crossed), Some(hard)) if crossed == resource => hard,
            _ => levels.soft,
        };
        out[count] = Reading {
            what: Quantity::HeadroomBytes(resource),
            value: reading.map(|reading| reading.value.headroom().value()),
            threshold: reading.map(|reading| level.of(reading.value.room.limit).value()),
            age_seconds: reading.map(|reading| reading.age.as_secs_f64()),
        };
        count += 1;
    }
    if let Some(forecast) = observed.forecast {
        out[count] = Reading {
            what: Quantity::TimeToExhaustionSeconds,
            value: forecast.value.map(|forecast| forecast.p50),
            threshold: Some(target.limits.soft_within.as_secs_f64()),
            age_seconds: Some(forecast.age.as_secs_f64()),
        };
        count += 1;
    }
    debug_assert!(count <= Resource::ALL.len() + 1);
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::room::Room;
    use crate::model::units::Bytes;

    #[test]
    fn an_unknown_reading_is_a_gap_and_an_absent_one_is_nothing() {
        let reading = policy::Reading::of(Room::new(Bytes::new(10), Bytes::new(80)));
        let subjects = target_subjects("train");
        let found = |readings| {
            let all = samples(&subjects, Timestamp::from_secs(7), readings);
            all.map(|own| (own.subject.to_string(), own.used.map(Bytes::get), own.limit.map(Bytes::get)))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found([SampledReading::Read(reading), SampledReading::Unknown]),
            [("train GPU".to_owned(), Some(70), Some(80)), ("train allocator".to_owned(), None, None)]
        );
        assert_eq!(found([SampledReading::Absent; 2]), []);
    }
}
