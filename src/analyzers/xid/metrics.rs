//! Metrics of the `xid` analyzer.

use crate::model::units::Flag;

crate::metrics! {
    /// Whether an XID error of the GPU that needs an operator is unresolved: 1, or 0 once it is acknowledged; absent without such an error, and after the GPU was reset or the node restarted.
    pub UNRESOLVED: Gauge<Flag> = "memwarden_gpu_xid_unresolved" {gpu, uuid, xid};
}
