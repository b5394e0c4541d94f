//! What `fragmentation` exposes.

use crate::model::units::{Bytes, Flag, Ratio};

/// Devices: a few of each rank.
const SEVERAL: usize = 8_000;

crate::metrics! {
    /// Mean over the last five minutes of the share of the zone's free memory in blocks of fewer than 2^9 pages (2 MiB, a huge page, where a page has 4 KiB); absent before a minute was seen.
    pub UNUSABLE: Gauge<Ratio> = "memwarden_fragmentation_unusable_free_ratio" {node, zone, order};
    /// How much that mean is above the mean of the last hour; below zero where free memory came together.
    pub CHANGE: Gauge<Ratio> = "memwarden_fragmentation_unusable_free_change_ratio" {node, zone, order};
    /// Whether this is the state of the zone's free memory: 1 for the one it has of fine, fragmenting (ever less of it usable) and fragmented (nearly none usable, and huge pages were refused for it), 0 for the others.
    pub STATE: Gauge<Flag> = "memwarden_fragmentation_host_state" {node, zone, state};
    /// Memory that the rank's allocator holds free and cannot give back to the device: external fragmentation proper.
    pub STUCK: Gauge<Bytes> = "memwarden_fragmentation_allocator_stuck_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// The same as a share of what the allocator has reserved; no verdict by itself.
    pub STUCK_SHARE: Gauge<Ratio> = "memwarden_fragmentation_allocator_stuck_share_ratio" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Memory lost to rounding inside blocks that are in use: internal fragmentation.
    pub INTERNAL: Gauge<Bytes> = "memwarden_fragmentation_allocator_internal_bytes" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Share of the allocator's free memory outside its largest free block: unusable for a request of that block's size.
    pub BEYOND_LARGEST: Gauge<Ratio> = "memwarden_fragmentation_allocator_beyond_largest_ratio" {workload, rank, device, gpu}.budget(SEVERAL);
    /// Whether this is the state of the allocator: 1 for the one it has of fine, fragmenting (a twentieth or more of what it reserved is stuck, and more than the device has free) and fragmented (a twentieth or more is stuck, and allocations failed at first or for good in the last ten minutes), 0 for the others.
    pub ALLOCATOR_STATE: Gauge<Flag> = "memwarden_fragmentation_allocator_state" {workload, rank, device, gpu, state}.budget(3 * SEVERAL);
}
