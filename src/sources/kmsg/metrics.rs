//! Metrics of the `kmsg` source. XIDs are passed to the `gpu` source, which also gets them from NVML and
//! counts each once.

use crate::model::units::{Bytes, Count, Flag, Seconds};

crate::metrics! {
    /// Processes killed by the kernel's OOM killer since memwarden started, by scope: host (the memory of the host), cgroup (the limit of a cgroup), numa_nodes (the NUMA nodes that a cpuset or a memory policy allows), request (an operator asked for it) or page_fault (no limit is known).
    pub OOM_KILLS: Counter<Count> = "memwarden_kernel_oom_kills_total" {scope}.counting("{kill}");
    /// Unix time of the last OOM kill read from the kernel log; absent before the first one.
    pub LAST_KILL: Gauge<Seconds> = "memwarden_kernel_oom_last_kill_timestamp_seconds" {};
    /// Process that the kernel's OOM killer killed last; always 1, absent before the first kill. cgroup is the cgroup of the process, limit_cgroup the one whose limit was reached (empty for other scopes); pid, cgroup, limit_cgroup and uid are empty too where the kernel log does not name them, workload where the process was in none.
    pub LAST_VICTIM: Gauge<Flag> = "memwarden_kernel_oom_last_victim_info" {scope, comm, pid, cgroup, uid, workload, limit_cgroup};
    /// Resident memory of the process that the kernel's OOM killer killed last, by kind: anon, file or shmem; absent before the first kill.
    pub LAST_VICTIM_RESIDENT: Gauge<Bytes> = "memwarden_kernel_oom_last_victim_resident_bytes" {kind};
    /// Kernel warnings since memwarden started, by kind: allocation_failure, hung_task, soft_lockup, hard_lockup, rcu_stall, memory_failure, machine_check (also of the firmware), memory_corrected and memory_uncorrected (EDAC), nvswitch_fatal and nvswitch_nonfatal (SXid), gpu_lost, gpu_driver_memory (NV_ERR_NO_MEMORY), oom_no_victim or oom_unreaped.
    pub MESSAGES: Counter<Count> = "memwarden_kernel_messages_total" {kind}.counting("{message}");
    /// Records read from the kernel log since memwarden started.
    pub RECORDS: Counter<Count> = "memwarden_kernel_log_records_total" {}.counting("{record}");
    /// Records that the kernel overwrote in its log before memwarden read them; OOM kills, warnings and XIDs in them are missing from the other metrics.
    pub LOST: Counter<Count> = "memwarden_kernel_log_lost_records_total" {}.counting("{record}");
}
