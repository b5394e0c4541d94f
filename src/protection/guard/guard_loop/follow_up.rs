//! What follows a step: the results of steps that end later, waiting for victims, and thawing.

use std::sync::Arc;
use std::time::Duration;

use super::super::job_state::{AWAIT_CHECKPOINT, AWAIT_END, PendingStep};
use super::super::journal::{CompletedStep, JobTransition, Journal};
use super::super::notification;
use super::{GuardLoop, id};
use crate::model::checkpoint::CheckpointState;
use crate::model::time::Timestamp;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{Ack, Mode, State};
use crate::protection::types::step::{Executor, Finished, Outcome, Skip, Step, StepDone, StepError, Work};

impl GuardLoop {
    /// Thaws the cgroup of a slot's job, if it is frozen, whatever became of its processes.
    pub(super) fn thaw(&mut self, slot: usize, clock: &dyn Fn() -> Timestamp) {
        let frozen = self.slots[slot].as_mut().and_then(|job| job.freeze.group.take());
        let Some(group) = frozen else { return };
        let work = Work::Thaw { group: group.clone() };
        let done =
            self.perform(slot, &Step { target: id(slot), stage: State::Cooldown, work }, clock).is_some();
        if let Some(job) = self.slots[slot].as_mut().filter(|_| !done) {
            // Tried again at the next transition, and when the guard ends.
            job.freeze.group = Some(group);
        }
    }

    /// Takes the results of steps that have ended.
    pub(super) fn collect(&mut self, clock: &dyn Fn() -> Timestamp) {
        let now = clock();
        if let Some(executor) = &mut self.executors.enforce {
            executor.poll(&mut self.finished);
        }
        for place in 0..self.finished.len() {
            if self.take_back(place, clock) {
                continue;
            }
            let Finished { ticket, result, .. } = &self.finished[place];
            let owner = self.slots.iter().enumerate().find_map(|(slot, job)| {
                Some((slot, job.as_ref().and_then(|job| job.pending.find(*ticket))?))
            });
            let Some((slot, PendingStep { label, begun, replaced, .. })) = owner else {
                self.journal.ended_after_incident(now, &self.finished[place]);
                continue;
            };
            let saving = matches!(result, Ok(StepDone { outcome: Outcome::Saving(_), .. }));
            let Some(job) = self.slots[slot].as_mut() else { continue };
            if !saving {
                job.pending.remove(*ticket);
            }
            let target = job.target;
            self.journal.ended(now, slot, (label, now.since(begun)), &self.finished[place]);
            if replaced {
                continue;
            }
            let ended = self.evaluate_result(slot, label, place, clock);
            let report = &mut self.report.targets[target];
            if let Some(teardown) = ended {
                report.teardown = Some(teardown);
            }
        }
        self.finished.clear();
    }

    /// Evaluates the result of a step that has ended, or of a checkpoint that has begun. Returns the time from the kill to
    /// the end of the victims, where the step waited for that.
    fn evaluate_result(
        &mut self,
        slot: usize,
        label: &'static str,
        place: usize,
        clock: &dyn Fn() -> Timestamp,
    ) -> Option<Duration> {
        let now = clock();
        let state = self.board.escalation(slot)?.state();
        let job = self.slots[slot].as_mut()?;
        let result = &self.finished[place].result;
        match (label, result) {
            (AWAIT_CHECKPOINT, Ok(done)) => {
                let saving = matches!(done.outcome, Outcome::Saving(_));
                let kind = if saving { CheckpointState::Saving } else { CheckpointState::Saved };
                job.checkpoint.acknowledge(Ack { kind, at: now });
                None
            }
            (AWAIT_END, Ok(_)) => {
                job.verification.alive = Some(0);
                job.verification.killed.map(|killed| now.since(killed))
            }
            (AWAIT_END, Err(StepError::TimedOut { left, .. })) => {
                // After a kill, also one for which the kernel's came first, processes that came into the cgroup later are no victims.
                let gone = *left == 0 && state.is_after_kill();
                job.verification.counted = Some(*left);
                job.verification.alive = Some(if gone { 0 } else { (*left).max(1) });
                if !gone {
                    self.await_victims(slot, clock);
                }
                None
            }
            // Whether the victims have ended is unknown, which is not that they have. The wait is tried again.
            (AWAIT_END, Err(_)) => {
                job.verification.alive = None;
                None
            }
            _ => None,
        }
    }

    /// Calls the webhook after a kill.
    pub(super) fn notify(
        &mut self,
        slot: usize,
        moved: &JobTransition,
        roster: &Roster,
        clock: &dyn Fn() -> Timestamp,
    ) {
        let target = &self.targets[moved.target];
        let Some(url) = &target.webhook else { return };
        let Some(job) = &self.slots[slot] else { return };
        let body = notification::json(target, moved, roster, &job.names, self.journal.incident(slot));
        let work = Work::Webhook { url: Arc::clone(url), body };
        self.perform_pending(slot, State::Kill, work, clock);
    }
}

/// What becomes of a freeze whose line is not in the audit log: a daemon that starts after a crash would not thaw the cgroup.
pub(super) fn unrecorded(journal: &mut dyn Journal, moved: &JobTransition, step: &Step) -> Option<StepDone> {
    let freezes = moved.mode == Mode::Enforce && matches!(step.work, Work::Freeze { .. });
    let outcome = Outcome::Skipped(Skip::Unrecorded);
    (freezes && !journal.is_written()).then_some(StepDone { outcome, processes: 0 })
}

/// Carries out a step, and records it before and after. Returns its result, and when that was known; adds the time that it
/// took to `spent`.
pub(super) fn record_step(
    journal: &mut dyn Journal,
    executor: &mut dyn Executor,
    moved: &JobTransition,
    step: &Step,
    spent: &mut Duration,
    clock: &dyn Fn() -> Timestamp,
) -> (Result<StepDone, StepError>, Timestamp) {
    let begun = clock();
    let number = journal.before(begun, step);
    let result = unrecorded(journal, moved, step).map_or_else(|| executor.perform(step), Ok);
    let at = clock();
    let micros = u64::try_from(at.since(begun).as_micros()).unwrap_or(u64::MAX);
    journal.after(
        at,
        moved,
        &CompletedStep { number, step, result: &result, micros, touched: executor.touched() },
    );
    *spent += at.since(begun);
    (result, at)
}
