//! The order in which one round evaluates the jobs.

use super::{GuardLoop, hard_reached};
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::guard::input::SLOTS;
use crate::protection::policy::Resource;

impl GuardLoop {
    /// Reads the memory left below the limits of all jobs, and returns all slots, those whose hard level is reached first: a
    /// kill must not wait for the steps for another job.
    pub(in super::super) fn hard_levels_first(&mut self, clock: &dyn Fn() -> Timestamp) -> [usize; SLOTS] {
        let total = self.host.map_or(Bytes::new(u64::MAX), |(_, reading)| reading.total);
        let host = self.host.map(|(_, reading)| reading);
        let mut order = std::array::from_fn(|slot| slot);
        let mut urgent = [false; SLOTS];
        for (slot, urgent) in urgent.iter_mut().enumerate() {
            let Some(job) = &mut self.slots[slot] else { continue };
            job.cgroup.read(clock(), total);
            let limits = &self.targets[job.target].limits;
            *urgent = hard_reached(limits, Resource::Cgroup, job.cgroup.reading())
                || hard_reached(limits, Resource::Host, host);
        }
        // Without the allocation of a stable sort: the slots are different.
        order.sort_unstable_by_key(|slot| (!urgent[*slot], *slot));
        order
    }
}
