//! The NVML calls that are recorded: their inputs, and the layout of what they write (nvml.h, API 13).

use Kind::{Number, Signed, Text, Wide};

/// What a field of a structure is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A number of 32 bits.
    Number,
    /// A number of 32 bits with a sign.
    Signed,
    /// A number of 64 bits.
    Wide,
    /// A text of this many bytes, its terminator included.
    Text(usize),
}

/// What a call writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    /// Text: the buffer and, as the next argument, its size in bytes.
    Line(usize),
    /// A structure, or a number as a structure with one field. Its first word is `version` before the call.
    Structure { version: u32, fields: &'static [(&'static str, Kind)] },
}

/// One call: the device, the inputs, the outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    /// The values of each input; the call is made for each combination.
    pub(crate) inputs: &'static [&'static [u32]],
    pub(crate) outputs: &'static [Output],
}

const fn call(name: &'static str, outputs: &'static [Output]) -> Call {
    Call { name, inputs: &[], outputs }
}

const fn with(name: &'static str, inputs: &'static [&'static [u32]], outputs: &'static [Output]) -> Call {
    Call { name, inputs, outputs }
}

const fn plain(fields: &'static [(&'static str, Kind)]) -> Output {
    Output::Structure { version: 0, fields }
}

const fn versioned(version: u32, fields: &'static [(&'static str, Kind)]) -> Output {
    Output::Structure { version, fields }
}

/// nvml.h's NVML_DEVICE_NAME_V2_BUFFER_SIZE, the longest of its texts.
const LINE: &[Output] = &[Output::Line(96)];
const NUMBER: &[Output] = &[plain(&[("value", Number)])];
const WIDE: &[Output] = &[plain(&[("value", Wide)])];
const MODES: &[Output] = &[plain(&[("current", Number)]), plain(&[("pending", Number)])];
const CODEC: &[Output] = &[plain(&[("percent", Number)]), plain(&[("period_us", Number)])];
const CLOCKS: &[u32] = &[0, 1, 2, 3];
const LINKS: &[u32] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];
const BOTH: &[u32] = &[0, 1];

/// Calls without a device.
pub(crate) const SYSTEM: &[Call] = &[
    call("nvmlSystemGetDriverVersion", LINE),
    call("nvmlSystemGetNVMLVersion", LINE),
    call("nvmlSystemGetCudaDriverVersion_v2", NUMBER),
    call("nvmlDeviceGetCount_v2", NUMBER),
    call(
        "nvmlSystemGetConfComputeState",
        &[plain(&[("environment", Number), ("feature", Number), ("developer_tools", Number)])],
    ),
];

/// Calls for a GPU or a MIG instance.
pub(crate) const DEVICE: &[Call] = &[
    call("nvmlDeviceGetName", LINE),
    call("nvmlDeviceGetUUID", LINE),
    call("nvmlDeviceGetSerial", LINE),
    call("nvmlDeviceGetVbiosVersion", LINE),
    call("nvmlDeviceGetMinorNumber", NUMBER),
    call("nvmlDeviceGetIndex", NUMBER),
    call("nvmlDeviceGetBrand", NUMBER),
    call("nvmlDeviceGetArchitecture", NUMBER),
    call("nvmlDeviceGetCudaComputeCapability", &[plain(&[("major", Signed)]), plain(&[("minor", Signed)])]),
    call("nvmlDeviceGetNumGpuCores", NUMBER),
    call("nvmlDeviceGetMemoryBusWidth", NUMBER),
    call("nvmlDeviceGetPersistenceMode", NUMBER),
    call("nvmlDeviceGetComputeMode", NUMBER),
    call("nvmlDeviceGetDisplayMode", NUMBER),
    call("nvmlDeviceGetDisplayActive", NUMBER),
    call("nvmlDeviceGetVirtualizationMode", NUMBER),
    call(
        "nvmlDeviceGetPciInfo_v3",
        &[plain(&[
            ("bus_id_legacy", Text(16)),
            ("domain", Number),
            ("bus", Number),
            ("device", Number),
            ("device_id", Number),
            ("subsystem_id", Number),
            ("bus_id", Text(32)),
        ])],
    ),
    call("nvmlDeviceGetMemoryInfo", &[plain(&[("total", Wide), ("free", Wide), ("used", Wide)])]),
    call(
        "nvmlDeviceGetMemoryInfo_v2",
        &[versioned(
            0x0200_0028,
            &[("version", Number), ("total", Wide), ("reserved", Wide), ("free", Wide), ("used", Wide)],
        )],
    ),
    call("nvmlDeviceGetConfComputeMemSizeInfo", &[plain(&[("protected", Wide), ("unprotected", Wide)])]),
    call("nvmlDeviceGetBAR1MemoryInfo", &[plain(&[("total", Wide), ("free", Wide), ("used", Wide)])]),
    call("nvmlDeviceGetUtilizationRates", &[plain(&[("gpu", Number), ("memory", Number)])]),
    call("nvmlDeviceGetEncoderUtilization", CODEC),
    call("nvmlDeviceGetDecoderUtilization", CODEC),
    call("nvmlDeviceGetJpgUtilization", CODEC),
    call("nvmlDeviceGetOfaUtilization", CODEC),
    with("nvmlDeviceGetTemperature", &[&[0]], NUMBER),
    call(
        "nvmlDeviceGetTemperatureV",
        &[versioned(0x0100_000C, &[("version", Number), ("sensor", Number), ("celsius", Signed)])],
    ),
    call(
        "nvmlDeviceGetMarginTemperature",
        &[versioned(0x0100_0008, &[("version", Number), ("celsius", Signed)])],
    ),
    with("nvmlDeviceGetTemperatureThreshold", &[&[0, 1, 2, 3]], NUMBER),
    call("nvmlDeviceGetPowerUsage", NUMBER),
    call("nvmlDeviceGetEnforcedPowerLimit", NUMBER),
    call("nvmlDeviceGetPowerManagementLimit", NUMBER),
    call("nvmlDeviceGetPowerManagementDefaultLimit", NUMBER),
    call(
        "nvmlDeviceGetPowerManagementLimitConstraints",
        &[plain(&[("lowest", Number)]), plain(&[("highest", Number)])],
    ),
    call("nvmlDeviceGetTotalEnergyConsumption", WIDE),
    call("nvmlDeviceGetFanSpeed", NUMBER),
    call("nvmlDeviceGetPerformanceState", NUMBER),
    call("nvmlDeviceGetCurrentClocksThrottleReasons", WIDE),
    call("nvmlDeviceGetCurrentClocksEventReasons", WIDE),
    call("nvmlDeviceGetSupportedClocksThrottleReasons", WIDE),
    with("nvmlDeviceGetClockInfo", &[CLOCKS], NUMBER),
    with("nvmlDeviceGetMaxClockInfo", &[CLOCKS], NUMBER),
    with(
        "nvmlDeviceGetViolationStatus",
        &[&[0, 1, 2, 3, 4, 5, 10, 11]],
        &[plain(&[("reference_time", Wide), ("violation", Wide)])],
    ),
    call("nvmlDeviceGetEccMode", MODES),
    with("nvmlDeviceGetTotalEccErrors", &[BOTH, BOTH], WIDE),
    // Locations 2 and 7: DRAM and SRAM.
    with("nvmlDeviceGetMemoryErrorCounter", &[BOTH, BOTH, &[2, 7]], WIDE),
    call(
        "nvmlDeviceGetRemappedRows",
        &[
            plain(&[("corrected", Number)]),
            plain(&[("uncorrected", Number)]),
            plain(&[("pending", Number)]),
            plain(&[("failure", Number)]),
        ],
    ),
    call(
        "nvmlDeviceGetRowRemapperHistogram",
        &[plain(&[
            ("max", Number),
            ("high", Number),
            ("partial", Number),
            ("low", Number),
            ("none", Number),
        ])],
    ),
    call("nvmlDeviceGetRetiredPagesPendingStatus", NUMBER),
    call("nvmlDeviceGetCurrPcieLinkGeneration", NUMBER),
    call("nvmlDeviceGetCurrPcieLinkWidth", NUMBER),
    call("nvmlDeviceGetMaxPcieLinkGeneration", NUMBER),
    call("nvmlDeviceGetMaxPcieLinkWidth", NUMBER),
    call("nvmlDeviceGetGpuMaxPcieLinkGeneration", NUMBER),
    call("nvmlDeviceGetPcieReplayCounter", NUMBER),
    with("nvmlDeviceGetPcieThroughput", &[BOTH], NUMBER),
    with("nvmlDeviceGetNvLinkState", &[LINKS], NUMBER),
    with("nvmlDeviceGetNvLinkVersion", &[LINKS], NUMBER),
    with("nvmlDeviceGetNvLinkRemoteDeviceType", &[LINKS], NUMBER),
    with("nvmlDeviceGetNvLinkErrorCounter", &[LINKS, &[0, 1, 2, 3, 4]], WIDE),
    call("nvmlDeviceGetMigMode", MODES),
    call("nvmlDeviceGetMaxMigDeviceCount", NUMBER),
    call("nvmlDeviceIsMigDeviceHandle", NUMBER),
    call("nvmlDeviceGetGpuInstanceId", NUMBER),
    call("nvmlDeviceGetComputeInstanceId", NUMBER),
    call(
        "nvmlDeviceGetAttributes_v2",
        &[plain(&[
            ("multiprocessors", Number),
            ("copy_engines", Number),
            ("decoders", Number),
            ("encoders", Number),
            ("jpeg", Number),
            ("ofa", Number),
            ("gpu_slices", Number),
            ("compute_slices", Number),
            ("memory_mib", Wide),
        ])],
    ),
    call("nvmlDeviceGetSupportedEventTypes", WIDE),
    call("nvmlGpmQueryDeviceSupport", &[versioned(1, &[("version", Number), ("supported", Number)])]),
];

/// The three lists of processes: the number of entries first, then the entries.
pub(crate) const PROCESS_LISTS: &[&str] = &[
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
];

/// Fields whose scope is a link.
pub(crate) const LINK_FIELDS: &[u32] = &[138, 139, 140, 141, 161, 162, 163, 164, 165, 166];

/// The newest field id of nvml.h, with room for those that newer drivers add.
pub(crate) const LAST_FIELD: u32 = 290;

/// GPM metrics that are asked for: those that drivers of the first GPUs with GPM have.
pub(crate) const GPM_METRICS: std::ops::RangeInclusive<u32> = 1..=98;

/// The offsets of a structure's fields, and its size, as a C compiler lays them out.
pub(crate) fn layout(fields: &[(&str, Kind)]) -> (Vec<usize>, usize) {
    let (mut offsets, mut end, mut widest) = (Vec::new(), 0_usize, 1);
    for (_, kind) in fields {
        let (size, align) = match kind {
            Number | Signed => (4, 4),
            Wide => (8, 8),
            Text(size) => (*size, 1),
        };
        let offset = end.next_multiple_of(align);
        offsets.push(offset);
        end = offset + size;
        widest = widest.max(align);
    }
    (offsets, end.next_multiple_of(widest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_first(name: &str) -> usize {
        let call = DEVICE.iter().find(|call| call.name == name).unwrap();
        match call.outputs[0] {
            Output::Structure { fields, .. } => layout(fields).1,
            Output::Line(size) => size,
        }
    }

    /// The sizes that nvml-wrapper-sys generates from nvml.h.
    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of_first("nvmlDeviceGetMemoryInfo_v2"), 40);
        assert_eq!(size_of_first("nvmlDeviceGetPciInfo_v3"), 68);
        assert_eq!(size_of_first("nvmlDeviceGetTemperatureV"), 12);
        assert_eq!(size_of_first("nvmlDeviceGetAttributes_v2"), 40);
        assert_eq!(layout(&[("a", Number), ("b", Wide)]), (vec![0, 8], 16));
    }
}
