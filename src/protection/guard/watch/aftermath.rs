//! What comes after a step: hearing how those ended that went on, and letting go on who was stopped.

use std::sync::Arc;
use std::time::Duration;

use super::super::sitting::{Pending, WAITS};
use super::{Watch, id};
use crate::model::time::Timestamp;
use crate::protection::policy::{Ack, AckKind};
use crate::protection::words::step::{Finished, Outcome, Stage, Step, StepDone, StepError, Work};

/// Who stays after a kill is waited for again and again; each wait is this long.
const STILL: Duration = Duration::from_secs(600);

impl Watch {
    /// Lets a group go on that was stopped, whatever became of the target's processes since.
    pub(super) fn resume(&mut self, seat: usize, clock: &dyn Fn() -> Timestamp) {
        let paused = self.seats[seat].as_mut().and_then(|sitting| sitting.paused.take());
        let Some(group) = paused else { return };
        let work = Work::Thaw { group: group.clone() };
        let done =
            self.one_more(seat, &Step { target: id(seat), stage: Stage::Cooldown, work }, clock).is_some();
        if let Some(sitting) = self.seats[seat].as_mut().filter(|_| !done) {
            // It is tried again with the next move, and at the end.
            sitting.paused = Some(group);
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
            let owner = self.seats.iter().position(|seat| {
                seat.as_ref()
                    .is_some_and(|sitting| sitting.pending.iter().any(|pending| pending.ticket == *ticket))
            });
            let Some((seat, sitting)) = owner.and_then(|seat| Some((seat, self.seats[seat].as_mut()?)))
            else {
                continue;
            };
            let goes_on = matches!(result, Ok(StepDone { outcome: Outcome::Saving(_), .. }));
            let Some(at) = sitting.pending.iter().position(|pending| pending.ticket == *ticket) else {
                continue;
            };
            let Pending { step, replaced, .. } = sitting.pending[at];
            if !goes_on {
                sitting.pending.swap_remove(at);
            }
            self.journal.ended(now, seat, step, &self.finished[place]);
            if replaced {
                continue;
            }
            let target = sitting.target;
            let ended = self.ended(seat, step, place, clock);
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
        seat: usize,
        step: &'static str,
        place: usize,
        clock: &dyn Fn() -> Timestamp,
    ) -> Option<Duration> {
        let now = clock();
        let sitting = self.seats[seat].as_mut()?;
        let result = &self.finished[place].result;
        match (step, result) {
            ("await", Ok(done)) => {
                let saving = matches!(done.outcome, Outcome::Saving(_));
                let kind = if saving { AckKind::Saving } else { AckKind::Saved };
                sitting.say(Ack { kind, at: now });
                None
            }
            (WAITS, Ok(_)) => {
                sitting.alive = Some(0);
                sitting.killed.map(|killed| now.since(killed))
            }
            (WAITS, Err(StepError::TimedOut { left, .. })) => {
                sitting.alive = Some((*left).max(1));
                self.wait_on(seat, clock);
                None
            }
            // Whether they are gone is not known any more, which is not that they are; it is looked at again soon.
            (WAITS, Err(_)) => {
                sitting.alive = None;
                None
            }
            _ => None,
        }
    }

    /// Goes on waiting for victims that stay, or that could not be looked at.
    pub(super) fn wait_on(&mut self, seat: usize, clock: &dyn Fn() -> Timestamp) {
        let Some(sitting) = self.seats[seat].as_ref() else { return };
        let roster = sitting.struck.as_ref().unwrap_or(&sitting.roster);
        let work = Work::AwaitEnd {
            processes: Arc::clone(&roster.largest),
            group: roster.group.clone(),
            within: STILL,
        };
        let step = Step { target: id(seat), stage: Stage::Verify, work };
        let done = self.one_more(seat, &step, clock);
        let Some(sitting) = self.seats[seat].as_mut() else { return };
        sitting.waited = Some(clock());
        if let Some(StepDone { outcome: Outcome::Started(ticket), processes, .. }) = done
            && sitting.goes_on(ticket, step.work.label())
        {
            sitting.alive = Some(processes.max(1));
        }
    }
}
