//! The order in which one round evaluates the jobs.

use super::GuardLoop;
use crate::model::time::Timestamp;
use crate::protection::guard::input::SLOTS;
use crate::protection::policy::{Escalation, State};

/// The users whose jobs were killed, in the order of their last kills.
#[derive(Debug)]
pub(super) struct LastKills(Vec<u32>);

impl LastKills {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(SLOTS))
    }

    /// Notes a kill of a job of this user.
    pub(super) fn note(&mut self, user: Option<u32>) {
        let Some(user) = user else { return };
        self.0.retain(|known| *known != user);
        if self.0.len() == SLOTS {
            self.0.remove(0);
        }
        self.0.push(user);
    }

    /// The order in which kills that wait begin.
    fn rank(&self, user: Option<u32>) -> usize {
        let place = user.and_then(|user| self.0.iter().position(|known| *known == user));
        place.map_or(0, |place| place + 1)
    }
}

impl GuardLoop {
    /// Reads the memory left below the limits of all jobs, and returns all slots, those first that are being killed, so that
    /// they keep their thread, and then those whose hard level is reached: a kill must not wait for the steps for another job.
    /// Of kills that wait for a thread, those of users come first whose jobs were not killed lately.
    pub(in super::super) fn hard_levels_first(&mut self, clock: &dyn Fn() -> Timestamp) -> [usize; SLOTS] {
        let of_host = self.limits;
        let mut order = std::array::from_fn(|slot| slot);
        let mut rank = [(3_u8, usize::MAX); SLOTS];
        for (slot, rank) in rank.iter_mut().enumerate() {
            let Some(job) = &mut self.slots[slot] else { continue };
            let now = clock();
            job.cgroup.read(now, of_host);
            job.nodes.read(now, of_host);
            if self.is_pool {
                self.board.escalation_mut(slot).into_iter().for_each(Escalation::use_pool);
            }
            let escalation = self.board.escalation(slot);
            let hard = escalation.is_some_and(|known| job.is_hard(known.limits(), self.host));
            let killing = job.progress.as_ref().is_some_and(|plan| plan.stage == State::Kill);
            let waits = escalation.is_some_and(Escalation::kill_waits);
            let class = match (killing, hard, waits) {
                (true, _, _) => 0,
                (_, true, _) => 1,
                (_, _, true) => 2,
                _ => 3,
            };
            *rank = (class, if waits { self.last_kills.rank(job.user) } else { usize::MAX });
        }
        // Without the allocation of a stable sort: the slots are different.
        order.sort_unstable_by_key(|slot| (rank[*slot], *slot));
        order
    }
}
