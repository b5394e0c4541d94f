//! Whether a job is being terminated, and what that means for others.

use super::Escalation;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::types::rung::{Rung, State};

impl Escalation {
    /// From now on, GPUs use the memory of the host, which is `total`: the limits are those of `Limits::for_pool`.
    pub fn use_pool(&mut self, total: Bytes) {
        if !std::mem::replace(&mut self.is_pool, true) {
            self.limits.for_pool(total);
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
        let unbounded = blind || state == State::At(Rung::Term);
        let late = unbounded && begun.is_none_or(|begun| now.since(begun) >= allowed);
        let late = late || self.kills_long(now);
        matches!(state, State::At(Rung::Term | Rung::Kill) | State::Verify) && !self.overdue() && !late
    }

    /// Whether the kill itself exceeds the time limit for victims: it has thousands of processes to reach, or hangs.
    pub fn kills_long(&self, now: Timestamp) -> bool {
        self.state == State::At(Rung::Kill)
            && now.since(self.since) >= self.limits.term_grace + self.limits.verify_timeout
    }

    /// Whether what the job frees counts towards the limit of this cgroup.
    pub fn is_below(&self, group: u64) -> bool {
        self.incident.is_some_and(|incident| incident.groups.contain(group))
    }

    /// Whether the victims exceed their time limit.
    pub fn overdue(&self) -> bool {
        self.incident.is_some_and(|incident| incident.overdue)
    }
}
