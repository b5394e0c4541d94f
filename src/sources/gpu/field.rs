//! The values that NVML reports for one GPU, by name.
//!
//! The names are the values of the `field` label and the identifiers used
//! between the worker and its parent.

use super::convert::{Put, celsius, flag, hertz, joules, millionths, percent, rate, watts};
use super::metrics as m;
use crate::model::bounds::{DEGREES, JOULES, MEGAHERTZ, MEMORY, WATTS};
use crate::model::names::named;
use crate::model::units::{Bytes, Count, Seconds};

const MILLIWATTS: u64 = WATTS * 1_000;

const MILLIJOULES: u64 = JOULES * 1_000;

/// Thirty years.
const NANOSECONDS: u64 = 1 << 60;

/// Bytes per second, ten times those of NVLink 5.
const RATE: u64 = 16 << 40;

/// What fits into 64 bits as bytes.
const KIB: u64 = (1 << 54) - 1;

/// Bytes since the driver was loaded.
const TRAFFIC: u64 = 1 << 62;

/// Errors over the lifetime of a GPU.
const ERRORS: u64 = 1 << 48;

/// Rows, banks or pages of memory.
const ROWS: u64 = 1 << 20;

/// Declares the fields: each with its name, the largest number that can be true and, where one metric exposes the number,
/// that metric, its labels besides those of the GPU, and the conversion of the number.
macro_rules! fields {
    ($(
        $(#[doc = $doc:literal])+
        $field:ident = $name:literal <= $most:tt $(=> $metric:ident $([$($label:literal),+])? by $convert:path)?;
    )+) => {
        named! {
            /// One value of a GPU, in NVML's own unit.
            #[derive(serde::Serialize, serde::Deserialize)]
            #[serde(rename_all = "snake_case")]
            pub enum Field {
                $($(#[doc = $doc])+ $field = $name,)+
            }
        }

        impl Field {
            /// The largest number that can be true; a larger one is no value, such as the "unknown" of another call.
            pub(super) const fn most(self) -> u64 {
                match self {
                    $(Self::$field => $most,)+
                }
            }

            /// What it is, the largest number that can be true, and the metric that exposes it, unless none or several do.
            pub fn about(self) -> (&'static str, u64, Option<&'static str>) {
                match self {
                    $(Self::$field => {
                        let metric = [$(Some(m::$metric.desc.name),)? None][0];
                        (concat!($($doc),+).trim_start(), self.most(), metric)
                    })+
                }
            }

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
    MemoryTotal = "memory_total" <= MEMORY => MEMORY_TOTAL by Bytes::new;
    /// Bytes in use, without what the driver reserves.
    MemoryUsed = "memory_used" <= MEMORY => MEMORY_USED by Bytes::new;
    /// Bytes free.
    MemoryFree = "memory_free" <= MEMORY => MEMORY_FREE by Bytes::new;
    /// Bytes that the driver reserves.
    MemoryReserved = "memory_reserved" <= MEMORY => MEMORY_RESERVED by Bytes::new;
    /// Bytes of the BAR1 window.
    Bar1Total = "bar1_total" <= MEMORY => BAR1_TOTAL by Bytes::new;
    /// Bytes of the BAR1 window that are mapped.
    Bar1Used = "bar1_used" <= MEMORY => BAR1_USED by Bytes::new;
    /// Percent of the time in which a kernel ran.
    Utilization = "utilization" <= 100 => UTILIZATION by percent;
    /// Percent of the time in which memory was read or written.
    MemoryUtilization = "memory_utilization" <= 100 => MEMORY_UTILIZATION by percent;
    /// Percent of the time in which the encoder was busy.
    EncoderUtilization = "encoder_utilization" <= 100 => ENCODER_UTILIZATION by percent;
    /// Percent of the time in which the decoder was busy.
    DecoderUtilization = "decoder_utilization" <= 100 => DECODER_UTILIZATION by percent;
    /// Degrees Celsius, of the die.
    Temperature = "temperature" <= DEGREES => TEMPERATURE by celsius;
    /// Degrees Celsius, of the memory.
    MemoryTemperature = "memory_temperature" <= DEGREES => MEMORY_TEMPERATURE by celsius;
    /// Degrees Celsius at which the hardware slows down.
    SlowdownTemperature = "slowdown_temperature" <= DEGREES => TEMPERATURE_THRESHOLD["slowdown"] by celsius;
    /// Degrees Celsius at which the hardware shuts down.
    ShutdownTemperature = "shutdown_temperature" <= DEGREES => TEMPERATURE_THRESHOLD["shutdown"] by celsius;
    /// Draw in milliwatts.
    Power = "power" <= MILLIWATTS => POWER by watts;
    /// Enforced limit in milliwatts.
    PowerLimit = "power_limit" <= MILLIWATTS => POWER_LIMIT by watts;
    /// Millijoules since the driver was loaded.
    Energy = "energy" <= MILLIJOULES => ENERGY by joules;
    /// Current clock in MHz.
    ClockGraphics = "clock_graphics" <= MEGAHERTZ => CLOCK["graphics"] by hertz;
    /// Current clock in MHz.
    ClockSm = "clock_sm" <= MEGAHERTZ => CLOCK["sm"] by hertz;
    /// Current clock in MHz.
    ClockMemory = "clock_memory" <= MEGAHERTZ => CLOCK["memory"] by hertz;
    /// Highest clock in MHz.
    ClockGraphicsMax = "clock_graphics_max" <= MEGAHERTZ => CLOCK_LIMIT["graphics"] by hertz;
    /// Highest clock in MHz.
    ClockSmMax = "clock_sm_max" <= MEGAHERTZ => CLOCK_LIMIT["sm"] by hertz;
    /// Highest clock in MHz.
    ClockMemoryMax = "clock_memory_max" <= MEGAHERTZ => CLOCK_LIMIT["memory"] by hertz;
    /// 0 (fastest) to 15.
    PerformanceState = "performance_state" <= 15 => PERFORMANCE_STATE by Count;
    /// One bit for each reason.
    ThrottleReasons = "throttle_reasons" <= 0xffff;
    /// Nanoseconds.
    ThrottledPowerCap = "throttled_power_cap" <= NANOSECONDS => THROTTLED_TIME["power_cap"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledThermal = "throttled_thermal" <= NANOSECONDS => THROTTLED_TIME["thermal"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledSyncBoost = "throttled_sync_boost" <= NANOSECONDS => THROTTLED_TIME["sync_boost"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledBoardLimit = "throttled_board_limit" <= NANOSECONDS => THROTTLED_TIME["board_limit"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledLowUtilization = "throttled_low_utilization" <= NANOSECONDS => THROTTLED_TIME["low_utilization"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledReliability = "throttled_reliability" <= NANOSECONDS => THROTTLED_TIME["reliability"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledSwThermal = "throttled_sw_thermal" <= NANOSECONDS => THROTTLED_TIME["sw_thermal"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledHwThermal = "throttled_hw_thermal" <= NANOSECONDS => THROTTLED_TIME["hw_thermal"] by Seconds::from_nanos;
    /// Nanoseconds.
    ThrottledHwPowerBrake = "throttled_hw_power_brake" <= NANOSECONDS => THROTTLED_TIME["hw_power_brake"] by Seconds::from_nanos;
    /// 0 or 1.
    EccMode = "ecc_mode" <= 1 => ECC_ENABLED by flag;
    /// Errors since the driver was loaded.
    EccCorrectedVolatile = "ecc_corrected_volatile" <= ERRORS => ECC_ERRORS["corrected", "volatile"] by Count;
    /// Errors since the driver was loaded.
    EccUncorrectedVolatile = "ecc_uncorrected_volatile" <= ERRORS => ECC_ERRORS["uncorrected", "volatile"] by Count;
    /// Errors over the lifetime of the GPU.
    EccCorrectedAggregate = "ecc_corrected_aggregate" <= ERRORS => ECC_ERRORS["corrected", "aggregate"] by Count;
    /// Errors over the lifetime of the GPU.
    EccUncorrectedAggregate = "ecc_uncorrected_aggregate" <= ERRORS => ECC_ERRORS["uncorrected", "aggregate"] by Count;
    /// Rows remapped after correctable errors.
    RemappedCorrectable = "remapped_correctable" <= ROWS => REMAPPED_ROWS["correctable"] by Count;
    /// Rows remapped after uncorrectable errors.
    RemappedUncorrectable = "remapped_uncorrectable" <= ROWS => REMAPPED_ROWS["uncorrectable"] by Count;
    /// 0 or 1: whether rows are remapped at the next reset.
    RemapPending = "remap_pending" <= 1 => REMAP_PENDING by flag;
    /// 0 or 1: whether a row could not be remapped.
    RemapFailure = "remap_failure" <= 1 => REMAP_FAILURE by flag;
    /// 0 or 1: whether pages are retired at the next reset.
    RetiredPending = "retired_pending" <= 1 => RETIREMENT_PENDING by flag;
    /// Bytes sent; wraps.
    PcieSent = "pcie_sent" <= TRAFFIC;
    /// Bytes received; wraps.
    PcieReceived = "pcie_received" <= TRAFFIC;
    /// Packets that were retransmitted.
    PcieReplays = "pcie_replays" <= 0xffff_fffe => PCIE_REPLAYS by Count;
    /// Current link generation.
    PcieGeneration = "pcie_generation" <= 16 => PCIE_GENERATION["current"] by Count;
    /// Current number of lanes.
    PcieWidth = "pcie_width" <= 64 => PCIE_WIDTH["current"] by Count;
    /// Highest link generation.
    PcieGenerationMax = "pcie_generation_max" <= 16 => PCIE_GENERATION["maximum"] by Count;
    /// Highest number of lanes.
    PcieWidthMax = "pcie_width_max" <= 64 => PCIE_WIDTH["maximum"] by Count;
    /// Links that are up.
    NvlinkActive = "nvlink_active" <= 64 => NVLINK_ACTIVE by Count;
    /// KiB of payload over all links.
    NvlinkSent = "nvlink_sent" <= KIB => NVLINK_SENT["data"] by Bytes::from_kib;
    /// KiB of payload over all links.
    NvlinkReceived = "nvlink_received" <= KIB => NVLINK_RECEIVED["data"] by Bytes::from_kib;
    /// KiB including protocol overhead over all links.
    NvlinkRawSent = "nvlink_raw_sent" <= KIB => NVLINK_SENT["raw"] by Bytes::from_kib;
    /// KiB including protocol overhead over all links.
    NvlinkRawReceived = "nvlink_raw_received" <= KIB => NVLINK_RECEIVED["raw"] by Bytes::from_kib;
    /// Errors over all links.
    NvlinkCrcFlit = "nvlink_crc_flit" <= ERRORS => NVLINK_ERRORS["crc_flit"] by Count;
    /// Errors over all links.
    NvlinkCrcData = "nvlink_crc_data" <= ERRORS => NVLINK_ERRORS["crc_data"] by Count;
    /// Errors over all links.
    NvlinkReplay = "nvlink_replay" <= ERRORS => NVLINK_ERRORS["replay"] by Count;
    /// Errors over all links.
    NvlinkRecovery = "nvlink_recovery" <= ERRORS => NVLINK_ERRORS["recovery"] by Count;
    /// Errors over all links: what was received with an error, which NVLink 5 counts.
    NvlinkReceiveErrors = "nvlink_receive_errors" <= ERRORS => NVLINK_ERRORS["receive"] by Count;
    /// Errors over all links that NVLink 5 could not correct.
    NvlinkEffectiveErrors = "nvlink_effective_errors" <= ERRORS => NVLINK_ERRORS["effective"] by Count;
    /// 0 or 1.
    MigMode = "mig_mode" <= 1 => MIG_ENABLED by flag;
    /// Millionths of the time in which the graphics and compute engine was busy (GPM).
    EngineActivity = "engine_activity" <= 1_000_000 => ENGINE_ACTIVITY by millionths;
    /// Millionths of the SMs that were busy (GPM).
    SmActivity = "sm_activity" <= 1_000_000 => SM_ACTIVITY by millionths;
    /// Millionths of the warps that the SMs can hold (GPM).
    SmOccupancy = "sm_occupancy" <= 1_000_000 => SM_OCCUPANCY by millionths;
    /// Millionths of the time in which the tensor pipe was active (GPM).
    TensorActivity = "tensor_activity" <= 1_000_000 => PIPE_ACTIVITY["tensor"] by millionths;
    /// Millionths of the time in which the FP64 pipe was active (GPM).
    Fp64Activity = "fp64_activity" <= 1_000_000 => PIPE_ACTIVITY["fp64"] by millionths;
    /// Millionths of the time in which the FP32 pipe was active (GPM).
    Fp32Activity = "fp32_activity" <= 1_000_000 => PIPE_ACTIVITY["fp32"] by millionths;
    /// Millionths of the time in which the FP16 pipe was active (GPM).
    Fp16Activity = "fp16_activity" <= 1_000_000 => PIPE_ACTIVITY["fp16"] by millionths;
    /// Millionths of the time in which the integer pipe was active (GPM).
    IntegerActivity = "integer_activity" <= 1_000_000 => PIPE_ACTIVITY["integer"] by millionths;
    /// Millionths of the bandwidth of the memory (GPM).
    DramActivity = "dram_activity" <= 1_000_000 => DRAM_ACTIVITY by millionths;
    /// Bytes per second (GPM).
    PcieSentRate = "pcie_sent_rate" <= RATE => PCIE_RATE["sent"] by rate;
    /// Bytes per second (GPM).
    PcieReceivedRate = "pcie_received_rate" <= RATE => PCIE_RATE["received"] by rate;
    /// Bytes per second over all links (GPM).
    NvlinkSentRate = "nvlink_sent_rate" <= RATE => NVLINK_RATE["sent"] by rate;
    /// Bytes per second over all links (GPM).
    NvlinkReceivedRate = "nvlink_received_rate" <= RATE => NVLINK_RATE["received"] by rate;
    /// Pages retired after single-bit errors.
    RetiredSingleBit = "retired_single_bit" <= ROWS => RETIRED_PAGES["single_bit"] by Count;
    /// Pages retired after double-bit errors.
    RetiredDoubleBit = "retired_double_bit" <= ROWS => RETIRED_PAGES["double_bit"] by Count;
    /// Banks of memory with all spare rows.
    RemapBanksMax = "remap_banks_max" <= ROWS => REMAP_BANKS["max"] by Count;
    /// Banks of memory with most of their spare rows.
    RemapBanksHigh = "remap_banks_high" <= ROWS => REMAP_BANKS["high"] by Count;
    /// Banks of memory with some of their spare rows.
    RemapBanksPartial = "remap_banks_partial" <= ROWS => REMAP_BANKS["partial"] by Count;
    /// Banks of memory with one spare row.
    RemapBanksLow = "remap_banks_low" <= ROWS => REMAP_BANKS["low"] by Count;
    /// Banks of memory without a spare row.
    RemapBanksNone = "remap_banks_none" <= ROWS => REMAP_BANKS["none"] by Count;
    /// The number of an `nvmlDeviceGpuRecoveryAction_t`.
    RecoveryAction = "recovery_action" <= 4;
    /// The number of an `nvmlGpuVirtualizationMode_t`.
    VirtualizationMode = "virtualization_mode" <= 4;
    /// 0 or 1.
    ConfidentialCompute = "confidential_compute" <= 1 => CONFIDENTIAL by flag;
    /// KiB.
    ProtectedMemory = "protected_memory" <= KIB => CONFIDENTIAL_MEMORY["protected"] by Bytes::from_kib;
    /// KiB.
    UnprotectedMemory = "unprotected_memory" <= KIB => CONFIDENTIAL_MEMORY["unprotected"] by Bytes::from_kib;
    /// Streaming multiprocessors of a MIG instance.
    Multiprocessors = "multiprocessors" <= 4096;
    /// No value: whether the GPU has GPM.
    Gpm = "gpm" <= 0;
    /// No value: what each NVLink link reports.
    NvlinkLinks = "nvlink_links" <= 0;
    /// No value: the list of processes.
    Processes = "processes" <= 0;
    /// No value: the utilization of each process.
    ProcessUtilization = "process_utilization" <= 0;
    /// No value: the list of MIG instances.
    MigInstances = "mig_instances" <= 0;
    /// No value: whether NVML reports XIDs.
    Xids = "xids" <= 0;
}
