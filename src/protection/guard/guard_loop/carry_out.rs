//! Carries out the plan of a transition: at once where it is short, otherwise in several rounds, so that the steps for one job
//! do not delay the decision on another.
//!
//! A step whose time grows with the number of processes is handed over to another thread, one kill and one other step for each
//! user at a time. A plan
//! with thousands of signals is continued in the next round after [`TURN`].

use std::sync::Arc;
use std::time::Duration;

use super::follow_up::{record_step, unrecorded};
use super::{GuardLoop, LONGEST_INTERVAL, SHORTEST_INTERVAL, TRANSITION_INTERVAL, id};
use crate::host::clock;
use crate::model::time::Timestamp;
use crate::protection::guard::job_state::{JobState, PlanProgress};
use crate::protection::guard::journal::{CompletedStep, JobTransition};
use crate::protection::plan::victim::Roster;
use crate::protection::plan::{PlanInput, stage_of};
use crate::protection::policy::{Mode, State};
use crate::protection::types::step::{HANG_TIMEOUT, Outcome, Place, Step, StepDone, StepError, Ticket, Work};

/// Time of one round for the signals of one job; some hundreds are sent in it.
const TURN: Duration = Duration::from_millis(5);

/// Maximum number of steps of one user and one kind that other threads carry out at the same time: one, and those that hang.
const MOST_OF_USER: usize = 4;

/// A step that another thread carries out.
#[derive(Debug)]
pub(super) struct Handed {
    ticket: Ticket,
    moved: JobTransition,
    step: Step,
    /// Its number in the journal.
    number: u64,
    begun: Timestamp,
    /// Whether it is the next step of the plan of its job; otherwise it repeats a wait.
    planned: bool,
}

/// What became of a step before it was carried out.
enum Begun {
    /// It is carried out by another thread.
    Elsewhere,
    /// No other thread may carry it out now.
    Waits,
    Ended(Result<StepDone, StepError>, Timestamp),
}

impl GuardLoop {
    /// Whether another thread carries out a step of the newest transition of a slot: the steps after it wait.
    pub(super) fn hands_over(&self, slot: usize) -> bool {
        let moved = self.slots[slot].as_ref().and_then(|job| job.moved);
        moved.is_some_and(|moved| self.handed.iter().any(|handed| handed.moved.is_same_as(&moved)))
    }

    /// Whether a kill of the job in a slot could not begin now. A decision that waited would kill a job whose shortage is over
    /// by then.
    pub(super) fn kill_waits(&mut self, slot: usize, now: Timestamp) -> bool {
        let Some(job) = self.slots[slot].as_ref() else { return false };
        let (user, roots) = (job.user, Arc::clone(&job.roster.largest));
        let step = Step { target: id(slot), stage: State::Kill, work: Work::KillTree { roots } };
        let Some(executor) = self.executors.of(&self.targets[job.target]) else { return false };
        match executor.place(&step) {
            Place::Here => false,
            Place::Elsewhere => self.has_handed(slot, user, &step.work, now),
            Place::Nowhere => true,
        }
    }

    /// Whether other threads carry out steps of this kind for this user, who has one place for kills, and one for other
    /// steps, so that these delay no kill. A step that hangs leaves its place to another.
    fn has_handed(&self, slot: usize, user: Option<u32>, work: &Work, now: Timestamp) -> bool {
        let own = || {
            self.handed.iter().filter(|other| {
                let same = user.map_or(other.moved.slot == slot, |user| other.moved.user == Some(user));
                same && other.step.work.kills() == work.kills()
            })
        };
        own().any(|other| now.since(other.begun) < HANG_TIMEOUT) || own().count() >= MOST_OF_USER
    }

    /// Carries out the plan of a slot from where it stands. What is left is done in later rounds; returns the time to the next.
    pub(super) fn carry_out(&mut self, slot: usize, clock: &dyn Fn() -> Timestamp) -> Duration {
        let Some(job) = self.slots[slot].as_ref() else { return LONGEST_INTERVAL };
        let Some(progress) = &job.progress else { return LONGEST_INTERVAL };
        let target = &self.targets[job.target];
        let PlanProgress { moved, stage, roster, notification, .. } = progress;
        let moved = *moved;
        let input = PlanInput {
            id: id(slot),
            target,
            transition: &moved.transition,
            observed: &moved.observed,
            stage: *stage,
            roster,
            notification: notification.as_ref(),
        };
        self.plan.make(&input);
        let (began, first) = (clock(), progress.next());
        loop {
            let Some(progress) = self.slots[slot].as_mut().and_then(|job| job.progress.as_mut()) else {
                return LONGEST_INTERVAL;
            };
            let Some(planned) = self.plan.steps().get(progress.next()) else { break };
            if planned.unless.is_some_and(|place| progress.was_carried(place)) {
                // A step that depends on a skipped one is skipped too.
                progress.carried.push(true);
                continue;
            }
            if progress.next() > first && clock().since(began) >= TURN {
                return TRANSITION_INTERVAL;
            }
            let step = planned.step.clone();
            match self.begin(slot, &moved, &step, true, clock) {
                Begun::Elsewhere | Begun::Waits => return SHORTEST_INTERVAL,
                Begun::Ended(result, at) => self.settle(slot, &step, &result, at, true),
            }
        }
        self.end_plan(slot, clock);
        LONGEST_INTERVAL
    }

    /// Carries out a step, or hands it over.
    fn begin(
        &mut self,
        slot: usize,
        moved: &JobTransition,
        step: &Step,
        planned: bool,
        clock: &dyn Fn() -> Timestamp,
    ) -> Begun {
        let no_scope = || Begun::Ended(Err(StepError::NoScope(step.target)), clock());
        let taken = self.has_handed(slot, moved.user, &step.work, clock());
        let Some(job) = self.slots[slot].as_mut() else { return no_scope() };
        let Some(executor) = self.executors.of(&self.targets[job.target]) else { return no_scope() };
        match executor.place(step) {
            Place::Here => {
                let (result, at) =
                    record_step(&mut *self.journal, &mut **executor, moved, step, &mut job.spent, clock);
                Begun::Ended(result, at)
            }
            Place::Elsewhere if !taken => {
                let begun = clock();
                let number = self.journal.before(begun, step);
                let unrecorded = unrecorded(&mut *self.journal, moved, step);
                let handed =
                    unrecorded.map_or_else(|| executor.hand_over(step).map_err(Err), |done| Err(Ok(done)));
                match handed {
                    Ok(ticket) => {
                        let (moved, step) = (*moved, step.clone());
                        self.last_kills.note(moved.user.filter(|_| step.work.kills()));
                        self.handed.push(Handed { ticket, moved, step, number, begun, planned });
                        Begun::Elsewhere
                    }
                    Err(result) => {
                        let touched = &[][..];
                        let completed = CompletedStep { number, step, result: &result, micros: 0, touched };
                        self.journal.after(begun, moved, &completed);
                        Begun::Ended(result, begun)
                    }
                }
            }
            Place::Elsewhere | Place::Nowhere => Begun::Waits,
        }
    }

    /// Takes the result of a step, if it was handed over; its plan continues when its slot is evaluated. Returns whether it was.
    pub(super) fn take_back(&mut self, place: usize, clock: &dyn Fn() -> Timestamp) -> bool {
        let now = clock();
        let finished = &self.finished[place];
        let Some(known) = self.handed.iter().position(|handed| handed.ticket == finished.ticket) else {
            return false;
        };
        let Handed { ticket, moved, step, number, begun, planned } = self.handed.swap_remove(known);
        let took = now.since(begun);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let result = finished.result.clone();
        let touched = self.executors.enforce.as_ref().map_or(&[][..], |executor| executor.touched_by(ticket));
        let completed = CompletedStep { number, step: &step, result: &result, micros, touched };
        self.journal.after(now, &moved, &completed);
        let slot = moved.slot;
        if let Some(job) = self.slots[slot].as_mut().filter(|job| job.serial == moved.serial) {
            job.spent += took;
            // A kill may have replaced its plan.
            let planned = planned && job.progress.as_ref().is_some_and(|plan| plan.moved.is_same_as(&moved));
            self.settle(slot, &step, &result, now, planned);
        } else if let (Work::Freeze { group }, Ok(StepDone { outcome: Outcome::Done, .. })) =
            (step.work, result)
        {
            // Its job has left, and nobody else would thaw it.
            let thaw = Step { target: step.target, stage: State::Cooldown, work: Work::Thaw { group } };
            if let Some(executor) = self.executors.enforce.as_mut() {
                let mut spent = Duration::ZERO;
                let _ = record_step(&mut *self.journal, &mut **executor, &moved, &thaw, &mut spent, clock);
            }
        }
        true
    }

    /// Keeps the result of a step: of a `planned` one for the steps after it.
    fn settle(
        &mut self,
        slot: usize,
        step: &Step,
        result: &Result<StepDone, StepError>,
        at: Timestamp,
        planned: bool,
    ) {
        let Some(job) = self.slots[slot].as_mut() else { return };
        let report = &mut self.report.targets[job.target];
        let carried = matches!(
            result,
            Ok(StepDone { outcome: Outcome::Done | Outcome::Started(_) | Outcome::WouldHave, .. })
        );
        let mut read = at;
        if let Some(progress) = job.progress.as_mut().filter(|_| planned) {
            report.step(&step.work, result.as_ref().ok().map(|done| done.outcome));
            progress.carried.push(carried);
            read = progress.read;
            if let Work::Signal { only_if_caught: true, .. } = step.work {
                progress.signals += 1;
                progress.requested += u32::from(carried);
            }
        }
        let awaits = matches!(step.work, Work::AwaitEnd { .. });
        if awaits {
            job.verification.awaited = Some(at);
        }
        if let Ok(StepDone { outcome: Outcome::Started(ticket) | Outcome::Saving(ticket), processes, .. }) =
            *result
            && job.pending.add(ticket, step.work.label(), at)
            && awaits
        {
            job.verification.alive = Some(processes.max(1));
        }
        match step.work {
            Work::Signal { .. } => report.latency = carried.then(|| at.since(read)).or(report.latency),
            Work::KillGroup { .. } | Work::KillTree { .. } if carried => {
                report.latency = Some(at.since(read));
                job.verification.killed.get_or_insert(at);
            }
            Work::Freeze { ref group } if carried => job.freeze.begin(group.clone(), at),
            Work::Thaw { ref group } if carried => job.freeze.end(group),
            _ => {}
        }
    }

    /// What is done after the last step of a plan.
    fn end_plan(&mut self, slot: usize, clock: &dyn Fn() -> Timestamp) {
        let Some(job) = self.slots[slot].as_mut() else { return };
        let Some(progress) = job.progress.take() else { return };
        let moved = progress.moved;
        if progress.signals > 0 && moved.mode == Mode::Enforce {
            job.checkpoint.catching = Some(progress.requested);
        }
        if progress.stage == State::Kill {
            self.notify(slot, &moved, &progress.roster, clock);
        }
        if let Some(job) = &mut self.slots[slot] {
            job.carried = progress.carried;
        }
        self.end_transition(slot, &moved.transition, clock);
    }

    /// Waits for victims again, after a time limit or a failed wait.
    pub(super) fn await_victims(&mut self, slot: usize, clock: &dyn Fn() -> Timestamp) {
        let Some(job) = self.slots[slot].as_ref() else { return };
        let roster = job.awaited();
        // After a kill, the cgroup may have processes that came later and are no victims.
        let killed = self.board.escalation(slot).is_some_and(|known| known.state().is_after_kill());
        let work = Work::AwaitEnd {
            processes: Arc::clone(&roster.largest),
            group: roster.group.clone().filter(|_| !killed),
            within: AWAIT_TIMEOUT,
        };
        let Some(moved) = job.moved else { return };
        let step = Step { target: id(slot), stage: State::Verify, work };
        let begun = self.begin(slot, &moved, &step, false, clock);
        if let Some(job) = &mut self.slots[slot] {
            job.verification.awaited = Some(clock());
        }
        if let Begun::Ended(result, at) = begun {
            self.settle(slot, &step, &result, at, false);
        }
    }

    /// Waits for the steps that were handed over, before the guard ends: a tree may be stopped and not killed yet.
    pub(super) fn end_handed(&mut self, clock: &dyn Fn() -> Timestamp) {
        /// Less than the time for which the end of the guard is awaited.
        const END_TIMEOUT: Duration = Duration::from_millis(200);
        if let Some(executor) = self.executors.enforce.as_mut().filter(|_| !self.handed.is_empty()) {
            executor.hurry();
        }
        let begun = clock();
        while !self.handed.is_empty() && clock().since(begun) < END_TIMEOUT {
            clock::wait(Duration::from_millis(1));
            self.collect(clock);
        }
    }
}

/// Time limit of one wait for victims that stay after a kill; the wait is repeated until they end.
const AWAIT_TIMEOUT: Duration = Duration::from_secs(600);

impl JobState {
    /// Begins the plan of a transition, in place of the one before; false where it has none.
    pub(super) fn plan(
        &mut self,
        moved: &JobTransition,
        roster: &Arc<Roster>,
        notification: Option<Arc<str>>,
        read: Timestamp,
    ) -> bool {
        let Some(stage) = stage_of(&moved.transition) else { return false };
        let before = self.progress.take().map(|progress| progress.carried);
        let mut carried = before.unwrap_or_else(|| std::mem::take(&mut self.carried));
        carried.clear();
        self.progress = Some(PlanProgress {
            moved: *moved,
            stage,
            roster: Arc::clone(roster),
            notification,
            read,
            carried,
            signals: 0,
            requested: 0,
        });
        true
    }
}
