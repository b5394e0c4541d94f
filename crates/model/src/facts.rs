//! Facts that sources exchange in one tick, besides points.
//!
//! Sources never import each other; a source leaves data for another here. Data flows in the registry's order: `kmsg`
//! before `gpu`, `numa` before `workload`, `process` before `drm` and `exits`, `gpu`, `drm`, `process` and `kubernetes` before `workload`, `workload` before `training`, `training` before
//! `logs`, `workload` before `perf`, `slurm` and `tmpfs`, `exits` before `tmpfs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::ends::Sender;
use super::finding::Finding;
use super::fit::{Answer, RankPredictions};
use super::frame::Frame;
use super::health::Health;
use super::ids::{ProcessKey, WorkloadKey};
pub use super::kernel_log::{KernelLog, KernelReport, OomScope, OomVictim, RESIDENT_KINDS};
use super::label::Label;
use super::node_set::NodeSet;
use super::room::GroupSwap;
use super::shortage::Shortage;
use super::subordinate::SubordinateIds;
use super::time::Timestamp;
use super::timeline::Timeline;
use super::units::{Bytes, real};

#[derive(Debug, Default)]
pub struct Facts {
    /// Every process of the host, by the `process` source; absent where that source is off or failed.
    pub processes: Option<Arc<ProcessTable>>,
    /// The subordinate user ids of this host, by the `process` source.
    pub subordinates: Arc<SubordinateIds>,
    /// Every process that holds GPU memory, by the sources `gpu` and `drm`.
    pub gpu_processes: Vec<GpuProcess>,
    /// Used memory of each GPU, by the sources `gpu` and `drm`; without GPUs for which the driver does not report it, or whose
    /// samples are stale.
    pub gpu_memory: Vec<GpuMemory>,
    /// The UUIDs of GPUs whose processes allocate from the memory of the host, by the sources `gpu` and `drm`.
    pub gpus_of_host_memory: Vec<Label>,
    /// Whether GPUs use the memory of the host, so that it is a pool of both, by the sources `memory`, `gpu` and `drm`.
    pub host_memory_is_pool: bool,
    /// Memory of the host that no workload holds, by the `memory` source.
    pub held_memory: HeldMemory,
    /// The swap of the host that processes in cgroups can use, by the `memory` source; none where that is not known.
    pub group_swap: GroupSwap,
    /// The NUMA nodes with memory of the host, by the `numa` source; empty where they are not known.
    pub memory_nodes: NodeSet,
    /// Whether the GPUs have not been enumerated yet, by the `gpu` source.
    pub gpus_starting: bool,
    /// GPUs that Slurm allocated to jobs, by the `slurm` source.
    pub slurm_gpus: Vec<SlurmGpu>,
    /// Names of the node's pods and containers, by the `kubernetes` source.
    pub pods: Arc<PodNames>,
    /// The workload of each process, by the `workload` source; sorted by pid.
    pub workload_of: Vec<Membership>,
    /// The workloads that have series in this tick, by the `workload` source.
    pub workloads: Vec<Arc<Workload>>,
    /// The names that the owners of those workloads know them by, in the same order, by the `workload` source.
    pub workload_names: Vec<Arc<WorkloadNames>>,
    /// XIDs that the kernel logged since the last tick, by the `kmsg` source.
    pub kernel_xids: Vec<KernelXid>,
    /// How much of the kernel log is known in this tick, by the `kmsg` source.
    pub kernel_log: KernelLog,
    /// What the kernel logged of single processes since the last tick, by the `kmsg` source.
    pub kernel_reports: Vec<KernelReport>,
    /// Processes that the kernel's OOM killer killed since the last tick, by the `kmsg` source.
    pub oom_victims: Vec<OomVictim>,
    /// Processes that protection sent SIGTERM or SIGKILL since the last tick, by the guard, after the analyzers.
    pub signalled: Vec<ProcessKey>,
    /// Threads that ended since the last tick, by the `exits` source, in their order; without processes that were not running
    /// in the previous tick.
    pub exited: Vec<ExitedProcess>,
    /// Signals that end processes, by the `exits` source, in their order; without those to processes that were
    /// running neither in this tick nor in the previous one.
    pub received_signals: Vec<ReceivedSignal>,
    /// The limits of processes of workloads of their own, by the `workload` source: of those that have one.
    pub own_limits: Vec<(ProcessKey, OwnLimits)>,
    /// The ranks that the launchers of jobs have started, by the `workload` source; sorted by process.
    pub environment_ranks: Vec<EnvironmentRank>,
    /// The processes of watched workloads, by the `workload` source; sorted by pid.
    pub members: Vec<Membership>,
    /// The processes of the previous tick, by the engine: events of an ended process are reported after it
    /// disappeared.
    pub before: Before,
    /// The processes that were connected as ranks of a job in the previous tick, by the engine.
    pub reporting: Vec<ProcessKey>,
    /// The connected ranks, by the `training` source. Their points are already added, except for new ranks without a
    /// name.
    pub ranks: Vec<ReportedRank>,
    /// Reported statistics of the allocators of jobs, by the sources `training` and `logs`.
    pub allocators: Vec<Allocator>,
    /// The workloads of which a rank had a micro-batch larger than all before a moment ago, or reads its
    /// data for the first time, by the `training` source.
    pub growing_data: BTreeSet<Label>,
    /// What connected ranks predict of their next phases, by the `training` source; without ranks that predict nothing.
    pub predictions: Vec<RankPredictions>,
    /// What the analyzers answered to ranks in the previous tick, by the engine; the `training` source sends it.
    pub answers: Vec<Answer>,
    /// Recent events of training jobs, by the `training` source.
    pub timeline: Arc<Timeline>,
    /// How full the tmpfs are that processes of workloads see, by the `tmpfs` source; absent where that is not known.
    pub tmpfs: Option<Arc<TmpfsTable>>,
    /// The users of the exposed cgroups that are not root's, by the label of the cgroup, by the `cgroup` source.
    pub cgroup_users: Arc<BTreeMap<Label, u32>>,
    /// Limits that were exceeded in this tick, by the component that enforces them.
    pub shortages: Vec<Shortage>,
    pub findings: Vec<Finding>,
}

impl Facts {
    /// The resident memory of a process and its memory on GPUs that use the memory of the host, which RSS does not include.
    pub fn pool_of(&self, row: &ProcessRow) -> Bytes {
        let held = self.gpu_processes.iter().filter(|held| held.pid == row.key.pid);
        let held = held.filter(|held| self.gpus_of_host_memory.contains(&held.uuid));
        held.filter_map(|held| held.memory).fold(row.rss, Bytes::saturating_add)
    }

    /// The names of a workload that has series in this tick.
    pub fn names_of(&self, key: &WorkloadKey) -> Option<&Arc<WorkloadNames>> {
        let place = self.workloads.iter().position(|workload| workload.key == *key)?;
        self.workload_names.get(place)
    }

    /// The row of a process, unless it has ended and another one has its pid.
    pub fn row(&self, key: ProcessKey) -> Option<&ProcessRow> {
        self.processes.as_ref()?.get(key.pid).filter(|row| row.key == key)
    }

    /// The watched workload that a process belongs to.
    pub fn member(&self, key: ProcessKey) -> Option<&Workload> {
        member_of(&self.members, key.pid)
            .filter(|member| member.process == key)
            .map(|member| &*member.workload)
    }
}

/// Memory of the host that the end of no job gives back; absent where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldMemory {
    /// Memory that the kernel itself holds and does not give back.
    pub kernel: Option<Bytes>,
    /// Pools of huge pages, used or not.
    pub huge_pages: Option<Bytes>,
    /// The part of the ARC of ZFS that is not given back.
    pub arc: Option<Bytes>,
}

/// What is known of a process of its own: limits, absent where it has none, or they are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnLimits {
    /// The hard limit of CPU time, in seconds.
    pub cpu: Option<u64>,
    /// The limit of its address space, and the most of it that it had taken, in bytes.
    pub address_space: Option<(Bytes, Bytes)>,
    /// Whether it is the first process of a pid namespace: with it, the kernel ends all others of that.
    pub is_init: bool,
}

/// A thread that ended; the last one of a process has its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitedProcess {
    pub process: ProcessKey,
    /// The id of the thread; that of the first one is the pid.
    pub tid: u32,
    /// The status as wait(2) has it.
    pub status: i32,
}

/// A signal that a process was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    pub process: ProcessKey,
    pub signal: i32,
    /// Absent for the kernel.
    pub sender: Option<Sender>,
}

/// The membership of a process in a workload, determined by its cgroup, its user or its ancestors as the kernel
/// reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    pub process: ProcessKey,
    pub workload: Arc<Workload>,
}

/// The membership of the process with this pid; `members` is sorted by pid.
pub fn member_of(members: &[Membership], pid: u32) -> Option<&Membership> {
    members.binary_search_by_key(&pid, |member| member.process.pid).ok().map(|place| &members[place])
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub key: WorkloadKey,
    /// The displayed name, unique among the running workloads.
    pub name: Label,
    /// The name without the suffix that makes it unique.
    pub plain: Label,
    /// Its user: the user of its oldest process that does not belong to root, else root.
    pub user: u32,
}

/// The names that the owner of a workload knows it by. Names that do not apply, or are unknown, are empty.
///
/// They come from the kernel, the scheduler and the kubelet; a job cannot choose them, except its run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadNames {
    /// The name of its user, or the number where it has no name.
    pub user: Label,
    pub cgroup: Label,
    /// The id of its Slurm job: from the cgroup's path, or from the title of slurmstepd.
    pub slurm_job_id: Label,
    /// The pod and, if it is known, the container.
    pub pod: ContainerName,
    pub run: Run,
}

/// A training run, which can span nodes.
///
/// Its name is the first that is known of: the configuration, `MEMWARDEN_RUN`, the Slurm job, the owner of the pod,
/// `TORCHELASTIC_RUN_ID`, `PMIX_NAMESPACE`, and the address of the rendezvous. The job's user can choose those that come
/// from the environment: they name a run, and do not authorize anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Its name; empty where it is not known.
    pub name: Label,
    /// Whether the name comes from the configuration.
    pub configured: bool,
}

/// A rank, as the launcher of its job has started it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentRank {
    pub process: ProcessKey,
    pub workload: Arc<Workload>,
    /// The global rank.
    pub rank: u32,
    /// The rank on its node.
    pub local_rank: Option<u32>,
    /// The number of ranks of the run.
    pub world: Option<u32>,
}

#[cfg(any(test, feature = "testing"))]
impl Membership {
    /// A membership in a workload of a scheduler's cgroup with this name.
    pub fn in_group(process: ProcessKey, name: &str) -> Self {
        let name = Label::from(name);
        let key = WorkloadKey { anchor: super::ids::Anchor::Group(name.as_str().into()), user: None };
        Self { process, workload: Workload { key, plain: name.clone(), name, user: 0 }.into() }
    }

    /// A membership in a workload of a rule with this name for user 0.
    pub fn named(process: ProcessKey, name: &str) -> Self {
        let name = Label::from(name);
        let key = WorkloadKey { anchor: super::ids::Anchor::Rule(name.clone()), user: Some(0) };
        Self { process, workload: Workload { key, plain: name.clone(), name, user: 0 }.into() }
    }
}

/// The processes of one tick.
#[derive(Debug, Default)]
pub struct Before {
    pub processes: Option<Arc<ProcessTable>>,
    /// The workload of each process, sorted by pid.
    pub workload_of: Vec<Membership>,
    /// The ranks that were connected.
    pub ranks: Vec<ReportedRank>,
    /// The frame; absent in the first tick.
    pub frame: Option<Arc<Frame>>,
    /// The processes that protection had sent SIGTERM or SIGKILL.
    pub signalled: Vec<ProcessKey>,
}

impl Before {
    /// The process that had this pid.
    pub fn row(&self, pid: u32) -> Option<&ProcessRow> {
        self.processes.as_ref()?.get(pid)
    }

    /// The workload of the process.
    pub fn workload(&self, process: ProcessKey) -> Option<&Label> {
        let member = member_of(&self.workload_of, process.pid).filter(|member| member.process == process)?;
        Some(&member.workload.name)
    }
}

/// A rank that is connected in this tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedRank {
    /// Its process; absent where it could not be identified.
    pub key: Option<ProcessKey>,
    pub workload: Label,
    /// The value of the label `rank`; empty before its points are added.
    pub rank: Label,
    /// The name of its run; empty where it is not known.
    pub run: Label,
    /// Why a checkpoint signal does not lead to a checkpoint, in the words of the job; absent unless it reported that.
    pub cannot_save: Option<Label>,
}

/// Reported statistics of the allocator of a job on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocator {
    /// The process of the allocator, which reported it over the job socket. Absent where no running process is known
    /// for the values: from a log, and after the process has ended.
    pub process: Option<ProcessKey>,
    /// The workload of that process, or the workload of the log.
    pub workload: Option<WorkloadKey>,
    pub allocated: Bytes,
    pub reserved: Option<Bytes>,
    /// Free memory of the device.
    pub free: Option<Bytes>,
    /// Time since the last report; absent where it is unknown.
    pub age: Option<Duration>,
}

/// Every process of the host at one instant.
#[derive(Debug, Default)]
pub struct ProcessTable {
    /// Sorted by pid.
    pub rows: Vec<ProcessRow>,
    /// Boot time of the host, in seconds since 1970; start times are relative to it.
    pub boot: Option<u64>,
}

impl ProcessTable {
    /// The process that has this pid now.
    pub fn get(&self, pid: u32) -> Option<&ProcessRow> {
        self.rows.binary_search_by_key(&pid, |row| row.key.pid).ok().map(|place| &self.rows[place])
    }
}

/// One process, from `/proc/PID/stat` and its cgroup file.
#[derive(Clone, Debug, Default)]
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
    /// The real one, where it can be another.
    pub real_uid: Option<u32>,
    /// The kernel's name of the process, at most 15 bytes.
    pub comm: Label,
    /// The state letter of `/proc/PID/stat`.
    pub state: u8,
    pub kernel: bool,
    /// Resident memory (RSS) by `/proc/PID/stat`: an estimate since Linux 6.2.
    pub rss: Bytes,
    /// User and system CPU time, in clock ticks.
    pub cpu_ticks: u64,
    pub threads: u64,
    pub major_faults: u64,
    /// The path in the memory controller's hierarchy (v1) or the unified one (v2); absent where it could not be read.
    pub cgroup: Option<Label>,
    /// The complete cgroup path in the hierarchy that names its job, pod, container or unit.
    pub naming_cgroup: Option<Arc<str>>,
}

impl ProcessRow {
    /// A process without a parent, a session, a terminal, memory and cgroups, of root, in a state that is not known.
    pub fn new(key: ProcessKey, comm: Label) -> Self {
        Self { key, comm, ..Self::default() }
    }

    /// Whether this is its effective or its real user; the kernel logs the latter.
    pub fn is_of(&self, uid: u32) -> bool {
        uid == self.uid || Some(uid) == self.real_uid
    }
}

/// One read of the tmpfs of the host and of workloads.
#[derive(Debug)]
pub struct TmpfsTable {
    /// When it began.
    pub read_at: Timestamp,
    /// One for each file system.
    pub file_systems: Vec<Tmpfs>,
    /// The places in `file_systems` of those that each process sees.
    pub of_process: HashMap<ProcessKey, Arc<[usize]>>,
    /// The same of most processes of a workload.
    pub of_workload: HashMap<WorkloadKey, Arc<[usize]>>,
    /// The number of mount namespaces that were not read, by user.
    pub left_out: BTreeMap<u32, u64>,
}

/// A tmpfs with a size limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tmpfs {
    /// The number of the file system, which another one can get after this one is gone.
    pub device: Box<str>,
    /// Whose it is; absent for a tmpfs of the host.
    pub workload: Option<Arc<Workload>>,
    /// Where that workload, or the host, sees it; printable.
    pub mount: Label,
    /// Its limit, which is not 0.
    pub size: Bytes,
    pub used: Bytes,
    /// The users with the most bytes of files directly in it; only where it is nearly full.
    pub owners: Vec<(u32, Bytes)>,
}

impl TmpfsTable {
    pub fn by_device(&self, device: &str) -> Option<&Tmpfs> {
        self.file_systems.iter().find(|own| *own.device == *device)
    }
}

impl Tmpfs {
    /// 0 to 1.
    pub fn used_share(&self) -> f64 {
        real(self.used.get()) / real(self.size.get())
    }
}

/// Names of the pods and containers of this node, as the kubelet names their logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNames {
    /// By the UID of the pod; without a container.
    pub pods: HashMap<Label, ContainerName>,
    /// By the ID of the container.
    pub containers: HashMap<Label, ContainerName>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerName {
    /// The pod's namespace.
    pub namespace: Label,
    pub pod: Label,
    /// The container's name; empty for a pod as a whole.
    pub container: Label,
}

impl ContainerName {
    pub fn new(namespace: &str, pod: &str, container: &str) -> Self {
        Self { namespace: namespace.into(), pod: pod.into(), container: container.into() }
    }
}

/// One process on one GPU, as the driver reports it.
#[derive(Clone, Debug)]
pub struct GpuProcess {
    /// The pid in the daemon's pid namespace.
    pub pid: u32,
    /// The GPU's index.
    pub gpu: Label,
    pub uuid: Label,
    /// GPU memory; absent where the driver does not report it.
    pub memory: Option<Bytes>,
}

/// Memory of one GPU, as the driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMemory {
    pub uuid: Label,
    /// Used memory, without the memory that the driver reserves for itself.
    pub used: Bytes,
    pub free: Bytes,
}

/// One GPU that Slurm allocated to a job, as root's files say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmGpu {
    /// The job's ID.
    pub job: Label,
    /// The job's user; absent where the file does not have it.
    pub user: Option<u32>,
    /// The GPU's index; empty where the driver does not report it.
    pub gpu: Label,
    /// The UUID of the GPU or the MIG device; empty where the driver does not report it.
    pub uuid: Label,
}

/// One XID line of the kernel log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelXid {
    /// The PCI address as printed, for example `0000:3b:00`.
    pub pci: String,
    pub xid: u32,
    /// By the text of the line, or else by the table.
    pub severity: Health,
    /// When the kernel logged it: microseconds on the kernel log's clock.
    pub kernel_us: u64,
}
