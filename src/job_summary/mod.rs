//! What a Slurm job used on this node, for the end of the job.
//!
//! [`Ledger`] follows the jobs from sample to sample and keeps the values of ended jobs for a day, because the cgroup of a
//! job no longer exists when its epilog runs. [`JobSummary`] is what it knows of one job. Identity comes from cgroups, from
//! the title of slurmstepd and from files of root; account and partition are text that the job's user can change.

mod ledger;
mod record;
mod request;

pub use ledger::Ledger;

use serde::{Deserialize, Serialize};

/// Whether the job still has processes or GPUs on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It has.
    #[default]
    Running,
    /// The newest sample has none.
    Ended,
}

/// The memory limit of the job's cgroup, which Slurm sets from the requested memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitState {
    /// The cgroup of the job was not read: Slurm does not use the memory controller, or the job was too short.
    #[default]
    Unknown,
    /// The cgroup has no limit: `ConstrainRAMSpace` is off, or the job requested all memory.
    None,
    /// The cgroup has a limit.
    Set,
}

/// The value that `peak_bytes` is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeakBasis {
    /// Nothing was measured.
    #[default]
    Unknown,
    /// The working set of the job's cgroup: charged memory without inactive page cache.
    WorkingSet,
    /// The sum of the resident memory of the job's processes, because the cgroup was not read, or only for a part of the time.
    ResidentMemory,
    /// The peak resident memory of the job's largest process, which the kernel records between two samples too.
    LargestProcess,
}

/// Memory of a job on this node, in bytes. Values that were not measured are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobMemory {
    /// Whether the job's cgroup has a limit.
    pub limit: LimitState,
    /// The limit of the job's cgroup.
    pub limit_bytes: Option<u64>,
    /// The largest memory that the job needed at once, without page cache that can be dropped.
    pub peak_bytes: Option<u64>,
    /// What `peak_bytes` is.
    pub peak_basis: PeakBasis,
    /// The largest sum of anonymous memory.
    pub anonymous_peak_bytes: Option<u64>,
    /// The largest charged memory by the kernel, page cache included: an upper bound of the peak.
    pub charged_peak_bytes: Option<u64>,
    /// The largest peak of one process, by the kernel.
    pub largest_process_peak_bytes: Option<u64>,
    /// Processes of the job that the kernel's OOM killer killed; at least so many.
    pub oom_kills: u64,
    /// Suggested request for the next run of the job on one node.
    pub suggested_request_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobGpu {
    /// The GPU's index; empty where it is not known.
    pub gpu: String,
    /// Its UUID; empty where it is not known.
    pub uuid: String,
    /// Time for which Slurm had allocated it to the job; absent where no prolog writes the GPUs of jobs.
    pub held_seconds: Option<f64>,
    /// Time for which a process of the job used it.
    pub used_seconds: f64,
    /// The largest memory of the job's processes on it.
    pub memory_peak_bytes: Option<u64>,
    pub memory_total_bytes: Option<u64>,
    /// Mean share of the time in which a kernel ran on it while the job held or used it, 0 to 1.
    pub mean_utilization_ratio: Option<f64>,
}

/// What one job used on one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobSummary {
    pub job: String,
    /// The name of the node; empty where it is not known.
    pub node: String,
    /// Whether it still runs.
    pub state: JobState,
    /// The name of its workload; empty if it had no process.
    pub workload: String,
    /// Its user's name, or ID where the name is not known; empty where the user is not known.
    pub user: String,
    pub user_id: Option<u32>,
    /// Its account, by its environment; empty where it is not known.
    pub account: String,
    /// Its partition, by its environment; empty where it is not known.
    pub partition: String,
    /// The path of its cgroup; empty where it is not known.
    pub cgroup: String,
    /// Unix time at which its oldest process started, or at which it was first seen.
    pub start_timestamp_seconds: f64,
    /// Unix time of the first sample of it.
    pub first_sample_timestamp_seconds: f64,
    /// Unix time of the last sample of it.
    pub last_sample_timestamp_seconds: f64,
    /// Number of samples of it.
    pub samples: u64,
    /// Number of other jobs of the same user on this node now.
    pub other_jobs_of_user: u64,
    /// CPU time of its processes.
    pub cpu_seconds: Option<f64>,
    pub memory: JobMemory,
    pub gpus: Vec<JobGpu>,
}

impl JobSummary {
    /// Time from its start to its last sample, in seconds.
    pub fn run_seconds(&self) -> f64 {
        (self.last_sample_timestamp_seconds - self.start_timestamp_seconds).max(0.0)
    }

    /// Time for which Slurm had allocated its GPUs, summed over the GPUs, in seconds; absent where it is not known for one.
    pub fn gpu_held_seconds(&self) -> Option<f64> {
        self.gpus.iter().map(|gpu| gpu.held_seconds).sum()
    }

    /// Time for which its processes used GPUs, summed over the GPUs, in seconds.
    pub fn gpu_used_seconds(&self) -> f64 {
        self.gpus.iter().map(|gpu| gpu.used_seconds).sum()
    }
}
