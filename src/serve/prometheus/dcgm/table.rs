//! Which metrics of memwarden have a name in dcgm-exporter, and how their values are converted.
//!
//! Names, types and units: `etc/default-counters.csv` of NVIDIA/dcgm-exporter at d5e5f51 (May 2026), and for the rounding
//! `DcgmCacheManager.cpp` of NVIDIA/DCGM at 72fa3fe.

use crate::catalog::gpu;
use crate::model::desc::{Desc, Kind};

/// How a value is converted to the unit of dcgm-exporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversion {
    /// Bytes to MiB, rounded down.
    Mebibytes,
    /// A share to percent, rounded.
    Percent,
    /// Hertz to MHz, rounded.
    Megahertz,
    /// Joules to millijoules, rounded.
    Millijoules,
    Same,
}

impl Conversion {
    pub fn of(self, value: f64) -> f64 {
        match self {
            Self::Mebibytes => (value / f64::from(1_u32 << 20)).floor(),
            Self::Percent => (value * 100.0).round(),
            Self::Megahertz => (value / 1e6).round(),
            Self::Millijoules => (value * 1e3).round(),
            Self::Same => value,
        }
    }
}

/// One metric of dcgm-exporter.
#[derive(Debug)]
pub struct DcgmRow {
    pub name: &'static str,
    /// Its type there.
    pub kind: Kind,
    /// What it is, with its unit.
    pub help: &'static str,
    /// The metric of memwarden that has the value; its first two labels are `gpu` and `uuid`.
    pub from: &'static Desc,
    /// The values of its other labels.
    pub with: &'static [(&'static str, &'static str)],
    pub conversion: Conversion,
}

macro_rules! rows {
    ($($name:ident $kind:ident $conversion:ident $from:ident {$($label:ident = $value:literal),*} $help:literal;)+) => {
        /// Every metric of dcgm-exporter that is exposed.
        pub static TABLE: &[DcgmRow] = &[$(DcgmRow {
            name: stringify!($name),
            kind: Kind::$kind,
            help: $help,
            from: &gpu::$from.desc,
            with: &[$((stringify!($label), $value)),*],
            conversion: Conversion::$conversion,
        }),+];
    };
}

rows! {
    DCGM_FI_DEV_SM_CLOCK Gauge Megahertz CLOCK {clock = "sm"} "SM clock frequency (in MHz).";
    DCGM_FI_DEV_MEM_CLOCK Gauge Megahertz CLOCK {clock = "memory"} "Memory clock frequency (in MHz).";
    DCGM_FI_DEV_GPU_TEMP Gauge Same TEMPERATURE {} "GPU temperature (in C).";
    DCGM_FI_DEV_MEMORY_TEMP Gauge Same MEMORY_TEMPERATURE {} "Memory temperature (in C).";
    DCGM_FI_DEV_POWER_USAGE Gauge Same POWER {} "Power draw (in W).";
    DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Counter Millijoules ENERGY {} "Energy used since the driver was loaded (in mJ).";
    DCGM_FI_DEV_PCIE_REPLAY_COUNTER Counter Same PCIE_REPLAYS {} "PCIe packets that were retransmitted.";
    DCGM_FI_DEV_GPU_UTIL Gauge Percent UTILIZATION {} "GPU utilization (in %).";
    DCGM_FI_DEV_MEM_COPY_UTIL Gauge Percent MEMORY_UTILIZATION {} "Memory utilization (in %).";
    DCGM_FI_DEV_ENC_UTIL Gauge Percent ENCODER_UTILIZATION {} "Encoder utilization (in %).";
    DCGM_FI_DEV_DEC_UTIL Gauge Percent DECODER_UTILIZATION {} "Decoder utilization (in %).";
    DCGM_FI_DEV_XID_ERRORS Gauge Same NEWEST_XID {} "Number of the newest XID error, 0 where there was none.";
    DCGM_FI_DEV_FB_FREE Gauge Mebibytes MEMORY_FREE {} "Free memory (in MiB).";
    DCGM_FI_DEV_FB_USED Gauge Mebibytes MEMORY_USED {} "Memory in use (in MiB).";
    DCGM_FI_DEV_FB_RESERVED Gauge Mebibytes MEMORY_RESERVED {} "Reserved memory (in MiB).";
    DCGM_FI_DEV_FB_TOTAL Gauge Mebibytes MEMORY_TOTAL {} "Total memory (in MiB).";
    DCGM_FI_DEV_ECC_SBE_VOL_TOTAL Counter Same ECC_ERRORS {error = "corrected", scope = "volatile"} "Corrected ECC errors since the driver was loaded.";
    DCGM_FI_DEV_ECC_DBE_VOL_TOTAL Counter Same ECC_ERRORS {error = "uncorrected", scope = "volatile"} "Uncorrected ECC errors since the driver was loaded.";
    DCGM_FI_DEV_ECC_SBE_AGG_TOTAL Counter Same ECC_ERRORS {error = "corrected", scope = "aggregate"} "Corrected ECC errors over the GPU's lifetime.";
    DCGM_FI_DEV_ECC_DBE_AGG_TOTAL Counter Same ECC_ERRORS {error = "uncorrected", scope = "aggregate"} "Uncorrected ECC errors over the GPU's lifetime.";
    DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS Counter Same REMAPPED_ROWS {error = "uncorrectable"} "Rows remapped because of uncorrectable errors.";
    DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS Counter Same REMAPPED_ROWS {error = "correctable"} "Rows remapped because of correctable errors.";
    DCGM_FI_DEV_RETIRED_SBE Counter Same RETIRED_PAGES {cause = "single_bit"} "Pages retired because of single-bit errors.";
    DCGM_FI_DEV_RETIRED_DBE Counter Same RETIRED_PAGES {cause = "double_bit"} "Pages retired because of double-bit errors.";
    DCGM_FI_DEV_RETIRED_PENDING Gauge Same RETIREMENT_PENDING {} "Whether pages will be retired at the next reset.";
    DCGM_FI_DEV_ROW_REMAP_FAILURE Gauge Same REMAP_FAILURE {} "Whether a row could not be remapped.";
    DCGM_FI_DEV_ROW_REMAP_PENDING Gauge Same REMAP_PENDING {} "Whether rows will be remapped at the next reset.";
    DCGM_FI_PROF_GR_ENGINE_ACTIVE Gauge Same ENGINE_ACTIVITY {} "Share of time in which the graphics engine was active.";
    DCGM_FI_PROF_SM_ACTIVE Gauge Same SM_ACTIVITY {} "Share of SMs that were active.";
    DCGM_FI_PROF_SM_OCCUPANCY Gauge Same SM_OCCUPANCY {} "Share of warps that were resident on an SM.";
    DCGM_FI_PROF_PIPE_TENSOR_ACTIVE Gauge Same PIPE_ACTIVITY {pipe = "tensor"} "Share of time in which the tensor pipe was active.";
    DCGM_FI_PROF_PIPE_FP64_ACTIVE Gauge Same PIPE_ACTIVITY {pipe = "fp64"} "Share of time in which the FP64 pipe was active.";
    DCGM_FI_PROF_PIPE_FP32_ACTIVE Gauge Same PIPE_ACTIVITY {pipe = "fp32"} "Share of time in which the FP32 pipe was active.";
    DCGM_FI_PROF_PIPE_FP16_ACTIVE Gauge Same PIPE_ACTIVITY {pipe = "fp16"} "Share of time in which the FP16 pipe was active.";
    DCGM_FI_PROF_DRAM_ACTIVE Gauge Same DRAM_ACTIVITY {} "Share of the memory's bandwidth that was used.";
    DCGM_FI_PROF_PCIE_TX_BYTES Gauge Same PCIE_RATE {direction = "sent"} "Bytes sent over PCIe per second.";
    DCGM_FI_PROF_PCIE_RX_BYTES Gauge Same PCIE_RATE {direction = "received"} "Bytes received over PCIe per second.";
    DCGM_FI_PROF_NVLINK_TX_BYTES Gauge Same NVLINK_RATE {direction = "sent"} "Bytes sent over NVLink per second.";
    DCGM_FI_PROF_NVLINK_RX_BYTES Gauge Same NVLINK_RATE {direction = "received"} "Bytes received over NVLink per second.";
    DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL Counter Same NVLINK_ERRORS {error = "crc_flit"} "NVLink CRC errors of flow control.";
    DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL Counter Same NVLINK_ERRORS {error = "crc_data"} "NVLink CRC errors of data.";
    DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL Counter Same NVLINK_ERRORS {error = "replay"} "NVLink retries.";
    DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL Counter Same NVLINK_ERRORS {error = "recovery"} "NVLink recovery errors.";
}
