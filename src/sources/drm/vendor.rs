//! What a vendor's folder provides, and what it reads.

use super::files::Files;
use crate::model::units::{Bytes, Celsius, Count, Hertz, Joules, Ratio, Watts};

/// Called with the name of each file before it is read.
pub type Report<'r> = &'r dyn Fn(&str);

/// A vendor of GPUs whose drivers use the kernel's Direct Rendering Manager (DRM).
#[derive(Debug)]
pub struct Vendor {
    /// The value of the label `vendor`.
    pub name: &'static str,
    /// The PCI id of the vendor, as in the file `vendor`.
    pub id: &'static str,
    /// The names of the hwmon device.
    pub hwmon: &'static [&'static str],
    /// Whether this region of `drm-memory-<region>` is what the GPU allocates from: memory of its own, or that of the host where it
    /// uses it (`Sample::uses_host_memory`).
    pub allocates_from: fn(region: &str, uses_host_memory: bool) -> bool,
    /// The engines of `drm-engine-<engine>` and `drm-cycles-<engine>` that compute.
    pub engines: &'static [&'static str],
    /// The product's name, serial number and unique id; empty where the GPU has none.
    pub identity: fn(&Files<'_, Report<'_>>) -> [String; 3],
    /// Whether it is part of a CPU, whose memory it can allocate from.
    pub is_integrated: fn(&Files<'_, Report<'_>>) -> bool,
    pub read: fn(&mut Files<'_, Report<'_>>) -> Values,
}

/// The values of a GPU; absent where it does not have them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    pub memory_total: Option<Bytes>,
    /// Memory of the GPU in use.
    pub memory_used: Option<Bytes>,
    /// Memory of the host that the GPU can map.
    pub gtt_total: Option<Bytes>,
    /// Memory of the host that the GPU has mapped.
    pub gtt_used: Option<Bytes>,
    /// Share of time in which the GPU was busy.
    pub utilization: Option<Ratio>,
    /// Share of time in which its memory was busy.
    pub memory_utilization: Option<Ratio>,
    /// Temperature of the die.
    pub temperature: Option<Celsius>,
    pub memory_temperature: Option<Celsius>,
    pub power: Option<Watts>,
    pub power_limit: Option<Watts>,
    /// Energy since the driver was loaded.
    pub energy: Option<Joules>,
    /// Clock of the compute engines.
    pub clock: Option<Hertz>,
    pub memory_clock: Option<Hertz>,
    /// Retransmitted PCIe packets.
    pub pcie_replays: Option<Count>,
    /// Corrected ECC errors of the memory since the driver was loaded.
    pub ecc_corrected: Option<Count>,
    /// Uncorrected ECC errors of the memory since the driver was loaded.
    pub ecc_uncorrected: Option<Count>,
}
