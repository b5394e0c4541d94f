//! What `kmsg` exposes. XIDs go to the `gpu` source, which counts them once for both roads.

use crate::model::units::{Bytes, Count, Flag, Seconds};

crate::metrics! {
    /// Processes the kernel killed since memwarden started because the host's or a cgroup's memory ran out, by scope (host, cgroup).
    pub OOM_KILLS: Counter<Count> = "memwarden_kernel_oom_kills_total" {scope}.counting("{kill}");
    /// When the last such kill was read from the kernel log, in seconds since 1970; absent before the first.
    pub LAST_KILL: Gauge<Seconds> = "memwarden_kernel_oom_last_kill_timestamp_seconds" {};
    /// The last process killed so; always 1, absent before the first; cgroup and uid are empty where the kernel did not name them, workload where it was in none.
    pub LAST_VICTIM: Gauge<Flag> = "memwarden_kernel_oom_last_victim_info" {scope, comm, pid, cgroup, uid, workload};
    /// Resident memory of the last process killed so, by kind (anon, file, shmem).
    pub LAST_VICTIM_RESIDENT: Gauge<Bytes> = "memwarden_kernel_oom_last_victim_resident_bytes" {kind};
    /// Warnings of the kernel since memwarden started, by kind: allocation_failure, hung_task, soft_lockup, memory_failure, machine_check.
    pub MESSAGES: Counter<Count> = "memwarden_kernel_messages_total" {kind}.counting("{message}");
    /// Records read from the kernel log.
    pub RECORDS: Counter<Count> = "memwarden_kernel_log_records_total" {}.counting("{record}");
    /// Records of the kernel log that were overwritten before they could be read; events in them are not counted.
    pub LOST: Counter<Count> = "memwarden_kernel_log_lost_records_total" {}.counting("{record}");
}
