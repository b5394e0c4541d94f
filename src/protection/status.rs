//! The report of the guard: plain values that are copied without allocating, and exposed in frames by the sampler.

use std::collections::BTreeSet;
use std::time::Duration;

use super::metrics as m;
use super::policy::{ByResource, Condition, Conditions, Mode, Reading, Resource, State, Truth, UsedUp};
use super::types::step::{Outcome, StepKind, Work};
use crate::model::label::Label;
use crate::model::names::named;
use crate::model::point::Batch;
use crate::model::shortage::Shortage;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag, Seconds};

named! {
    /// Why a target is disarmed, other than the rate limit.
    pub enum Unfit {
        /// The executor could not be set up.
        NoExecutor = "no_executor",
        /// Memwarden may not signal any of its processes: `CAP_KILL` is missing.
        NoPermission = "no_permission",
        /// A user in `allow_users` does not exist on this host.
        UnknownUser = "unknown_user",
        /// It names the init process, memwarden, or an ancestor of memwarden.
        TooWide = "too_wide",
        /// Its scope was refused.
        Bounds = "bounds",
        /// Its processes are unknown: their sources are off or stuck.
        Unknown = "unknown",
        /// Another memwarden uses the same state directory: both would act on the same jobs.
        OtherDaemon = "other_daemon",
    }
}

/// The outcomes of steps, in the order of the counters.
pub const OUTCOMES: [&str; 4] = ["done", "started", "skipped", "failed"];

/// Counters of one target since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct TargetReport {
    /// Incidents.
    pub trips: u64,
    /// Transitions, by the state entered.
    pub moves: [u64; State::ALL.len()],
    /// Transitions in mode observe that would have acted, by the state entered.
    pub would: [u64; State::ALL.len()],
    /// Steps, by kind and outcome.
    pub steps: [[u64; OUTCOMES.len()]; StepKind::ALL.len()],
    /// Time from the reading to the last signal.
    pub latency: Option<Duration>,
    /// Time from the last kill to the end of its victims.
    pub teardown: Option<Duration>,
    /// Terminations left in the current hour.
    pub left: u32,
}

impl TargetReport {
    /// Counts a step.
    pub fn step(&mut self, work: &Work, outcome: Option<Outcome>) {
        let outcome = match outcome {
            Some(Outcome::Done) => 0,
            Some(Outcome::Started(_) | Outcome::Saving(_)) => 1,
            Some(Outcome::Skipped(_) | Outcome::WouldHave) => 2,
            None => 3,
        };
        self.steps[work.kind() as usize][outcome] += 1;
    }
}

/// The status of the job in one slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotReport {
    /// The index of its target.
    pub target: usize,
    /// Distinguishes the job from earlier jobs in the same slot.
    pub serial: u64,
    pub state: State,
    /// Whether the victims, or their kill, exceed the time limit.
    pub overdue: bool,
    /// The conditions of the last step.
    pub conditions: Conditions,
    /// Why no action is allowed.
    pub unfit: Option<Unfit>,
    /// The newest readings.
    pub readings: ByResource<Option<Reading>>,
    /// The time that the guard has spent on steps for the job.
    pub spent: Duration,
    /// The age of the oldest of them.
    pub age: Option<Duration>,
    /// The rate limits that are used up for it.
    pub used_up: UsedUp,
}

/// The report of the guard.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub targets: Vec<TargetReport>,
    pub slots: Vec<Option<SlotReport>>,
    /// Terminations left for the host in the current hour.
    pub host_left: u32,
    /// Rounds since the start.
    pub rounds: u64,
    /// The time of the last round.
    pub at: Option<Timestamp>,
    /// The longest delay of a wake-up.
    pub lag: Duration,
    /// The longest round.
    pub longest: Duration,
    /// CPU time of the thread.
    pub cpu: Duration,
    /// Whether its memory is locked.
    pub locked: bool,
}

impl Report {
    /// An empty report with room for everything.
    pub fn new(targets: usize, slots: usize) -> Self {
        Self { targets: vec![TargetReport::default(); targets], slots: vec![None; slots], ..Self::default() }
    }

    /// Copies another of the same size, without allocating.
    pub fn copy(&mut self, other: &Self) {
        self.targets.clone_from_slice(&other.targets);
        self.slots.clone_from_slice(&other.slots);
        let Self { host_left, rounds, at, lag, longest, cpu, locked, .. } = *other;
        (self.host_left, self.rounds, self.at, self.lag, self.longest, self.cpu, self.locked) =
            (host_left, rounds, at, lag, longest, cpu, locked);
    }

    /// Whether an incident is in progress in a slot whose target `enforces`. In mode observe nothing is interrupted,
    /// and a lasting shortage would never end; neither would a victim that exceeds its time limit after a kill.
    pub fn incident(&self, enforces: impl Fn(usize) -> bool) -> bool {
        let under_way =
            |slot: &SlotReport| slot.state.acts() || (slot.state == State::Verify && !slot.overdue);
        self.slots.iter().flatten().any(|slot| under_way(slot) && enforces(slot.target))
    }
}

/// The names for labels.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// By target: its name and mode.
    pub targets: Vec<(Label, Mode)>,
    /// By target: maximum number of terminations per hour.
    pub target_most_per_hour: Vec<u32>,
    /// Maximum number of terminations per hour on the host.
    pub max_kills_per_hour: u32,
    pub slots: Vec<Option<Name>>,
    /// Jobs without a slot, by user.
    pub without_slot: Vec<(Option<u32>, u64)>,
}

/// The job in a slot.
#[derive(Clone, Debug)]
pub struct Name {
    /// Distinguishes the job from earlier jobs in the same slot.
    pub serial: u64,
    /// The workload or cgroup.
    pub workload: Label,
    /// The user of the job; absent where the target names no job.
    pub user: Option<u32>,
    /// Number of its processes that may be signalled.
    pub members: u32,
    /// Number of its processes that may not be signalled.
    pub left_out: u32,
    /// Number of its processes that do not save a checkpoint on request, by the reason that they reported.
    pub cannot_save: Vec<(Label, u32)>,
}

/// Puts a report into a frame.
pub fn put(report: &Report, names: &Names, at: Timestamp, out: &mut Batch) {
    if names.targets.is_empty() {
        return;
    }
    for ((name, mode), target) in names.targets.iter().zip(&report.targets) {
        put_target(name, *mode, target, out);
    }
    let mut disarmed = Vec::new();
    for (slot, known) in report.slots.iter().zip(&names.slots) {
        if let (Some(slot), Some(Name { serial, workload, members, left_out, user, cannot_save })) =
            (slot, known)
            && slot.serial == *serial
            && let Some((target, _)) = names.targets.get(slot.target)
        {
            let labels = [target.clone(), workload.clone()];
            out.put(&m::MEMBERS, &labels, Count(u64::from(*members)));
            out.put(&m::LEFT_OUT, &labels, Count(u64::from(*left_out)));
            for (reason, count) in cannot_save {
                let labels = [target.clone(), workload.clone(), reason.clone()];
                out.put(&m::CANNOT_SAVE, &labels, Count(u64::from(*count)));
            }
            put_slot(&labels, slot, out);
            let limited = slot.unfit.is_none() && slot.conditions.get(Condition::RateLeft) == Truth::NotMet;
            if limited && slot.state == State::Disarmed {
                disarmed.push((*user, slot));
            }
        }
    }
    put_shortages(names, &disarmed, out);
    out.put(&m::HOST_KILL_BUDGET, &[], Count(u64::from(report.host_left)));
    out.put(&m::ROUNDS, &[], Count(report.rounds));
    out.put_some(&m::ROUND_AGE, &[], report.at.map(|then| at.since(then).into()));
    out.put(&m::LAG, &[], report.lag.into());
    out.put(&m::LONGEST_ROUND, &[], report.longest.into());
    out.put(&m::CPU, &[], report.cpu.into());
    out.put(&m::LOCKED, &[], Flag(report.locked));
    out.put(&m::UNPROTECTED_JOBS, &[], Count(names.without_slot.iter().map(|(_, count)| count).sum()));
}

/// Reports the jobs without protection by limit and user; `disarmed` are those whose rate limit is used up.
fn put_shortages(names: &Names, disarmed: &[(Option<u32>, &SlotReport)], out: &mut Batch) {
    let mut state = |limit, user, left_out, most| {
        out.facts.shortages.push(Shortage { limit, user, left_out, most });
    };
    for (user, left_out) in &names.without_slot {
        state("protection_slots", *user, *left_out, names.slots.len() as u64);
    }
    let used_up = |limit: fn(UsedUp) -> bool| disarmed.iter().filter(move |(_, slot)| limit(slot.used_up));
    for (user, _) in used_up(|limits| limits.host) {
        state("protection_per_hour", *user, 1, u64::from(names.max_kills_per_hour));
    }
    let targets: BTreeSet<usize> = used_up(|limits| limits.target).map(|(_, slot)| slot.target).collect();
    let most = targets.iter().filter_map(|target| names.target_most_per_hour.get(*target));
    let most = most.map(|most| u64::from(*most)).sum();
    for (user, _) in used_up(|limits| limits.target) {
        state("protection_target_per_hour", *user, 1, most);
    }
}

fn put_target(name: &Label, mode: Mode, target: &TargetReport, out: &mut Batch) {
    for other in [Mode::Observe, Mode::Enforce] {
        out.put(&m::MODE, &[name.clone(), other.label().into()], Flag(mode == other));
    }
    out.put(&m::INCIDENTS_STARTED, std::slice::from_ref(name), Count(target.trips));
    for (place, state) in State::ALL.into_iter().enumerate() {
        let labels = [name.clone(), state.label().into()];
        out.put(&m::TRANSITIONS, &labels, Count(target.moves[place]));
        if state.acts() {
            out.put(&m::DRY_RUN_TRANSITIONS, &labels, Count(target.would[place]));
        }
    }
    for (step, counts) in StepKind::ALL.into_iter().zip(&target.steps) {
        // Steps that were never carried out have no series, except for signals and kills.
        if counts.iter().any(|count| *count > 0)
            || matches!(step, StepKind::Signal | StepKind::KillTree | StepKind::KillGroup)
        {
            for (outcome, count) in OUTCOMES.iter().zip(counts) {
                out.put(&m::STEPS, &[name.clone(), step.label().into(), (*outcome).into()], Count(*count));
            }
        }
    }
    out.put_some(&m::SIGNAL_LATENCY, std::slice::from_ref(name), target.latency.map(Seconds::from));
    out.put_some(&m::TEARDOWN, std::slice::from_ref(name), target.teardown.map(Seconds::from));
    out.put(&m::KILL_BUDGET, std::slice::from_ref(name), Count(u64::from(target.left)));
}

fn put_slot(labels: &[Label; 2], slot: &SlotReport, out: &mut Batch) {
    let and = |last: &'static str| [labels[0].clone(), labels[1].clone(), last.into()];
    for state in State::ALL {
        out.put(&m::STATE, &and(state.label()), Flag(state == slot.state));
    }
    for condition in Condition::ALL {
        let known = match slot.conditions.get(condition) {
            Truth::Met => Some(true),
            Truth::NotMet => Some(false),
            Truth::Unknown | Truth::Unasked => None,
        };
        out.put_some(&m::CONDITION, &and(condition.label()), known.map(Flag));
    }
    if let Some(unfit) = slot.unfit {
        out.put(&m::DISARMED_REASON, &and(unfit.label()), Flag(true));
    }
    for resource in Resource::ALL {
        let headroom: Option<Bytes> = slot.readings[resource.place()].map(|reading| reading.headroom());
        out.put_some(&m::HEADROOM, &and(resource.label()), headroom);
    }
    out.put_some(&m::DECISION_AGE, labels, slot.age.map(Seconds::from));
    out.put(&m::OVERDUE, labels, Flag(slot.overdue));
    out.put(&m::JOB_STEPS, labels, slot.spent.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shortages reported for slots of these targets and users, with these used-up limits.
    fn stated(slots: &[(usize, u32, UsedUp)]) -> Vec<(&'static str, Option<u32>, u64, u64)> {
        let mut report = Report::new(2, slots.len());
        let mut names = Names {
            targets: vec![("a".into(), Mode::Enforce), ("b".into(), Mode::Enforce)],
            target_most_per_hour: vec![3, 4],
            max_kills_per_hour: 5,
            ..Names::default()
        };
        for (place, (target, user, used_up)) in slots.iter().enumerate() {
            let mut conditions = Conditions::default();
            conditions.set(Condition::RateLeft, Truth::NotMet);
            report.slots[place] = Some(SlotReport {
                target: *target,
                serial: 1,
                state: State::Disarmed,
                overdue: false,
                conditions,
                unfit: None,
                readings: Default::default(),
                spent: Duration::ZERO,
                age: None,
                used_up: *used_up,
            });
            let workload = format!("job-{place}").into();
            let (user, cannot_save) = (Some(*user), Vec::new());
            names.slots.push(Some(Name { serial: 1, workload, user, members: 1, left_out: 0, cannot_save }));
        }
        let mut out = Batch::new();
        put(&report, &names, Timestamp::from_secs(1), &mut out);
        let each = |shown: Shortage| (shown.limit, shown.user, shown.left_out, shown.most);
        out.facts.shortages.into_iter().map(each).collect()
    }

    #[test]
    fn the_limit_an_hour_that_is_used_up_is_stated() {
        let (host, target) = (UsedUp { host: true, target: false }, UsedUp { host: false, target: true });
        assert_eq!(stated(&[(0, 7, host)]), [("protection_per_hour", Some(7), 1, 5)]);
        assert_eq!(stated(&[(1, 7, target)]), [("protection_target_per_hour", Some(7), 1, 4)]);
        assert_eq!(
            stated(&[(0, 7, UsedUp { host: true, target: true }), (1, 9, target)]),
            [
                ("protection_per_hour", Some(7), 1, 5),
                ("protection_target_per_hour", Some(7), 1, 7),
                ("protection_target_per_hour", Some(9), 1, 7)
            ]
        );
        assert!(stated(&[(0, 7, UsedUp::default())]).is_empty());
    }

    #[test]
    fn only_who_enforces_has_an_incident_that_is_waited_for() {
        let mut report = Report::new(2, 2);
        assert!(!report.incident(|_| true));
        report.slots[1] = Some(SlotReport {
            target: 1,
            serial: 1,
            state: State::Verify,
            overdue: false,
            conditions: Conditions::default(),
            unfit: None,
            readings: Default::default(),
            spent: Duration::ZERO,
            age: None,
            used_up: UsedUp::default(),
        });
        assert_eq!(
            (report.incident(|target| target == 1), report.incident(|target| target == 0)),
            (true, false)
        );
        // A victim that stays after a kill may stay forever, and is not signalled again; before a kill it may still be
        // killed.
        for (state, waited_for) in [(State::Verify, false), (State::Term, true)] {
            if let Some(slot) = &mut report.slots[1] {
                (slot.state, slot.overdue) = (state, true);
            }
            assert_eq!(report.incident(|_| true), waited_for);
        }
    }
}
