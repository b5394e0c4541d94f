//! What `daemon` exposes.

use crate::model::units::{Bytes, Count, Seconds};

crate::metrics! {
    /// Processor time that the daemon used, in user and system mode, its GPU worker left out.
    pub CPU: Counter<Seconds> = "memwarden_self_cpu_seconds_total" {};
    /// Resident memory of the daemon, its GPU worker left out.
    pub RSS: Gauge<Bytes> = "memwarden_self_resident_memory_bytes" {};
    /// Threads of the daemon.
    pub THREADS: Gauge<Count> = "memwarden_self_threads" {}.counting("{thread}");
    /// File descriptors that the daemon holds.
    pub OPEN_FILES: Gauge<Count> = "memwarden_self_open_files" {}.counting("{file}");
}
