//! The input that the guard receives with each sample: jobs, their processes, and readings that the guard cannot make
//! itself.

use std::sync::Arc;
use std::time::Duration;

use crate::model::facts::WorkloadNames;
use crate::model::label::Label;
use crate::model::outlook::Tte;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::levels::{GroupMeter, HostMeter, NodesMeter};
use crate::protection::enforce::process_meter::ProcessMeter;
use crate::protection::guard::alerts::FiringAlert;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{Aged, ByResource, Escalation, Members, Reading};
use crate::protection::status::Unfit;
use crate::protection::types::scope::Scope;

/// Maximum number of jobs that are protected at once.
pub const SLOTS: usize = 64;

/// The input of one sample, by slot.
#[derive(Debug)]
pub struct GuardInput {
    /// When the sample was taken.
    pub at: Timestamp,
    /// The meter of the host, where it has changed.
    pub host: Option<HostMeter>,
    /// Whether GPUs use the memory of the host.
    pub is_pool: bool,
    /// [`SLOTS`] entries.
    pub slots: Vec<Option<JobInput>>,
}

/// The reading of a resource that the guard cannot read itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum SampledReading {
    /// The target does not have the resource.
    #[default]
    Absent,
    /// The target has the resource, and the memory left is unknown.
    Unknown,
    Read(Reading),
}

impl SampledReading {
    /// The reading, where there is one, which is as old as the frame.
    pub(super) fn reading(self, age: Duration) -> Option<Aged<Reading>> {
        match self {
            Self::Read(reading) => Some(Aged::of(reading, age)),
            Self::Absent | Self::Unknown => None,
        }
    }
}

/// The names of a job, for hooks, webhooks and alerts. Names that do not apply, or are unknown, are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobNames {
    /// The name of the workload; empty where the job's processes are in several workloads, or in none.
    pub workload: Label,
    /// The names that its owner knows it by.
    pub owner: WorkloadNames,
}

/// The input for the job in one slot.
#[derive(Debug)]
pub struct JobInput {
    /// Distinguishes the job from earlier jobs in the same slot.
    pub serial: u64,
    /// The index of its target.
    pub target: usize,
    /// The user of the job; absent where the target names no job.
    pub user: Option<u32>,
    /// The escalation of a job that is new in the slot.
    pub escalation: Option<Escalation>,
    pub names: Arc<JobNames>,
    /// Its processes.
    pub roster: Arc<Roster>,
    /// The scope, where it has changed.
    pub scope: Option<Scope>,
    /// The meter of its cgroup's limits, where it has changed; `Some(None)` where there is none any more.
    pub meter: Option<Option<GroupMeter>>,
    /// The meter of the NUMA nodes that it may use, where these have changed; `Some(None)` where it may use all of them.
    pub nodes: Option<Option<NodesMeter>>,
    /// The meter of its processes, where they have changed and the target limits their memory.
    pub processes: Option<ProcessMeter>,
    /// What the sampler knows of it.
    pub sampled: SamplerReadings,
}

/// What the end of a job's victims gives back to the host and to the limits above them, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledGives {
    /// Their resident memory, at most what their workloads hold of anonymous and shared memory.
    pub resident: Bytes,
    /// The most that files take in the tmpfs that its processes see, which stay; absent where that is not known.
    pub files: Option<Bytes>,
    /// What they hold of the host's memory through GPUs without memory of their own.
    pub of_gpus: Bytes,
}

/// What the sampler knows of a job.
#[derive(Clone, Copy, Debug, Default)]
pub struct SamplerReadings {
    /// Number of processes; absent where it is unknown.
    pub members: Option<Members>,
    /// The memory of its GPUs.
    pub gpu: SampledReading,
    /// The memory of its allocator.
    pub allocator: SampledReading,
    /// The forecast; absent where no analyzer observes the job.
    pub forecast: Option<Option<Tte>>,
    /// The predicted fall of the memory that is left; absent where no analyzer observes the job.
    pub falls: Option<ByResource<Option<f64>>>,
    /// The memory that saving a checkpoint takes, as the job predicts.
    pub save: ByResource<Option<Bytes>>,
    /// What the end of its victims gives back; absent where it has no process.
    pub gives: Option<SampledGives>,
    /// Growth of its own memory in bytes per second; absent where that is unknown.
    pub growth: Option<f64>,
    /// Whether a leak is confirmed; absent where no analyzer observes the job.
    pub leak: Option<bool>,
    pub alert: Option<FiringAlert>,
    /// Why no action is allowed for the job.
    pub unfit: Option<Unfit>,
}

impl GuardInput {
    /// Takes over from unread input what is sent only once.
    pub fn keep(&mut self, unread: &mut Self) {
        self.host = self.host.take().or_else(|| unread.host.take());
        for (new, old) in self.slots.iter_mut().zip(&mut unread.slots) {
            if let (Some(new), Some(old)) = (new, old)
                && new.serial == old.serial
            {
                new.escalation = new.escalation.take().or_else(|| old.escalation.take());
                new.scope = new.scope.take().or_else(|| old.scope.take());
                new.meter = new.meter.take().or_else(|| old.meter.take());
                new.nodes = new.nodes.take().or_else(|| old.nodes.take());
                new.processes = new.processes.take().or_else(|| old.processes.take());
            }
        }
    }
}
