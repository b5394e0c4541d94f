//! The keys of system metrics in W&B run files.

use memwarden::model::units::MIB;

/// A device by its kind and number; the host has neither.
pub(super) type Device = Option<(&'static str, u32)>;
/// A device, or the host, and the label of the client that recorded it, empty where a run has one client.
pub(super) type Of = (Device, String);

/// What a key of a device counts.
#[derive(Clone, Copy)]
pub(super) enum Count {
    Used,
    Percent,
    Total,
}

/// The kinds of devices, by the first word of their keys.
pub(super) const DEVICES: [(&str, &str); 2] = [("gpu.", "GPU"), ("tpu.", "TPU")];
/// The last words of their keys, and bytes in one unit: `memoryUsed` and `memoryTotal` are those of a DCGM exporter.
pub(super) const COUNTS: [(&str, Count, f64); 8] = [
    ("memoryAllocatedBytes", Count::Used, 1.0),
    ("memoryUsageBytes", Count::Used, 1.0),
    ("hbmCapacityUsage", Count::Used, 1.0),
    ("memoryUsed", Count::Used, MIB),
    ("memoryAllocated", Count::Percent, 1.0),
    ("memoryUsage", Count::Percent, 1.0),
    ("memoryTotal", Count::Total, MIB),
    ("hbmCapacityTotal", Count::Total, 1.0),
];

pub(super) fn name((device, label): &Of) -> String {
    let name = device.map(|(kind, number)| format!("memory of {kind} {number}"));
    labelled(&name.unwrap_or_else(|| "memory of the host".to_owned()), label)
}

/// A name with the client of a run that has several.
pub(super) fn labelled(name: &str, label: &str) -> String {
    if label.is_empty() { name.to_owned() } else { format!("{name} ({label})") }
}
