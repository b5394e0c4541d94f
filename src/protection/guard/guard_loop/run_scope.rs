//! Checkpoints of runs that span nodes: asks the other nodes, and responds to their requests.

use std::sync::Arc;

use super::super::run_requests::Pending;
use super::{GuardLoop, id};
use crate::model::time::Timestamp;
use crate::protection::enforce::ask_run::node_name;
use crate::protection::plan::{Plan, PlanInput};
use crate::protection::policy::{Mode, Observed, Reason, Rung, State, Transition};
use crate::protection::types::run_request::{RunOutcome, RunQuery, RunRequest};
use crate::protection::types::step::{Outcome, StepDone, Work};

impl GuardLoop {
    /// Asks the other nodes of the job's run, where its target has the scope `run` and the run is known. Allocates the
    /// request; the first signals to the own processes have been sent.
    pub(super) fn ask_peers(&mut self, slot: usize, transition: &Transition, clock: &dyn Fn() -> Timestamp) {
        if !transition.ask || transition.reason == Reason::RunRequest {
            return;
        }
        let Some(job) = self.slots[slot].as_ref().filter(|job| self.targets[job.target].ask.run) else {
            return;
        };
        let owner = &job.names.owner;
        let Some(incident) = self.journal.incident(slot).filter(|_| !owner.run.name.as_str().is_empty())
        else {
            return;
        };
        let from = node_name();
        let request = RunRequest {
            incident: format!("{incident}@{from}"),
            from,
            user: owner.user.to_string(),
            namespace: owner.pod.namespace.to_string(),
            reason: transition.reason.label().to_owned(),
            ..RunRequest::default()
        };
        let (run, slurm_job_id) = (owner.run.name.clone(), owner.slurm_job_id.clone());
        let work = Work::AskRun(Arc::new(RunQuery { run, slurm_job_id, request }));
        self.perform_pending(slot, State::Checkpoint, work, clock);
    }

    /// Responds to the requests of other nodes.
    pub(super) fn answer_run_requests(&mut self, clock: &dyn Fn() -> Timestamp) {
        for Pending { request, jobs, reply } in self.run_requests.waiting() {
            let (mut outcome, mut processes) = (RunOutcome::NoJob, 0);
            for (slot, serial) in jobs {
                if self.slots[slot].as_ref().is_none_or(|job| job.serial != serial) {
                    continue;
                }
                let (one, count) = match request.dry_run {
                    true => self.rehearse_request(slot, clock()),
                    false => {
                        let work = Work::RunRequested { request: Arc::clone(&request) };
                        self.apply_request(slot, Reason::RunRequest, work, clock)
                    }
                };
                processes += count;
                // Of several jobs of the run on this node, the one that was asked decides.
                if matches!(outcome, RunOutcome::NoJob)
                    || matches!(one, RunOutcome::Asked | RunOutcome::WouldAsk)
                {
                    outcome = one;
                }
            }
            // The sender may have given up.
            let _ = reply.try_send((outcome, processes));
        }
    }

    /// Requests a checkpoint from the job in a slot, as its own policy allows; `work` records who asked.
    pub(super) fn apply_request(
        &mut self,
        slot: usize,
        reason: Reason,
        work: Work,
        clock: &dyn Fn() -> Timestamp,
    ) -> (RunOutcome, u32) {
        let now = clock();
        let observed = match self.refusal(slot, now) {
            Ok(observed) => observed,
            Err(outcome) => return (outcome, 0),
        };
        let Some(transition) =
            self.board.escalation_mut(slot).and_then(|own| own.request(now, &observed, reason))
        else {
            return (RunOutcome::Already, 0);
        };
        self.act(slot, &transition, &observed, now, clock);
        let steps = self.plan.steps().iter();
        let signals = steps.filter(|planned| matches!(planned.step.work, Work::Signal { .. }));
        let planned = u32::try_from(signals.count()).unwrap_or(u32::MAX);
        self.perform_pending(slot, State::Checkpoint, work, clock);
        let Some(job) = &self.slots[slot] else { return (RunOutcome::NoJob, 0) };
        let target = &self.targets[job.target];
        // Of thousands of signals the rest is sent in later rounds.
        let so_far = job.progress.as_ref().map(|progress| progress.requested);
        match (target.limits.mode, so_far.or(job.checkpoint.catching)) {
            (Mode::Enforce, Some(count)) if count > 0 => (RunOutcome::Asked, count),
            (Mode::Enforce, _) if target.ask.touch.is_some() || job.progress.is_some() => {
                (RunOutcome::Asked, 0)
            }
            (Mode::Enforce, _) => (RunOutcome::NoHandler, 0),
            _ => (RunOutcome::WouldAsk, planned),
        }
    }

    /// What the job's policy decides on, or why it is not asked.
    fn refusal(&self, slot: usize, now: Timestamp) -> Result<Observed, RunOutcome> {
        let (Some(job), Some(escalation)) = (&self.slots[slot], self.board.escalation(slot)) else {
            return Err(RunOutcome::NoJob);
        };
        let limits = escalation.limits();
        let able = limits.mode == Mode::Observe || self.executors.enforce.is_some();
        let observed = job.observed(now, self.host, able);
        match escalation.state() {
            _ if limits.max_state < Some(Rung::Checkpoint) => Err(RunOutcome::NotAllowed),
            State::Disarmed | State::Blind => Err(RunOutcome::Disarmed),
            _ if !observed.fit => Err(RunOutcome::Disarmed),
            State::Checkpoint if escalation.outdated(now, &observed) => Ok(observed),
            State::Checkpoint | State::Term | State::Kill | State::Verify => Err(RunOutcome::Already),
            State::Ok | State::Warn | State::Soft | State::Cooldown => Ok(observed),
        }
    }

    /// Checks with signal 0 which processes a request would reach.
    fn rehearse_request(&mut self, slot: usize, now: Timestamp) -> (RunOutcome, u32) {
        let observed = match self.refusal(slot, now) {
            Ok(observed) => observed,
            Err(outcome) => return (outcome, 0),
        };
        let Some(job) = self.slots[slot].as_ref() else { return (RunOutcome::NoJob, 0) };
        let target = &self.targets[job.target];
        let (from, to, reason) = (State::Ok, State::Checkpoint, Reason::RunRequest);
        let transition = Transition { at: now, from, to, reason, incident: 0, ask: true, counts: false };
        let mut plan = Plan::default();
        plan.make(&PlanInput {
            id: id(slot),
            target,
            transition: &transition,
            observed: &observed,
            stage: State::Checkpoint,
            roster: &job.roster,
            notification: None,
        });
        let Some(executor) = self.executors.of(target) else { return (RunOutcome::Disarmed, 0) };
        let (mut carried, mut reached) = (Vec::new(), 0);
        for planned in plan.steps() {
            let above = planned.unless.and_then(|place| carried.get(usize::from(place)).copied());
            let is_signal = matches!(planned.step.work, Work::Signal { .. });
            if above == Some(true) || !is_signal {
                carried.push(above == Some(true));
                continue;
            }
            let result = executor.rehearse(&planned.step);
            let would = matches!(result, Ok(StepDone { outcome: Outcome::WouldHave | Outcome::Done, .. }));
            carried.push(would);
            reached += u32::from(would);
        }
        let touches = target.ask.touch.is_some();
        if reached > 0 || touches { (RunOutcome::WouldAsk, reached) } else { (RunOutcome::NoHandler, 0) }
    }
}
