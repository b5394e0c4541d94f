//! How processes ended, and why.

use serde::{Deserialize, Serialize};

use super::facts::{KernelLog, OomScope};
use super::finding::Subject;
use super::health::Health;
use super::label::Label;
use super::names::named;

named! {
    /// Why a process ended.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum EndCause {
        /// The limit of a cgroup was reached.
        CgroupLimit = "cgroup_limit",
        /// The memory of the host was exhausted.
        HostMemory = "host_memory",
        /// The NUMA nodes that it may use were exhausted.
        NumaNodes = "numa_nodes",
        /// The OOM killer of the kernel killed it; which memory ran out is not known.
        OomKill = "oom_kill",
        /// `/dev/shm` or another file system in memory was full (SIGBUS).
        SharedMemory = "shared_memory",
        /// A GPU was full by the memory of the process itself.
        GpuMemory = "gpu_memory",
        /// A GPU was full by the memory of another workload.
        GpuNeighbor = "gpu_neighbor",
        /// The allocator had reserved enough memory of the GPU, in blocks that were too small.
        GpuFragmentation = "gpu_fragmentation",
        /// A limit of the process was reached, or the kernel refused it memory of the host.
        ProcessLimit = "process_limit",
        /// The pool of huge pages was empty.
        HugePages = "huge_pages",
        /// A file system on a disk was full, or its user's share of it.
        DiskFull = "disk_full",
        /// A limit of time was reached, of its CPU or of its program.
        TimeLimit = "time_limit",
        /// Memory of the host that it used has failed.
        MemoryError = "memory_error",
        /// It ended itself because its memory would not have fitted.
        WillNotFit = "will_not_fit",
        /// A GPU reported an error (XID).
        GpuFault = "gpu_fault",
        /// Protection of memwarden ended it.
        Memwarden = "memwarden",
        /// Another program or a person ended it by a signal.
        Killed = "killed",
        /// It failed by itself: an exception, an exit code or a signal of its own. No lack of memory is known.
        Failed = "failed",
        /// It ended with success.
        Finished = "finished",
        /// It is not known.
        #[default]
        Unknown = "unknown",
    }
}

/// Probability from which a cause is called probable; what is less is a guess.
pub const PROBABLE: f64 = 0.6;

named! {
    /// Whether the same command can succeed where it is started again without a change.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Retry {
        /// It will end in the same way.
        CannotHelp = "cannot_help",
        /// What ended it was not of its own making.
        MayHelp = "may_help",
        /// It is not known.
        #[default]
        Unknown = "unknown",
    }
}

impl EndCause {
    /// Whether it ended for lack of memory.
    pub const fn is_memory(self) -> bool {
        matches!(
            self,
            Self::CgroupLimit
                | Self::HostMemory
                | Self::NumaNodes
                | Self::OomKill
                | Self::HugePages
                | Self::SharedMemory
                | Self::GpuMemory
                | Self::GpuNeighbor
                | Self::GpuFragmentation
                | Self::ProcessLimit
                | Self::WillNotFit
        )
    }

    /// Whether starting it again can help.
    pub const fn retry(self) -> Retry {
        match self {
            Self::CgroupLimit
            | Self::SharedMemory
            | Self::GpuMemory
            | Self::GpuFragmentation
            | Self::ProcessLimit
            | Self::HugePages
            | Self::DiskFull
            | Self::TimeLimit
            | Self::WillNotFit => Retry::CannotHelp,
            Self::HostMemory
            | Self::NumaNodes
            | Self::MemoryError
            | Self::GpuNeighbor
            | Self::GpuFault
            | Self::Memwarden
            | Self::Killed => Retry::MayHelp,
            Self::Failed | Self::Finished | Self::OomKill | Self::Unknown => Retry::Unknown,
        }
    }
}

/// The health of an end: what ended for lack of memory, or by a fault of a GPU, is critical.
impl From<EndCause> for Health {
    fn from(cause: EndCause) -> Self {
        match cause {
            EndCause::Finished => Self::Ok,
            EndCause::Unknown => Self::Unknown,
            EndCause::Failed | EndCause::Killed | EndCause::Memwarden | EndCause::TimeLimit => Self::Warning,
            _ => Self::Critical,
        }
    }
}

/// The exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It called exit(3) with this code.
    Code(i32),
    /// It was ended by this signal.
    Signal(i32),
}

/// The exit status with which the Python client ends a program whose memory will not fit (`docs/jobs.md`).
pub const ABORTED: i32 = 80;

impl ExitStatus {
    /// The signal that ended it, or its command: a shell exits with 128 and the number of the signal.
    pub const fn signal(self) -> Option<i32> {
        match self {
            Self::Signal(signal) => Some(signal),
            Self::Code(code) if code > 128 && code <= 128 + 64 => Some(code - 128),
            Self::Code(_) => None,
        }
    }

    /// A status as wait(2) has it.
    pub const fn of_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Code((status >> 8) & 0xff),
            signal => Self::Signal(signal),
        }
    }
}

named! {
    /// A limit of a process (getrlimit(2)).
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ProcessLimit {
        /// Virtual memory, in bytes (`RLIMIT_AS`).
        AddressSpace = "address_space",
        /// Private memory, in bytes (`RLIMIT_DATA`).
        Data = "data",
        /// Memory that is not swapped out, in bytes (`RLIMIT_MEMLOCK`).
        LockedMemory = "locked_memory",
        /// File descriptors (`RLIMIT_NOFILE`).
        OpenFiles = "open_files",
        /// Processes and threads of the user (`RLIMIT_NPROC`), or of its cgroup.
        Processes = "processes",
        /// Size of a file, in bytes (`RLIMIT_FSIZE`).
        FileSize = "file_size",
        /// CPU time, in seconds (`RLIMIT_CPU`).
        CpuTime = "cpu_time",
    }
}

/// An allocation on a device that failed, as the process reported it, in bytes; absent where it did not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailedAllocation {
    pub requested: Option<f64>,
    /// What the allocator had given to tensors.
    pub allocated: Option<f64>,
    /// What the allocator held of the device.
    pub reserved: Option<f64>,
    /// What was free on the device.
    pub free: Option<f64>,
    pub total: Option<f64>,
    /// Whether the allocator uses expandable segments.
    #[serde(default)]
    pub has_expandable_segments: Option<bool>,
}

/// The process that sent a signal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    pub pid: u32,
    /// Its name; empty where it was not seen running.
    pub comm: Label,
    /// Its user; absent where it was not seen running.
    pub user_id: Option<u32>,
}

/// One observation that a cause follows from, or what could not be observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndEvidence {
    /// The kernel logged that its OOM killer killed the process.
    KernelLog(OomKill),
    /// The kernel logged that its OOM killer killed another process: a child of it, or one of the same cgroup that was not seen running.
    OtherKill { pid: Option<u32>, comm: Label, is_child: bool, kill: OomKill },
    /// A process that it had started ended by this signal.
    ChildSignal { pid: u32, comm: Label, signal: i32 },
    /// The kernel logged that memory of the host which it used has failed.
    MemoryError,
    /// The kernel logged that the pool of huge pages was empty.
    HugePages,
    /// The kernel logged that it rejected a fork in this cgroup.
    ForkRejected { cgroup: Label },
    /// The counter of OOM kills of this cgroup rose when the process ended.
    KillCounter { cgroup: Label },
    /// The exit status.
    Status(ExitStatus),
    /// Who sent the signal that ended it.
    SentBy(Sender),
    /// The kernel sent the signal that ended it, and no process.
    SentByKernel,
    /// The process reported an uncaught exception of this type.
    Exception { name: Label },
    /// The process reported that an allocation failed.
    Allocation(FailedAllocation),
    /// The process reported that this limit was reached; in bytes or as a number, absent where it is infinite.
    Limit { limit: ProcessLimit, value: Option<u64> },
    /// The share of this limit of the process, in bytes, that was used in the last sample before the end, 0 to 1.
    LimitUsed { limit: ProcessLimit, value: u64, share: f64 },
    /// The share of a resource that was used in the last sample before the end, 0 to 1.
    Used { resource: Subject, share: f64 },
    /// The GPU reported this XID within the last half minute.
    Xid { gpu: Label, xid: u32 },
    /// The memory of its workload leaked, at this rate where it is known.
    Leak { bytes_per_second: Option<f64> },
    /// Protection sent it a signal.
    Signalled,
    /// The kernel log is not complete: an OOM kill may be missing from it.
    Log(KernelLog),
    /// The exit status is not known.
    NoStatus,
}

/// A kill of the kernel's OOM killer, by its log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OomKill {
    /// The memory that ran out.
    pub scope: OomScope,
    /// Whether the kernel stated that.
    pub is_scope_stated: bool,
    /// The cgroup whose limit was reached; empty where none was, or which one is not known.
    pub limit_cgroup: Label,
}

/// Another workload that held memory of the exhausted resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherHolder {
    pub workload: Label,
    pub bytes: f64,
}

/// The end of a process, or of processes of one workload that ended together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Counts the ends of this node.
    pub number: u64,
    /// When it was seen, in seconds since 1970.
    pub unix_seconds: f64,
    /// Empty for a process of no workload.
    pub workload: Label,
    /// The name of the run; empty where it is not known.
    pub run: Label,
    /// The rank of the process; empty where it reported none.
    pub rank: Label,
    pub user_id: u32,
    /// The process whose end explains those of the others.
    pub pid: u32,
    pub comm: Label,
    /// Number of processes of the workload that ended with it, itself included.
    pub processes: u64,
    /// Whether no process of the workload is left.
    pub is_whole: bool,
    pub cause: EndCause,
    /// Probability of the cause, 0 to 1.
    pub probability: f64,
    /// What would make it certain; empty where nothing is needed.
    #[serde(default)]
    pub settles: Label,
    pub retry: Retry,
    /// The resource that was exhausted; absent where none was, or which one is not known.
    pub resource: Option<Subject>,
    pub used_bytes: Option<f64>,
    pub limit_bytes: Option<f64>,
    /// Who held most of the resource besides it.
    pub other: Option<OtherHolder>,
    /// The strongest first.
    pub evidence: Vec<EndEvidence>,
    /// The phase in which it ended, as the job names it; empty where it is not known.
    #[serde(default)]
    pub phase: Label,
    /// The last optimizer step that it completed.
    pub step: Option<u64>,
    /// The step of its last checkpoint, and how old that was, in seconds.
    pub checkpoint_step: Option<u64>,
    pub checkpoint_age_seconds: Option<f64>,
    /// What was lost: seconds since its last checkpoint, or since its start, times the number of its GPUs; absent where it
    /// used none, or ended with success.
    pub lost_gpu_seconds: Option<f64>,
    /// Seconds before its end, resident memory and GPU memory of the workload in bytes; the oldest first.
    pub curve: Vec<(f32, f64, Option<f64>)>,
}

impl End {
    /// The health of the end.
    pub fn health(&self) -> Health {
        self.cause.into()
    }

    /// Whether a program whose process ended so may have lost something: not where the program ends its helpers itself, nor where
    /// nothing is known.
    pub fn is_failure_of_part(&self) -> bool {
        /// SIGHUP, SIGINT, SIGPIPE and SIGTERM.
        const ORDINARY: [i32; 4] = [1, 2, 13, 15];
        let is_ordinary = |seen: &EndEvidence| matches!(seen, EndEvidence::Status(status) if status.signal().is_some_and(|signal| ORDINARY.contains(&signal)));
        self.is_abnormal() && self.cause != EndCause::Unknown && !self.evidence.iter().any(is_ordinary)
    }

    /// Whether people look for its reason.
    pub fn is_abnormal(&self) -> bool {
        self.cause != EndCause::Finished
    }
}

/// What the daemon answers to `memwarden why`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShownEnds {
    /// Grows when a key changes its meaning or disappears.
    pub schema_version: u32,
    /// The newest first.
    pub ends: Vec<End>,
}
