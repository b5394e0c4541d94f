//! What would have become of recorded runs with a limit and under a policy.
//!
//! The memory of a run is as it was recorded, with straight lines between two samples, until a policy or the kernel ends it.
//! The policy of memwarden is the code of the daemon: the analyzers forecast, [`Board`] decides, [`Plan`] has the steps. The other
//! policies are as their documentation describes them, with their defaults ([`Policy`]).
//!
//! A run whose memory is that of a GPU ends when it crosses the limit, because its allocation fails: the kernel kills nothing for it,
//! and of the policies only memwarden watches it, where the target has levels of the GPU ([`Policy::watches`]).

use std::sync::Arc;
use std::time::Duration;

use memwarden::analyzers::replay::{Options, ReplayedAssessment, replay};
use memwarden::model::checkpoint::CheckpointState;
use memwarden::model::ids::ProcessKey;
use memwarden::model::names::named;
use memwarden::model::outlook::LeakState;
use memwarden::model::room::Room;
use memwarden::model::series::{Row, Series};
use memwarden::model::time::Timestamp;
use memwarden::model::units::{Bytes, real, whole};
use memwarden::protection::options::target::Target;
use memwarden::protection::plan::victim::{Asked, Roster};
use memwarden::protection::plan::{Plan, PlanInput, stage_of};
use memwarden::protection::policy::{
    Ack, Aged, Board, Escalation, Limits, Members, Mode, Observed, Occupied, Reading, Resource,
};
use memwarden::protection::types::step::{SignalNumber, TargetId, Work};

/// Seconds between two steps; longer in recordings of more than [`MOST_STEPS`] seconds, and of few samples among many.
const STEP: f64 = 1.0;
const MOST_STEPS: f64 = 200_000.0;
/// Steps between two samples, on average, and of any recording.
const STEPS_OF_SAMPLE: f64 = 64.0;
const FEWEST_STEPS: f64 = 256.0;
/// Samples between two assessments of the analyzers.
const ASSESSED_EVERY: usize = 10;
/// Seconds of the slow rate of growth.
const SLOW: f64 = 30.0;
/// The time at which the simulated clock begins: no limit of time has passed since before it.
const BEGIN: Timestamp = Timestamp::from_secs(1_000_000);

/// Who ends runs.
#[derive(Clone, Debug)]
pub enum Policy {
    /// Only the kernel, which kills the largest run when the limit is reached. It does so under the other policies too.
    Kernel,
    /// earlyoom(1): SIGTERM to the largest process when at most 10 % is available, SIGKILL when at most 5 % is. No swap.
    Earlyoom,
    /// oomd.conf(5): by pressure (60 % for 30 s) and swap (90 %), neither of which a recording of memory has.
    Oomd,
    /// "Out-Of-Memory Prevention" of the documentation of Ray: kills when more than 95 % is used, the newest task first.
    Ray,
    /// Protection of this target, and the maximum number of terminations per hour on the host.
    Memwarden(Box<Target>, u32),
}

impl Policy {
    /// Whether it does anything for memory of this kind, of a GPU or of the host. earlyoom, systemd-oomd and the memory monitor of
    /// Ray read the memory of the host and its cgroups only.
    pub fn watches(&self, gpu: bool) -> bool {
        match self {
            Self::Memwarden(target, _) if gpu => target.limits.levels[Resource::Gpu.place()].is_some(),
            _ => !gpu,
        }
    }
}

/// What is assumed of the runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Assumed {
    /// Seconds that saving a checkpoint takes; absent where the runs do not handle the checkpoint signal.
    pub save: Option<f64>,
    /// Seconds from one regular checkpoint to the next; absent where there are none.
    pub every: Option<f64>,
    /// The number of runs that are played, one by one.
    pub runs: usize,
}

named! {
    /// What became of a run.
    #[derive(serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Fate {
        /// It reached the end of its recording.
        Survived = "survived",
        OomKilled = "killed by the kernel",
        /// The policy sent SIGTERM.
        Terminated = "terminated",
        /// The policy sent SIGKILL.
        Killed = "killed",
        /// An allocation on the GPU failed: a CUDA out-of-memory error ended it.
        OutOfGpuMemory = "out of GPU memory",
        /// What the policy depends on was not recorded.
        Undecided = "undecided",
    }
}

named! {
    /// What was not recorded, so that the fate of a run is undecided.
    #[derive(serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Unrecorded {
        /// The policy decides by them.
        PressureAndSwap = "pressure and swap are not recorded",
        /// The run really ended out of GPU memory, and the limit is above the memory of that GPU, or that memory is unknown.
        SufficientGpuMemory = "the run really ended out of GPU memory, and how much would have sufficed is not recorded",
    }
}

/// What became of a run, in seconds since its beginning.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Outcome {
    pub fate: Fate,
    /// Why the fate is undecided; absent where it is not.
    pub unrecorded: Option<Unrecorded>,
    /// When it ended, of one that survived when its recording did; absent where that is undecided.
    pub ended_seconds: Option<f64>,
    /// When a checkpoint was last requested.
    pub asked_seconds: Option<f64>,
    /// When a requested checkpoint was last saved.
    pub saved_seconds: Option<f64>,
    /// The time since its last checkpoint, which is lost; absent where it survived.
    pub lost_seconds: Option<f64>,
}

/// One run while it is played.
struct Live<'s> {
    rows: &'s [Row],
    /// The next row.
    place: usize,
    key: ProcessKey,
    /// Its memory at this step, and before it; absent before its first and after its last sample.
    used: Option<f64>,
    before: Option<f64>,
    /// Time and memory of the steps of the last [`SLOW`] seconds.
    recent: std::collections::VecDeque<(f64, f64)>,
    /// The times of all checkpoint requests.
    requests: Vec<f64>,
    end: Option<(Fate, f64)>,
}

/// What a policy does to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Ask,
    End(Fate),
}

/// Memory that cannot be reclaimed, where that is known.
fn level(row: &Row) -> f64 {
    row.unreclaimable.unwrap_or(row.used)
}

impl<'s> Live<'s> {
    fn new(series: &'s Series, pid: u32) -> Self {
        let key = ProcessKey { pid, start: 0 };
        let recent = std::collections::VecDeque::new();
        Self {
            rows: &series.rows,
            place: 0,
            key,
            used: None,
            before: None,
            recent,
            requests: Vec::new(),
            end: None,
        }
    }

    /// Moves to a time since the first sample. The memory is the largest since the step before, so that no sample is left out.
    fn move_to(&mut self, at: f64) {
        let first = self.rows.first().map_or(0.0, |row| row.at);
        let mut highest: Option<f64> = None;
        while let Some(row) = self.rows.get(self.place).filter(|row| row.at - first <= at) {
            highest = Some(highest.map_or(level(row), |known| known.max(level(row))));
            self.place += 1;
        }
        let last = self.place.checked_sub(1).and_then(|place| self.rows.get(place));
        let between = last.zip(self.rows.get(self.place)).map(|(last, next)| {
            let passed = (at - (last.at - first)) / (next.at - last.at);
            level(last) + (level(next) - level(last)) * passed
        });
        self.before = self.used;
        self.used = highest.into_iter().chain(between).reduce(f64::max).filter(|_| self.end.is_none());
        self.recent.extend(self.used.map(|used| (at, used)));
        while self.recent.front().is_some_and(|(then, _)| at - then > SLOW) {
            self.recent.pop_front();
        }
    }

    fn stop(&mut self, fate: Fate, at: f64) {
        self.end = self.end.or(Some((fate, at)));
        self.used = None;
    }

    fn is_over(&self) -> bool {
        self.end.is_some() || self.place >= self.rows.len()
    }

    /// Bytes per second since the previous step, and in the last [`SLOW`] seconds.
    fn rates(&self, step: f64) -> (Option<f64>, Option<f64>) {
        let fast = self.used.zip(self.before).map(|(used, before)| (used - before) / step);
        let slow = self.recent.front().zip(self.recent.back()).filter(|(first, last)| last.0 > first.0);
        (fast, slow.map(|((from, first), (to, last))| (last - first) / (to - from)))
    }

    fn outcome(&self, assumed: Assumed) -> Outcome {
        let length = self.rows.first().zip(self.rows.last()).map_or(0.0, |(first, last)| last.at - first.at);
        let (fate, ended) = self.end.unwrap_or((Fate::Survived, length));
        let saves = |save: f64| self.requests.iter().rev().map(move |asked| asked + save);
        let saved = assumed.save.and_then(|save| saves(save).find(|saved| *saved <= ended));
        let outcome = Outcome {
            fate,
            unrecorded: None,
            ended_seconds: Some(ended),
            asked_seconds: self.requests.last().copied(),
            saved_seconds: saved,
            lost_seconds: None,
        };
        if fate == Fate::Survived { outcome } else { outcome.lost(fate, assumed) }
    }
}

impl Outcome {
    /// The same run, ended at the same time by something else, with what is lost then.
    #[must_use]
    pub fn lost(self, fate: Fate, assumed: Assumed) -> Self {
        let ended = self.ended_seconds.unwrap_or(0.0);
        let regular = assumed.every.map_or(0.0, |every| (ended / every).floor() * every);
        let lost = ended - self.saved_seconds.unwrap_or(0.0).max(regular);
        Self { fate, lost_seconds: Some(lost), ..self }
    }

    /// The same run, of which is not known what became of it.
    #[must_use]
    pub const fn undecided(self, unrecorded: Unrecorded) -> Self {
        Self {
            fate: Fate::Undecided,
            unrecorded: Some(unrecorded),
            ended_seconds: None,
            lost_seconds: None,
            ..self
        }
    }
}

/// Plays runs that begin at the same time and share the memory `limit`, in bytes: all of a host, or all of one GPU.
pub fn play(runs: &[&Series], limit: f64, policy: &Policy, assumed: Assumed) -> Vec<Outcome> {
    let gpu = runs.iter().any(|series| series.gpu);
    // Without a policy, the limit alone ends runs.
    let policy = if policy.watches(gpu) { policy } else { &Policy::Kernel };
    let mut live: Vec<Live<'_>> = (1..).zip(runs).map(|(pid, series)| Live::new(series, pid)).collect();
    if matches!(policy, Policy::Oomd) {
        live.iter_mut().for_each(|run| run.end = Some((Fate::Undecided, 0.0)));
        let undecided = |run: &Live<'_>| run.outcome(assumed).undecided(Unrecorded::PressureAndSwap);
        return live.iter().map(undecided).collect();
    }
    let mut guard = match policy {
        Policy::Memwarden(target, most) => Some(Guard::new((target, *most), runs, limit)),
        _ => None,
    };
    let length = |series: &&Series| series.rows.first().zip(series.rows.last()).map(|(a, b)| b.at - a.at);
    let longest = runs.iter().filter_map(length).fold(0.0, f64::max);
    // Many runs of a few samples each are no reason for many steps of each.
    let rows: usize = runs.iter().map(|series| series.rows.len()).sum();
    let own = real(rows as u64) * STEPS_OF_SAMPLE + FEWEST_STEPS;
    let most = (MOST_STEPS / real(assumed.runs.max(1) as u64)).max(own).min(MOST_STEPS);
    let step = (longest / most).max(STEP);
    let mut at = 0.0;
    while !live.iter().all(Live::is_over) || at == 0.0 {
        live.iter_mut().for_each(|run| run.move_to(at));
        // What has reached the limit is the kernel's, or fails in the driver, whatever a policy would do now. A GPU can be full.
        while total(&live) > limit || (total(&live) >= limit && !gpu) {
            let Some(place) = largest(&live) else { break };
            live[place].stop(if gpu { Fate::OutOfGpuMemory } else { Fate::OomKilled }, at);
        }
        let acts = match (&mut guard, policy) {
            (Some(guard), _) => guard.step(&live, at, step, assumed),
            (None, policy) => documented(policy, &live, limit),
        };
        for (place, act) in acts {
            let run = &mut live[place];
            match act {
                Act::Ask => run.requests.push(at),
                Act::End(fate) => run.stop(fate, at),
            }
        }
        at += step;
    }
    live.iter().map(|run| run.outcome(assumed)).collect()
}

fn total(live: &[Live<'_>]) -> f64 {
    live.iter().filter_map(|run| run.used).sum()
}

fn largest(live: &[Live<'_>]) -> Option<usize> {
    let used = live.iter().enumerate().filter_map(|(place, run)| Some((place, run.used?)));
    used.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(place, _)| place)
}

/// What the policies of others do.
fn documented(policy: &Policy, live: &[Live<'_>], limit: f64) -> Vec<(usize, Act)> {
    let used = total(live) / limit;
    let newest = live.iter().rposition(|run| run.used.is_some());
    let act = match policy {
        Policy::Earlyoom if 1.0 - used <= 0.05 => largest(live).zip(Some(Fate::Killed)),
        Policy::Earlyoom if 1.0 - used <= 0.1 => largest(live).zip(Some(Fate::Terminated)),
        Policy::Ray if used > 0.95 => newest.zip(Some(Fate::Killed)),
        _ => None,
    };
    act.into_iter().map(|(place, fate)| (place, Act::End(fate))).collect()
}

/// Protection by memwarden: a slot of the board for each run.
struct Guard<'t> {
    target: &'t Target,
    board: Board,
    limit: f64,
    resource: Resource,
    /// The assessments of all runs together against the limit, and of each run.
    shared: Vec<ReplayedAssessment>,
    own: Vec<Vec<ReplayedAssessment>>,
    plan: Plan,
}

impl<'t> Guard<'t> {
    fn new((target, most): (&'t Target, u32), runs: &[&Series], limit: f64) -> Self {
        // What would be done is the question, whatever the configuration does now.
        let limits = Limits { mode: Mode::Enforce, ..target.limits.clone() };
        let mut board = Board::new(runs.len(), [limits.max_kills_per_hour], most);
        for slot in 0..runs.len() {
            let escalation = Escalation::new(limits.clone(), BEGIN);
            board.set_slot(slot, Some(Occupied { target: 0, user: None, escalation }));
        }
        let options = Options { limit: Some(limit), horizons: Vec::new(), every: ASSESSED_EVERY, gpu: false };
        Self {
            target,
            board,
            limit,
            // Runs that share memory of the host share all of it.
            resource: match (runs.iter().any(|series| series.gpu), runs.len() > 1) {
                (true, _) => Resource::Gpu,
                (false, true) => Resource::Host,
                (false, false) => Resource::Cgroup,
            },
            shared: if runs.len() > 1 { replay(&sum(runs), &options) } else { Vec::new() },
            own: runs.iter().map(|series| replay(series, &options)).collect(),
            plan: Plan::default(),
        }
    }

    fn step(&mut self, live: &[Live<'_>], at: f64, step: f64, assumed: Assumed) -> Vec<(usize, Act)> {
        let mut acts = Vec::new();
        let now = BEGIN.plus(Duration::try_from_secs_f64(at).unwrap_or_default());
        let used = total(live);
        for (slot, run) in live.iter().enumerate() {
            let observed = self.observed(live, (slot, run), used, at, (step, assumed));
            let Some(transition) = self.board.step(slot, now, &observed) else { continue };
            let Some(stage) = stage_of(&transition) else { continue };
            let input = PlanInput {
                id: TargetId(0),
                target: self.target,
                transition: &transition,
                observed: &observed,
                stage,
                roster: &roster(run, assumed),
                notification: None,
            };
            self.plan.make(&input);
            for planned in self.plan.steps() {
                let act = match planned.step.work {
                    Work::Signal { only_if_caught: true, .. } | Work::Touch { .. } => Act::Ask,
                    Work::Signal { signal: SignalNumber::TERM, .. } => Act::End(Fate::Terminated),
                    Work::KillTree { .. } | Work::KillGroup { .. } => Act::End(Fate::Killed),
                    _ => continue,
                };
                acts.push((slot, act));
            }
        }
        acts
    }

    fn observed(
        &self,
        live: &[Live<'_>],
        (slot, run): (usize, &Live<'_>),
        used: f64,
        at: f64,
        (step, assumed): (f64, Assumed),
    ) -> Observed {
        let shared = live.len() > 1;
        // The guard reads the memory of a GPU once in a tick, and computes no rates of it (`guard/foresight.rs`); the growth that it
        // knows of a job is that of its memory on the host.
        let is_read_often = self.resource != Resource::Gpu;
        let (fast, slow): (Vec<_>, Vec<_>) =
            live.iter().filter(|run| run.used.is_some()).map(|run| run.rates(step)).unzip();
        let sum = |rates: Vec<Option<f64>>| {
            rates.into_iter().flatten().reduce(|one, other| one + other).filter(|_| is_read_often)
        };
        let reading = Reading {
            room: Room::new(Bytes::of((self.limit - used).max(0.0)), Bytes::of(self.limit)),
            fast: sum(fast),
            slow: sum(slow),
        };
        let gives = run.used.map(Bytes::of);
        let mut observed =
            Observed { fit: true, absent: [true; Resource::ALL.len()], gives, ..Observed::default() };
        observed.absent[self.resource.place()] = false;
        observed.readings[self.resource.place()] = Some(Aged::now(reading));
        let latest = |all: &'_ [ReplayedAssessment], from: f64| {
            let place = all.partition_point(|known| known.at - from <= at);
            place
                .checked_sub(1)
                .and_then(|place| all.get(place))
                .map(|known| (known.assessment.tte, known.assessment.leak))
        };
        let first = run.rows.first().map_or(0.0, |row| row.at);
        let own = latest(&self.own[slot], first);
        let forecast = if shared { latest(&self.shared, 0.0) } else { own };
        observed.growth = run.rates(step).1.filter(|_| is_read_often).map(Aged::now);
        observed.forecast = forecast.map(|(tte, _)| Aged::now(tte));
        observed.leak = own.map(|(_, leak)| Aged::now(leak == LeakState::Leaking));
        let catching = run.requests.last().map(|_| u32::from(assumed.save.is_some()));
        observed.members = Some(Aged::now(Members { count: u32::from(run.used.is_some()), catching }));
        observed.alive = run.end.map(|_| 0);
        let stamp = |seconds: f64| BEGIN.plus(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        observed.ack =
            run.requests.last().copied().zip(assumed.save).map(|(asked, save)| match asked + save {
                saved if saved <= at => Ack { kind: CheckpointState::Saved, at: stamp(saved) },
                _ => Ack { kind: CheckpointState::Saving, at: stamp(asked) },
            });
        observed
    }
}

fn roster(run: &Live<'_>, assumed: Assumed) -> Roster {
    let asked = Asked { key: run.key, above: None };
    Roster {
        ask: assumed.save.map(|_| asked).into_iter().collect(),
        end: vec![run.key],
        largest: Arc::new([run.key]),
        group: None,
        resident: Bytes::of(run.used.unwrap_or(0.0)),
        groups: Vec::new(),
    }
}

/// The memory of all runs together, at the times of all their samples since their beginnings.
fn sum(runs: &[&Series]) -> Series {
    let since_first = |series: &&Series| {
        let first = series.rows.first().map_or(0.0, |row| row.at);
        series.rows.iter().map(move |row| row.at - first).collect::<Vec<_>>()
    };
    let mut times: Vec<f64> = runs.iter().flat_map(since_first).collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    let mut live: Vec<Live<'_>> = runs.iter().map(|series| Live::new(series, 0)).collect();
    let points = times.into_iter().map(|at| {
        live.iter_mut().for_each(|run| run.move_to(at));
        (at, Some(total(&live)))
    });
    let gpu = runs.iter().any(|series| series.gpu);
    Series { gpu, ..Series::of_points(String::new(), None, points.collect::<Vec<_>>()) }
}

/// The smallest limit with which a run that has the limit for itself survives, to a hundredth of its peak; absent where it does
/// not survive with four times its peak either, or where that is not decided.
pub fn least_limit(series: &Series, policy: &Policy, assumed: Assumed) -> Option<f64> {
    let peak = series.rows.iter().map(level).fold(0.0, f64::max);
    let survives =
        |limit: f64| play(&[series], limit, policy, assumed).iter().all(|run| run.fate == Fate::Survived);
    let (mut low, mut high) = (0.0, 4.0 * peak);
    if !survives(high) {
        return None;
    }
    while high - low > 0.01 * peak {
        let middle = f64::midpoint(low, high);
        if survives(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

/// The smallest of `limits` that is at least as large as 99 % of them.
pub fn for_99_percent(mut limits: Vec<f64>) -> Option<f64> {
    limits.sort_by(f64::total_cmp);
    let place = whole((real(limits.len() as u64) * 0.99).ceil()).saturating_sub(1);
    limits.get(usize::try_from(place).ok()?).copied()
}

#[cfg(test)]
mod tests;
