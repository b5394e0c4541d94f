//! What `cgroup` exposes. Everything counts a cgroup with all cgroups below it.

use crate::model::units::{Bytes, Count, Flag, Ratio, Seconds};

/// Series of a metric with more than one series a cgroup.
const WIDE: usize = 6_000;

crate::metrics! {
    /// The interface of the memory controller that is read, v1 or v2; always 1.
    pub HIERARCHY: Gauge<Flag> = "memwarden_cgroup_hierarchy_info" {version};
    /// Cgroups that were found and not exposed because larger ones fill the limit `most`, at least.
    pub OMITTED: Gauge<Count> = "memwarden_cgroup_omitted" {}.counting("{cgroup}");

    /// The largest memory usage within the peak window.
    pub USAGE_MAX: Gauge<Bytes> = "memwarden_cgroup_memory_usage_max_bytes" {cgroup};
    /// Memory charged to the cgroup, page cache included; absent for the host's root cgroup on v2.
    pub USAGE: Gauge<Bytes> = "memwarden_cgroup_memory_usage_bytes" {cgroup}.peak(&USAGE_MAX);
    /// Memory usage without the page cache that is reclaimed first (inactive file pages), as kubelet counts it.
    pub WORKING_SET: Gauge<Bytes> = "memwarden_cgroup_memory_working_set_bytes" {cgroup};
    /// The largest memory usage since the cgroup was made or its peak was reset; absent before Linux 5.19 on v2 and for the host's root cgroup.
    pub PEAK: Gauge<Bytes> = "memwarden_cgroup_memory_peak_bytes" {cgroup};
    /// Anonymous memory: heaps, stacks and private mappings.
    pub ANON: Gauge<Bytes> = "memwarden_cgroup_memory_anonymous_bytes" {cgroup};
    /// Page cache, shared memory included.
    pub FILE: Gauge<Bytes> = "memwarden_cgroup_memory_file_bytes" {cgroup};
    /// Shared memory and tmpfs, which a process leaves behind and only swapping reclaims.
    pub SHMEM: Gauge<Bytes> = "memwarden_cgroup_memory_shared_bytes" {cgroup};
    /// Memory of the kernel charged to the cgroup; absent where the kernel does not say (before Linux 5.18 on v2).
    pub KERNEL: Gauge<Bytes> = "memwarden_cgroup_memory_kernel_bytes" {cgroup};
    /// Slab caches of the kernel charged to the cgroup; absent on v1.
    pub SLAB: Gauge<Bytes> = "memwarden_cgroup_memory_slab_bytes" {cgroup};
    /// Swapped-out memory; absent where the kernel does not account swap.
    pub SWAP_USAGE: Gauge<Bytes> = "memwarden_cgroup_swap_usage_bytes" {cgroup};

    /// The cgroup's own memory limit; absent where it has none.
    pub LIMIT: Gauge<Bytes> = "memwarden_cgroup_memory_limit_bytes" {cgroup};
    /// The cgroup's own threshold for throttling (memory.high); absent where it has none and on v1.
    pub HIGH: Gauge<Bytes> = "memwarden_cgroup_memory_high_bytes" {cgroup};
    /// The cgroup's own swap limit; absent where it has none and on v1.
    pub SWAP_LIMIT: Gauge<Bytes> = "memwarden_cgroup_swap_limit_bytes" {cgroup};
    /// The cgroup's own limit of memory and swap together; absent where it has none and on v2.
    pub BOTH_LIMIT: Gauge<Bytes> = "memwarden_cgroup_memory_and_swap_limit_bytes" {cgroup};
    /// The smallest memory limit of the cgroup and all above it; absent where none has one or one could not be read.
    pub EFFECTIVE_LIMIT: Gauge<Bytes> = "memwarden_cgroup_memory_effective_limit_bytes" {cgroup};
    /// What can still be used before a limit of the cgroup or of one above it is reached: the smallest limit minus working set, each of the cgroup that has the limit, so that siblings count; absent where there is no limit or one on the path is not known.
    pub HEADROOM: Gauge<Bytes> = "memwarden_cgroup_memory_headroom_bytes" {cgroup};

    /// Memory events of the cgroup: low, high, max (the limit was hit), oom, oom_kill (processes killed), oom_group_kill; v1 has max and oom_kill only and counts them without the cgroups below.
    pub EVENTS: Counter<Count> = "memwarden_cgroup_memory_events_total" {cgroup, event}
        .counting("{event}").budget(WIDE);
    /// Share of the last 10 seconds in which some or all (full) tasks of the cgroup waited for memory; absent on v1.
    pub PRESSURE: Gauge<Ratio> = "memwarden_cgroup_memory_pressure_ratio" {cgroup, kind}.budget(WIDE);
    /// Time in which some or all (full) tasks of the cgroup waited for memory; absent on v1.
    pub STALLED: Counter<Seconds> = "memwarden_cgroup_memory_stalled_seconds_total" {cgroup, kind}.budget(WIDE);
    /// Processes and threads in the cgroup; absent on v1 and without the pids controller.
    pub TASKS: Gauge<Count> = "memwarden_cgroup_tasks" {cgroup}.counting("{task}");
}
