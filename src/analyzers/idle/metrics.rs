//! Metrics of the `idle` analyzer.

use crate::model::units::{Bytes, Seconds};

crate::metrics! {
    /// Memory that the workload holds on a GPU that has not been used for analyzers.idle.after; absent otherwise, and where the utilization of the GPU is unknown.
    pub GPU_BYTES: Gauge<Bytes> = "memwarden_idle_gpu_memory_bytes" {workload, gpu, uuid};
    /// Unix time since which the GPU has not been used while the workload held memory on it; absent unless memwarden_idle_gpu_memory_bytes is exposed.
    pub GPU_SINCE: Gauge<Seconds> = "memwarden_idle_gpu_since_timestamp_seconds" {workload, gpu, uuid};
    /// GPU time for which the workload held memory of GPUs that were not used; each period counts from its start, once it has lasted for analyzers.idle.after.
    pub GPU_SECONDS: Counter<Seconds> = "memwarden_idle_gpu_seconds_total" {workload};
    /// Anonymous and shared memory that the workload holds without use of a CPU or GPU for four times analyzers.idle.after; absent otherwise, and for systemd units.
    pub HOST_BYTES: Gauge<Bytes> = "memwarden_idle_host_memory_bytes" {workload};
    /// Unix time since which the workload has used no CPU or GPU; absent unless memwarden_idle_host_memory_bytes is exposed.
    pub HOST_SINCE: Gauge<Seconds> = "memwarden_idle_host_since_timestamp_seconds" {workload};
}
