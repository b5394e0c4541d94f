//! Metrics of the `fragmentation` analyzer.

use crate::model::units::{Bytes, Flag, Ratio};

/// Series budget for metrics per device: a few devices per rank.
const SEVERAL: usize = 8_000;

crate::metrics! {
    /// Share of the zone's free memory in blocks of fewer than 2^9 pages (2 MiB, one huge page, with 4 KiB pages), averaged over the last 5 minutes; absent during the first minute.
    pub UNUSABLE: Gauge<Ratio> = "memwarden_fragmentation_unusable_free_ratio" {node, zone, order};
    /// Change of the zone's unusable share of free memory: the average of the last 5 minutes minus the average of the last hour; negative when fragmentation decreases.
    pub CHANGE: Gauge<Ratio> = "memwarden_fragmentation_unusable_free_change_ratio" {node, zone, order};
    /// Fragmentation state of the zone's free memory: 1 for the current state, 0 for the others. States: fine, fragmenting (the unusable share grows) and fragmented (almost all free memory is unusable for huge pages, and huge page allocations failed).
    pub STATE: Gauge<Flag> = "memwarden_fragmentation_host_state" {node, zone, state};
    /// Free memory that the rank's allocator cannot release to the device because of external fragmentation.
    pub UNRELEASABLE: Gauge<Bytes> = "memwarden_fragmentation_allocator_unreleasable_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Free memory that the rank's allocator cannot release to the device, as a share of its reserved memory; a high value alone does not indicate a problem.
    pub UNRELEASABLE_RATIO: Gauge<Ratio> = "memwarden_fragmentation_allocator_unreleasable_share_ratio" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Memory inside the allocated blocks of the rank's allocator that is lost to rounding (internal fragmentation).
    pub INTERNAL: Gauge<Bytes> = "memwarden_fragmentation_allocator_internal_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Share of the free memory of the rank's allocator outside its largest free block; no part of it can serve a request of that block's size.
    pub BEYOND_LARGEST: Gauge<Ratio> = "memwarden_fragmentation_allocator_beyond_largest_ratio" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Fragmentation state of the rank's allocator: 1 for the current state, 0 for the others. States: fine, fragmenting (at least 5% of the reserved memory cannot be released, and this is more than the device has free) and fragmented (at least 5% cannot be released, and allocations were retried or failed within the last 10 minutes).
    pub ALLOCATOR_STATE: Gauge<Flag> = "memwarden_fragmentation_allocator_state" {workload, rank, device, gpu, state}.budget(3 * SEVERAL);
}
