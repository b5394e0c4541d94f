//! One round of the guard: hear, read, decide, act. It waits for nobody, and allocates only to start a hook.

mod follow_up;

use std::sync::Arc;
use std::time::Duration;

use super::input::{GuardInput, JobInput, SLOTS};
use super::job_state::{JobState, flowing, oldest};
use super::journal::{CompletedStep, Journal, Moved};
use super::mailbox::Mailbox;
use super::notification;
use crate::model::checkpoint::Checkpoints;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::levels::HostMeter;
use crate::protection::options::target::Target;
use crate::protection::plan::victim::Roster;
use crate::protection::plan::{self, Plan, Trip};
use crate::protection::policy::{
    Board, Flow, Mode, Observed, Occupied, Reading, Resource, State, Transition,
};
use crate::protection::record::End;
use crate::protection::status::{Report, SlotReport, Unfit};
use crate::protection::words::step::{Executor, Finished, Outcome, Stage, Step, StepDone, TargetId, Work};

/// The shortest and the longest time between two rounds.
pub(super) const SHORTEST: Duration = Duration::from_millis(10);
pub(super) const LONGEST: Duration = Duration::from_secs(1);
/// After a move: the next one may be due, and two rungs are not to cost two rounds.
const AT_ONCE: Duration = Duration::from_micros(200);
/// While a warning is out.
const WARNED: Duration = Duration::from_millis(100);
/// How fast memory can be taken, in bytes per second, before somebody was seen to be faster: 12 GiB/s.
const FASTEST: f64 = 12.0 * 1_073_741_824.0;

/// Who carries steps out.
pub struct Executors {
    /// For targets in the mode enforce; absent where nobody could be made ready.
    pub enforce: Option<Box<dyn Executor>>,
    /// For targets in the mode observe.
    pub observe: Box<dyn Executor>,
}

impl std::fmt::Debug for Executors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executors").field("enforce", &self.enforce.is_some()).finish_non_exhaustive()
    }
}

/// The guard between two rounds.
pub struct GuardLoop {
    targets: Arc<[Target]>,
    mailbox: Arc<Mailbox<GuardInput>>,
    held: Option<Box<GuardInput>>,
    board: Board,
    slots: Vec<Option<JobState>>,
    meter: Option<HostMeter>,
    flow: Flow,
    host: Option<(Timestamp, Reading)>,
    hands: Executors,
    checkpoints: Arc<Checkpoints>,
    plan: Plan,
    carried: Vec<bool>,
    finished: Vec<Finished>,
    journal: Box<dyn Journal>,
    report: Report,
}

impl std::fmt::Debug for GuardLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuardLoop").field("targets", &self.targets.len()).finish_non_exhaustive()
    }
}

impl GuardLoop {
    pub(super) fn new(
        targets: Arc<[Target]>,
        max_kills_per_hour: u32,
        mailbox: Arc<Mailbox<GuardInput>>,
        meter: Option<HostMeter>,
        hands: Executors,
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
            flow: Flow::default(),
            host: None,
            hands,
            checkpoints,
            plan: Plan::with_room(room),
            carried: Vec::with_capacity(room + 8),
            finished: Vec::with_capacity(256),
            journal,
        }
    }

    /// Counts what was ended before, oldest first, against the rate limits.
    pub(super) fn recall(&mut self, ends: &[End]) {
        for End { target, user, at } in ends {
            let named = |known: &Target| known.name.as_str() == target;
            // A target of another configuration used up the host's limit all the same.
            let place = self.targets.iter().position(named).unwrap_or(usize::MAX);
            self.board.recall(place, *user, *at);
        }
    }

    /// What is to be told of it.
    pub(super) const fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    /// One round; `clock` tells the time. Returns how long the next one can wait.
    pub(super) fn round(&mut self, clock: &dyn Fn() -> Timestamp) -> Duration {
        let now = clock();
        self.receive(now, clock);
        self.collect(clock);
        self.read_host(clock());
        let mut pause = LONGEST;
        for slot in 0..SLOTS {
            if self.slots[slot].is_some() {
                pause = pause.min(self.attend(slot, clock));
            }
        }
        self.journal.settle();
        self.report.rounds += 1;
        self.report.at = Some(now);
        self.report.host_left = self.board.host_left(now);
        for (place, target) in self.report.targets.iter_mut().enumerate() {
            target.left = self.board.left(place, now);
        }
        pause
    }

    /// The end: whoever was paused goes on.
    pub(super) fn finish(&mut self, clock: &dyn Fn() -> Timestamp) {
        for slot in 0..SLOTS {
            self.resume(slot, clock);
        }
    }

    /// Carries out a step that no move asked for, on paper like every other.
    fn one_more(&mut self, slot: usize, step: &Step, clock: &dyn Fn() -> Timestamp) -> Option<StepDone> {
        let job = self.slots[slot].as_ref()?;
        let (moved, hands) = (job.moved?, self.hands.of(&self.targets[job.target])?);
        let begun = clock();
        let number = self.journal.before(begun, step);
        let result = hands.perform(step);
        let at = clock();
        let micros = u64::try_from(at.since(begun).as_micros()).unwrap_or(u64::MAX);
        let completed = CompletedStep { number, step, result: &result, micros, touched: hands.touched() };
        self.journal.after(at, &moved, &completed);
        result.ok()
    }

    /// Takes over what the sampler left.
    fn receive(&mut self, now: Timestamp, clock: &dyn Fn() -> Timestamp) {
        if !self.mailbox.take(&mut self.held) {
            return;
        }
        let Some(mut facts) = self.held.take() else { return };
        let at = facts.at;
        for (slot, told) in facts.slots.iter_mut().enumerate().take(SLOTS) {
            let stays = told
                .as_ref()
                .is_some_and(|told| self.slots[slot].as_ref().is_some_and(|job| job.serial == told.serial));
            if !stays {
                self.resume(slot, clock);
                self.leave(slot, now);
            }
            if let Some(told) = told {
                self.sit(slot, told, at, now);
            }
        }
        self.held = Some(facts);
    }

    fn leave(&mut self, slot: usize, now: Timestamp) {
        let Some(job) = self.slots[slot].take() else { return };
        self.journal.left(now, id(slot));
        self.board.set_slot(slot, None);
        self.report.slots[slot] = None;
        let id = id(slot);
        let hands = self.hands.of(&self.targets[job.target]);
        if let Some(hands) = hands {
            hands.forget(id);
            // Without bounds nobody is reached.
            let _ = hands.bound(id, None);
        }
    }

    fn sit(&mut self, slot: usize, told: &mut JobInput, at: Timestamp, now: Timestamp) {
        if self.slots[slot].is_none() {
            let Some(ladder) = told.ladder.take() else { return };
            self.slots[slot] = Some(JobState::new(told, now));
            let occupied = Occupied { target: told.target, user: told.user, ladder };
            self.board.set_slot(slot, Some(occupied));
        }
        let Some(job) = &mut self.slots[slot] else { return };
        job.receive(told, at);
        if let Some(scope) = told.scope.take()
            && let Some(hands) = self.hands.of(&self.targets[told.target])
        {
            job.bounded = hands.bound(id(slot), Some(scope)).is_ok();
        }
    }

    fn read_host(&mut self, now: Timestamp) {
        if let Some(left) = self.meter.as_ref().and_then(|meter| meter.read().ok()) {
            let reading = flowing(&mut self.flow, now, left);
            self.host = Some((now, reading));
            self.journal.read_host(now, &reading);
        }
    }

    /// Looks at one seat, and does what is due.
    fn attend(&mut self, slot: usize, clock: &dyn Fn() -> Timestamp) -> Duration {
        let total = self.host.map_or(Bytes::new(u64::MAX), |(_, reading)| reading.total);
        let read = clock();
        let Some(job) = self.slots[slot].as_mut() else { return LONGEST };
        let targets = Arc::clone(&self.targets);
        let target = &targets[job.target];
        job.read(read, total);
        let hard = |resource: Resource, reading: Option<Reading>| {
            let hard = target.limits.levels[resource.place()].and_then(|levels| levels.hard);
            reading.zip(hard).is_some_and(|(reading, hard)| reading.headroom <= hard.of(reading.total))
        };
        // A number that kills is read twice.
        if hard(Resource::Cgroup, job.group()) {
            job.read(read, total);
        }
        if hard(Resource::Host, self.host.map(|(_, reading)| reading)) {
            self.read_host(read);
        }
        let able = target.limits.mode == Mode::Observe || self.hands.enforce.is_some();
        let Some(job) = self.slots[slot].as_mut() else { return LONGEST };
        if target.limits.mode == Mode::Enforce && job.lost_sight(read) {
            self.wait_on(slot, clock);
        }
        let Some(job) = self.slots[slot].as_mut() else { return LONGEST };
        if target.ask.job {
            job.read_acknowledgements(&self.checkpoints, read);
        }
        let observed = job.observed(read, self.host, able);
        let transition = self.board.step(slot, read, &observed);
        let (group, place) = (job.group(), job.target);
        if let Some(reading) = group {
            self.journal.read(read, place, &reading);
        }
        self.note(slot, &observed, able, read);
        if let Some(transition) = transition {
            self.act(slot, &transition, &observed, read, clock);
            return AT_ONCE;
        }
        // Where nothing beyond the hook may be done, the move that lets the group go on does not come.
        let over = |stopped: Timestamp| read.since(stopped) >= target.limits.hook_wait;
        let job = self.slots[slot].as_mut();
        if job.is_some_and(|job| job.stopped.take_if(|stopped| over(*stopped)).is_some()) {
            self.resume(slot, clock);
        }
        self.pause(slot)
    }

    fn note(&mut self, slot: usize, observed: &Observed, able: bool, now: Timestamp) {
        let (Some(job), Some(ladder)) = (&self.slots[slot], self.board.ladder(slot)) else { return };
        let limits = ladder.limits();
        let unbounded = (!observed.fit && job.unfit.is_none()).then_some(Unfit::Bounds);
        self.report.slots[slot] = Some(SlotReport {
            target: job.target,
            serial: job.serial,
            state: ladder.state(),
            overdue: ladder.overdue(),
            conditions: *ladder.conditions(),
            unfit: job.unfit.or(if able { unbounded } else { Some(Unfit::NoExecutor) }),
            readings: observed.readings.map(|reading| reading.map(|reading| reading.value)),
            age: oldest(observed, |resource| limits.levels[resource.place()].is_some()),
            used_up: self.board.used_up(slot, now),
        });
    }

    /// Carries out what a move calls for.
    fn act(
        &mut self,
        slot: usize,
        transition: &Transition,
        observed: &Observed,
        read: Timestamp,
        clock: &dyn Fn() -> Timestamp,
    ) {
        let (Some(job), Some(ladder)) = (self.slots[slot].as_mut(), self.board.ladder(slot)) else {
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
        let moved = Moved {
            slot,
            serial: job.serial,
            target: job.target,
            mode: target.limits.mode,
            transition: *transition,
            under_way: ladder.incident().is_some(),
            observed: *observed,
            conditions: *ladder.conditions(),
        };
        let roster = job.meant(transition.to, target.victims);
        if transition.acts() {
            job.victims = roster.resident;
        }
        job.moved = Some(moved);
        // What is written down of the steps is part of the incident that begins here.
        self.journal.moved(&moved);
        if enforced && transition.counts {
            self.journal.terminates(clock(), job.target, job.user);
        }
        if enforced && transition.ask && target.ask.signal.is_some() {
            self.journal.requests_checkpoint(clock(), &roster);
        }
        if let Some(stage) = plan::stage_of(transition) {
            let wanted = target.hook.is_some() || target.webhook.is_some();
            // What is told takes memory, which a kill must not wait for.
            let kills = stage == Stage::Kill;
            let told = (wanted && !kills).then(|| notification::json(target, &moved, &roster));
            let id = id(slot);
            self.plan.make(&Trip { id, target, transition, stage, roster: &roster, told: told.as_ref() });
            self.carry_out(slot, &moved, read, clock);
            if kills {
                self.notify(slot, &moved, &roster, clock);
            }
        }
        if transition.to != State::Soft {
            self.resume(slot, clock);
        }
        let over = matches!(transition.to, State::Ok | State::Warn | State::Cooldown | State::Disarmed);
        if over && let Some(job) = &mut self.slots[slot] {
            job.rest();
            if let Some(hands) = self.hands.of(&self.targets[job.target]) {
                hands.forget(id(slot));
            }
        }
    }

    /// Tells the web service of a kill that was carried out.
    fn notify(&mut self, slot: usize, moved: &Moved, roster: &Roster, clock: &dyn Fn() -> Timestamp) {
        let target = &self.targets[moved.target];
        let Some(url) = &target.webhook else { return };
        let work = Work::Webhook { url: Arc::clone(url), body: notification::json(target, moved, roster) };
        let step = Step { target: id(slot), stage: Stage::Kill, work };
        let done = self.one_more(slot, &step, clock);
        if let Some(StepDone { outcome: Outcome::Started(ticket), .. }) = done
            && let Some(job) = self.slots[slot].as_mut()
        {
            job.goes_on(ticket, step.work.label());
        }
    }

    fn carry_out(&mut self, slot: usize, moved: &Moved, read: Timestamp, clock: &dyn Fn() -> Timestamp) {
        let Some(job) = self.slots[slot].as_mut() else { return };
        let target = &self.targets[job.target];
        let Some(hands) = self.hands.of(target) else { return };
        let report = &mut self.report.targets[job.target];
        let (mut asked, mut signals) = (0, 0_u32);
        self.carried.clear();
        for planned in self.plan.steps() {
            let passed = planned
                .unless
                .is_some_and(|place| self.carried.get(usize::from(place)).copied().unwrap_or(false));
            if passed {
                // Whoever comes below one that was passed over is passed over too.
                self.carried.push(true);
                continue;
            }
            let step = &planned.step;
            let begun = clock();
            let number = self.journal.before(begun, step);
            let result = hands.perform(step);
            let at = clock();
            let micros = u64::try_from(at.since(begun).as_micros()).unwrap_or(u64::MAX);
            let completed = CompletedStep { number, step, result: &result, micros, touched: hands.touched() };
            self.journal.after(at, moved, &completed);
            report.step(&step.work, result.as_ref().ok().map(|done| done.outcome));
            let carried = matches!(
                result,
                Ok(StepDone { outcome: Outcome::Done | Outcome::Started(_) | Outcome::WouldHave, .. })
            );
            self.carried.push(carried);
            if matches!(step.work, Work::AwaitEnd { .. }) {
                job.waited = Some(at);
            }
            if let Ok(StepDone {
                outcome: Outcome::Started(ticket) | Outcome::Saving(ticket), processes, ..
            }) = result
                && job.goes_on(ticket, step.work.label())
                && matches!(step.work, Work::AwaitEnd { .. })
            {
                job.alive = Some(processes.max(1));
            }
            match step.work {
                Work::Signal { only_if_caught, .. } => {
                    signals += u32::from(only_if_caught);
                    asked += u32::from(carried && only_if_caught);
                    report.latency = carried.then(|| at.since(read)).or(report.latency);
                }
                Work::KillGroup { .. } | Work::KillTree { .. } if carried => {
                    report.latency = Some(at.since(read));
                    job.killed.get_or_insert(at);
                }
                Work::Freeze { ref group } if carried => {
                    job.paused = Some(group.clone());
                    job.stopped = Some(clock());
                }
                Work::Thaw { ref group } if carried && job.paused.as_ref() == Some(group) => {
                    job.paused = None;
                }
                _ => {}
            }
        }
        if signals > 0 && target.limits.mode == Mode::Enforce {
            job.catching = Some(asked);
        }
    }

    /// How long this seat can wait: until the nearest level could be crossed.
    #[expect(clippy::cast_precision_loss, reason = "bytes of memory, divided by a rate that is a guess")]
    fn pause(&self, slot: usize) -> Duration {
        let (Some(job), Some(ladder)) = (&self.slots[slot], self.board.ladder(slot)) else {
            return LONGEST;
        };
        let longest = match ladder.state() {
            State::Ok | State::Disarmed => LONGEST,
            State::Warn | State::Blind | State::Cooldown => WARNED,
            // Nobody was ended and nobody is waited for, or who was stays: it may take hours, and no level changes it.
            State::Verify if ladder.overdue() || ladder.limits().mode == Mode::Observe => return WARNED,
            State::Soft | State::Checkpoint | State::Term | State::Kill | State::Verify => SHORTEST,
        };
        let limits = ladder.limits();
        let reading = |resource| match resource {
            Resource::Host => self.host.map(|(_, reading)| reading),
            Resource::Cgroup => job.group(),
            // These change with the frame only.
            Resource::Gpu | Resource::Allocator => None,
        };
        let way = limits.watched().filter_map(|(resource, levels)| {
            let Reading { headroom, total, .. } = reading(resource)?;
            let soft = levels.soft.of(total);
            let next =
                if headroom > soft { soft } else { levels.hard.map_or(Bytes::ZERO, |hard| hard.of(total)) };
            let fastest = match resource {
                Resource::Host => self.flow.fastest(),
                _ => job.fastest(),
            };
            Some(headroom.saturating_sub(next).get() as f64 / fastest.max(FASTEST))
        });
        let nearest = way.fold(longest.as_secs_f64(), f64::min);
        Duration::from_secs_f64(nearest.max(0.0)).clamp(SHORTEST, longest)
    }
}

impl Executors {
    fn of(&mut self, target: &Target) -> Option<&mut Box<dyn Executor>> {
        if plan::may_touch(target) { self.enforce.as_mut() } else { Some(&mut self.observe) }
    }
}

/// A seat is what the executor calls a target.
fn id(slot: usize) -> TargetId {
    TargetId(u16::try_from(slot).unwrap_or(u16::MAX))
}
