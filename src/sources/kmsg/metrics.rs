//! What `kmsg` exposes. XIDs go to the `gpu` source, which counts them once for both roads.

use crate::model::units::{Bytes, Count, Flag, Seconds};

crate::metrics! {
    /// Processes killed by the kernel's OOM killer since memwarden started, by scope: host, or cgroup (a cgroup limit was reached).
    pub OOM_KILLS: Counter<Count> = "memwarden_kernel_oom_kills_total" {scope}.counting("{kill}");
    /// Unix time of the last OOM kill read from the kernel log; absent before the first one.
    pub LAST_KILL: Gauge<Seconds> = "memwarden_kernel_oom_last_kill_timestamp_seconds" {};
    /// Process that the kernel's OOM killer killed last; always 1, absent before the first kill. The labels cgroup and uid are empty where the kernel does not log them, workload where the process was in none.
    pub LAST_VICTIM: Gauge<Flag> = "memwarden_kernel_oom_last_victim_info" {scope, comm, pid, cgroup, uid, workload};
    /// Resident memory of the process that the kernel's OOM killer killed last, by kind: anon, file or shmem; absent before the first kill.
    pub LAST_VICTIM_RESIDENT: Gauge<Bytes> = "memwarden_kernel_oom_last_victim_resident_bytes" {kind};
    /// Kernel warnings since memwarden started, by kind: allocation_failure, hung_task, soft_lockup, memory_failure or machine_check.
    pub MESSAGES: Counter<Count> = "memwarden_kernel_messages_total" {kind}.counting("{message}");
    /// Records read from the kernel log since memwarden started.
    pub RECORDS: Counter<Count> = "memwarden_kernel_log_records_total" {}.counting("{record}");
    /// Records of the kernel log that were overwritten before they could be read; events in them are not counted.
    pub LOST: Counter<Count> = "memwarden_kernel_log_lost_records_total" {}.counting("{record}");
}
