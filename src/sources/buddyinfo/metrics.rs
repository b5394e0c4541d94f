//! Metrics of the `buddyinfo` source.

use crate::model::units::{Bytes, Count, Ratio};

crate::metrics! {
    /// Free blocks of 2^order pages in the zone; pages on per-CPU lists are not included.
    pub FREE_BLOCKS: Gauge<Count> = "memwarden_host_free_blocks" {node, zone, order}.counting("{block}");
    /// Free memory of the zone in blocks of all sizes.
    pub FREE: Gauge<Bytes> = "memwarden_host_zone_free_bytes" {node, zone};
    /// Size of the zone's largest free block; 0 where the zone has no free block.
    pub LARGEST: Gauge<Bytes> = "memwarden_host_largest_free_block_bytes" {node, zone};
    /// Share of the zone's free memory in blocks smaller than 2^order pages, 0 to 1; absent for a zone without free memory.
    pub UNUSABLE: Gauge<Ratio> = "memwarden_host_unusable_free_ratio" {node, zone, order};
}
