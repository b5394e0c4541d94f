//! What `memory` exposes.

use crate::model::units::Bytes;

crate::metrics! {
    /// Memory of the host that the kernel can use.
    pub TOTAL: Gauge<Bytes> = "memwarden_host_memory_total_bytes" {};
    /// Memory that new processes can get without swapping, as the kernel estimates it.
    pub AVAILABLE: Gauge<Bytes> = "memwarden_host_memory_available_bytes" {};
}
