//! What sources tell each other in one tick, beside points.
//!
//! Sources never import each other; one that knows something another needs
//! leaves it here. The registry's order is the order of telling:
//! `kmsg` before `gpu`, `gpu` and `process` before `workload`, `workload` before `training`, `training` before `otlp` and
//! `logs`, `workload` before `perf`.

use std::sync::Arc;
use std::time::Duration;

use super::finding::Finding;
use super::ids::{ProcessKey, WorkloadKey};
use super::label::Label;
use super::shortage::Shortage;
use super::timeline::Timeline;
use super::units::Bytes;

/// What one tick's sources left for each other.
#[derive(Debug, Default)]
pub struct Facts {
    /// Every process of the host, by the `process` source; absent where that source is off or failed.
    pub processes: Option<Arc<ProcessTable>>,
    /// Every process that holds GPU memory, by the `gpu` source.
    pub gpu_processes: Vec<GpuProcess>,
    /// How much of its memory each GPU has used, by the `gpu` source; left out where the driver does not say, or its
    /// figures are stale.
    pub gpu_memory: Vec<GpuMemory>,
    /// Whether the driver was not asked yet what GPUs there are, by the `gpu` source.
    pub gpus_starting: bool,
    /// Which workload each process is in, by the `workload` source; sorted by pid.
    pub workload_of: Vec<Membership>,
    /// The workloads whose figures are in this tick, by the `workload` source.
    pub workloads: Vec<Arc<Workload>>,
    /// XIDs that the kernel log named since the last tick, by the `kmsg` source.
    pub kernel_xids: Vec<KernelXid>,
    /// The processes that belong to a watched workload, sorted by pid, by the `workload` source.
    pub members: Vec<Membership>,
    /// What the tick before told of processes, by the engine: what is over is told of only once it is gone.
    pub before: Before,
    /// The processes that spoke as ranks of a job in the tick before, by the engine.
    pub spoke: Vec<ProcessKey>,
    /// The ranks that speak, by the `training` source. Their figures are put already, but for those that are new and
    /// have no name yet.
    pub ranks: Vec<ToldRank>,
    /// What is told of the allocators of jobs, by the sources `training`, `otlp` and `logs`.
    pub allocators: Vec<Allocator>,
    /// What happened to training jobs lately, by the `training` source.
    pub timeline: Arc<Timeline>,
    /// The users of the exposed cgroups that are not root's, by the label of the cgroup, by the `cgroup` source.
    pub cgroup_users: Arc<std::collections::BTreeMap<Label, u32>>,
    /// Limits that left something out in this tick, by whoever holds them.
    pub shortages: Vec<Shortage>,
    /// What a source states itself, beside the analyzers.
    pub findings: Vec<Finding>,
}

impl Facts {
    /// The watched workload that a process belongs to.
    pub fn member(&self, key: ProcessKey) -> Option<&Workload> {
        let place = self.members.binary_search_by_key(&key.pid, |member| member.process.pid).ok()?;
        Some(&self.members[place]).filter(|member| member.process == key).map(|member| &*member.workload)
    }
}

/// That a process belongs to a workload, which the kernel's word for its cgroup, its user or its ancestors says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The process.
    pub process: ProcessKey,
    /// The workload.
    pub workload: Arc<Workload>,
}

/// A workload, as others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// What makes it one.
    pub key: WorkloadKey,
    /// The name that is shown, which no other living workload has.
    pub name: Label,
    /// The name without what tells it from others that look like it.
    pub plain: Label,
    /// Whose it is: the user of its oldest process that is not root's, else root.
    pub user: u32,
}

#[cfg(test)]
impl Membership {
    /// That of a process in a workload that a scheduler's group of this name makes.
    pub(crate) fn in_group(process: ProcessKey, name: &str) -> Self {
        let name = Label::from(name);
        let key = WorkloadKey { anchor: super::ids::Anchor::Group(name.as_str().into()), user: None };
        Self { process, workload: Workload { key, plain: name.clone(), name, user: 0 }.into() }
    }

    /// That of a process in a workload that a rule of this name made for user 0.
    pub(crate) fn named(process: ProcessKey, name: &str) -> Self {
        let name = Label::from(name);
        let key = WorkloadKey { anchor: super::ids::Anchor::Rule(name.clone()), user: Some(0) };
        Self { process, workload: Workload { key, plain: name.clone(), name, user: 0 }.into() }
    }
}

/// What one tick told of processes.
#[derive(Debug, Default)]
pub struct Before {
    /// Every process of the host.
    pub processes: Option<Arc<ProcessTable>>,
    /// Which workload each process was in, sorted by pid.
    pub workload_of: Vec<Membership>,
    /// The ranks that spoke.
    pub ranks: Vec<ToldRank>,
}

impl Before {
    /// The workload of a process that had this pid and this name.
    pub fn workload(&self, pid: u32, comm: &str) -> Option<&Label> {
        let row = self.processes.as_ref()?.get(pid).filter(|row| row.comm.as_str() == comm)?;
        let place = self.workload_of.binary_search_by_key(&pid, |member| member.process.pid).ok()?;
        let Membership { process, workload } = &self.workload_of[place];
        (*process == row.key).then_some(&workload.name)
    }
}

/// A rank that spoke by this tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldRank {
    /// Its process; absent where that could not be looked at.
    pub key: Option<ProcessKey>,
    /// The value of the label `workload`.
    pub workload: Label,
    /// The value of the label `rank`; empty before its figures are put.
    pub rank: Label,
}

/// What is told of the allocator of a job on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocator {
    /// The process whose allocator it is, which told it over the job socket. Absent where no living process is known to
    /// answer for the figures: in a log, in a push, and where the process has just ended.
    pub process: Option<ProcessKey>,
    /// The workload of that process, or the one that the log is of.
    pub workload: Option<WorkloadKey>,
    /// What the tensors take.
    pub allocated: Bytes,
    /// What the allocator has taken of the device.
    pub reserved: Option<Bytes>,
    /// What is free on the device.
    pub free: Option<Bytes>,
    /// Since when the process has said nothing; absent where nobody knows.
    pub age: Option<Duration>,
}

/// Every process of the host at one instant.
#[derive(Debug, Default)]
pub struct ProcessTable {
    /// Sorted by pid.
    pub rows: Vec<ProcessRow>,
    /// When the host was booted, in seconds since 1970; start times count from there.
    pub boot: Option<u64>,
}

impl ProcessTable {
    /// The process that has this pid now.
    pub fn get(&self, pid: u32) -> Option<&ProcessRow> {
        self.rows.binary_search_by_key(&pid, |row| row.key.pid).ok().map(|place| &self.rows[place])
    }
}

/// What `/proc/PID/stat` and the cgroup file say of one process.
#[derive(Clone, Debug)]
pub struct ProcessRow {
    /// Pid and start time.
    pub key: ProcessKey,
    /// The parent's pid.
    pub parent: u32,
    /// The session's leader.
    pub session: u32,
    /// The controlling terminal's device number; 0 for none.
    pub terminal: i32,
    /// The effective user.
    pub uid: u32,
    /// The kernel's name of the process, at most 15 bytes.
    pub comm: Label,
    /// The state letter of `/proc/PID/stat`.
    pub state: u8,
    /// Whether it is a thread of the kernel.
    pub kernel: bool,
    /// Resident memory by `/proc/PID/stat`: an estimate since Linux 6.2.
    pub rss: Bytes,
    /// User and system CPU time, in clock ticks.
    pub cpu_ticks: u64,
    /// Threads.
    pub threads: u64,
    /// Major page faults.
    pub major_faults: u64,
    /// The path in the memory controller's hierarchy (v1) or the unified one (v2); absent where it could not be read.
    pub cgroup: Option<Label>,
    /// The cgroup path, whole, of the hierarchy that names the job, pod, container or unit it belongs to.
    pub naming_cgroup: Option<Arc<str>>,
}

/// One process on one GPU, as the driver reports it.
#[derive(Clone, Debug)]
pub struct GpuProcess {
    /// The pid in the daemon's pid namespace.
    pub pid: u32,
    /// The GPU's index.
    pub gpu: Label,
    /// The GPU's UUID.
    pub uuid: Label,
    /// GPU memory; absent where the driver does not say.
    pub memory: Option<Bytes>,
}

/// How much memory of one GPU is used, as the driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    /// The GPU's UUID.
    pub uuid: Label,
    /// What is used, without what the driver keeps for itself.
    pub used: Bytes,
    /// What is free.
    pub free: Bytes,
}

/// One XID line of the kernel log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelXid {
    /// The PCI address as printed, for example `0000:3b:00`.
    pub pci: String,
    /// The XID's number.
    pub xid: u32,
    /// When the kernel logged it: microseconds on the kernel log's clock.
    pub kernel_us: u64,
}
