//! Metrics of the `huge_pages` source. A size without a pool has no series.

use crate::model::units::Bytes;

crate::metrics! {
    /// Memory in the pool of huge pages of a size (such as 2MB), in use or not. Processes that ask for no huge pages cannot use it.
    pub TOTAL: Gauge<Bytes> = "memwarden_huge_pages_total_bytes" {size};
    /// Memory in the pool of huge pages of a size that is not in use. A pool that is all in use is used as intended.
    pub FREE: Gauge<Bytes> = "memwarden_huge_pages_free_bytes" {size};
    /// The part of the free huge pages that is promised to mappings and not in use yet.
    pub RESERVED: Gauge<Bytes> = "memwarden_huge_pages_reserved_bytes" {size};
    /// The part of the pool beyond its configured size, which the kernel gives back once it is free.
    pub SURPLUS: Gauge<Bytes> = "memwarden_huge_pages_surplus_bytes" {size};
    /// The part of the pool of huge pages of a size that is on a NUMA node.
    pub OF_NODE: Gauge<Bytes> = "memwarden_numa_node_huge_pages_total_bytes" {node, size}.budget(4096);
    /// The part of the free huge pages of a size that is on a NUMA node.
    pub FREE_OF_NODE: Gauge<Bytes> = "memwarden_numa_node_huge_pages_free_bytes" {node, size}.budget(4096);
}
