//! Metrics of the `drm` source that the `gpu` source does not have; all others are declared there.

use crate::model::units::Bytes;

crate::metrics! {
    /// Memory of the host that an AMD GPU can map (GTT).
    pub GTT_TOTAL: Gauge<Bytes> = "memwarden_gpu_gtt_total_bytes" {gpu, uuid};
    /// Memory of the host that an AMD GPU has mapped (GTT).
    pub GTT_USED: Gauge<Bytes> = "memwarden_gpu_gtt_used_bytes" {gpu, uuid};
}
