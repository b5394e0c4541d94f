//! Evaluates the conditions of one step from the observations of that step. Stateless.
//!
//! A value that is missing or too old makes its conditions unknown, and an unknown condition triggers nothing.

use std::time::Duration;

use super::condition::{Condition, Conditions, Truth};
use super::gate::Gate;
use super::limits::{Levels, Limits, SwapCounts, Trigger};
use super::observed::{Aged, Observed, Reading, Resource};
use super::transition::{Mode, Reason};
use crate::model::outlook::Tte;
use crate::model::room;
use crate::model::units::Bytes;
use crate::types::rung::Rung;

/// Memory that is freed faster than this, in bytes per second, belongs to the victim: a teardown frees over 1 GiB per
/// second, and a hundredth of that is still above the noise of a host.
const RETURNING: f64 = 10.0 * 1_048_576.0;

/// A job that grows faster than this, in bytes per second, is not one that merely waits.
const GROWS: f64 = 1_048_576.0;

/// The result of evaluating one step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Judged {
    /// The truth of each condition.
    pub conditions: Conditions,
    /// Whether no watched reading is recent.
    pub blind: bool,
    /// The resource whose hard level is crossed, where the target may be killed for it.
    pub hard: Option<Resource>,
    /// The strongest trigger: its maximum state and its reason.
    pub push: (Option<Rung>, Reason),
    /// The reason for a warning, where one is due.
    pub warn: Option<Reason>,
    /// Whether a soft level is crossed.
    pub low: bool,
    /// Whether the shortage is over and no trigger holds.
    pub back: bool,
    /// Whether memory is being freed and the shortage is not over.
    pub returning: bool,
    /// Whether another target is being ended, and every resource whose soft level is crossed waits for its memory.
    pub held_up: bool,
    /// The shortest time to exhaustion at the fast rates, in seconds.
    pub left: Option<f64>,
    /// The same of the cgroup, where its soft level is crossed: other jobs do not fill it.
    pub own_left: Option<f64>,
}

/// A reading compared with its levels.
struct Level {
    soft: bool,
    /// Whether memory has fallen halfway to the hard level, or to zero without one.
    half: bool,
    hard: bool,
    near: bool,
    returning: bool,
    /// Memory left above the hard level.
    above_hard: Bytes,
    /// Memory that is missing until the soft level is not crossed, in bytes.
    lacking: Bytes,
    /// Seconds at the faster and at the slower rate.
    fast: Option<f64>,
    slow: Option<f64>,
    /// Growth in bytes per second, over the longer time.
    growth: Option<f64>,
}

/// Evaluates one step.
pub fn judge(limits: &Limits, observed: &Observed, gate: Gate) -> Judged {
    let mut judged = Judged { back: true, held_up: gate.busy, ..Judged::default() };
    let (mut fresh, mut seen) = (true, false);
    let (mut waits, mut helps) = (false, Truth::Unasked);
    let own = observed.gives;
    let grows = observed.growth.is_some_and(|growth| growth.value >= GROWS);
    let mut slow: Option<f64> = None;
    let (mut save_fits, mut save_left) = (None, None);
    let recent = observed.falls.filter(|falls| falls.age <= limits.forecast.max_age);
    let recent_falls = recent.map(|falls| falls.value);
    let present = limits.watched().filter(|(resource, _)| !observed.absent[resource.place()]);
    judged.blind = present.clone().next().is_some();
    for (resource, levels) in present {
        let level = level(limits, levels, observed.reading(resource));
        judged.note_level(resource, levels, level.as_ref());
        let Some(level) = level else {
            fresh = false;
            judged.back = false;
            continue;
        };
        seen = true;
        if let Some(save) = observed.save[resource.place()] {
            let falls = recent_falls.map_or(level.growth, |falls| falls[resource.place()]);
            let falls = falls.filter(|_| limits.forecast.max_state.is_some());
            if level.above_hard < save {
                save_fits = Some(false);
                // It does not become healthy by having become too large to save.
                judged.back &= falls.is_none();
            } else {
                save_fits = save_fits.or(Some(true));
                let spare = level.above_hard.saturating_sub(save);
                save_left = sooner(save_left, falls.map(|rate| seconds(spare.get(), rate)));
            }
        }
        // Throttled processes can save, and the kernel ends none of them.
        let ends_jobs = resource != Resource::High;
        let held_up = gate.waits_for(resource);
        waits |= held_up && (level.soft || level.hard);
        let of_group = resource == Resource::Cgroup;
        // What a limit of the job's processes counts ends with them.
        let is_own = of_group && observed.groups.least().is_none();
        let end_helps = gate
            .givers(resource)
            .is_none_or(|givers| is_own || own.is_some_and(|own| givers.helps(own, level.lacking, grows)));
        if level.soft || level.hard {
            helps = if end_helps { helps.max(Truth::Met) } else { Truth::NotMet };
        }
        if level.hard && !held_up && end_helps && judged.hard.is_none() {
            judged.hard = Some(resource);
        }
        if level.soft && !end_helps {
            judged.warn = Some(Reason::WouldNotHelp(resource));
        }
        // The kernel ends processes, whatever holds the memory: what is saved is not lost.
        if level.soft {
            judged.low |= ends_jobs;
            judged.held_up &= held_up;
            if of_group && !held_up {
                judged.own_left = level.fast;
            }
            let yields = gate.yields && matches!(resource, Resource::Host | Resource::Nodes);
            let soon = seconds_left(limits, observed, level.slow)
                .is_some_and(|left| left <= limits.soft_within.as_secs_f64());
            let ends = !yields && ends_jobs && (level.half || soon);
            let max_state = if held_up || !ends || !end_helps {
                limits.within(Some(Rung::Checkpoint))
            } else {
                limits.max_state
            };
            judged.push(max_state, Reason::Level(resource));
        }
        judged.returning |= level.returning;
        if level.near {
            judged.back = false;
            judged.warn = judged.warn.or(Some(Reason::Near(resource)));
        }
        if ends_jobs {
            judged.left = sooner(judged.left, level.fast);
            slow = sooner(slow, level.slow);
        }
    }
    judged.blind &= !seen;
    // The resource of these triggers is unknown, so they wait for a victim's memory as a shared level does.
    let most = if gate.busy { Some(Rung::Checkpoint) } else { Some(Rung::Kill) };
    waits |= judged.forecast(limits, observed, slow, most);
    judged.save_forecast(limits, save_left.filter(|_| save_fits == Some(true)));
    waits |= judged.trigger(limits, Condition::Leak, limits.leak, observed.leak, (Reason::Leak, most));
    let alert = observed.alert.map(|alert| Aged::of(alert.value.is_some(), alert.age));
    let furthest = observed.alert.and_then(|alert| alert.value).unwrap_or(Some(Rung::Kill));
    let trigger = Trigger { max_state: limits.alert.max_state.min(furthest), ..limits.alert };
    waits |= judged.trigger(limits, Condition::Alert, trigger, alert, (Reason::Alert, most));
    // A trigger that leads further than a warning is a warning too.
    if judged.push.0 >= Some(Rung::Warn) {
        judged.warn = judged.warn.or(Some(judged.push.1));
    }
    judged.back &= judged.push.0 < Some(Rung::Soft);
    let conditions = &mut judged.conditions;
    conditions.set(Condition::Fit, Truth::of(observed.fit));
    conditions.set(Condition::Fresh, Truth::of(fresh));
    conditions.set(Condition::Enforced, Truth::of(limits.mode == Mode::Enforce));
    let members = observed.members.map(|members| members.value);
    conditions.set(Condition::HasMembers, Truth::known(members.map(|members| members.count > 0)));
    conditions.set(Condition::AloneOnHost, Truth::of(!waits));
    conditions.set(Condition::Helps, helps);
    conditions.set(Condition::RateLeft, Truth::of(gate.left > 0));
    let catching = members.and_then(|members| members.catching);
    conditions.set(Condition::SaveFits, save_fits.map_or(Truth::Unasked, Truth::of));
    conditions.set(Condition::Catches, Truth::known(catching.map(|count| count > 0)));
    conditions.set(Condition::VictimsGone, Truth::known(observed.alive.map(|alive| alive == 0)));
    conditions.set(Condition::Recovered, Truth::of(judged.back));
    judged
}

impl Judged {
    /// Time for which a trigger must hold before a checkpoint is requested: shorter where the job fills its own limit so fast that
    /// little memory would be left for the checkpoint.
    pub fn wait(&self, limits: &Limits) -> Duration {
        /// Share of the time to exhaustion at the current rate that may pass.
        const SPENT: f64 = 0.1;
        let most = limits.for_time.as_secs_f64();
        Duration::from_secs_f64(self.own_left.map_or(most, |left| most.min(SPENT * left)))
    }

    fn push(&mut self, max_state: Option<Rung>, reason: Reason) {
        if max_state > self.push.0 {
            self.push = (max_state, reason);
        }
    }

    fn note_level(&mut self, resource: Resource, levels: &Levels, level: Option<&Level>) {
        let (soft, hard) = Condition::levels(resource);
        self.conditions.set(soft, Truth::known(level.map(|level| level.soft)));
        if let Some(hard) = hard.filter(|_| levels.hard.is_some()) {
            self.conditions.set(hard, Truth::known(level.map(|level| level.hard)));
        }
    }

    /// Returns whether the forecast would lead further than `most`.
    fn forecast(
        &mut self,
        limits: &Limits,
        observed: &Observed,
        slow: Option<f64>,
        most: Option<Rung>,
    ) -> bool {
        if limits.forecast.max_state.is_none() {
            return false;
        }
        let seconds = seconds_left(limits, observed, slow);
        let known = recent_forecast(limits, observed).is_some() || !self.blind;
        let within =
            |limit: Duration| known.then(|| seconds.is_some_and(|seconds| seconds <= limit.as_secs_f64()));
        let (warn, soft) = (within(limits.warn_within), within(limits.soft_within));
        self.conditions.set(Condition::ForecastWarn, Truth::known(warn));
        self.conditions.set(Condition::ForecastSoft, Truth::known(soft));
        if warn == Some(true) {
            self.warn = self.warn.or(Some(Reason::Forecast));
        }
        if soft != Some(true) {
            return false;
        }
        let max_state = limits.within(limits.forecast.max_state);
        self.push(max_state.min(most), Reason::Forecast);
        max_state > most
    }

    /// A checkpoint that soon cannot be saved any more is requested now. `left` are the predicted seconds until then.
    fn save_forecast(&mut self, limits: &Limits, left: Option<f64>) {
        let Some(left) = left else { return };
        let soon = left <= limits.soft_within.as_secs_f64();
        self.conditions.set(Condition::NoSaveSoon, Truth::of(soon));
        if soon {
            let max_state = limits.within(limits.forecast.max_state);
            self.push(max_state.min(Some(Rung::Checkpoint)), Reason::NoSaveSoon);
        }
    }

    /// Returns whether the trigger would lead further than is allowed now.
    fn trigger(
        &mut self,
        limits: &Limits,
        condition: Condition,
        trigger: Trigger,
        value: Option<Aged<bool>>,
        (reason, most): (Reason, Option<Rung>),
    ) -> bool {
        if trigger.max_state.is_none() {
            return false;
        }
        let known = value.filter(|value| value.age <= trigger.max_age).map(|value| value.value);
        self.conditions.set(condition, Truth::known(known));
        if known != Some(true) {
            return false;
        }
        let max_state = limits.within(trigger.max_state);
        self.push(max_state.min(most), reason);
        max_state > most
    }
}

fn recent_forecast(limits: &Limits, observed: &Observed) -> Option<Option<Tte>> {
    observed
        .forecast
        .filter(|forecast| forecast.age <= limits.forecast.max_age)
        .map(|forecast| forecast.value)
}

/// Predicted seconds until exhaustion; absent where none is predicted, or where predictions are ignored.
///
/// The analyzers distinguish a ramp from a leak, so the current rate counts only without a recent forecast.
fn seconds_left(limits: &Limits, observed: &Observed, slow: Option<f64>) -> Option<f64> {
    limits.forecast.max_state?;
    recent_forecast(limits, observed).map_or(slow, |forecast| forecast.map(|forecast| forecast.p50))
}

/// A reading compared with its levels; absent where it is missing, too old, or impossible.
fn level(limits: &Limits, levels: &Levels, reading: Option<&Aged<Reading>>) -> Option<Level> {
    let Aged { value, age } = reading?;
    let Reading { room, fast, slow } = *value;
    if *age > levels.max_age || room.is_implausible() {
        return None;
    }
    let headroom = room.left();
    let counted = |counts: bool| if counts { room } else { room.without_swap() };
    let escalates = counted(limits.swap != SwapCounts::Ignore);
    let warns = counted(limits.swap == SwapCounts::Count);
    let soft = escalates.level(levels.soft);
    let hard = levels.hard.map(|hard| room.level(hard));
    // At the very top nothing is near.
    let near = warns.level(levels.soft).plus(warns.level(limits.hysteresis));
    let near = warns.is_within(near) && (warns.memory < warns.limit || escalates.is_within(soft));
    let grows = |rate: Option<f64>| rate.filter(|rate| *rate > 0.0);
    let until = |rate: Option<f64>| grows(rate).map(|rate| seconds(headroom.get(), rate));
    Some(Level {
        soft: escalates.is_within(soft),
        half: escalates.is_within(soft.halfway(hard.unwrap_or(room::Level::EXHAUSTED))),
        hard: hard.is_some_and(|hard| room.is_within(hard)),
        near: near || escalates.is_within(soft),
        above_hard: headroom.saturating_sub(hard.map_or(Bytes::ZERO, room::Level::memory)),
        lacking: escalates.lacking(soft),
        returning: fast.is_some_and(|rate| rate <= -RETURNING),
        fast: until(fast),
        slow: until(slow),
        growth: grows(slow),
    })
}

#[expect(clippy::cast_precision_loss, reason = "bytes of memory, divided by a rate that is an estimate")]
fn seconds(bytes: u64, rate: f64) -> f64 {
    bytes as f64 / rate
}

/// The smaller of two, where there are any.
pub(super) fn sooner(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
