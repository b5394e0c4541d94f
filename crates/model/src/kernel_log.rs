//! What the kernel logged of processes.

use super::ids::ProcessKey;
use super::label::Label;
use super::names::named;
use super::units::Bytes;

named! {
    /// How much is known of what the kernel logged since the last tick. What it does not name has not happened only where this is
    /// complete.
    #[derive(Default, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum KernelLog {
        /// It cannot be read.
        #[default]
        Unread = "unread",
        /// There is more than is read in a tick.
        Behind = "behind",
        /// The kernel overwrote records before they were read.
        Lost = "lost",
        /// Its pids are those of another pid namespace.
        Foreign = "foreign",
        /// It was read to its end.
        Complete = "complete",
    }

    /// The memory that ran out when the kernel's OOM killer killed a process.
    #[derive(Default, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum OomScope {
        /// The memory of the host.
        #[default]
        Host = "host",
        /// The limit of a cgroup.
        Cgroup = "cgroup",
        /// The NUMA nodes that a cpuset or a memory policy allows.
        #[serde(rename = "numa_nodes")]
        Nodes = "numa_nodes",
        /// None: an operator asked for a kill (sysrq f).
        Request = "request",
        /// None that is known: a page fault failed elsewhere.
        PageFault = "page_fault",
    }
}

/// What the kernel logged of a process, or of those of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelReport {
    /// The process used memory of the host that has failed.
    MemoryError(ProcessKey),
    /// The process was ended because the pool of huge pages was empty.
    HugePages(ProcessKey),
    /// A fork in this cgroup was rejected.
    ForkRejected(Label),
}

/// A process that the kernel's OOM killer killed.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OomVictim {
    /// Absent where the line is cut before it.
    pub pid: Option<u32>,
    /// Its name when it was killed; empty where the line is cut before its end.
    pub comm: Label,
    /// Its user; absent where the log does not name it.
    pub uid: Option<u32>,
    /// Absent for a process that was not running in the previous tick.
    pub process: Option<ProcessKey>,
    /// Its cgroup; empty where the log does not name it.
    pub cgroup: Label,
    /// The cgroup whose limit was reached; empty where the memory of the host was exhausted.
    pub limit_cgroup: Label,
    /// The memory that ran out.
    pub scope: OomScope,
    /// Whether the kernel stated that: where kills are frequent, it logs them without a reason.
    pub is_scope_stated: bool,
    /// The displayed name of the workload that it belonged to; empty for none, and where it is not known.
    pub workload: Label,
    /// Its resident memory of each kind of [`RESIDENT_KINDS`]; absent where the log does not tell it.
    pub resident: [Option<Bytes>; RESIDENT_KINDS.len()],
}

/// The kinds of resident memory in the kernel's line of an OOM kill.
pub const RESIDENT_KINDS: [&str; 3] = ["anon", "file", "shmem"];
