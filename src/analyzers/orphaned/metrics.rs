//! Metrics of the `orphaned` analyzer.

use crate::model::units::{Bytes, Seconds};

crate::metrics! {
    /// Memory in use on the GPU for analyzers.orphaned.after that belongs to no running process, without what the driver itself uses. The labels workload, user and run are those of the process that ended on the GPU with the most memory; empty where none was seen to end. Absent without such memory, and where it cannot be known.
    pub BYTES: Gauge<Bytes> = "memwarden_gpu_memory_orphaned_bytes" {gpu, uuid, workload, user, run};
    /// Unix time since which the GPU has memory that belongs to no running process; absent unless memwarden_gpu_memory_orphaned_bytes is exposed.
    pub SINCE: Gauge<Seconds> = "memwarden_gpu_memory_orphaned_since_timestamp_seconds" {gpu, uuid};
}
