//! One round of the guard: take input, read levels, decide, act. A round never blocks, except before a checkpoint request and a
//! freeze (`journal`), and allocates only for the JSON that hooks and webhooks receive, for requests between the nodes of a run, and
//! for the notifications of systemd-oomd.

mod before_kill;
mod carry_out;
mod follow_up;
mod order;
mod pace;
mod run_scope;

use std::sync::Arc;
use std::time::Duration;

use self::before_kill::AwaitedSaves;
use self::carry_out::Handed;
use self::follow_up::record_step;
use self::order::LastKills;
use self::pace::Pauses;
use super::input::{GuardInput, JobInput, SLOTS};
use super::job_state::{HostLimits, JobState, oldest, reading_with_rates};
use super::journal::{JobTransition, Journal};
use super::mailbox::Mailbox;
use super::notification;
use super::run_requests::RunRequests;
use crate::model::checkpoint::Checkpoints;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::levels::HostMeter;
use crate::protection::options::target::Target;
use crate::protection::plan::{self, Plan};
use crate::protection::policy::{
    Board, Flow, Mode, Observed, Occupied, Reading, Resource, State, Transition,
};
use crate::protection::record::End;
use crate::protection::status::{Report, SlotReport, Unfit};
use crate::protection::types::step::{Executor, Finished, Outcome, Step, StepDone, TargetId, Work};

/// Limits of the time between two rounds.
pub(super) const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
pub(super) const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// Time to the next round after a transition: the next transition may be due at once.
const TRANSITION_INTERVAL: Duration = Duration::from_micros(200);
/// Time between the first reading at the hard level and the one that kills.
pub(super) const CONFIRMED_AFTER: Duration = Duration::from_millis(2);

/// The executors of steps.
#[derive(Debug)]
pub struct Executors {
    /// For targets in mode `enforce`; absent where the executor could not be set up.
    pub enforce: Option<Box<dyn Executor>>,
    /// For targets in mode `observe`.
    pub observe: Box<dyn Executor>,
}

/// The state of the guard between two rounds.
#[derive(Debug)]
pub struct GuardLoop {
    targets: Arc<[Target]>,
    mailbox: Arc<Mailbox<GuardInput>>,
    held: Option<Box<GuardInput>>,
    board: Board,
    slots: Vec<Option<JobState>>,
    meter: Option<HostMeter>,
    is_pool: bool,
    rates: Flow,
    host: Option<(Timestamp, Reading)>,
    /// The longest time from that reading to the next one.
    host_pause: Duration,
    /// Whether all jobs are at rest, so that a look at their usages can take the place of a round.
    is_at_rest: bool,
    limits: HostLimits,
    executors: Executors,
    checkpoints: Arc<Checkpoints>,
    /// The requests of other nodes.
    pub(super) run_requests: Arc<RunRequests>,
    /// The notifications of systemd-oomd that are not answered yet.
    awaited_saves: Vec<AwaitedSaves>,
    plan: Plan,
    /// The steps that other threads carry out.
    handed: Vec<Handed>,
    last_kills: LastKills,
    finished: Vec<Finished>,
    journal: Box<dyn Journal>,
    report: Report,
}

impl GuardLoop {
    pub(super) fn new(
        targets: Arc<[Target]>,
        max_kills_per_hour: u32,
        mailbox: Arc<Mailbox<GuardInput>>,
        meter: Option<HostMeter>,
        executors: Executors,
        checkpoints: Arc<Checkpoints>,
        journal: Box<dyn Journal>,
    ) -> Self {
        let most = targets.iter().map(|target| target.limits.max_kills_per_hour);
        let room = crate::protection::plan::victim::MOST;
        Self {
            board: Board::new(SLOTS, most, max_kills_per_hour),
            report: Report::new(targets.len(), SLOTS),
            targets,
            mailbox,
            held: None,
            slots: (0..SLOTS).map(|_| None).collect(),
            meter,
            is_pool: false,
            rates: Flow::default(),
            host: None,
            host_pause: Duration::ZERO,
            is_at_rest: false,
            limits: HostLimits::default(),
            executors,
            checkpoints,
            run_requests: Arc::default(),
            awaited_saves: Vec::new(),
            plan: Plan::with_room(room),
            handed: Vec::with_capacity(SLOTS),
            last_kills: LastKills::new(),
            finished: Vec::with_capacity(256),
            journal,
        }
    }

    /// Counts terminations of earlier runs, oldest first, against the rate limits.
    pub(super) fn recall(&mut self, ends: &[End]) {
        for End { target, user, at } in ends {
            let named = |known: &Target| known.name.as_str() == target;
            // Terminations of targets that are no longer configured count against the host's limit.
            let place = self.targets.iter().position(named).unwrap_or(usize::MAX);
            self.board.recall(place, *user, *at);
        }
    }

    /// The report that the round fills.
    pub(super) const fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    /// Makes one round; `clock` reads the time. Returns the longest time until the next round.
    pub(super) fn round(&mut self, clock: &dyn Fn() -> Timestamp) -> Duration {
        let now = clock();
        self.receive(now, clock);
        self.collect(clock);
        let read = clock();
        if self.host.is_none_or(|(before, _)| read.since(before) >= self.host_pause) {
            self.read_host(read);
        }
        self.answer_run_requests(clock);
        self.answer_prekills(clock);
        let mut pauses = Pauses::from(LONGEST_INTERVAL);
        for slot in self.hard_levels_first(clock) {
            if self.slots[slot].is_some() {
                pauses = pauses.shorter(self.evaluate(slot, clock));
            }
        }
        self.host_pause = pauses.host;
        self.is_at_rest = self.awaited_saves.is_empty() && (0..SLOTS).all(|slot| self.rests(slot));
        self.journal.settle();
        self.report.rounds += 1;
        self.report.at = Some(now);
        self.report.host_left = self.board.host_left(now);
        for (place, target) in self.report.targets.iter_mut().enumerate() {
            target.left = self.board.left(place, now);
        }
        pauses.round
    }

    /// Thaws all frozen cgroups, before the guard ends.
    pub(super) fn finish(&mut self, clock: &dyn Fn() -> Timestamp) {
        self.end_handed(clock);
        for slot in 0..SLOTS {
            self.thaw(slot, clock);
        }
    }

    /// Carries out a step that belongs to no new transition, recorded like every other step. Absent where it failed.
    fn perform(&mut self, slot: usize, step: &Step, clock: &dyn Fn() -> Timestamp) -> Option<StepDone> {
        let job = self.slots[slot].as_mut()?;
        let (moved, executor) = (job.moved?, self.executors.of(&self.targets[job.target])?);
        let (result, _) =
            record_step(&mut *self.journal, &mut **executor, &moved, step, &mut job.spent, clock);
        result.ok()
    }

    /// Carries out a step that belongs to no new transition, and whose end is awaited.
    fn perform_pending(&mut self, slot: usize, stage: State, work: Work, clock: &dyn Fn() -> Timestamp) {
        let step = Step { target: id(slot), stage, work };
        let done = self.perform(slot, &step, clock);
        if let Some(StepDone { outcome: Outcome::Started(ticket), .. }) = done
            && let Some(job) = self.slots[slot].as_mut()
        {
            job.pending.add(ticket, step.work.label(), clock());
        }
    }

    /// Takes the newest input of the sampler.
    fn receive(&mut self, now: Timestamp, clock: &dyn Fn() -> Timestamp) {
        if !self.mailbox.take(&mut self.held) {
            return;
        }
        let Some(mut input) = self.held.take() else { return };
        let at = input.at;
        self.is_pool = input.is_pool;
        if input.host.is_some() {
            std::mem::swap(&mut self.meter, &mut input.host);
            self.host_pause = Duration::ZERO;
        }
        for (slot, job_input) in input.slots.iter_mut().enumerate().take(SLOTS) {
            let known = self.slots[slot].as_ref().map(|job| job.serial);
            if known.is_none() || known != job_input.as_ref().map(|job_input| job_input.serial) {
                self.thaw(slot, clock);
                self.clear_slot(slot, now);
            }
            if let Some(job_input) = job_input {
                self.update_slot(slot, job_input, at, now);
            }
        }
        self.held = Some(input);
    }

    fn clear_slot(&mut self, slot: usize, now: Timestamp) {
        let Some(job) = self.slots[slot].take() else { return };
        self.journal.left(now, id(slot));
        self.board.set_slot(slot, None);
        self.report.slots[slot] = None;
        if let Some(executor) = self.executors.of(&self.targets[job.target]) {
            executor.forget(id(slot));
            // Without a scope no process can be signalled.
            let _ = executor.bound(id(slot), None);
        }
    }

    fn update_slot(&mut self, slot: usize, input: &mut JobInput, at: Timestamp, now: Timestamp) {
        if self.slots[slot].is_none() {
            let Some(escalation) = input.escalation.take() else { return };
            self.slots[slot] = Some(JobState::new(input, now));
            let occupied = Occupied { target: input.target, user: input.user, escalation };
            self.board.set_slot(slot, Some(occupied));
        }
        let Some(job) = &mut self.slots[slot] else { return };
        job.receive(input, at);
        self.journal.read_sampled(at, input.target, [input.sampled.gpu, input.sampled.allocator]);
        if let Some(scope) = input.scope.take()
            && let Some(executor) = self.executors.of(&self.targets[input.target])
        {
            job.scoped = executor.bound(id(slot), Some(scope)).is_ok();
        }
    }

    fn read_host(&mut self, now: Timestamp) {
        if let Some((meter, room)) = self.meter.as_ref().and_then(|meter| Some((meter, meter.read().ok()?))) {
            self.limits = HostLimits { memory: room.limit, swap: meter.swap_of_groups(room) };
            let reading = reading_with_rates(&mut self.rates, now, room);
            self.host = Some((now, reading));
            self.journal.read_host(now, &reading);
        }
    }

    /// Evaluates the policy for one slot and carries out the transition, if any.
    fn evaluate(&mut self, slot: usize, clock: &dyn Fn() -> Timestamp) -> Pauses {
        let of_host = self.limits;
        let read = clock();
        let Some(job) = self.slots[slot].as_mut() else { return LONGEST_INTERVAL.into() };
        let targets = Arc::clone(&self.targets);
        let target = &targets[job.target];
        let Some(escalation) = self.board.escalation(slot) else { return LONGEST_INTERVAL.into() };
        let limits = escalation.limits();
        // It was read at the begin of the round, and the steps for other jobs may have taken long since.
        job.cgroup.read_if_older(read, of_host, SHORTEST_INTERVAL);
        // One reading below the hard level is no fact: it is read again after some milliseconds before it kills.
        let is_hard = job.is_hard(limits, self.host);
        let hard_of_host = limits.hard(Resource::Host).is_some();
        let first = is_hard.then(|| *job.hard_since.get_or_insert(read));
        if let Some(first) = first.filter(|_| !escalation.state().is_after_kill()) {
            if read.since(first) < CONFIRMED_AFTER {
                return CONFIRMED_AFTER.into();
            }
            job.cgroup.read_whole(read, of_host);
            job.nodes.read(read, of_host);
            if hard_of_host {
                self.read_host(read);
            }
        } else if !is_hard {
            job.hard_since = None;
            if job.is_low(limits, self.host) {
                job.cgroup.read_whole(read, of_host);
            }
        }
        let able = target.limits.mode == Mode::Observe || self.executors.enforce.is_some();
        let Some(job) = self.slots[slot].as_mut() else { return LONGEST_INTERVAL.into() };
        let planned = job.progress.is_some();
        if target.limits.mode == Mode::Enforce
            && !planned
            && job.must_await_again(read)
            && !self.hands_over(slot)
        {
            self.await_victims(slot, clock);
        }
        let Some(job) = self.slots[slot].as_mut() else { return LONGEST_INTERVAL.into() };
        if target.ask.job {
            job.read_acknowledgements(&self.checkpoints, read);
        }
        let observed = job.observed(read, self.host, able);
        let (group, place, unfinished) = (job.cgroup.reading(), job.target, job.progress.is_some());
        let unfinished = unfinished || self.hands_over(slot);
        let gives = self.gives(slot);
        let observed = Observed { unfinished, gives, kill_waits: self.kill_waits(slot, read), ..observed };
        let transition = self.board.step(slot, read, &observed);
        if let Some(reading) = group {
            self.journal.read(read, place, &reading);
        }
        self.fill_report(slot, &observed, able, read);
        if let Some(transition) = transition {
            self.act(slot, &transition, &observed, read, clock);
            return TRANSITION_INTERVAL.into();
        }
        let pause = if self.hands_over(slot) { SHORTEST_INTERVAL } else { self.carry_out(slot, clock) };
        if self.slots[slot].as_ref().is_some_and(|job| job.progress.is_some()) {
            return pause.into();
        }
        // With max_state soft no later transition thaws the cgroup.
        let wait = target.limits.hook_wait;
        if self.slots[slot].as_mut().is_some_and(|job| job.freeze.expires(read, wait)) {
            self.thaw(slot, clock);
        }
        self.time_to_next_round(slot)
    }

    /// What the end of the job in a slot gives back; absent where no soft level is crossed, so that nobody asks.
    fn gives(&self, slot: usize) -> Option<Bytes> {
        let job = self.slots[slot].as_ref()?;
        let limits = self.board.escalation(slot)?.limits();
        job.is_low(limits, self.host).then(|| job.gives()).flatten()
    }

    fn fill_report(&mut self, slot: usize, observed: &Observed, able: bool, now: Timestamp) {
        let (Some(job), Some(escalation)) = (&self.slots[slot], self.board.escalation(slot)) else { return };
        let limits = escalation.limits();
        let unscoped = (!observed.fit && job.sampled.unfit.is_none()).then_some(Unfit::Bounds);
        self.report.slots[slot] = Some(SlotReport {
            target: job.target,
            serial: job.serial,
            state: escalation.state(),
            overdue: escalation.overdue() || escalation.kills_long(now),
            conditions: *escalation.conditions(),
            unfit: job.sampled.unfit.or(if able { unscoped } else { Some(Unfit::NoExecutor) }),
            readings: observed.readings.map(|reading| reading.map(|reading| reading.value)),
            spent: job.spent,
            age: oldest(observed, |resource| limits.levels[resource.place()].is_some()),
            used_up: self.board.used_up(slot, now),
        });
    }

    /// Records a transition and carries out its steps.
    fn act(
        &mut self,
        slot: usize,
        transition: &Transition,
        observed: &Observed,
        read: Timestamp,
        clock: &dyn Fn() -> Timestamp,
    ) {
        let (Some(job), Some(escalation)) = (self.slots[slot].as_mut(), self.board.escalation(slot)) else {
            return;
        };
        let target = &self.targets[job.target];
        let report = &mut self.report.targets[job.target];
        report.moves[transition.to as usize] += 1;
        let begins = transition.acts() && !transition.from.acts();
        report.trips += u64::from(begins);
        let enforced = target.limits.mode == Mode::Enforce;
        if transition.acts() && !enforced {
            report.would[transition.to as usize] += 1;
        }
        let moved = JobTransition {
            slot,
            serial: job.serial,
            target: job.target,
            user: job.user,
            mode: target.limits.mode,
            transition: *transition,
            under_way: escalation.incident().is_some(),
            observed: *observed,
            conditions: *escalation.conditions(),
        };
        let roster = job.affected(transition.to, target.victims);
        if transition.acts() {
            job.verification.resident = roster.resident;
        }
        job.moved = Some(moved);
        let stage = plan::stage_of(transition);
        // The JSON for hooks and webhooks is allocated, which a kill must not wait for.
        let kills = stage == Some(State::Kill);
        let notifies = stage.is_some() && !kills && (target.hook.is_some() || target.webhook.is_some());
        let ending = self.journal.incident(slot).filter(|_| notifies).map(str::to_owned);
        // The records of the steps belong to the incident that begins here.
        self.journal.moved(&moved, &job.names.workload);
        if enforced && transition.counts {
            self.journal.terminates(clock(), job.target, job.user);
        }
        if transition.ask {
            job.note_request(&roster);
        }
        if enforced && transition.ask && target.ask.signal.is_some() {
            self.journal.requests_checkpoint(clock(), &roster);
        }
        let notification = notifies.then(|| {
            let incident = self.journal.incident(slot).or(ending.as_deref());
            notification::json(target, &moved, &roster, &job.names, incident)
        });
        if job.plan(&moved, &roster, notification, read) {
            self.carry_out(slot, clock);
            // Although a kill may replace the rest of the plan.
            self.ask_peers(slot, transition, clock);
        } else {
            self.end_transition(slot, transition, clock);
        }
    }

    /// What is done after the steps of a transition.
    fn end_transition(&mut self, slot: usize, transition: &Transition, clock: &dyn Fn() -> Timestamp) {
        if transition.to != State::Soft {
            self.thaw(slot, clock);
        }
        let over = matches!(transition.to, State::Ok | State::Warn | State::Cooldown | State::Disarmed);
        if over && let Some(job) = &mut self.slots[slot] {
            job.end_incident();
            if let Some(executors) = self.executors.of(&self.targets[job.target]) {
                executors.forget(id(slot));
            }
        }
    }
}

impl Executors {
    fn of(&mut self, target: &Target) -> Option<&mut Box<dyn Executor>> {
        if plan::may_touch(target) { self.enforce.as_mut() } else { Some(&mut self.observe) }
    }
}

/// The id of a slot for the executor.
fn id(slot: usize) -> TargetId {
    TargetId(u16::try_from(slot).unwrap_or(u16::MAX))
}
