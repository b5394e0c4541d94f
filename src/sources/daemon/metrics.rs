//! Metrics of the `daemon` source: those that Prometheus client libraries expose of their own process, under the same names
//! (<https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics>).

use crate::model::units::{Bytes, Count, Seconds};

crate::metrics! {
    /// CPU time of the memwarden daemon in user and system mode, without its GPU worker.
    pub CPU: Counter<Seconds> = "process_cpu_seconds_total" {};
    /// Resident memory of the memwarden daemon, without its GPU worker.
    pub RSS: Gauge<Bytes> = "process_resident_memory_bytes" {};
    /// Virtual memory of the memwarden daemon, without its GPU worker.
    pub VIRTUAL: Gauge<Bytes> = "process_virtual_memory_bytes" {};
    /// Threads of the memwarden daemon.
    pub THREADS: Gauge<Count> = "process_threads" {}.counting("{thread}");
    /// File descriptors that the memwarden daemon has open.
    pub OPEN_FDS: Gauge<Count> = "process_open_fds" {}.counting("{file_descriptor}");
    /// File descriptors that the memwarden daemon may have open; absent where there is no limit.
    pub MAX_FDS: Gauge<Count> = "process_max_fds" {}.counting("{file_descriptor}");
    /// Unix time at which the memwarden daemon was started.
    pub START: Gauge<Seconds> = "process_start_time_seconds" {};
}
