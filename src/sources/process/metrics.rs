//! What `process` exposes.

use crate::model::units::{Bytes, Count, Flag};

crate::metrics! {
    /// Processes of users by state: running, sleeping, disk_sleep, zombie, stopped, other.
    pub PROCESSES: Gauge<Count> = "memwarden_processes" {state}.counting("{process}");
    /// Threads of the kernel, which are not counted as processes.
    pub KERNEL_THREADS: Gauge<Count> = "memwarden_kernel_threads" {}.counting("{thread}");
    /// Threads of all user processes.
    pub THREADS: Gauge<Count> = "memwarden_processes_threads" {}.counting("{thread}");
    /// Sum of the kernel's estimates of the resident memory of all user processes, each off by some MiB on hosts of many processors; memory that several share is counted once for each.
    pub RSS: Gauge<Bytes> = "memwarden_processes_rss_bytes" {};
    /// Processes and threads created since boot, read every eighth sample.
    pub FORKS: Counter<Count> = "memwarden_forks_total" {}.counting("{fork}");
    /// Processes that ended between two reads of one sample; nothing is wrong with that.
    pub RACES: Counter<Count> = "memwarden_process_races_total" {}.counting("{race}");
    /// New processes that were left for the next sample because one sample had too many.
    pub DEFERRED: Counter<Count> = "memwarden_process_discoveries_deferred_total" {}.counting("{process}");
    /// Descriptors kept open on processes; those beyond half the limit are opened and closed each sample.
    pub KEPT: Gauge<Count> = "memwarden_process_descriptors_kept" {}.counting("{descriptor}");
    /// Whether other users' processes are hidden from the daemon, as the hidepid mount option does.
    pub LIMITED: Gauge<Flag> = "memwarden_process_visibility_limited" {};
}
