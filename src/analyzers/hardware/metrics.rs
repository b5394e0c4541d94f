//! Metrics of the `hardware` analyzer.

use crate::model::units::Flag;

crate::metrics! {
    /// Fault of the GPU's hardware, by name, such as row_remap_failure, uncorrected_ecc or temperature (docs/gpus.md lists all); 1 while it is seen, absent otherwise. severity is warning or critical.
    pub FAULT: Gauge<Flag> = "memwarden_gpu_hardware_fault" {gpu, uuid, fault, severity};
}
