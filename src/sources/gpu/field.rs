//! The values that NVML reports for one GPU, by name.
//!
//! The names are the values of the `field` label and the identifiers used
//! between the worker and its parent.

use crate::model::names::named;

named! {
    /// One value of a GPU, in NVML's own unit.
    #[derive(serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Field {
        /// Bytes of memory.
        MemoryTotal = "memory_total",
        /// Bytes in use, without what the driver reserves.
        MemoryUsed = "memory_used",
        /// Bytes free.
        MemoryFree = "memory_free",
        /// Bytes that the driver reserves.
        MemoryReserved = "memory_reserved",
        /// Bytes of the BAR1 window.
        Bar1Total = "bar1_total",
        /// Bytes of the BAR1 window that are mapped.
        Bar1Used = "bar1_used",
        /// Percent of the time in which a kernel ran.
        Utilization = "utilization",
        /// Percent of the time in which memory was read or written.
        MemoryUtilization = "memory_utilization",
        /// Percent of the time in which the encoder was busy.
        EncoderUtilization = "encoder_utilization",
        /// Percent of the time in which the decoder was busy.
        DecoderUtilization = "decoder_utilization",
        /// Degrees Celsius, of the die.
        Temperature = "temperature",
        /// Degrees Celsius, of the memory.
        MemoryTemperature = "memory_temperature",
        /// Degrees Celsius at which the hardware slows down.
        SlowdownTemperature = "slowdown_temperature",
        /// Degrees Celsius at which the hardware shuts down.
        ShutdownTemperature = "shutdown_temperature",
        /// Draw in milliwatts.
        Power = "power",
        /// Enforced limit in milliwatts.
        PowerLimit = "power_limit",
        /// Millijoules since the driver was loaded.
        Energy = "energy",
        /// Current clock in MHz.
        ClockGraphics = "clock_graphics",
        /// Current clock in MHz.
        ClockSm = "clock_sm",
        /// Current clock in MHz.
        ClockMemory = "clock_memory",
        /// Highest clock in MHz.
        ClockGraphicsMax = "clock_graphics_max",
        /// Highest clock in MHz.
        ClockSmMax = "clock_sm_max",
        /// Highest clock in MHz.
        ClockMemoryMax = "clock_memory_max",
        /// 0 (fastest) to 15.
        PerformanceState = "performance_state",
        /// One bit for each reason.
        ThrottleReasons = "throttle_reasons",
        /// Nanoseconds.
        ThrottledPowerCap = "throttled_power_cap",
        /// Nanoseconds.
        ThrottledThermal = "throttled_thermal",
        /// Nanoseconds.
        ThrottledSyncBoost = "throttled_sync_boost",
        /// Nanoseconds.
        ThrottledBoardLimit = "throttled_board_limit",
        /// Nanoseconds.
        ThrottledLowUtilization = "throttled_low_utilization",
        /// Nanoseconds.
        ThrottledReliability = "throttled_reliability",
        /// Nanoseconds.
        ThrottledSwThermal = "throttled_sw_thermal",
        /// Nanoseconds.
        ThrottledHwThermal = "throttled_hw_thermal",
        /// Nanoseconds.
        ThrottledHwPowerBrake = "throttled_hw_power_brake",
        /// 0 or 1.
        EccMode = "ecc_mode",
        /// Errors since the driver was loaded.
        EccCorrectedVolatile = "ecc_corrected_volatile",
        /// Errors since the driver was loaded.
        EccUncorrectedVolatile = "ecc_uncorrected_volatile",
        /// Errors over the lifetime of the GPU.
        EccCorrectedAggregate = "ecc_corrected_aggregate",
        /// Errors over the lifetime of the GPU.
        EccUncorrectedAggregate = "ecc_uncorrected_aggregate",
        /// Rows remapped after correctable errors.
        RemappedCorrectable = "remapped_correctable",
        /// Rows remapped after uncorrectable errors.
        RemappedUncorrectable = "remapped_uncorrectable",
        /// 0 or 1: whether rows are remapped at the next reset.
        RemapPending = "remap_pending",
        /// 0 or 1: whether a row could not be remapped.
        RemapFailure = "remap_failure",
        /// 0 or 1: whether pages are retired at the next reset.
        RetiredPending = "retired_pending",
        /// Bytes sent; wraps.
        PcieSent = "pcie_sent",
        /// Bytes received; wraps.
        PcieReceived = "pcie_received",
        /// Packets that were retransmitted.
        PcieReplays = "pcie_replays",
        /// Current link generation.
        PcieGeneration = "pcie_generation",
        /// Current number of lanes.
        PcieWidth = "pcie_width",
        /// Highest link generation.
        PcieGenerationMax = "pcie_generation_max",
        /// Highest number of lanes.
        PcieWidthMax = "pcie_width_max",
        /// Links that are up.
        NvlinkActive = "nvlink_active",
        /// KiB of payload over all links.
        NvlinkSent = "nvlink_sent",
        /// KiB of payload over all links.
        NvlinkReceived = "nvlink_received",
        /// KiB including protocol overhead over all links.
        NvlinkRawSent = "nvlink_raw_sent",
        /// KiB including protocol overhead over all links.
        NvlinkRawReceived = "nvlink_raw_received",
        /// Errors over all links.
        NvlinkCrcFlit = "nvlink_crc_flit",
        /// Errors over all links.
        NvlinkCrcData = "nvlink_crc_data",
        /// Errors over all links.
        NvlinkReplay = "nvlink_replay",
        /// Errors over all links.
        NvlinkRecovery = "nvlink_recovery",
        /// 0 or 1.
        MigMode = "mig_mode",
        /// Millionths of the time in which the graphics and compute engine was busy (GPM).
        EngineActivity = "engine_activity",
        /// Millionths of the SMs that were busy (GPM).
        SmActivity = "sm_activity",
        /// Millionths of the warps that the SMs can hold (GPM).
        SmOccupancy = "sm_occupancy",
        /// Millionths of the time in which the tensor pipe was active (GPM).
        TensorActivity = "tensor_activity",
        /// Millionths of the time in which the FP64 pipe was active (GPM).
        Fp64Activity = "fp64_activity",
        /// Millionths of the time in which the FP32 pipe was active (GPM).
        Fp32Activity = "fp32_activity",
        /// Millionths of the time in which the FP16 pipe was active (GPM).
        Fp16Activity = "fp16_activity",
        /// Millionths of the time in which the integer pipe was active (GPM).
        IntegerActivity = "integer_activity",
        /// Millionths of the bandwidth of the memory (GPM).
        DramActivity = "dram_activity",
        /// Bytes per second (GPM).
        PcieSentRate = "pcie_sent_rate",
        /// Bytes per second (GPM).
        PcieReceivedRate = "pcie_received_rate",
        /// Bytes per second over all links (GPM).
        NvlinkSentRate = "nvlink_sent_rate",
        /// Bytes per second over all links (GPM).
        NvlinkReceivedRate = "nvlink_received_rate",
        /// Pages retired after single-bit errors.
        RetiredSingleBit = "retired_single_bit",
        /// Pages retired after double-bit errors.
        RetiredDoubleBit = "retired_double_bit",
        /// Banks of memory with all spare rows.
        RemapBanksMax = "remap_banks_max",
        /// Banks of memory with most of their spare rows.
        RemapBanksHigh = "remap_banks_high",
        /// Banks of memory with some of their spare rows.
        RemapBanksPartial = "remap_banks_partial",
        /// Banks of memory with one spare row.
        RemapBanksLow = "remap_banks_low",
        /// Banks of memory without a spare row.
        RemapBanksNone = "remap_banks_none",
        /// The number of an `nvmlGpuVirtualizationMode_t`.
        VirtualizationMode = "virtualization_mode",
        /// 0 or 1.
        ConfidentialCompute = "confidential_compute",
        /// KiB.
        ProtectedMemory = "protected_memory",
        /// KiB.
        UnprotectedMemory = "unprotected_memory",
        /// Streaming multiprocessors of a MIG instance.
        Multiprocessors = "multiprocessors",
        /// No value: whether the GPU has GPM.
        Gpm = "gpm",
        /// No value: what each NVLink link reports.
        NvlinkLinks = "nvlink_links",
        /// No value: the list of processes.
        Processes = "processes",
        /// No value: the utilization of each process.
        ProcessUtilization = "process_utilization",
        /// No value: the list of MIG instances.
        MigInstances = "mig_instances",
        /// No value: whether NVML reports XIDs.
        Xids = "xids",
    }
}
