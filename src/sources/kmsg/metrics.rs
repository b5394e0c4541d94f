//! What `kmsg` exposes. XIDs go to the `gpu` source, which counts them once for both roads.

use crate::model::units::{Bytes, Count, Flag, Seconds};

crate::metrics! {
    /// Processes that the kernel's OOM killer killed since memwarden started, by what ran out: scope host (the memory of the whole host) or cgroup (the limit of a cgroup). From the kernel log.
    pub OOM_KILLS: Counter<Count> = "memwarden_kernel_oom_kills_total" {scope}.counting("{kill}");
    /// When the last kill by the kernel's OOM killer was read from the kernel log, in seconds since 1970; absent before the first since memwarden started.
    pub LAST_KILL: Gauge<Seconds> = "memwarden_kernel_oom_last_kill_timestamp_seconds" {};
    /// The last process that the kernel's OOM killer killed; always 1, absent before the first since memwarden started. cgroup is the cgroup of the process, limit_cgroup the one whose limit was reached (empty for scope host); cgroup, limit_cgroup and uid are empty too where the kernel log does not name them, workload where the process was in none.
    pub LAST_VICTIM: Gauge<Flag> = "memwarden_kernel_oom_last_victim_info" {scope, comm, pid, cgroup, uid, workload, limit_cgroup};
    /// Resident memory that the last process that the kernel's OOM killer killed had then, by kind (anon, file, shmem).
    pub LAST_VICTIM_RESIDENT: Gauge<Bytes> = "memwarden_kernel_oom_last_victim_resident_bytes" {kind};
    /// Warnings in the kernel log since memwarden started, by kind: allocation_failure, hung_task, soft_lockup, memory_failure, machine_check.
    pub MESSAGES: Counter<Count> = "memwarden_kernel_messages_total" {kind}.counting("{message}");
    /// Records read from the kernel log (/dev/kmsg) since memwarden started.
    pub RECORDS: Counter<Count> = "memwarden_kernel_log_records_total" {}.counting("{record}");
    /// Records that the kernel overwrote in its log before memwarden read them; OOM kills, warnings and XIDs in them are missing from the other metrics.
    pub LOST: Counter<Count> = "memwarden_kernel_log_lost_records_total" {}.counting("{record}");
}
