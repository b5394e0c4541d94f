//! Metrics of the `cgroup` source. All values include the cgroups below.

use crate::model::desc::Instrument::UpDownCounter;
use crate::model::units::{Bytes, Count, Flag, Ratio, Seconds};

/// Series of a metric with more than one series per cgroup.
const WIDE: usize = 6_000;

crate::metrics! {
    /// Version of the memory controller interface in use (v1 or v2); always 1.
    pub HIERARCHY: Gauge<Flag> = "memwarden_cgroup_hierarchy_info" {version};
    /// Lower bound of the number of cgroups that are not exposed because larger ones use all of sources.cgroup.max_cgroups.
    pub OMITTED: Gauge<Count> = "memwarden_cgroup_omitted" {}.counting("{cgroup}");

    /// Largest memory usage of the cgroup within the peak window.
    pub USAGE_MAX: Gauge<Bytes> = "memwarden_cgroup_memory_usage_max_bytes" {cgroup};
    /// Memory charged to the cgroup, page cache included; absent for the host's root cgroup on v2.
    pub USAGE: Gauge<Bytes> = "memwarden_cgroup_memory_usage_bytes" {cgroup}.peak(&USAGE_MAX)
        .semconv("container.memory.usage", UpDownCounter, &[], &[]);
    /// Memory usage of the cgroup without inactive file pages, as kubelet computes it.
    pub WORKING_SET: Gauge<Bytes> = "memwarden_cgroup_memory_working_set_bytes" {cgroup}
        .semconv("container.memory.working_set", UpDownCounter, &[], &[]);
    /// Memory charged to the cgroup that the kernel does not take back before it ends a process: usage without page cache and reclaimable slab caches.
    pub HELD: Gauge<Bytes> = "memwarden_cgroup_memory_held_bytes" {cgroup};
    /// Largest memory usage since the cgroup was created or its peak was reset; absent before Linux 5.19 on v2 and for the host's root cgroup.
    pub PEAK: Gauge<Bytes> = "memwarden_cgroup_memory_peak_bytes" {cgroup};
    /// Anonymous memory of the cgroup: heaps, stacks and private mappings.
    pub ANON: Gauge<Bytes> = "memwarden_cgroup_memory_anonymous_bytes" {cgroup}
        .semconv("container.memory.rss", UpDownCounter, &[], &[]);
    /// Page cache of the cgroup, shared memory included.
    pub FILE: Gauge<Bytes> = "memwarden_cgroup_memory_file_bytes" {cgroup};
    /// Shared memory and tmpfs of the cgroup; it remains after the processes end and can only be reclaimed by swapping.
    pub SHMEM: Gauge<Bytes> = "memwarden_cgroup_memory_shared_bytes" {cgroup};
    /// Kernel memory charged to the cgroup; absent before Linux 5.18 on v2.
    pub KERNEL: Gauge<Bytes> = "memwarden_cgroup_memory_kernel_bytes" {cgroup};
    /// Kernel slab caches charged to the cgroup; absent on v1.
    pub SLAB: Gauge<Bytes> = "memwarden_cgroup_memory_slab_bytes" {cgroup};
    /// Memory of the cgroup in swap; absent where the kernel does not account swap.
    pub SWAP_USAGE: Gauge<Bytes> = "memwarden_cgroup_swap_usage_bytes" {cgroup};

    /// Memory limit set on the cgroup itself; absent where it has none.
    pub LIMIT: Gauge<Bytes> = "memwarden_cgroup_memory_limit_bytes" {cgroup};
    /// Throttling threshold set on the cgroup itself (memory.high); absent where it has none, and on v1.
    pub HIGH: Gauge<Bytes> = "memwarden_cgroup_memory_high_bytes" {cgroup};
    /// Swap limit set on the cgroup itself; absent where it has none, and on v1.
    pub SWAP_LIMIT: Gauge<Bytes> = "memwarden_cgroup_swap_limit_bytes" {cgroup};
    /// Limit of memory and swap together set on the cgroup itself; absent where it has none, and on v2.
    pub BOTH_LIMIT: Gauge<Bytes> = "memwarden_cgroup_memory_and_swap_limit_bytes" {cgroup};
    /// Smallest memory limit of the cgroup and its ancestors; absent where none has a limit or one could not be read.
    pub EFFECTIVE_LIMIT: Gauge<Bytes> = "memwarden_cgroup_memory_effective_limit_bytes" {cgroup};
    /// Memory that the cgroup can still use before it or an ancestor exhausts its limit, as the kernel counts it: the smallest difference, on the path to the root, of a limit and the usage without page cache and reclaimable slab caches, with the swap that is left (memwarden_cgroup_swap_headroom_bytes). Absent where there is no limit, or a limit on the path is unknown.
    pub HEADROOM: Gauge<Bytes> = "memwarden_cgroup_memory_headroom_bytes" {cgroup};

    /// Swap that the processes of the cgroup can still use: free swap of the host, within the limits of swap of the cgroup and its ancestors. Absent where they can use none, and where memwarden_cgroup_memory_headroom_bytes is absent.
    pub SWAP_HEADROOM: Gauge<Bytes> = "memwarden_cgroup_swap_headroom_bytes" {cgroup};

    /// Device memory, such as that of a GPU, charged to the cgroup, by region: drm, the PCI address and the name of the region. Absent without the controller dmem (v2, Linux 6.14), which the drivers amdgpu and xe support.
    pub DEVICE_USAGE: Gauge<Bytes> = "memwarden_cgroup_device_memory_usage_bytes" {cgroup, device_region}.budget(WIDE);
    /// Limit of device memory set on the cgroup itself (dmem.max); absent where it has none. A cgroup above an exposed one has it, its use and its protection even if it is not exposed otherwise.
    pub DEVICE_LIMIT: Gauge<Bytes> = "memwarden_cgroup_device_memory_limit_bytes" {cgroup, device_region}.budget(WIDE);
    /// Device memory of the cgroup that is not evicted while memory of others can be (dmem.low).
    pub DEVICE_LOW: Gauge<Bytes> = "memwarden_cgroup_device_memory_low_bytes" {cgroup, device_region}.budget(WIDE);
    /// Size of a region of device memory as the controller dmem knows it; not all of it can be allocated. Only where memwarden reads the root cgroup of the host.
    pub DEVICE_CAPACITY: Gauge<Bytes> = "memwarden_device_memory_capacity_bytes" {device_region};

    /// Limit of huge pages of a size (such as 2MB) set on the cgroup itself; absent where it has none, and where there is no pool of the size. It is read every sources.cgroup.rescan_interval.
    pub HUGE_LIMIT: Gauge<Bytes> = "memwarden_cgroup_huge_pages_limit_bytes" {cgroup, size}.budget(WIDE);
    /// Huge pages of a size that are charged to the cgroup, where it has a limit of them; they are no part of its memory usage, unless cgroup v2 is mounted with memory_hugetlb_accounting.
    pub HUGE_USAGE: Gauge<Bytes> = "memwarden_cgroup_huge_pages_usage_bytes" {cgroup, size}.budget(WIDE);

    /// Memory events of the cgroup: low, high, max (the limit was reached), oom, oom_kill (processes killed) and oom_group_kill; v1 provides max and oom_kill only, without descendant cgroups.
    pub EVENTS: Counter<Count> = "memwarden_cgroup_memory_events_total" {cgroup, event}
        .counting("{event}").budget(WIDE);
    /// Share of the last 10 seconds in which some (kind some) or all (kind full) tasks of the cgroup waited for memory, 0 to 1; absent on v1.
    pub PRESSURE: Gauge<Ratio> = "memwarden_cgroup_memory_pressure_ratio" {cgroup, kind}.budget(WIDE);
    /// Time in which some (kind some) or all (kind full) tasks of the cgroup waited for memory; absent on v1.
    pub STALLED: Counter<Seconds> = "memwarden_cgroup_memory_stalled_seconds_total" {cgroup, kind}.budget(WIDE);
    /// Processes and threads in the cgroup; absent on v1 and without the pids controller.
    pub TASKS: Gauge<Count> = "memwarden_cgroup_tasks" {cgroup}.counting("{task}");
}
