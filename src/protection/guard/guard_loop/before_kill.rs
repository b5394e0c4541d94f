//! Cgroups that systemd-oomd is about to kill: requests checkpoints of the jobs in them, and answers once they have saved.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::super::prekill::Prekill;
use super::GuardLoop;
use crate::model::checkpoint::CheckpointState;
use crate::model::time::Timestamp;
use crate::protection::policy::condition::{Condition, Truth};
use crate::protection::policy::{Reason, State};
use crate::protection::types::run_request::RunOutcome;
use crate::protection::types::step::Work;

/// Jobs whose checkpoints systemd-oomd waits for.
#[derive(Debug)]
pub(super) struct AwaitedSaves {
    /// Slots with their serial numbers.
    jobs: Vec<(usize, u64)>,
    since: Timestamp,
    reply: SyncSender<()>,
}

impl GuardLoop {
    /// Requests checkpoints of the jobs in cgroups that are about to be killed, and answers where none is waited for any
    /// more.
    pub(super) fn answer_prekills(&mut self, clock: &dyn Fn() -> Timestamp) {
        for Prekill { cgroup, mut jobs, reply } in self.run_requests.prekills.waiting() {
            let since = clock();
            jobs.retain(|(slot, serial)| {
                let outcome = self.ask_before_kill(*slot, *serial, &cgroup, clock);
                self.run_requests.prekills.outcomes.add(outcome);
                matches!(outcome, RunOutcome::Asked | RunOutcome::Already)
            });
            self.awaited_saves.push(AwaitedSaves { jobs, since, reply });
        }
        let mut awaited = std::mem::take(&mut self.awaited_saves);
        awaited.retain(|saves| {
            let waits =
                saves.jobs.iter().any(|(slot, serial)| self.saves(*slot, *serial, saves.since, clock()));
            if !waits {
                // The client may have disconnected.
                let _ = saves.reply.try_send(());
            }
            waits
        });
        self.awaited_saves = awaited;
    }

    fn ask_before_kill(
        &mut self,
        slot: usize,
        serial: u64,
        cgroup: &Arc<str>,
        clock: &dyn Fn() -> Timestamp,
    ) -> RunOutcome {
        let Some(job) = self.slots[slot].as_ref().filter(|job| job.serial == serial) else {
            return RunOutcome::NoJob;
        };
        if !self.targets[job.target].ask.is_configured() {
            return RunOutcome::NotAllowed;
        }
        self.apply_request(slot, Reason::Prekill, Work::PrekillNotified { cgroup: Arc::clone(cgroup) }, clock)
            .0
    }

    /// Whether the job in a slot may still save a checkpoint that was requested.
    fn saves(&self, slot: usize, serial: u64, since: Timestamp, now: Timestamp) -> bool {
        let job = self.slots[slot].as_ref().filter(|job| job.serial == serial);
        let Some((job, escalation)) = job.zip(self.board.escalation(slot)) else { return false };
        let requested = job.moved.map_or(since, |moved| moved.transition.at);
        let ack = job.checkpoint.ack.filter(|ack| ack.at.monotonic() >= requested.monotonic());
        let limits = escalation.limits();
        let allowed = match ack.map(|ack| ack.kind) {
            Some(CheckpointState::Saved) => return false,
            Some(CheckpointState::Saving) => limits.longest_grace,
            _ => limits.grace,
        };
        escalation.state() == State::Checkpoint
            && escalation.conditions().get(Condition::Catches) != Truth::NotMet
            && now.since(since) < allowed
    }
}
