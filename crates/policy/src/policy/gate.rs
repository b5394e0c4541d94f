//! What one escalation may do beside the others.

use super::observed::Resource;
use crate::model::node_set::NodeSet;
use crate::model::units::{Bytes, real};

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
    /// What the jobs that may be ended for the host's memory, this one included, give back together.
    pub host: Givers,
    /// The same of the jobs below the cgroup limit that leaves this job the least memory.
    pub limit: Givers,
    /// The same of the jobs that may use no other NUMA nodes than this one.
    pub nodes: Givers,
}

/// Jobs that may be ended for one shortage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Givers {
    /// Their number.
    pub jobs: u32,
    /// The memory that their end gives back, in bytes.
    pub bytes: Bytes,
    /// Whether the end of one of them gave nothing back, and the shortage has lasted since: only a job that grows is ended then.
    pub futile: bool,
}

impl Givers {
    /// Adds a job.
    pub fn add(&mut self, gives: Bytes) {
        self.jobs += 1;
        self.bytes = self.bytes.saturating_add(gives);
    }

    /// Whether the end of a job that gives back `own` helps where `lacking` is missing: it gives all of it back, or all of them
    /// together do, and it at least its share of what is missing.
    pub fn helps(&self, own: Bytes, lacking: Bytes, grows: bool) -> bool {
        let share = real(lacking.get()) / f64::from(self.jobs.max(1));
        let enough = own >= lacking || (self.bytes >= lacking && real(own.get()) >= share);
        enough && (grows || !self.futile)
    }
}

/// The resources of which the end of a job gave nothing back, while their shortage lasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Futile {
    /// The host's memory.
    pub host: bool,
    /// The limit of a cgroup, by its inode.
    pub group: Option<u64>,
    /// The memory of these NUMA nodes.
    pub nodes: Option<NodeSet>,
}

impl Gate {
    /// No other escalation.
    pub const OPEN: Self = Self {
        busy: false,
        below_the_limit: false,
        yields: false,
        left: u32::MAX,
        host: Givers { jobs: 0, bytes: Bytes::ZERO, futile: false },
        limit: Givers { jobs: 0, bytes: Bytes::ZERO, futile: false },
        nodes: Givers { jobs: 0, bytes: Bytes::ZERO, futile: false },
    };

    /// The jobs that may be ended for a resource; absent where others do not share it.
    pub const fn givers(&self, resource: Resource) -> Option<&Givers> {
        match resource {
            Resource::Host => Some(&self.host),
            Resource::Cgroup => Some(&self.limit),
            Resource::Nodes => Some(&self.nodes),
            Resource::Gpu | Resource::Allocator | Resource::High => None,
        }
    }

    /// Whether another job is terminating that will free this resource.
    pub const fn waits_for(self, resource: Resource) -> bool {
        match resource {
            Resource::Host | Resource::Nodes | Resource::Gpu => self.busy,
            Resource::Cgroup => self.below_the_limit,
            Resource::Allocator | Resource::High => false,
        }
    }
}
