//! Metrics of the `memory` source.
//!
//! `system.memory.usage` has no counterpart here: its states must sum to the
//! limit, and used memory as defined here (total minus available) overlaps several of them.

use crate::model::desc::Instrument::UpDownCounter;
use crate::model::units::{Bytes, Flag, Ratio};

crate::metrics! {
    /// Host name, kernel release and distribution; always 1. A label is empty where the value is unknown.
    pub HOST_INFO: Gauge<Flag> = "memwarden_host_info" {hostname, kernel, os};
    /// Memory of the host that the kernel can use, without pools of huge pages (memwarden_host_memory_huge_page_pools_bytes) and without the memory of GPUs (memwarden_host_memory_of_gpus_bytes).
    pub TOTAL: Gauge<Bytes> = "memwarden_host_memory_total_bytes" {}
        .semconv("system.memory.limit", UpDownCounter, &[], &[]);
    /// Memory available for new processes without swapping, as estimated by the kernel, with the part of the cache of ZFS that is given back on demand (memwarden_host_memory_zfs_arc_reclaimable_bytes), without the memory of GPUs (memwarden_host_memory_of_gpus_bytes); absent where the kernel provides no estimate, or one above the total.
    pub AVAILABLE: Gauge<Bytes> = "memwarden_host_memory_available_bytes" {}
        .semconv("system.memory.linux.available", UpDownCounter, &[], &[]);
    /// Memory not available for new processes without swapping: total minus available.
    pub USED: Gauge<Bytes> = "memwarden_host_memory_used_bytes" {}.peak(&USED_MAX);
    /// Largest value of memwarden_host_memory_used_bytes within the peak window.
    pub USED_MAX: Gauge<Bytes> = "memwarden_host_memory_used_max_bytes" {};
    /// Used host memory as a share of the total, 0 to 1.
    pub UTILIZATION: Gauge<Ratio> = "memwarden_host_memory_utilization_ratio" {};
    /// Memory of the host that is not used at all; normally small because the kernel uses it for caches, so watch available memory instead.
    pub FREE: Gauge<Bytes> = "memwarden_host_memory_free_bytes" {};
    /// Page cache of raw block devices.
    pub BUFFERS: Gauge<Bytes> = "memwarden_host_memory_buffers_bytes" {};
    /// Page cache of the host, shared memory and tmpfs included, swap cache excluded.
    pub CACHED: Gauge<Bytes> = "memwarden_host_memory_cached_bytes" {};
    /// Shared memory and tmpfs of the host (such as the data loaders' /dev/shm); reclaimable only by swapping.
    pub SHMEM: Gauge<Bytes> = "memwarden_host_memory_shared_bytes" {}
        .semconv("system.memory.linux.shared", UpDownCounter, &[], &[]);
    /// Slab caches of the kernel, by kind: reclaimable or unreclaimable.
    pub SLAB: Gauge<Bytes> = "memwarden_host_memory_slab_bytes" {kind}
        .semconv("system.memory.linux.slab.usage", UpDownCounter, &[], &[("kind", "system.memory.linux.slab.state")]);
    /// Anonymous memory of all processes: heaps, stacks and private mappings.
    pub ANON: Gauge<Bytes> = "memwarden_host_memory_anon_bytes" {};
    /// Anonymous memory in transparent huge pages.
    pub ANON_HUGE: Gauge<Bytes> = "memwarden_host_memory_anon_huge_bytes" {};
    /// Files and shared memory mapped into processes.
    pub MAPPED: Gauge<Bytes> = "memwarden_host_memory_mapped_bytes" {};
    /// Memory that the kernel cannot reclaim because it is locked or otherwise unevictable.
    pub UNEVICTABLE: Gauge<Bytes> = "memwarden_host_memory_unevictable_bytes" {};
    /// Memory used for kernel stacks of all threads.
    pub KERNEL_STACK: Gauge<Bytes> = "memwarden_host_memory_kernel_stack_bytes" {};
    /// Memory used for the page tables of all processes.
    pub PAGE_TABLES: Gauge<Bytes> = "memwarden_host_memory_page_tables_bytes" {};
    /// Page cache that is modified and not yet written back.
    pub DIRTY: Gauge<Bytes> = "memwarden_host_memory_dirty_bytes" {};
    /// Page cache that is currently being written back.
    pub WRITEBACK: Gauge<Bytes> = "memwarden_host_memory_writeback_bytes" {};
    /// Limit of the address space that can be committed to processes with strict overcommit (vm.overcommit_memory=2).
    pub COMMIT_LIMIT: Gauge<Bytes> = "memwarden_host_memory_commit_limit_bytes" {};
    /// Address space committed to processes.
    pub COMMITTED: Gauge<Bytes> = "memwarden_host_memory_committed_bytes" {};
    /// Memory in the pools of huge pages of all sizes, used or not. The kernel counts it in MemTotal and not in MemAvailable; memwarden_host_memory_total_bytes and memwarden_host_memory_used_bytes do not contain it. Absent where the kernel does not tell it.
    pub POOLS: Gauge<Bytes> = "memwarden_host_memory_huge_page_pools_bytes" {};
    /// Size of the adaptive replacement cache (ARC) of ZFS, which the kernel does not count as page cache. Absent on hosts without ZFS.
    pub ARC: Gauge<Bytes> = "memwarden_host_memory_zfs_arc_bytes" {};
    /// The part of the ARC that ZFS gives back where others need memory: its size above c_min. memwarden_host_memory_available_bytes contains it. Absent on hosts without ZFS.
    pub ARC_RECLAIMABLE: Gauge<Bytes> = "memwarden_host_memory_zfs_arc_reclaimable_bytes" {};
    /// Memory of a NUMA node that is the memory of GPUs (GH200 and GB200 in NUMA mode). The kernel counts it as memory of the host; memwarden_host_memory_total_bytes and the other metrics of the host's memory do not.
    pub OF_GPUS: Gauge<Bytes> = "memwarden_host_memory_of_gpus_bytes" {node};
    /// Memory of the host that the allocator NvMap of a Jetson has given to the GPU and other engines. Absent on other hosts.
    pub NVMAP: Gauge<Bytes> = "memwarden_host_memory_nvmap_bytes" {};
    /// Total swap space of the host; 0 where none is configured, absent where the amounts are impossible, as in some containers.
    pub SWAP_TOTAL: Gauge<Bytes> = "memwarden_host_swap_total_bytes" {};
    /// Swap space of the host that is not in use.
    pub SWAP_FREE: Gauge<Bytes> = "memwarden_host_swap_free_bytes" {}
        .semconv("system.paging.usage", UpDownCounter, &[("system.paging.state", "free")], &[]);
    /// Swap space of the host that is in use.
    pub SWAP_USED: Gauge<Bytes> = "memwarden_host_swap_used_bytes" {}
        .semconv("system.paging.usage", UpDownCounter, &[("system.paging.state", "used")], &[]);
}
