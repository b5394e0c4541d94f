//! What `vmstat` exposes: what the kernel did to find memory, since boot.

use crate::model::desc::Instrument;
use crate::model::units::{Bytes, Count};

crate::metrics! {
    /// Processes the kernel killed because memory ran out, of the host and of cgroups.
    pub OOM_KILLS: Counter<Count> = "memwarden_host_oom_kills_total" {}.counting("{kill}");
    /// Page faults, minor and major.
    pub FAULTS: Counter<Count> = "memwarden_host_page_faults_total" {}.counting("{fault}");
    /// Page faults that had to wait for a disk.
    pub MAJOR_FAULTS: Counter<Count> = "memwarden_host_major_faults_total" {}.counting("{fault}")
        .semconv("system.paging.faults", Instrument::Counter, &[("system.paging.fault.type", "major")], &[]);
    /// Allocations that had to reclaim memory themselves before they got any, by the zone asked for.
    pub ALLOCATION_STALLS: Counter<Count> = "memwarden_host_allocation_stalls_total" {zone}.counting("{stall}");
    /// Pages looked at to reclaim them, by who looked; direct means inside a task that wanted memory.
    pub RECLAIM_SCANNED: Counter<Count> = "memwarden_host_reclaim_scanned_pages_total" {by}.counting("{page}");
    /// Pages reclaimed, by who reclaimed them; direct means inside a task that wanted memory.
    pub RECLAIM_STOLEN: Counter<Count> = "memwarden_host_reclaim_stolen_pages_total" {by}.counting("{page}");
    /// Tasks put to sleep because direct reclaim outran the kernel's reserves.
    pub RECLAIM_THROTTLED: Counter<Count> = "memwarden_host_reclaim_throttled_total" {}.counting("{stall}");
    /// Pages read again soon after they had been reclaimed, by kind (anon, file): the working set does not fit.
    pub REFAULTS: Counter<Count> = "memwarden_host_refaulted_pages_total" {kind}.counting("{page}");
    /// Allocations that waited for memory to be compacted into larger blocks.
    pub COMPACTION_STALLS: Counter<Count> = "memwarden_host_compaction_stalls_total" {}.counting("{stall}");
    /// Compactions that an allocation waited for, by result (success, failure).
    pub COMPACTIONS: Counter<Count> = "memwarden_host_compactions_total" {result}.counting("{compaction}");
    /// Page faults that could take a transparent huge page, by result (allocated, or fallback to small pages).
    pub THP_FAULTS: Counter<Count> = "memwarden_host_thp_faults_total" {result}.counting("{fault}");
    /// Huge pages that khugepaged asked for to collapse small ones into, by result (allocated, failed).
    pub THP_COLLAPSES: Counter<Count> = "memwarden_host_thp_collapse_allocations_total" {result}.counting("{page}");
    /// Data read back from swap.
    pub SWAPPED_IN: Counter<Bytes> = "memwarden_host_swapped_in_bytes_total" {};
    /// Data written to swap.
    pub SWAPPED_OUT: Counter<Bytes> = "memwarden_host_swapped_out_bytes_total" {};
    /// Data read from block devices, swap included.
    pub BLOCK_READ: Counter<Bytes> = "memwarden_host_block_read_bytes_total" {};
    /// Data written to block devices, swap included.
    pub BLOCK_WRITTEN: Counter<Bytes> = "memwarden_host_block_written_bytes_total" {};
    /// Faults that the kernel provoked to learn which NUMA node uses a page.
    pub NUMA_HINT_FAULTS: Counter<Count> = "memwarden_host_numa_hint_faults_total" {}.counting("{fault}");
    /// Pages that NUMA balancing moved to another node.
    pub NUMA_MIGRATED: Counter<Count> = "memwarden_host_numa_migrated_pages_total" {}.counting("{page}");
}
