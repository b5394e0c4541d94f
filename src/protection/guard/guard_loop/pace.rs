//! When the guard reads again: until then no level can be crossed.

use std::time::Duration;

use super::{GuardLoop, LONGEST_INTERVAL, SHORTEST_INTERVAL};
use crate::model::time::Timestamp;
use crate::protection::policy::{Mode, Reading, Resource, State, SwapCounts};

/// Longest time between two rounds in the states warn, blind and cooldown.
const WARNED_INTERVAL: Duration = Duration::from_millis(100);
/// Assumed rate of allocation in bytes per second, unless a higher one was seen: 12 GiB/s.
const FASTEST: f64 = 12.0 * 1_073_741_824.0;

impl GuardLoop {
    /// Whether nothing is waited for or to be decided in a slot before the usage of its cgroup changes.
    pub(super) fn rests(&self, slot: usize) -> bool {
        let (Some(job), Some(escalation)) = (&self.slots[slot], self.board.escalation(slot)) else {
            return true;
        };
        matches!(escalation.state(), State::Ok | State::Disarmed)
            && job.nodes.nodes().is_none()
            && job.progress.is_none()
            && job.pending.is_empty()
            && !self.hands_over(slot)
            && !job.is_low(escalation.limits(), self.host)
    }

    /// Whether a round now would find what the last one found; always false where the memory of the host is due.
    pub(in super::super) fn is_still(&mut self, now: Timestamp) -> bool {
        self.is_at_rest
            && self.host.is_some_and(|(before, _)| now.since(before) < self.host_pause)
            && self.mailbox.is_empty()
            && self.run_requests.is_idle()
            && self.slots.iter_mut().flatten().all(|job| job.cgroup.is_still(now))
    }

    /// The time until the nearest level could be crossed.
    #[expect(clippy::cast_precision_loss, reason = "bytes of memory, divided by a rate that is a guess")]
    pub(super) fn time_to_next_round(&self, slot: usize) -> Pauses {
        let (Some(job), Some(escalation)) = (&self.slots[slot], self.board.escalation(slot)) else {
            return LONGEST_INTERVAL.into();
        };
        let longest = match escalation.state() {
            State::Ok | State::Disarmed => LONGEST_INTERVAL,
            State::Warn | State::Blind | State::Cooldown => WARNED_INTERVAL,
            // Waiting for victims that do not end may take hours, in observe mode nothing was done; no level changes either.
            State::Verify if escalation.overdue() || escalation.limits().mode == Mode::Observe => {
                return WARNED_INTERVAL.into();
            }
            State::Soft | State::Checkpoint | State::Term | State::Kill | State::Verify => SHORTEST_INTERVAL,
        };
        if job.cgroup.is_awaited() {
            return SHORTEST_INTERVAL.into();
        }
        let limits = escalation.limits();
        let mut pauses = Pauses::from(longest);
        for (resource, levels) in limits.watched() {
            let Some(Reading { room, .. }) = job.reading(resource, self.host) else { continue };
            let counted = if limits.swap == SwapCounts::Ignore { room.without_swap() } else { room };
            let soft = counted.level(levels.soft);
            let next = match levels.hard {
                _ if !counted.is_within(soft) => counted.until(soft),
                Some(hard) => room.until(room.level(hard)),
                None => room.left(),
            };
            let fastest = match resource {
                Resource::Host => self.rates.fastest(),
                Resource::Nodes => job.nodes.highest_rate(),
                _ => job.cgroup.highest_rate(),
            };
            let seconds = next.get() as f64 / fastest.max(FASTEST);
            let pause = Duration::from_secs_f64(seconds.min(longest.as_secs_f64())).max(SHORTEST_INTERVAL);
            pauses.round = pauses.round.min(pause);
            if resource == Resource::Host {
                pauses.host = pauses.host.min(pause);
            }
        }
        // What is left of the swap of the host decides then.
        if longest < LONGEST_INTERVAL || job.is_low(limits, self.host) {
            pauses.host = pauses.round;
        }
        pauses
    }
}

/// The longest times until the next round, and until the next reading of the memory of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pauses {
    pub(super) round: Duration,
    pub(super) host: Duration,
}

impl From<Duration> for Pauses {
    fn from(both: Duration) -> Self {
        Self { round: both, host: both }
    }
}

impl Pauses {
    /// The shorter of both, each.
    pub(super) fn shorter(self, other: Self) -> Self {
        Self { round: self.round.min(other.round), host: self.host.min(other.host) }
    }
}
