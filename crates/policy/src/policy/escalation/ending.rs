//! Whether a job is being terminated, and what that means for others.

use std::time::Duration;

use super::Escalation;
use crate::model::time::Timestamp;
use crate::policy::condition::{Condition, Truth};
use crate::policy::gate::Futile;
use crate::policy::judge::Judged;
use crate::policy::observed::{Observed, Resource};
use crate::policy::transition::{Mode, Reason};
use crate::types::rung::{Rung, State};

/// Time within which the victims of SIGTERM are counted after its time limit.
const COUNTED_WITHIN: Duration = Duration::from_secs(1);

impl Escalation {
    /// From now on, GPUs use the memory of the host: the limits are those of `Limits::for_pool`.
    pub fn use_pool(&mut self) {
        if !std::mem::replace(&mut self.is_pool, true) {
            self.limits.for_pool();
        }
    }

    /// Whether the end of victims, or their memory, is awaited within its time limit. Victims that exceed it may never
    /// end, and must not keep other targets from being protected.
    pub fn ending(&self, now: Timestamp) -> bool {
        let blind = self.state == State::Blind;
        let state = if blind { self.resume } else { self.state };
        // BLIND reports no overrun, and neither does TERM while its SIGKILL waits for another target, so that both states are
        // limited by their time here.
        let allowed = self.limits.term_grace + self.limits.verify_timeout;
        let begun = self.incident.and_then(|incident| incident.term_from);
        let unbounded = blind || state == State::Term;
        let late = unbounded && begun.is_none_or(|begun| now.since(begun) >= allowed);
        let late = late || self.kills_long(now);
        matches!(state, State::Term | State::Kill | State::Verify) && !self.overdue() && !late
    }

    /// Whether the kill itself exceeds the time limit for victims: it has thousands of processes to reach, or hangs.
    pub fn kills_long(&self, now: Timestamp) -> bool {
        self.state == State::Kill
            && now.since(self.since) >= self.limits.term_grace + self.limits.verify_timeout
    }

    /// Whether what the job frees counts towards the limit of this cgroup.
    pub fn is_below(&self, group: u64) -> bool {
        self.incident.is_some_and(|incident| incident.groups.contain(group))
    }

    /// The resources of which less than half of what the victims held was given back, although they have ended.
    pub(super) fn not_given_back(&self, observed: &Observed) -> Futile {
        let Some(incident) = self.incident.filter(|_| self.limits.mode == Mode::Enforce) else {
            return Futile::default();
        };
        let kept = |resource: Resource| {
            let reading = observed.reading(resource).map(|reading| reading.value.headroom());
            let returned = reading.zip(incident.left_then[resource.place()]);
            let returned = returned.map(|(now, then)| now.saturating_sub(then).get());
            let is_low = self.conditions.get(Condition::levels(resource).0) == Truth::Met;
            is_low && returned.is_some_and(|returned| returned < incident.gives_then.get() / 2)
        };
        Futile {
            host: kept(Resource::Host),
            group: observed.groups.least().filter(|_| kept(Resource::Cgroup)),
            nodes: observed.nodes.filter(|_| kept(Resource::Nodes)),
        }
    }

    /// Whether the victims exceed their time limit.
    pub fn overdue(&self) -> bool {
        self.incident.is_some_and(|incident| incident.overdue)
    }

    /// The transition from TERM.
    pub(super) fn term(
        &mut self,
        now: Timestamp,
        observed: &Observed,
        judged: &Judged,
    ) -> Option<(State, Reason)> {
        if let Some(kill) = self.no_time(now, judged) {
            return Some(kill);
        }
        let begun = self.incident.and_then(|incident| incident.term_from).unwrap_or(self.since);
        let over = now.since(begun) >= self.limits.term_grace;
        self.conditions.set(Condition::TermOver, Truth::of(over));
        if !over {
            return None;
        }
        if observed.half_dead == Some(true) && self.limits.max_state == Some(Rung::Kill) {
            // What is left of it waits for the processes that have ended, and holds its memory and GPUs.
            return Some((State::Kill, Reason::HalfDead));
        }
        if judged.back {
            // The job has received SIGTERM and the shortage is over: it may take longer. How many of its processes have ended is known
            // shortly after the time limit.
            let counted =
                observed.half_dead.is_some() || now.since(begun) >= self.limits.term_grace + COUNTED_WITHIN;
            return counted.then_some((State::Cooldown, Reason::Recovered));
        }
        if judged.held_up {
            // Another target is being ended for a shared shortage. That can happen only after this target was in BLIND for
            // longer than its time limit, because it blocked no other target then.
            return None;
        }
        if self.limits.max_state == Some(Rung::Kill) {
            return Some((State::Kill, Reason::TermOver));
        }
        // The policy allows nothing more; that the job has not ended is reported once.
        let incident = self.incident.as_mut().filter(|incident| !incident.overdue)?;
        incident.overdue = true;
        Some((State::Term, Reason::Unkillable))
    }

    /// The transition after a kill, or from VERIFY.
    pub(super) fn after_kill(
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
            // While processes of the target are left, there is no second victim before the first one's memory is free.
            gone && (judged.back || (empty && over && !judged.returning))
        } else {
            judged.back || empty
        };
        if done {
            // A cgroup that is removed with its last process has no limit any more: whether memory came back is unknown.
            let unknown = gone && self.incident.is_some_and(|incident| incident.is_unread(observed));
            let reason = match judged.back {
                true if unknown => Reason::Gone,
                true => Reason::Recovered,
                false => Reason::NotBack,
            };
            return Some((State::Cooldown, reason));
        }
        let incident = self.incident.as_mut()?;
        if self.limits.mode == Mode::Enforce && over && !incident.overdue {
            incident.overdue = true;
            return Some((State::Verify, if gone { Reason::NotBack } else { Reason::Unkillable }));
        }
        None
    }

    /// Teardown without process_mrelease(2) was measured at 1.15 to 1.7 GiB per second under load; one second per GiB
    /// is slower than that.
    fn verify_timeout(&self, observed: &Observed) -> Duration {
        self.limits.verify_timeout + Duration::from_secs(observed.victims.get() >> 30)
    }
}
