//! The values that NVML reports for one GPU, by name.
//!
//! The names are the values of the `field` label and the identifiers used
//! between the worker and its parent.

use super::convert::{Put, celsius, flag, hertz, joules, millionths, percent, rate, watts};
use super::metrics as m;
use crate::model::names::named;
use crate::model::units::{Bytes, Count, Seconds};

/// Declares the fields: each with its name and, where one metric exposes the number, that metric, its labels besides those
/// of the GPU, and the conversion of the number.
macro_rules! fields {
    ($(
        $(#[$doc:meta])*
        $field:ident = $name:literal $(=> $metric:ident $([$($label:literal),+])? by $convert:path)?;
    )+) => {
        named! {
            /// One value of a GPU, in NVML's own unit.
            #[derive(serde::Serialize, serde::Deserialize)]
            #[serde(rename_all = "snake_case")]
            pub enum Field {
                $($(#[$doc])* $field = $name,)+
            }
        }

        impl Field {
            /// Puts a number of the field, unless no metric or several expose it.
            pub(super) fn put(self, value: u64, put: &mut Put<'_>) {
                match self {
                    $($(Self::$field => put.with(&m::$metric, [$($($label),+)?], $convert(value)),)?)+
                    _ => {}
                }
            }
        }
    };
}

fields! {
    /// Bytes of memory.
    MemoryTotal = "memory_total" => MEMORY_TOTAL by Bytes::new;
    /// Bytes in use, without what the driver reserves.
    MemoryUsed = "memory_used" => MEMORY_USED by Bytes::new;
    /// Bytes free.
    MemoryFree = "memory_free" => MEMORY_FREE by Bytes::new;
    /// Bytes that the driver reserves.
    MemoryReserved = "memory_reserved" => MEMORY_RESERVED by Bytes::new;
    /// Bytes of the BAR1 window.
    Bar1Total = "bar1_total" => BAR1_TOTAL by Bytes::new;
    /// Bytes of the BAR1 window that are mapped.
    Bar1Used = "bar1_used" => BAR1_USED by Bytes::new;
    /// Percent of the time in which a kernel ran.
    Utilization = "utilization" => UTILIZATION by percent;
    /// Percent of the time in which memory was read or written.
    MemoryUtilization = "memory_utilization" => MEMORY_UTILIZATION by percent;
    /// Percent of the time in which the encoder was busy.
    EncoderUtilization = "encoder_utilization" => ENCODER_UTILIZATION by percent;
    /// Percent of the time in which the decoder was busy.
    DecoderUtilization = "decoder_utilization" => DECODER_UTILIZATION by percent;
    /// Degrees Celsius, of the die.
    Temperature = "temperature" => TEMPERATURE by celsius;
    /// Degrees Celsius, of the memory.
    MemoryTemperature = "memory_temperature" => MEMORY_TEMPERATURE by celsius;
    /// Degrees Celsius at which the hardware slows down.
    SlowdownTemperature = "slowdown_temperature" => TEMPERATURE_THRESHOLD["slowdown"] by celsius;
    /// Degrees Celsius at which the hardware shuts down.
    ShutdownTemperature = "shutdown_temperature" => TEMPERATURE_THRESHOLD["shutdown"] by celsius;
    /// Draw in milliwatts.
    Power = "power" => POWER by watts;
    /// Enforced limit in milliwatts.
    PowerLimit = "power_limit" => POWER_LIMIT by watts;
    /// Millijoules since the driver was loaded.
    Energy = "energy" => ENERGY by joules;
    /// Current clock in MHz.
    ClockGraphics = "clock_graphics" => CLOCK["graphics"] by hertz;
    /// Current clock in MHz.
    ClockSm = "clock_sm" => CLOCK["sm"] by hertz;
    /// Current clock in MHz.
    ClockMemory = "clock_memory" => CLOCK["memory"] by hertz;
    /// Highest clock in MHz.
    ClockGraphicsMax = "clock_graphics_max" => CLOCK_LIMIT["graphics"] by hertz;
    /// Highest clock in MHz.
    ClockSmMax = "clock_sm_max" => CLOCK_LIMIT["sm"] by hertz;
    /// Highest clock in MHz.
    ClockMemoryMax = "clock_memory_max" => CLOCK_LIMIT["memory"] by hertz;
    /// 0 (fastest) to 15.
    PerformanceState = "performance_state" => PERFORMANCE_STATE by Count;
    /// One bit for each reason.
    ThrottleReasons = "throttle_reasons";
    /// Nanoseconds.
    ThrottledPowerCap = "throttled_power_cap" => THROTTLED_TIME["power_cap"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledThermal = "throttled_thermal" => THROTTLED_TIME["thermal"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledSyncBoost = "throttled_sync_boost" => THROTTLED_TIME["sync_boost"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledBoardLimit = "throttled_board_limit" => THROTTLED_TIME["board_limit"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledLowUtilization = "throttled_low_utilization" => THROTTLED_TIME["low_utilization"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledReliability = "throttled_reliability" => THROTTLED_TIME["reliability"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledSwThermal = "throttled_sw_thermal" => THROTTLED_TIME["sw_thermal"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledHwThermal = "throttled_hw_thermal" => THROTTLED_TIME["hw_thermal"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledHwPowerBrake = "throttled_hw_power_brake" => THROTTLED_TIME["hw_power_brake"] by Seconds::from_nanos;
    /// 0 or 1.
    EccMode = "ecc_mode" => ECC_ENABLED by flag;
    /// Errors since the driver was loaded.
    EccCorrectedVolatile = "ecc_corrected_volatile" => ECC_ERRORS["corrected", "volatile"] by Count;
    /// Errors since the driver was loaded.
    EccUncorrectedVolatile = "ecc_uncorrected_volatile" => ECC_ERRORS["uncorrected", "volatile"] by Count;
    /// Errors over the lifetime of the GPU.
    EccCorrectedAggregate = "ecc_corrected_aggregate" => ECC_ERRORS["corrected", "aggregate"] by Count;
    /// Errors over the lifetime of the GPU.
    EccUncorrectedAggregate = "ecc_uncorrected_aggregate" => ECC_ERRORS["uncorrected", "aggregate"] by Count;
    /// Rows remapped after correctable errors.
    RemappedCorrectable = "remapped_correctable" => REMAPPED_ROWS["correctable"] by Count;
    /// Rows remapped after uncorrectable errors.
    RemappedUncorrectable = "remapped_uncorrectable" => REMAPPED_ROWS["uncorrectable"] by Count;
    /// 0 or 1: whether rows are remapped at the next reset.
    RemapPending = "remap_pending" => REMAP_PENDING by flag;
    /// 0 or 1: whether a row could not be remapped.
    RemapFailure = "remap_failure" => REMAP_FAILURE by flag;
    /// 0 or 1: whether pages are retired at the next reset.
    RetiredPending = "retired_pending" => RETIREMENT_PENDING by flag;
    /// Bytes sent; wraps.
    PcieSent = "pcie_sent";
    /// Bytes received; wraps.
    PcieReceived = "pcie_received";
    /// Packets that were retransmitted.
    PcieReplays = "pcie_replays" => PCIE_REPLAYS by Count;
    /// Current link generation.
    PcieGeneration = "pcie_generation" => PCIE_GENERATION["current"] by Count;
    /// Current number of lanes.
    PcieWidth = "pcie_width" => PCIE_WIDTH["current"] by Count;
    /// Highest link generation.
    PcieGenerationMax = "pcie_generation_max" => PCIE_GENERATION["maximum"] by Count;
    /// Highest number of lanes.
    PcieWidthMax = "pcie_width_max" => PCIE_WIDTH["maximum"] by Count;
    /// Links that are up.
    NvlinkActive = "nvlink_active" => NVLINK_ACTIVE by Count;
    /// KiB of payload over all links.
    NvlinkSent = "nvlink_sent" => NVLINK_SENT["data"] by Bytes::from_kib;
    /// KiB of payload over all links.
    NvlinkReceived = "nvlink_received" => NVLINK_RECEIVED["data"] by Bytes::from_kib;
    /// KiB including protocol overhead over all links.
    NvlinkRawSent = "nvlink_raw_sent" => NVLINK_SENT["raw"] by Bytes::from_kib;
    /// KiB including protocol overhead over all links.
    NvlinkRawReceived = "nvlink_raw_received" => NVLINK_RECEIVED["raw"] by Bytes::from_kib;
    /// Errors over all links.
    NvlinkCrcFlit = "nvlink_crc_flit" => NVLINK_ERRORS["crc_flit"] by Count;
    /// Errors over all links.
    NvlinkCrcData = "nvlink_crc_data" => NVLINK_ERRORS["crc_data"] by Count;
    /// Errors over all links.
    NvlinkReplay = "nvlink_replay" => NVLINK_ERRORS["replay"] by Count;
    /// Errors over all links.
    NvlinkRecovery = "nvlink_recovery" => NVLINK_ERRORS["recovery"] by Count;
    /// 0 or 1.
    MigMode = "mig_mode" => MIG_ENABLED by flag;
    /// Millionths of the time in which the graphics and compute engine was busy (GPM).
    EngineActivity = "engine_activity" => ENGINE_ACTIVITY by millionths;
    /// Millionths of the SMs that were busy (GPM).
    SmActivity = "sm_activity" => SM_ACTIVITY by millionths;
    /// Millionths of the warps that the SMs can hold (GPM).
    SmOccupancy = "sm_occupancy" => SM_OCCUPANCY by millionths;
    /// Millionths of the time in which the tensor pipe was active (GPM).
    TensorActivity = "tensor_activity" => PIPE_ACTIVITY["tensor"] by millionths;
    /// Millionths of the time in which the FP64 pipe was active (GPM).
    Fp64Activity = "fp64_activity" => PIPE_ACTIVITY["fp64"] by millionths;
    /// Millionths of the time in which the FP32 pipe was active (GPM).
    Fp32Activity = "fp32_activity" => PIPE_ACTIVITY["fp32"] by millionths;
    /// Millionths of the time in which the FP16 pipe was active (GPM).
    Fp16Activity = "fp16_activity" => PIPE_ACTIVITY["fp16"] by millionths;
    /// Millionths of the time in which the integer pipe was active (GPM).
    IntegerActivity = "integer_activity" => PIPE_ACTIVITY["integer"] by millionths;
    /// Millionths of the bandwidth of the memory (GPM).
    DramActivity = "dram_activity" => DRAM_ACTIVITY by millionths;
    /// Bytes per second (GPM).
    PcieSentRate = "pcie_sent_rate" => PCIE_RATE["sent"] by rate;
    /// Bytes per second (GPM).
    PcieReceivedRate = "pcie_received_rate" => PCIE_RATE["received"] by rate;
    /// Bytes per second over all links (GPM).
    NvlinkSentRate = "nvlink_sent_rate" => NVLINK_RATE["sent"] by rate;
    /// Bytes per second over all links (GPM).
    NvlinkReceivedRate = "nvlink_received_rate" => NVLINK_RATE["received"] by rate;
    /// Pages retired after single-bit errors.
    RetiredSingleBit = "retired_single_bit" => RETIRED_PAGES["single_bit"] by Count;
    /// Pages retired after double-bit errors.
    RetiredDoubleBit = "retired_double_bit" => RETIRED_PAGES["double_bit"] by Count;
    /// Banks of memory with all spare rows.
    RemapBanksMax = "remap_banks_max" => REMAP_BANKS["max"] by Count;
    /// Banks of memory with most of their spare rows.
    RemapBanksHigh = "remap_banks_high" => REMAP_BANKS["high"] by Count;
    /// Banks of memory with some of their spare rows.
    RemapBanksPartial = "remap_banks_partial" => REMAP_BANKS["partial"] by Count;
    /// Banks of memory with one spare row.
    RemapBanksLow = "remap_banks_low" => REMAP_BANKS["low"] by Count;
    /// Banks of memory without a spare row.
    RemapBanksNone = "remap_banks_none" => REMAP_BANKS["none"] by Count;
    /// The number of an `nvmlGpuVirtualizationMode_t`.
    VirtualizationMode = "virtualization_mode";
    /// 0 or 1.
    ConfidentialCompute = "confidential_compute" => CONFIDENTIAL by flag;
    /// KiB.
    ProtectedMemory = "protected_memory" => CONFIDENTIAL_MEMORY["protected"] by Bytes::from_kib;
    /// KiB.
    UnprotectedMemory = "unprotected_memory" => CONFIDENTIAL_MEMORY["unprotected"] by Bytes::from_kib;
    /// Streaming multiprocessors of a MIG instance.
    Multiprocessors = "multiprocessors";
    /// No value: whether the GPU has GPM.
    Gpm = "gpm";
    /// No value: what each NVLink link reports.
    NvlinkLinks = "nvlink_links";
    /// No value: the list of processes.
    Processes = "processes";
    /// No value: the utilization of each process.
    ProcessUtilization = "process_utilization";
    /// No value: the list of MIG instances.
    MigInstances = "mig_instances";
    /// No value: whether NVML reports XIDs.
    Xids = "xids";
}
