//! What comes after a step: hearing how those ended that went on, and letting go on who was stopped.

use std::sync::Arc;
use std::time::Duration;

use super::super::job_state::{Pending, WAITS};
use super::{GuardLoop, id};
use crate::model::time::Timestamp;
use crate::protection::policy::{Ack, AckKind};
use crate::protection::words::step::{Finished, Outcome, Stage, Step, StepDone, StepError, Work};

/// Who stays after a kill is waited for again and again; each wait is this long.
const STILL: Duration = Duration::from_secs(600);

impl GuardLoop {
    /// Lets a group go on that was stopped, whatever became of the target's processes since.
    pub(super) fn resume(&mut self, slot: usize, clock: &dyn Fn() -> Timestamp) {
        let paused = self.slots[slot].as_mut().and_then(|job| job.paused.take());
        let Some(group) = paused else { return };
        let work = Work::Thaw { group: group.clone() };
        let done =
            self.one_more(slot, &Step { target: id(slot), stage: Stage::Cooldown, work }, clock).is_some();
        if let Some(job) = self.slots[slot].as_mut().filter(|_| !done) {
            // It is tried again with the next move, and at the end.
            job.paused = Some(group);
        }
    }

    /// Hears which steps have ended.
    pub(super) fn collect(&mut self, clock: &dyn Fn() -> Timestamp) {
        let now = clock();
        if let Some(enforce) = &mut self.hands.enforce {
            enforce.poll(&mut self.finished);
        }
        for place in 0..self.finished.len() {
            let Finished { ticket, result, .. } = &self.finished[place];
            let owner = self.slots.iter().position(|slot| {
                slot.as_ref().is_some_and(|job| job.pending.iter().any(|pending| pending.ticket == *ticket))
            });
            let Some((slot, job)) = owner.and_then(|slot| Some((slot, self.slots[slot].as_mut()?))) else {
                continue;
            };
            let goes_on = matches!(result, Ok(StepDone { outcome: Outcome::Saving(_), .. }));
            let Some(at) = job.pending.iter().position(|pending| pending.ticket == *ticket) else {
                continue;
            };
            let Pending { step, replaced, .. } = job.pending[at];
            if !goes_on {
                job.pending.swap_remove(at);
            }
            self.journal.ended(now, slot, step, &self.finished[place]);
            if replaced {
                continue;
            }
            let target = job.target;
            let ended = self.ended(slot, step, place, clock);
            let report = &mut self.report.targets[target];
            if let Some(teardown) = ended {
                report.teardown = Some(teardown);
            }
        }
        self.finished.clear();
    }

    /// What the end of a step means; how long the victims took, where that is what ended.
    fn ended(
        &mut self,
        slot: usize,
        step: &'static str,
        place: usize,
        clock: &dyn Fn() -> Timestamp,
    ) -> Option<Duration> {
        let now = clock();
        let job = self.slots[slot].as_mut()?;
        let result = &self.finished[place].result;
        match (step, result) {
            ("await", Ok(done)) => {
                let saving = matches!(done.outcome, Outcome::Saving(_));
                let kind = if saving { AckKind::Saving } else { AckKind::Saved };
                job.acknowledge(Ack { kind, at: now });
                None
            }
            (WAITS, Ok(_)) => {
                job.alive = Some(0);
                job.killed.map(|killed| now.since(killed))
            }
            (WAITS, Err(StepError::TimedOut { left, .. })) => {
                job.alive = Some((*left).max(1));
                self.wait_on(slot, clock);
                None
            }
            // Whether they are gone is not known any more, which is not that they are; it is looked at again soon.
            (WAITS, Err(_)) => {
                job.alive = None;
                None
            }
            _ => None,
        }
    }

    /// Goes on waiting for victims that stay, or that could not be looked at.
    pub(super) fn wait_on(&mut self, slot: usize, clock: &dyn Fn() -> Timestamp) {
        let Some(job) = self.slots[slot].as_ref() else { return };
        let roster = job.struck.as_ref().unwrap_or(&job.roster);
        let work = Work::AwaitEnd {
            processes: Arc::clone(&roster.largest),
            group: roster.group.clone(),
            within: STILL,
        };
        let step = Step { target: id(slot), stage: Stage::Verify, work };
        let done = self.one_more(slot, &step, clock);
        let Some(job) = self.slots[slot].as_mut() else { return };
        job.waited = Some(clock());
        if let Some(StepDone { outcome: Outcome::Started(ticket), processes, .. }) = done
            && job.goes_on(ticket, step.work.label())
        {
            job.alive = Some(processes.max(1));
        }
    }
}
