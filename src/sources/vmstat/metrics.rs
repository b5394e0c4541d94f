//! Metrics of the `vmstat` source: reclaim, compaction and swapping by the kernel since boot.

use crate::model::desc::Instrument;
use crate::model::units::{Bytes, Count};

crate::metrics! {
    /// Processes killed by the kernel's OOM killer on the host, in all cgroups, since boot.
    pub OOM_KILLS: Counter<Count> = "memwarden_host_oom_kills_total" {}.counting("{kill}");
    /// Page faults of the host, minor and major, since boot.
    pub FAULTS: Counter<Count> = "memwarden_host_page_faults_total" {}.counting("{fault}");
    /// Page faults of the host that read from a disk, since boot.
    pub MAJOR_FAULTS: Counter<Count> = "memwarden_host_major_faults_total" {}.counting("{fault}")
        .semconv("system.paging.faults", Instrument::Counter, &[("system.paging.fault.type", "major")], &[]);
    /// Allocations that had to reclaim memory directly before they succeeded, by zone requested, since boot.
    pub ALLOCATION_STALLS: Counter<Count> = "memwarden_host_allocation_stalls_total" {zone}.counting("{stall}");
    /// Pages scanned for reclaim, by scanner (kswapd, direct or khugepaged); direct means by a task that allocated memory.
    pub RECLAIM_SCANNED: Counter<Count> = "memwarden_host_reclaim_scanned_pages_total" {by}.counting("{page}");
    /// Pages reclaimed, by reclaimer (kswapd, direct or khugepaged); direct means by a task that allocated memory.
    pub RECLAIM_STOLEN: Counter<Count> = "memwarden_host_reclaim_stolen_pages_total" {by}.counting("{page}");
    /// Tasks that were throttled because direct reclaim depleted the kernel's memory reserves.
    pub RECLAIM_THROTTLED: Counter<Count> = "memwarden_host_reclaim_throttled_total" {}.counting("{stall}");
    /// Pages that were read again soon after they were reclaimed, by kind (anon or file); a high rate means that the working set does not fit in memory.
    pub REFAULTS: Counter<Count> = "memwarden_host_refaulted_pages_total" {kind}.counting("{page}");
    /// Allocations that waited for memory compaction.
    pub COMPACTION_STALLS: Counter<Count> = "memwarden_host_compaction_stalls_total" {}.counting("{stall}");
    /// Direct memory compactions, by result: success or failure.
    pub COMPACTIONS: Counter<Count> = "memwarden_host_compactions_total" {result}.counting("{compaction}");
    /// Page faults eligible for a transparent huge page, by result: allocated or fallback (to small pages).
    pub THP_FAULTS: Counter<Count> = "memwarden_host_thp_faults_total" {result}.counting("{fault}");
    /// Huge pages that khugepaged tried to allocate for collapsing small pages, by result: allocated or failed.
    pub THP_COLLAPSES: Counter<Count> = "memwarden_host_thp_collapse_allocations_total" {result}.counting("{page}");
    /// Data read from swap since boot.
    pub SWAPPED_IN: Counter<Bytes> = "memwarden_host_swapped_in_bytes_total" {};
    /// Data written to swap since boot.
    pub SWAPPED_OUT: Counter<Bytes> = "memwarden_host_swapped_out_bytes_total" {};
    /// Data read from block devices since boot, swap included.
    pub BLOCK_READ: Counter<Bytes> = "memwarden_host_block_read_bytes_total" {};
    /// Data written to block devices since boot, swap included.
    pub BLOCK_WRITTEN: Counter<Bytes> = "memwarden_host_block_written_bytes_total" {};
    /// NUMA hinting faults, with which the kernel learns which NUMA node uses a page.
    pub NUMA_HINT_FAULTS: Counter<Count> = "memwarden_host_numa_hint_faults_total" {}.counting("{fault}");
    /// Pages that NUMA balancing migrated to another NUMA node.
    pub NUMA_MIGRATED: Counter<Count> = "memwarden_host_numa_migrated_pages_total" {}.counting("{page}");
}
