//! What one escalation may do beside the others.

use super::observed::Resource;

/// What the other escalations of the host leave for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Whether another job is terminating, so that its memory will be freed.
    pub busy: bool,
    /// Whether such a job is below the cgroup limit that leaves this job the least memory.
    pub below_the_limit: bool,
    /// Whether another job of the target that is asked for a checkpoint grows faster, so that it is ended first.
    pub yields: bool,
    /// Terminations left in the current hour, by the limits of the target and the host.
    pub left: u32,
}

impl Gate {
    /// No other escalation.
    pub const OPEN: Self = Self { busy: false, below_the_limit: false, yields: false, left: u32::MAX };

    /// Whether another job is terminating that will free this resource.
    pub const fn waits_for(self, resource: Resource) -> bool {
        match resource {
            Resource::Host | Resource::Gpu => self.busy,
            Resource::Cgroup => self.below_the_limit,
            Resource::Allocator => false,
        }
    }
}
