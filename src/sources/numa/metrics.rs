//! Metrics of the `numa` source.

use crate::model::units::Bytes;

crate::metrics! {
    /// Memory of a NUMA node, without nodes that are memory of GPUs. Pools of huge pages are a part of it.
    pub TOTAL: Gauge<Bytes> = "memwarden_numa_node_memory_total_bytes" {node}.budget(1024);
    /// Memory of a NUMA node that is free, page cache of files, or reclaimable slab caches: what processes can still get of it without swapping. The kernel provides no estimate for a node; the part of its watermarks is not subtracted.
    pub AVAILABLE: Gauge<Bytes> = "memwarden_numa_node_memory_available_bytes" {node}.budget(1024);
}
