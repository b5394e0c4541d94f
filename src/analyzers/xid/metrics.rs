//! Metrics of the `xid` analyzer.

use crate::model::desc::Instrument::UpDownCounter;
use crate::model::units::Flag;

crate::metrics! {
    /// Whether an XID error of the GPU that needs an operator is unresolved: 1, or 0 once it is acknowledged; absent without such an error, and after the GPU was reset or the node restarted.
    pub UNRESOLVED: Gauge<Flag> = "memwarden_gpu_xid_unresolved" {gpu, uuid, xid};
    /// State of the GPU's hardware: 1 for the current state, 0 for the others. failed: the GPU is lost or hangs. predicted_failure: a row of its memory could not be remapped, or a bank of its memory has no spare rows left. degraded: an XID error is unresolved, or rows or pages of its memory wait for a reset. ok: none of these. Absent while the GPU is not observed, and where the driver returns another error.
    pub STATE: Gauge<Flag> = "memwarden_gpu_hardware_state" {gpu, uuid, state}
        .semconv("hw.status", UpDownCounter, &[("hw.type", "gpu")], &[("uuid", "hw.id"), ("state", "hw.state")]);
}
