//! Metrics of the `drm` source that the `gpu` source does not have; all others are declared there.

use crate::model::units::Bytes;

crate::metrics! {
    /// Memory that the firmware of the host sets aside for a GPU that uses the memory of the host (memwarden_gpu_uses_host_memory); it is not part of the memory of the host. Absent for other GPUs.
    pub CARVEOUT_TOTAL: Gauge<Bytes> = "memwarden_gpu_carveout_total_bytes" {gpu, uuid};
    /// Memory in use of what the firmware sets aside for a GPU that uses the memory of the host.
    pub CARVEOUT_USED: Gauge<Bytes> = "memwarden_gpu_carveout_used_bytes" {gpu, uuid};
    /// Memory of the host that an AMD GPU can map (GTT).
    pub GTT_TOTAL: Gauge<Bytes> = "memwarden_gpu_gtt_total_bytes" {gpu, uuid};
    /// Memory of the host that an AMD GPU has mapped (GTT).
    pub GTT_USED: Gauge<Bytes> = "memwarden_gpu_gtt_used_bytes" {gpu, uuid};
}
