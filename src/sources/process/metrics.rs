//! Metrics of the `process` source.

use crate::model::units::{Bytes, Count, Flag};

crate::metrics! {
    /// User processes, by state: running, sleeping, disk_sleep, zombie, stopped or other.
    pub PROCESSES: Gauge<Count> = "memwarden_processes" {state}.counting("{process}");
    /// Kernel threads; not included in memwarden_processes.
    pub KERNEL_THREADS: Gauge<Count> = "memwarden_kernel_threads" {}.counting("{thread}");
    /// Threads of all user processes.
    pub THREADS: Gauge<Count> = "memwarden_processes_threads" {}.counting("{thread}");
    /// Sum of the resident memory of all user processes, as estimated by the kernel; each estimate is off by up to some MiB on hosts with many CPUs, and shared memory is counted once for each process.
    pub RSS: Gauge<Bytes> = "memwarden_processes_rss_bytes" {};
    /// Processes and threads created since boot; read every eighth sample.
    pub FORKS: Counter<Count> = "memwarden_forks_total" {}.counting("{fork}");
    /// Processes that ended while a sample read them; this is normal.
    pub RACES: Counter<Count> = "memwarden_process_races_total" {}.counting("{race}");
    /// New processes that were left for the next sample because one sample found too many.
    pub DEFERRED: Counter<Count> = "memwarden_process_discoveries_deferred_total" {}.counting("{process}");
    /// File descriptors that memwarden keeps open on processes; beyond half of its limit, it opens and closes files at each sample instead.
    pub KEPT: Gauge<Count> = "memwarden_process_descriptors_kept" {}.counting("{descriptor}");
    /// Whether processes of other users are hidden from memwarden, as by the hidepid mount option.
    pub LIMITED: Gauge<Flag> = "memwarden_process_visibility_limited" {};
}
