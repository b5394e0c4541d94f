//! The escalation of one job: its state, and the next transition.
//!
//! One call of [`Escalation::step`] makes at most one transition, and a crossed hard level leads to a kill from any
//! state but those after one. The steps that a transition causes are planned elsewhere, from the [`Transition`].

mod ending;
mod request;

use std::time::Duration;

use super::condition::{Condition, Conditions, Truth};
use super::gate::{Futile, Gate};
use super::judge::{Judged, judge};
use super::limits::Limits;
use super::observed::{ByResource, Observed, Resource};
use super::transition::{Reason, Transition};
use crate::model::checkpoint::CheckpointState;
use crate::model::limited_groups::LimitedGroups;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::types::rung::{Rung, State};

/// The fast rate contains a burst for a second after its end, so that a job that has just loaded its data is not
/// killed. A burst that continues reaches the hard level first.
const BURST: Duration = Duration::from_millis(1_500);
/// Time after which a limit is raised again for a save that does not fit yet; twice as long each time.
const RAISE_AGAIN: Duration = Duration::from_secs(1);

/// One shortage, from its first transition to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Incident {
    number: u64,
    /// When the time limit of the checkpoint began, whether or not a signal was sent.
    grace_from: Option<Timestamp>,
    /// Whether the checkpoint signal was sent in this incident, and is not to be repeated.
    asked: bool,
    /// When SIGTERM was due.
    term_from: Option<Timestamp>,
    /// Whether another node of the run, or systemd-oomd, asked for the checkpoint.
    requested: bool,
    /// Whether it counts against the rate limits.
    counted: bool,
    /// Whether it was reported that the victims, or their memory, exceed the time limit.
    overdue: bool,
    /// When it was reported that a checkpoint is not requested, because saving it needs more memory than is left, and how often before.
    refused: Option<(Timestamp, u32)>,
    /// The resource that began it, where it was one.
    resource: Option<Resource>,
    /// The limited cgroups of the job when it was last sent SIGTERM or SIGKILL.
    groups: LimitedGroups,
    /// What was left when it was first sent one of them, and what its end was to give back, in bytes.
    left_then: ByResource<Option<Bytes>>,
    gives_then: Bytes,
}

impl Incident {
    /// Whether the resource that began it has no reading.
    fn is_unread(&self, observed: &Observed) -> bool {
        self.resource.is_some_and(|resource| observed.reading(resource).is_none())
    }
}

/// The escalation of one job.
#[derive(Clone, Debug)]
pub struct Escalation {
    limits: Limits,
    state: State,
    since: Timestamp,
    /// Since when a trigger has held without interruption.
    pushed: Option<Timestamp>,
    /// Time for which it must hold before the next state, in the last step: nothing is ended before `for_time`.
    wait: Duration,
    /// Since when the shortage has been over without interruption.
    back: Option<Timestamp>,
    /// Since when the time to exhaustion has been below `kill_margin` without interruption.
    short: Option<Timestamp>,
    /// The state to which BLIND returns.
    resume: State,
    incident: Option<Incident>,
    incidents: u64,
    asked: Option<Timestamp>,
    /// Whether it was reported that the rate limit forbids a due action.
    withheld: bool,
    /// Whether a kill was decided in the last step that could not begin.
    kill_waits: bool,
    /// The resources of which the end of its last victims gave nothing back.
    futile: Futile,
    /// Whether the limits are those of a pool.
    is_pool: bool,
    conditions: Conditions,
}

impl Escalation {
    /// An escalation in state OK since `now`.
    pub fn new(limits: Limits, now: Timestamp) -> Self {
        Self {
            state: State::Ok,
            since: now,
            pushed: None,
            wait: limits.for_time,
            back: None,
            short: None,
            resume: State::Ok,
            incident: None,
            incidents: 0,
            asked: None,
            withheld: false,
            kill_waits: false,
            futile: Futile::default(),
            is_pool: false,
            conditions: Conditions::default(),
            limits,
        }
    }

    /// Sets the time of the last checkpoint request to the job, made before this escalation existed.
    #[must_use]
    pub const fn asked_before(self, at: Option<Timestamp>) -> Self {
        Self { asked: at, ..self }
    }

    /// The limits of the policy.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The current state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// The conditions of the last step.
    pub const fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// The resources of which the end of its last victims gave nothing back.
    pub const fn futile(&self) -> Futile {
        self.futile
    }

    /// Whether the last step would have killed, if the kill could have begun.
    pub const fn kill_waits(&self) -> bool {
        self.kill_waits
    }

    /// The number of the current incident.
    pub fn incident(&self) -> Option<u64> {
        self.incident.map(|incident| incident.number)
    }

    /// Evaluates one step, and makes at most one transition.
    pub fn step(&mut self, now: Timestamp, observed: &Observed, gate: Gate) -> Option<Transition> {
        self.forget_request(observed);
        let mut judged = judge(&self.limits, observed, gate);
        hold(&mut self.pushed, judged.push.0 >= Some(Rung::Soft), now);
        hold(&mut self.back, judged.back, now);
        self.wait = match self.state {
            State::Ok | State::Warn => judged.wait(&self.limits),
            _ => self.limits.for_time,
        };
        let limit = self.limits.kill_margin.as_secs_f64();
        let short = judged.low && judged.left.is_some_and(|left| left <= limit);
        hold(&mut self.short, short, now);
        let rate_left = self.rate_left(gate);
        self.note(now, observed, rate_left, &mut judged.conditions);
        self.conditions = judged.conditions;
        let reported = (self.incident, self.withheld);
        self.kill_waits = false;
        let (to, reason) = self.decide(now, observed, &judged, rate_left)?;
        let ends = matches!(to, State::Term | State::Kill);
        let excepted = self.limits.hard_ignores_rate && matches!(reason, Reason::Hard(_));
        let (to, reason) =
            if ends && !rate_left && !excepted { (State::Disarmed, Reason::RateUsed) } else { (to, reason) };
        let waits = if to == State::Kill { observed.kill_waits } else { observed.unfinished };
        if waits {
            // What was not reported is reported later.
            (self.incident, self.withheld) = reported;
            self.kill_waits = to == State::Kill;
            return None;
        }
        Some(self.go(now, observed, to, reason))
    }

    /// The time between two requests is that of one process: a job that was started again has not been asked.
    const fn forget_request(&mut self, observed: &Observed) {
        if observed.restarted {
            self.asked = None;
        }
    }

    /// Sets the conditions that depend on the state.
    fn note(&self, now: Timestamp, observed: &Observed, rate_left: bool, conditions: &mut Conditions) {
        conditions.set(Condition::RateLeft, Truth::of(rate_left));
        let known = conditions.get(Condition::Fresh) != Truth::NotMet;
        conditions.set(Condition::NoTimeLeft, Truth::known(known.then(|| self.is_short(now))));
        conditions.set(Condition::Held, Truth::of(self.held(now)));
        conditions.set(Condition::MayAsk, Truth::of(self.may_ask(now)));
        if self.state == State::Checkpoint {
            let ack = self.ack(observed);
            conditions.set(Condition::Saving, Truth::of(ack == Some(CheckpointState::Saving)));
            conditions.set(Condition::Saved, Truth::of(ack == Some(CheckpointState::Saved)));
        }
    }

    fn decide(
        &mut self,
        now: Timestamp,
        observed: &Observed,
        judged: &Judged,
        rate_left: bool,
    ) -> Option<(State, Reason)> {
        if self.state.is_after_kill() {
            return self.after_kill(now, observed, judged);
        }
        if self.state == State::Term && observed.alive == Some(0) && !observed.busy {
            return Some((State::Verify, Reason::Gone));
        }
        if !observed.fit {
            return (self.state != State::Disarmed).then_some((State::Disarmed, Reason::Unfit));
        }
        let empty = self.conditions.get(Condition::HasMembers) != Truth::Met;
        let may_kill = !empty && self.limits.max_state == Some(Rung::Kill);
        let hard = judged.hard.filter(|_| may_kill).map(|resource| (State::Kill, Reason::Hard(resource)));
        if self.state == State::Disarmed {
            return self.disarmed(now, judged, hard, rate_left, empty);
        }
        if hard.is_some() {
            return hard;
        }
        match (judged.blind, self.state == State::Blind) {
            (true, true) => return None,
            (true, false) => return Some((State::Blind, Reason::Stale)),
            (false, true) => return Some((self.resume, Reason::Fresh)),
            (false, false) => {}
        }
        if !rate_left && self.incident.is_none() {
            return Some((State::Disarmed, Reason::RateUsed));
        }
        match self.state {
            State::Ok | State::Warn => self.quiet(now, judged, empty),
            State::Soft => self.soft(now, judged, empty),
            // Those that were asked are gone.
            State::Checkpoint => self.checkpoint(now, observed, judged, empty || observed.restarted),
            State::Term => self.term(now, observed, judged),
            State::Cooldown => self.cooldown(now, judged, empty, observed.restarted),
            State::Disarmed | State::Blind | State::Kill | State::Verify => None,
        }
    }

    fn disarmed(
        &mut self,
        now: Timestamp,
        judged: &Judged,
        hard: Option<(State, Reason)>,
        rate_left: bool,
        empty: bool,
    ) -> Option<(State, Reason)> {
        if rate_left {
            return hard.or(Some((State::Ok, Reason::Rearmed)));
        }
        if hard.is_some() && self.limits.hard_ignores_rate {
            return hard;
        }
        self.withheld &= !judged.back;
        let due = hard.is_some() || (self.held(now) && !empty);
        (due && !self.withheld).then_some((State::Disarmed, Reason::Withheld))
    }

    fn quiet(&self, now: Timestamp, judged: &Judged, empty: bool) -> Option<(State, Reason)> {
        if self.held(now) && !empty {
            return Some((State::Soft, judged.push.1));
        }
        match (self.state, judged.warn) {
            (State::Ok, Some(reason)) => Some((State::Warn, reason)),
            (State::Warn, None) if self.back_for(now, self.limits.clear_for) => {
                Some((State::Ok, Reason::Recovered))
            }
            _ => None,
        }
    }

    fn soft(&mut self, now: Timestamp, judged: &Judged, empty: bool) -> Option<(State, Reason)> {
        if empty || self.back_for(now, self.limits.for_time) {
            // With max_state soft, the cooldown keeps the hook from being started repeatedly. Otherwise a job that
            // grows again at once must have the time for a checkpoint request.
            let to = if self.limits.max_state > Some(Rung::Soft) { State::Warn } else { State::Cooldown };
            return Some((to, if empty { Reason::Gone } else { Reason::Recovered }));
        }
        if let Some(kill) = self.no_time(now, judged) {
            return Some(kill);
        }
        if !self.save_fits() {
            // A request would make the job run out of memory. It is made as soon as the save fits; the job has the same time
            // for that as for a checkpoint, so that no prediction keeps it from being ended.
            let over = now.since(self.since) >= self.limits.hook_wait + self.limits.grace;
            if (over || self.is_short(now)) && judged.push.0 >= Some(Rung::Term) && self.held(now) {
                return Some((State::Term, Reason::SaveTooLarge));
            }
            // The limit is raised again where the job has grown meanwhile.
            let may_raise = |at: Timestamp, times: u32| {
                self.limits.raises && now.since(at) >= RAISE_AGAIN * (1 << times.min(8))
            };
            let incident = self.incident.as_mut()?;
            let times = match incident.refused {
                None => 0,
                Some((at, times)) if may_raise(at, times) => times + 1,
                Some(_) => return None,
            };
            incident.refused = Some((now, times));
            return Some((State::Soft, Reason::SaveTooLarge));
        }
        let over = now.since(self.since) >= self.limits.hook_wait;
        let reason = if self.limits.hook_wait.is_zero() { judged.push.1 } else { Reason::HookWait };
        (over && judged.push.0 >= Some(Rung::Checkpoint)).then_some((State::Checkpoint, reason))
    }

    fn checkpoint(
        &mut self,
        now: Timestamp,
        observed: &Observed,
        judged: &Judged,
        empty: bool,
    ) -> Option<(State, Reason)> {
        if let Some(end) = self.after_request(now, observed, judged, empty) {
            return end;
        }
        let (begun, ack) = (self.grace_from(), self.ack(observed));
        let saving = ack == Some(CheckpointState::Saving) && now.since(begun) < self.limits.longest_grace;
        // While it saves, its memory says nothing of the shortage, and a kill above the hard level would lose what is saved.
        if empty || (!saving && self.back_for(now, self.limits.for_time)) {
            let asked = self.incident.is_some_and(|incident| incident.asked);
            let ended = if asked && self.limits.exit_saves { Reason::SavedAndGone } else { Reason::Gone };
            return Some((State::Cooldown, if empty { ended } else { Reason::Recovered }));
        }
        if let Some(kill) = self.no_time(now, judged).filter(|_| !saving) {
            return Some(kill);
        }
        let over = now.since(begun) >= self.allowed(ack) || (!saving && self.is_short(now));
        self.conditions.set(Condition::GraceOver, Truth::of(over));
        let reason = self.answered(ack, over)?;
        if judged.push.0 < Some(Rung::Term) || !self.held(now) {
            return None;
        }
        // A request of this incident may have been too soon after one of the incident before.
        let unasked = self.incident.is_some_and(|incident| !incident.asked) && self.may_ask(now);
        if (self.outdated(now, observed) || unasked) && self.save_fits() && !self.is_short(now) {
            // It has run on since then, and would lose that work.
            let incident = self.incident.as_mut()?;
            incident.asked = false;
            return Some((State::Checkpoint, judged.push.1));
        }
        Some((State::Term, reason))
    }

    fn cooldown(
        &self,
        now: Timestamp,
        judged: &Judged,
        empty: bool,
        restarted: bool,
    ) -> Option<(State, Reason)> {
        if now.since(self.since) < self.limits.cooldown && !restarted {
            return None;
        }
        if self.held(now) && !empty {
            return Some((State::Soft, judged.push.1));
        }
        match judged.warn {
            Some(reason) => Some((State::Warn, reason)),
            None => Some((State::Ok, Reason::Quiet)),
        }
    }

    /// A kill, where exhaustion is predicted before a checkpoint request or SIGTERM would have an effect.
    fn no_time(&self, now: Timestamp, judged: &Judged) -> Option<(State, Reason)> {
        (self.conditions.get(Condition::NoTimeLeft).met()
            && judged.push.0 == Some(Rung::Kill)
            && self.held(now))
        .then_some((State::Kill, Reason::NoTimeLeft))
    }

    fn go(&mut self, now: Timestamp, observed: &Observed, to: State, reason: Reason) -> Transition {
        let from = self.state;
        let (acts, resumes) = (to.acts(), reason == Reason::Fresh);
        if acts && !resumes && self.incident.is_none() {
            self.incidents += 1;
            let (number, resource) = (self.incidents, reason.resource());
            self.incident = Some(Incident { number, resource, ..Incident::default() });
        }
        let number = self.incident();
        let may_ask = self.may_ask(now);
        let (mut ask, mut counts) = (false, false);
        if let Some(incident) = self.incident.as_mut().filter(|_| !resumes) {
            match to {
                State::Checkpoint => {
                    incident.grace_from = Some(now);
                    ask = may_ask && !std::mem::replace(&mut incident.asked, true);
                }
                State::Term if from != to => incident.term_from = Some(now),
                _ => {}
            }
            counts =
                matches!(to, State::Term | State::Kill) && !std::mem::replace(&mut incident.counted, true);
            if counts {
                incident.left_then = observed.readings.map(|reading| Some(reading?.value.headroom()));
                incident.gives_then = observed.gives.unwrap_or_default();
            }
            // They may be unknown at the first of the two.
            if matches!(to, State::Term | State::Kill) && observed.groups.least().is_some() {
                incident.groups = observed.groups;
            }
        }
        if ask {
            self.asked = Some(now);
        }
        if reason == Reason::NotBack {
            self.futile = self.not_given_back(observed);
        }
        // The end of an incident by the rate limit has already been reported.
        self.withheld = to == State::Disarmed && (reason == Reason::Withheld || from.acts());
        match to {
            State::Blind => self.resume = from,
            State::Ok | State::Warn | State::Disarmed | State::Cooldown => self.incident = None,
            _ => {}
        }
        if to != from {
            self.state = to;
            self.since = now;
        }
        Transition { at: now, from, to, reason, incident: number.unwrap_or(0), ask, counts }
    }

    /// Whether the time to exhaustion is below `kill_margin` for longer than a burst stays in the rate.
    fn is_short(&self, now: Timestamp) -> bool {
        self.short.is_some_and(|since| now.since(since) >= BURST)
    }

    /// Whether the checkpoint of this incident is saved and so old that the job has run on since then. A save that has just ended,
    /// however long it took, does not lead to another one.
    pub fn outdated(&self, now: Timestamp, observed: &Observed) -> bool {
        let recent = self.limits.request_interval.max(self.limits.grace);
        self.ack(observed) == Some(CheckpointState::Saved)
            && observed.ack.is_some_and(|ack| now.since(ack.at) >= recent)
    }

    /// Whether a checkpoint can be saved in the memory that is left; true where the job predicts nothing.
    fn save_fits(&self) -> bool {
        self.conditions.get(Condition::SaveFits) != Truth::NotMet
    }

    fn held(&self, now: Timestamp) -> bool {
        self.pushed.is_some_and(|since| now.since(since) >= self.wait)
    }

    fn back_for(&self, now: Timestamp, time: Duration) -> bool {
        self.back.is_some_and(|since| now.since(since) >= time)
    }

    fn may_ask(&self, now: Timestamp) -> bool {
        self.incident.is_none_or(|incident| !incident.asked)
            && self.asked.is_none_or(|before| now.since(before) >= self.limits.request_interval)
    }

    /// An incident that already counts may continue; a new one needs a termination left.
    fn rate_left(&self, gate: Gate) -> bool {
        self.incident.is_some_and(|incident| incident.counted) || gate.left > 0
    }

    /// When the time limit of the checkpoint began.
    fn grace_from(&self) -> Timestamp {
        self.incident.and_then(|incident| incident.grace_from).unwrap_or(self.since)
    }

    /// The time limit of the checkpoint.
    fn allowed(&self, ack: Option<CheckpointState>) -> Duration {
        if ack == Some(CheckpointState::Saving) { self.limits.longest_grace } else { self.limits.grace }
    }

    /// Why the checkpoint is waited for no longer; absent while it is.
    fn answered(&self, ack: Option<CheckpointState>, over: bool) -> Option<Reason> {
        if ack == Some(CheckpointState::Saved) {
            return Some(Reason::Saved);
        }
        let nobody = self.conditions.get(Condition::Catches) == Truth::NotMet;
        if nobody { Some(Reason::NobodyCatches) } else { over.then_some(Reason::GraceOver) }
    }

    /// The acknowledgement since the time limit of the checkpoint began.
    fn ack(&self, observed: &Observed) -> Option<CheckpointState> {
        let since = self.incident.and_then(|incident| incident.grace_from)?;
        observed.ack.filter(|ack| ack.at.monotonic() >= since.monotonic()).map(|ack| ack.kind)
    }
}

/// Keeps the time since which a condition holds.
fn hold(since: &mut Option<Timestamp>, holds: bool, now: Timestamp) {
    *since = holds.then(|| since.unwrap_or(now));
}
