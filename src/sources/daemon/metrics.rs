//! Metrics of the `daemon` source.

use crate::model::units::{Bytes, Count, Seconds};

crate::metrics! {
    /// CPU time of the memwarden daemon in user and system mode, without its GPU worker.
    pub CPU: Counter<Seconds> = "memwarden_self_cpu_seconds_total" {};
    /// Resident memory of the memwarden daemon, without its GPU worker.
    pub RSS: Gauge<Bytes> = "memwarden_self_resident_memory_bytes" {};
    /// Threads of the memwarden daemon.
    pub THREADS: Gauge<Count> = "memwarden_self_threads" {}.counting("{thread}");
    /// File descriptors that the memwarden daemon has open.
    pub OPEN_FILES: Gauge<Count> = "memwarden_self_open_files" {}.counting("{file}");
}
