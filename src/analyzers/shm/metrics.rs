//! Metrics of the `shm` analyzer.

use crate::model::units::Bytes;

crate::metrics! {
    /// Size of the tmpfs at /dev/shm for each data-loader process of the workload that uses it, where that is less than 64 MiB; in the first five minutes of these processes, and after that where at least a quarter of it has been in use. Absent otherwise.
    pub EACH: Gauge<Bytes> = "memwarden_shared_memory_for_each_loader_bytes" {workload, mount}.budget(256);
}
