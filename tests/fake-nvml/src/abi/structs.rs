//! nvml.h's structs, field for field (API 13; the layouts of nvml-wrapper-sys 0.10).

use std::ffi::c_char;

use super::{Code, Handle, SampleHandle};

/// Declares `repr(C)` structs with the layout of nvml.h.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }
    )*};
}

structs! {
    /// `nvmlMemory_t`; its `used` includes the reserved memory.
    MemoryV1 { total: u64, free: u64, used: u64, }
    /// `nvmlMemory_v2_t`; its `used` excludes the reserved memory.
    MemoryV2 { version: u32, total: u64, reserved: u64, free: u64, used: u64, }
    /// `nvmlBAR1Memory_t`.
    Bar1Memory { total: u64, free: u64, used: u64, }
    /// `nvmlUtilization_t`, in percent.
    Utilization { gpu: u32, memory: u32, }
    /// `nvmlProcessInfo_v1_t`.
    ProcessV1 { pid: u32, used_gpu_memory: u64, }
    /// `nvmlProcessInfo_v2_t`, also the struct of the `_v3` calls.
    ProcessV2 { pid: u32, used_gpu_memory: u64, gpu_instance: u32, compute_instance: u32, }
    /// What the `_v3` calls write from driver 535.43.02 to 535.86.10.
    ProcessV3 { pid: u32, used_gpu_memory: u64, gpu_instance: u32, compute_instance: u32, protected_memory: u64, }
    /// `nvmlProcessUtilizationSample_t`, in percent.
    ProcessSample { pid: u32, timestamp: u64, sm: u32, memory: u32, encoder: u32, decoder: u32, }
    /// `nvmlPciInfo_t` of `nvmlDeviceGetPciInfo_v3`.
    PciV3 {
        bus_id_legacy: [c_char; 16], domain: u32, bus: u32, device: u32,
        device_id: u32, subsystem_id: u32, bus_id: [c_char; 32],
    }
    /// `nvmlPciInfo_t` of `nvmlDeviceGetPciInfo_v2`.
    PciV2 {
        bus_id: [c_char; 16], domain: u32, bus: u32, device: u32,
        device_id: u32, subsystem_id: u32, reserved: [u32; 4],
    }
    /// The part that every version of `nvmlPciInfo_t` before the third begins with.
    PciV1 { bus_id: [c_char; 16], domain: u32, bus: u32, device: u32, device_id: u32, }
    /// `nvmlViolationTime_t`: microseconds, then nanoseconds.
    Violation { reference: u64, violation: u64, }
    /// `nvmlTemperature_v1_t`.
    TemperatureV1 { version: u32, sensor: u32, celsius: i32, }
    /// `nvmlMarginTemperature_v1_t`.
    MarginV1 { version: u32, celsius: i32, }
    /// `nvmlEccErrorCounts_t`.
    EccCounts { l1: u64, l2: u64, device_memory: u64, register_file: u64, }
    /// `nvmlRowRemapperHistogramValues_t`.
    RemapHistogram { max: u32, high: u32, partial: u32, low: u32, none: u32, }
    /// `nvmlFieldValue_t`; the union is given by its bits, which all its members share.
    FieldValue {
        field: u32, scope: u32, timestamp: i64, latency: i64,
        value_type: u32, code: Code, bits: u64,
    }
    /// `nvmlEventData_t` of `nvmlEventSetWait_v2`.
    EventV2 { device: Handle, kind: u64, data: u64, gpu_instance: u32, compute_instance: u32, }
    /// `nvmlEventData_t` of the unversioned wait, which knows no instances.
    EventV1 { device: Handle, kind: u64, data: u64, }
    /// `nvmlDeviceAttributes_t`.
    Attributes {
        multiprocessors: u32, copy_engines: u32, decoders: u32, encoders: u32, jpeg: u32,
        ofa: u32, gpu_slices: u32, compute_slices: u32, memory_mib: u64,
    }
    /// `nvmlGpmSupport_t`.
    GpmSupport { version: u32, supported: u32, }
    /// `nvmlGpmMetric_t`; the three texts that describe the metric are null.
    GpmMetric { id: u32, code: Code, value: f64, texts: [usize; 3], }
    /// `nvmlGpmMetricsGet_t` as far as its first metric.
    GpmRequest { version: u32, count: u32, before: SampleHandle, after: SampleHandle, first: GpmMetric, }
    /// `nvmlConfComputeSystemState_t`.
    ConfidentialState { environment: u32, feature: u32, developer_tools: u32, }
    /// `nvmlConfComputeMemSizeInfo_t`, in KiB.
    ConfidentialMemory { protected: u64, unprotected: u64, }
}

/// The version word of a versioned struct: its size and its number.
pub(crate) const fn version_word<T>(number: u32) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the structs of this file are all smaller than a page"
    )]
    let size = size_of::<T>() as u32;
    size | number << 24
}

/// A text in a fixed array, cut to keep space for the terminator.
pub(crate) fn fixed_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    for (to, byte) in array.iter_mut().take(N - 1).zip(text.bytes()) {
        *to = c_char::from_ne_bytes([byte]);
    }
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_bindings() {
        assert_eq!(version_word::<MemoryV2>(2), 0x0200_0028);
        assert_eq!(version_word::<TemperatureV1>(1), 0x0100_000C);
        assert_eq!(version_word::<MarginV1>(1), 0x0100_0008);
        assert_eq!(size_of::<ProcessV1>(), 16);
        assert_eq!(size_of::<ProcessV2>(), 24);
        assert_eq!(size_of::<ProcessV3>(), 32);
        assert_eq!(size_of::<ProcessSample>(), 32);
        assert_eq!(size_of::<PciV3>(), 68);
        assert_eq!(size_of::<PciV2>(), 52);
        assert_eq!(size_of::<FieldValue>(), 40);
        assert_eq!(size_of::<EventV2>(), 32);
        assert_eq!(size_of::<EventV1>(), 24);
        assert_eq!(size_of::<Attributes>(), 40);
        assert_eq!(size_of::<GpmMetric>(), 40);
        assert_eq!(std::mem::offset_of!(GpmRequest, first), 24);
    }

    #[test]
    fn long_texts_are_cut_before_the_terminator() {
        assert_eq!(fixed_text::<4>("abcdef"), [97, 98, 99, 0]);
        assert_eq!(fixed_text::<4>("a"), [97, 0, 0, 0]);
    }
}
