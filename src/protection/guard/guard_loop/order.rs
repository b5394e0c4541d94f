//! The order in which one round evaluates the jobs.

use super::{GuardLoop, hard_reached};
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::guard::input::SLOTS;
use crate::protection::policy::{Resource, Rung, State};

impl GuardLoop {
    /// Reads the memory left below the limits of all jobs, and returns all slots, those first that are being killed, so that
    /// they keep their thread, and then those whose hard level is reached: a kill must not wait for the steps for another job.
    pub(in super::super) fn hard_levels_first(&mut self, clock: &dyn Fn() -> Timestamp) -> [usize; SLOTS] {
        let total = self.host.map_or(Bytes::new(u64::MAX), |(_, reading)| reading.total);
        let host = self.host.map(|(_, reading)| reading);
        let mut order = std::array::from_fn(|slot| slot);
        let mut rank = [2_u8; SLOTS];
        for (slot, rank) in rank.iter_mut().enumerate() {
            let Some(job) = &mut self.slots[slot] else { continue };
            job.cgroup.read(clock(), total);
            let limits = &self.targets[job.target].limits;
            let hard = hard_reached(limits, Resource::Cgroup, job.cgroup.reading())
                || hard_reached(limits, Resource::Host, host);
            let killing = job.progress.as_ref().is_some_and(|plan| plan.stage == State::At(Rung::Kill));
            *rank = if killing { 0 } else { 2 - u8::from(hard) };
        }
        // Without the allocation of a stable sort: the slots are different.
        order.sort_unstable_by_key(|slot| (rank[*slot], *slot));
        order
    }
}
