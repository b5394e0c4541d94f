//! The ladder of one target: where it stands, and the next rung.
//!
//! One call of [`Escalation::step`] makes at most one move, and from any state
//! that is not yet killing the hard level makes it a kill. Everything that a
//! move does is decided elsewhere from the [`Transition`].

use std::time::Duration;

use super::condition::{Condition, Conditions, Truth};
use super::judge::{Judged, judge};
use super::limits::Limits;
use super::observed::{AckKind, Observed};
use super::state::{MaxState, Mode, Reason, State, Transition};
use crate::model::time::Timestamp;

/// A burst that has ended is in the fast rate for another second; a job that loads its data is not killed for it. One
/// that goes on comes to the hard level first.
const BURST: Duration = Duration::from_millis(1_500);

/// What the other ladders of the host leave for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Whether another target is ending, so that its memory is on its way back.
    pub busy: bool,
    /// Incidents that may still end a job in this hour: the least of the target's and the host's.
    pub left: u32,
}

impl Gate {
    /// Nobody else is there.
    pub const OPEN: Self = Self { busy: false, left: u32::MAX };
}

/// One shortage, from its first step to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Incident {
    number: u64,
    /// When the job was given time to save; whether or not a signal was sent.
    grace_from: Option<Timestamp>,
    /// Whether the signal was sent in this incident.
    asked: bool,
    /// When SIGTERM was due.
    term_from: Option<Timestamp>,
    /// Whether it counts against the rate limits.
    counted: bool,
    /// Whether it was said that the victims stay, or that their memory does.
    overdue: bool,
}

/// The ladder of one target.
#[derive(Clone, Debug)]
pub struct Escalation {
    limits: Limits,
    state: State,
    since: Timestamp,
    /// Since when something has asked for action without a pause.
    pushed: Option<Timestamp>,
    /// Since when memory has been back without a pause.
    back: Option<Timestamp>,
    /// Since when too little time has been left without a pause.
    short: Option<Timestamp>,
    /// Where BLIND goes back to.
    resume: State,
    incident: Option<Incident>,
    incidents: u64,
    asked: Option<Timestamp>,
    /// Whether it was said that the rate limit withholds what is due.
    withheld: bool,
    conditions: Conditions,
}

impl Escalation {
    /// A ladder that stands at OK since `now`.
    pub fn new(limits: Limits, now: Timestamp) -> Self {
        Self {
            state: State::Ok,
            since: now,
            pushed: None,
            back: None,
            short: None,
            resume: State::Ok,
            incident: None,
            incidents: 0,
            asked: None,
            withheld: false,
            conditions: Conditions::default(),
            limits,
        }
    }

    /// The job was asked for a checkpoint then, before this ladder was made.
    #[must_use]
    pub const fn asked_before(self, at: Option<Timestamp>) -> Self {
        Self { asked: at, ..self }
    }

    /// What the policy says.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Where it stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// The conditions of the last step.
    pub const fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    /// The incident that is under way.
    pub fn incident(&self) -> Option<u64> {
        self.incident.map(|incident| incident.number)
    }

    /// Whether victims, or their memory, are waited for within the time that they have. Whoever takes longer may never
    /// go, and must not keep others from being protected.
    pub fn ending(&self, now: Timestamp) -> bool {
        let blind = self.state == State::Blind;
        let state = if blind { self.resume } else { self.state };
        // A target that is blind is not overdue, and neither is one in TERM whose SIGKILL waits for another's memory.
        let allowed = self.limits.term_grace + self.limits.verify_timeout;
        let begun = self.incident.and_then(|incident| incident.term_from);
        let unbounded = blind || state == State::Term;
        let late = unbounded && begun.is_none_or(|begun| now.since(begun) >= allowed);
        matches!(state, State::Term | State::Kill | State::Verify) && !self.overdue() && !late
    }

    /// Whether the time for the victims to go is over.
    pub fn overdue(&self) -> bool {
        self.incident.is_some_and(|incident| incident.overdue)
    }

    /// Looks once, and moves at most once.
    pub fn step(&mut self, now: Timestamp, observed: &Observed, gate: Gate) -> Option<Transition> {
        let mut judged = judge(&self.limits, observed, gate);
        hold(&mut self.pushed, judged.push.0 >= MaxState::Soft, now);
        hold(&mut self.back, judged.back, now);
        let limit = self.limits.kill_margin.as_secs_f64();
        let short = judged.low && judged.left.is_some_and(|left| left <= limit);
        hold(&mut self.short, short, now);
        let rate_left = self.rate_left(gate);
        self.note(now, observed, rate_left, &mut judged.conditions);
        self.conditions = judged.conditions;
        let (to, reason) = self.decide(now, observed, &judged, rate_left)?;
        let ends = matches!(to, State::Term | State::Kill);
        let excepted = self.limits.hard_ignores_rate && matches!(reason, Reason::Hard(_));
        let (to, reason) =
            if ends && !rate_left && !excepted { (State::Disarmed, Reason::RateUsed) } else { (to, reason) };
        Some(self.go(now, to, reason))
    }

    /// The conditions that rest on what was before.
    fn note(&self, now: Timestamp, observed: &Observed, rate_left: bool, conditions: &mut Conditions) {
        conditions.set(Condition::RateLeft, Truth::of(rate_left));
        let known = conditions.get(Condition::Fresh) != Truth::NotMet;
        conditions.set(Condition::NoTimeLeft, Truth::known(known.then(|| self.is_short(now))));
        conditions.set(Condition::Held, Truth::of(self.held(now)));
        conditions.set(Condition::MayAsk, Truth::of(self.may_ask(now)));
        if self.state == State::Checkpoint {
            let ack = self.ack(observed);
            conditions.set(Condition::Saving, Truth::of(ack == Some(AckKind::Saving)));
            conditions.set(Condition::Saved, Truth::of(ack == Some(AckKind::Saved)));
        }
    }

    fn decide(
        &mut self,
        now: Timestamp,
        observed: &Observed,
        judged: &Judged,
        rate_left: bool,
    ) -> Option<(State, Reason)> {
        if matches!(self.state, State::Kill | State::Verify) {
            return self.after_kill(now, observed, judged);
        }
        if self.state == State::Term && observed.alive == Some(0) && !observed.busy {
            return Some((State::Verify, Reason::Gone));
        }
        if !observed.fit {
            return (self.state != State::Disarmed).then_some((State::Disarmed, Reason::Unfit));
        }
        let empty = self.conditions.get(Condition::HasMembers) != Truth::Met;
        let may_kill = !empty && self.limits.max_state == MaxState::Kill;
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
            State::Checkpoint => self.checkpoint(now, observed, judged, empty),
            State::Term => self.term(now, judged),
            State::Cooldown => self.cooldown(now, judged, empty),
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

    fn soft(&self, now: Timestamp, judged: &Judged, empty: bool) -> Option<(State, Reason)> {
        if empty || self.back_for(now, self.limits.for_time) {
            // Where the hook is the highest rung, it is not started again and again; where there are others, a job that
            // grows again at once must have the time to be asked.
            let to = if self.limits.max_state > MaxState::Soft { State::Warn } else { State::Cooldown };
            return Some((to, if empty { Reason::Gone } else { Reason::Recovered }));
        }
        if let Some(kill) = self.no_time(judged) {
            return Some(kill);
        }
        let over = now.since(self.since) >= self.limits.hook_wait;
        let reason = if self.limits.hook_wait.is_zero() { judged.push.1 } else { Reason::HookWait };
        (over && judged.push.0 >= MaxState::Checkpoint).then_some((State::Checkpoint, reason))
    }

    fn checkpoint(
        &mut self,
        now: Timestamp,
        observed: &Observed,
        judged: &Judged,
        empty: bool,
    ) -> Option<(State, Reason)> {
        if empty || self.back_for(now, self.limits.for_time) {
            return Some((State::Cooldown, if empty { Reason::Gone } else { Reason::Recovered }));
        }
        if let Some(kill) = self.no_time(judged) {
            return Some(kill);
        }
        let begun = self.incident.and_then(|incident| incident.grace_from).unwrap_or(self.since);
        let ack = self.ack(observed);
        let allowed = match ack {
            Some(AckKind::Saving) => self.limits.longest_grace,
            _ => self.limits.grace,
        };
        let over = now.since(begun) >= allowed || self.is_short(now);
        self.conditions.set(Condition::GraceOver, Truth::of(over));
        let reason = if ack == Some(AckKind::Saved) {
            Reason::Saved
        } else if self.conditions.get(Condition::Catches) == Truth::NotMet {
            Reason::NobodyCatches
        } else if over {
            Reason::GraceOver
        } else {
            return None;
        };
        (judged.push.0 >= MaxState::Term).then_some((State::Term, reason))
    }

    fn term(&mut self, now: Timestamp, judged: &Judged) -> Option<(State, Reason)> {
        if let Some(kill) = self.no_time(judged) {
            return Some(kill);
        }
        let begun = self.incident.and_then(|incident| incident.term_from).unwrap_or(self.since);
        let over = now.since(begun) >= self.limits.term_grace;
        self.conditions.set(Condition::TermOver, Truth::of(over));
        if !over {
            return None;
        }
        if judged.back {
            // It was asked to end and holds nothing up any more: it may take its time.
            return Some((State::Cooldown, Reason::Recovered));
        }
        if judged.held_up {
            // Only after a time in BLIND, in which it held up nobody, another target can have been ended meanwhile.
            return None;
        }
        if self.limits.max_state == MaxState::Kill {
            return Some((State::Kill, Reason::TermOver));
        }
        // Nothing more may be done; that it stays is said once.
        let incident = self.incident.as_mut().filter(|incident| !incident.overdue)?;
        incident.overdue = true;
        Some((State::Term, Reason::Unkillable))
    }

    fn after_kill(
        &mut self,
        now: Timestamp,
        observed: &Observed,
        judged: &Judged,
    ) -> Option<(State, Reason)> {
        let over = now.since(self.since) >= self.verify_timeout(observed);
        if observed.busy && !over {
            return None;
        }
        if self.state == State::Kill {
            return Some((State::Verify, Reason::Killed));
        }
        let gone = observed.alive == Some(0);
        let empty = self.conditions.get(Condition::HasMembers) == Truth::NotMet;
        let done = if self.limits.mode == Mode::Enforce {
            // Where somebody of the target is left, there is no second victim before the first one's memory is back.
            gone && (judged.back || (empty && over && !judged.returning))
        } else {
            judged.back || empty
        };
        if done {
            let reason = if judged.back { Reason::Recovered } else { Reason::NotBack };
            return Some((State::Cooldown, reason));
        }
        let incident = self.incident.as_mut()?;
        if self.limits.mode == Mode::Enforce && over && !incident.overdue {
            incident.overdue = true;
            return Some((State::Verify, if gone { Reason::NotBack } else { Reason::Unkillable }));
        }
        None
    }

    fn cooldown(&self, now: Timestamp, judged: &Judged, empty: bool) -> Option<(State, Reason)> {
        if now.since(self.since) < self.limits.cooldown {
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

    /// A kill, where exhaustion would come before anything gentler has an effect.
    fn no_time(&self, judged: &Judged) -> Option<(State, Reason)> {
        (self.conditions.get(Condition::NoTimeLeft).met() && judged.push.0 == MaxState::Kill)
            .then_some((State::Kill, Reason::NoTimeLeft))
    }

    fn go(&mut self, now: Timestamp, to: State, reason: Reason) -> Transition {
        let from = self.state;
        let (acts, resumes) = (to.acts(), reason == Reason::Fresh);
        if acts && !resumes && self.incident.is_none() {
            self.incidents += 1;
            self.incident = Some(Incident {
                number: self.incidents,
                grace_from: None,
                asked: false,
                term_from: None,
                counted: false,
                overdue: false,
            });
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
        }
        if ask {
            self.asked = Some(now);
        }
        // That an incident is cut short says already what is withheld.
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

    /// Whether too little time is left, for long enough that it is not the end of a burst.
    fn is_short(&self, now: Timestamp) -> bool {
        self.short.is_some_and(|since| now.since(since) >= BURST)
    }

    fn held(&self, now: Timestamp) -> bool {
        self.pushed.is_some_and(|since| now.since(since) >= self.limits.for_time)
    }

    fn back_for(&self, now: Timestamp, time: Duration) -> bool {
        self.back.is_some_and(|since| now.since(since) >= time)
    }

    fn may_ask(&self, now: Timestamp) -> bool {
        self.incident.is_none_or(|incident| !incident.asked)
            && self.asked.is_none_or(|before| now.since(before) >= self.limits.request_interval)
    }

    /// An incident that is counted goes on; a new one needs room.
    fn rate_left(&self, gate: Gate) -> bool {
        self.incident.is_some_and(|incident| incident.counted) || gate.left > 0
    }

    /// What the job said since it was given time to save.
    fn ack(&self, observed: &Observed) -> Option<AckKind> {
        let since = self.incident.and_then(|incident| incident.grace_from)?;
        observed.ack.filter(|ack| ack.at.monotonic() >= since.monotonic()).map(|ack| ack.kind)
    }

    /// Measured teardown is 1.15 to 1.7 GiB a second without help (under load); a second a GiB is slower than all of it.
    fn verify_timeout(&self, observed: &Observed) -> Duration {
        self.limits.verify_timeout + Duration::from_secs(observed.victims.get() >> 30)
    }
}

/// Keeps the time since which something holds.
fn hold(since: &mut Option<Timestamp>, holds: bool, now: Timestamp) {
    if !holds {
        *since = None;
    } else if since.is_none() {
        *since = Some(now);
    }
}
