//! The numbers that NVML tells of one GPU, by name.
//!
//! The names are the values of the `field` label, and what the worker and
//! its parent call them between themselves.

/// Declares the fields: variant and name.
macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// One number about a GPU, in NVML's own unit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum Field {
            $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)+
        }

        impl Field {
            /// Every field.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The value of the `field` label.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

fields! {
    /// Bytes of memory.
    MemoryTotal = "memory_total",
    /// Bytes in use, without the driver's.
    MemoryUsed = "memory_used",
    /// Bytes free.
    MemoryFree = "memory_free",
    /// Bytes the driver keeps.
    MemoryReserved = "memory_reserved",
    /// Bytes of the BAR1 window.
    Bar1Total = "bar1_total",
    /// Bytes of the BAR1 window that are mapped.
    Bar1Used = "bar1_used",
    /// Percent of time a kernel ran.
    Utilization = "utilization",
    /// Percent of time memory was read or written.
    MemoryUtilization = "memory_utilization",
    /// Percent.
    EncoderUtilization = "encoder_utilization",
    /// Percent.
    DecoderUtilization = "decoder_utilization",
    /// Degrees Celsius.
    Temperature = "temperature",
    /// Degrees Celsius.
    MemoryTemperature = "memory_temperature",
    /// Degrees Celsius at which the hardware slows down.
    SlowdownTemperature = "slowdown_temperature",
    /// Degrees Celsius at which the hardware shuts down.
    ShutdownTemperature = "shutdown_temperature",
    /// Milliwatts.
    Power = "power",
    /// Milliwatts.
    PowerLimit = "power_limit",
    /// Millijoules since the driver was loaded.
    Energy = "energy",
    /// MHz.
    ClockGraphics = "clock_graphics",
    /// MHz.
    ClockSm = "clock_sm",
    /// MHz.
    ClockMemory = "clock_memory",
    /// MHz.
    ClockGraphicsMax = "clock_graphics_max",
    /// MHz.
    ClockSmMax = "clock_sm_max",
    /// MHz.
    ClockMemoryMax = "clock_memory_max",
    /// 0 (fastest) to 15.
    PerformanceState = "performance_state",
    /// A bit a reason.
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
    /// Errors in the GPU's life.
    EccCorrectedAggregate = "ecc_corrected_aggregate",
    /// Errors in the GPU's life.
    EccUncorrectedAggregate = "ecc_uncorrected_aggregate",
    /// Rows.
    RemappedCorrectable = "remapped_correctable",
    /// Rows.
    RemappedUncorrectable = "remapped_uncorrectable",
    /// 0 or 1.
    RemapPending = "remap_pending",
    /// 0 or 1.
    RemapFailure = "remap_failure",
    /// 0 or 1.
    RetiredPending = "retired_pending",
    /// Bytes sent; wraps.
    PcieSent = "pcie_sent",
    /// Bytes received; wraps.
    PcieReceived = "pcie_received",
    /// Replays.
    PcieReplays = "pcie_replays",
    /// Generation.
    PcieGeneration = "pcie_generation",
    /// Lanes.
    PcieWidth = "pcie_width",
    /// Generation.
    PcieGenerationMax = "pcie_generation_max",
    /// Lanes.
    PcieWidthMax = "pcie_width_max",
    /// Links that are up.
    NvlinkActive = "nvlink_active",
    /// KiB of payload over all links.
    NvlinkSent = "nvlink_sent",
    /// KiB of payload over all links.
    NvlinkReceived = "nvlink_received",
    /// KiB with protocol over all links.
    NvlinkRawSent = "nvlink_raw_sent",
    /// KiB with protocol over all links.
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
    /// No number: the list of processes.
    Processes = "processes",
    /// No number: the utilization of each process.
    ProcessUtilization = "process_utilization",
    /// No number: the list of MIG instances.
    MigInstances = "mig_instances",
    /// No number: whether XIDs are told.
    Xids = "xids",
}
