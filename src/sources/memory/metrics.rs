//! What `memory` exposes.
//!
//! `system.memory.usage` has no counterpart here: its states must add up to
//! the limit, and what we call used (total less available) overlaps none of them.

use crate::model::desc::Instrument::UpDownCounter;
use crate::model::units::{Bytes, Flag, Ratio};

crate::metrics! {
    /// The host's name, its kernel's release and its distribution; always 1, and a name that is not known is empty.
    pub HOST_INFO: Gauge<Flag> = "memwarden_host_info" {hostname, kernel, os};
    /// Memory of the host that the kernel can use.
    pub TOTAL: Gauge<Bytes> = "memwarden_host_memory_total_bytes" {}
        .semconv("system.memory.limit", UpDownCounter, &[], &[]);
    /// Memory that new processes can get without swapping, as the kernel estimates it; absent where it does not.
    pub AVAILABLE: Gauge<Bytes> = "memwarden_host_memory_available_bytes" {}
        .semconv("system.memory.linux.available", UpDownCounter, &[], &[]);
    /// Memory that new processes cannot get without swapping: total less available.
    pub USED: Gauge<Bytes> = "memwarden_host_memory_used_bytes" {}.peak(&USED_MAX);
    /// The most of memwarden_host_memory_used_bytes within the peak window.
    pub USED_MAX: Gauge<Bytes> = "memwarden_host_memory_used_max_bytes" {};
    /// Used memory as a share of the total, 0 to 1.
    pub UTILIZATION: Gauge<Ratio> = "memwarden_host_memory_utilization_ratio" {};
    /// Memory that holds nothing at all; the kernel keeps it small on purpose, so watch available instead.
    pub FREE: Gauge<Bytes> = "memwarden_host_memory_free_bytes" {};
    /// Cached blocks of raw block devices.
    pub BUFFERS: Gauge<Bytes> = "memwarden_host_memory_buffers_bytes" {};
    /// The page cache, shared memory and tmpfs included, swap cache excluded.
    pub CACHED: Gauge<Bytes> = "memwarden_host_memory_cached_bytes" {};
    /// Shared memory and tmpfs (such as the data loaders' /dev/shm), which cannot be dropped, only swapped.
    pub SHMEM: Gauge<Bytes> = "memwarden_host_memory_shared_bytes" {}
        .semconv("system.memory.linux.shared", UpDownCounter, &[], &[]);
    /// The kernel's own object caches, by whether they can be reclaimed.
    pub SLAB: Gauge<Bytes> = "memwarden_host_memory_slab_bytes" {kind}
        .semconv("system.memory.linux.slab.usage", UpDownCounter, &[], &[("kind", "system.memory.linux.slab.state")]);
    /// Anonymous memory of processes: heaps, stacks, private mappings.
    pub ANON: Gauge<Bytes> = "memwarden_host_memory_anon_bytes" {};
    /// The part of anonymous memory in transparent huge pages.
    pub ANON_HUGE: Gauge<Bytes> = "memwarden_host_memory_anon_huge_bytes" {};
    /// Files and shared memory mapped into processes.
    pub MAPPED: Gauge<Bytes> = "memwarden_host_memory_mapped_bytes" {};
    /// Memory that cannot be reclaimed because it is locked or pinned by other means the kernel tracks.
    pub UNEVICTABLE: Gauge<Bytes> = "memwarden_host_memory_unevictable_bytes" {};
    /// Stacks of threads inside the kernel.
    pub KERNEL_STACK: Gauge<Bytes> = "memwarden_host_memory_kernel_stack_bytes" {};
    /// Page tables of processes.
    pub PAGE_TABLES: Gauge<Bytes> = "memwarden_host_memory_page_tables_bytes" {};
    /// Cached file data that waits to be written.
    pub DIRTY: Gauge<Bytes> = "memwarden_host_memory_dirty_bytes" {};
    /// Cached file data that is being written.
    pub WRITEBACK: Gauge<Bytes> = "memwarden_host_memory_writeback_bytes" {};
    /// Address space that may be promised to processes where overcommit is strict (vm.overcommit_memory=2).
    pub COMMIT_LIMIT: Gauge<Bytes> = "memwarden_host_memory_commit_limit_bytes" {};
    /// Address space promised to processes.
    pub COMMITTED: Gauge<Bytes> = "memwarden_host_memory_committed_bytes" {};
    /// Memory set aside for huge pages of the default size.
    pub HUGE_TOTAL: Gauge<Bytes> = "memwarden_host_memory_huge_pages_total_bytes" {};
    /// Memory set aside for huge pages of the default size and not in use.
    pub HUGE_FREE: Gauge<Bytes> = "memwarden_host_memory_huge_pages_free_bytes" {};
    /// Swap space; 0 where none is configured.
    pub SWAP_TOTAL: Gauge<Bytes> = "memwarden_host_swap_total_bytes" {};
    /// Swap space not in use.
    pub SWAP_FREE: Gauge<Bytes> = "memwarden_host_swap_free_bytes" {}
        .semconv("system.paging.usage", UpDownCounter, &[("system.paging.state", "free")], &[]);
    /// Swap space in use.
    pub SWAP_USED: Gauge<Bytes> = "memwarden_host_swap_used_bytes" {}
        .semconv("system.paging.usage", UpDownCounter, &[("system.paging.state", "used")], &[]);
}
