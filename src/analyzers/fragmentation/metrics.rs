//! What `fragmentation` exposes.

use crate::model::units::{Flag, Ratio};

crate::metrics! {
    /// Mean over the last five minutes of the share of the zone's free memory in blocks of fewer than 2^9 pages (2 MiB, a huge page, where a page has 4 KiB); absent before a minute was seen.
    pub UNUSABLE: Gauge<Ratio> = "memwarden_fragmentation_unusable_free_ratio" {node, zone, order};
    /// How much that mean is above the mean of the last hour; below zero where free memory came together.
    pub CHANGE: Gauge<Ratio> = "memwarden_fragmentation_unusable_free_change_ratio" {node, zone, order};
    /// Whether this is the state of the zone's free memory: 1 for the one it has of fine, fragmenting (ever less of it usable) and fragmented (nearly none usable, and huge pages were refused for it), 0 for the others.
    pub STATE: Gauge<Flag> = "memwarden_fragmentation_host_state" {node, zone, state};
}
