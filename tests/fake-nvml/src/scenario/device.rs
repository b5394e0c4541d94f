//! One GPU of the scenario, with the figures of an H100 for everything not given.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::faults::{Churn, State, Xid};
use super::gauges::{Bar1, Clocks, Memory, Thresholds, Violations};
use super::links::{NvLink, Pcie};
use super::occupants::{Instance, Mig, Process};
use super::reliability::{Ecc, RemappedRows, RetiredPages};
use crate::abi::Code;
use crate::value::Value;

/// One GPU; an absent key keeps the default, `null` makes the call return NOT_SUPPORTED.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Device {
    pub(crate) uuid: String,
    pub(crate) name: String,
    #[serde(deserialize_with = "given")]
    serial: Option<Option<String>>,
    /// The version of the video BIOS.
    pub(crate) vbios: Option<String>,
    pub(crate) pci: String,
    minor: Option<u32>,
    pub(crate) pci_device_id: u32,
    pub(crate) pci_subsystem_id: u32,
    pub(crate) brand: u32,
    pub(crate) architecture: Architecture,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) cores: u32,
    pub(crate) memory_bus_width: u32,
    pub(crate) persistence: bool,
    pub(crate) compute_mode: u32,

    pub(crate) memory: Option<Memory>,
    pub(crate) bar1: Option<Bar1>,
    pub(crate) utilization: Option<Value>,
    pub(crate) memory_utilization: Option<Value>,
    pub(crate) encoder_utilization: Option<Value>,
    pub(crate) decoder_utilization: Option<Value>,
    pub(crate) temperature: Option<Value>,
    pub(crate) memory_temperature: Option<Value>,
    pub(crate) temperature_margin: Option<Value>,
    pub(crate) thresholds: Thresholds,
    pub(crate) power_milliwatts: Option<Value>,
    pub(crate) power_limit: Option<Value>,
    pub(crate) power_default_limit: Option<Value>,
    pub(crate) power_min_limit: Option<Value>,
    pub(crate) power_max_limit: Option<Value>,
    pub(crate) energy: Option<Value>,
    pub(crate) clocks: Clocks,
    pub(crate) pstate: Option<Value>,
    pub(crate) throttle: Option<Value>,
    pub(crate) violations_ns: Violations,
    pub(crate) fan_speed: Option<Value>,

    pub(crate) ecc: Option<Ecc>,
    pub(crate) remapped_rows: Option<RemappedRows>,
    pub(crate) retired_pages: Option<RetiredPages>,
    pub(crate) pcie: Pcie,
    pub(crate) nvlink: Option<NvLink>,
    /// The GPM metrics by id; `null` is a GPU without GPM.
    pub(crate) gpm: Option<BTreeMap<u32, Value>>,
    /// An `nvmlGpuVirtualizationMode_t`.
    pub(crate) virtualization: Option<u32>,
    pub(crate) fields: BTreeMap<u32, Value>,
    /// The `nvmlValueType_t` of values in `fields`; unsigned long long if absent.
    pub(crate) field_types: BTreeMap<u32, u32>,
    pub(crate) field_returns: BTreeMap<u32, Code>,

    pub(crate) processes: Vec<Process>,
    pub(crate) churn: Churn,
    pub(crate) mig: Option<Mig>,
    pub(crate) supported_events: u64,
    pub(crate) xids: Vec<Xid>,

    pub(crate) state: State,
    pub(crate) returns: BTreeMap<String, Code>,
    pub(crate) latency_ms: BTreeMap<String, f64>,
    pub(crate) hang: Vec<String>,
}

/// The `nvmlDeviceArchitecture_t` names.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Architecture {
    Kepler = 2,
    Maxwell = 3,
    Pascal = 4,
    Volta = 5,
    Turing = 6,
    Ampere = 7,
    Ada = 8,
    Hopper = 9,
    Blackwell = 10,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            uuid: String::new(),
            name: "NVIDIA H100 80GB HBM3".into(),
            serial: None,
            vbios: None,
            pci: String::new(),
            minor: None,
            pci_device_id: 0x2330_10DE,
            pci_subsystem_id: 0x16C1_10DE,
            brand: 14,
            architecture: Architecture::Hopper,
            compute_capability: (9, 0),
            cores: 16_896,
            memory_bus_width: 5_120,
            persistence: true,
            compute_mode: 0,
            memory: Some(Memory::default()),
            bar1: Some(Bar1::default()),
            utilization: Some(0.into()),
            memory_utilization: Some(0.into()),
            encoder_utilization: Some(0.into()),
            decoder_utilization: Some(0.into()),
            temperature: Some(34.into()),
            memory_temperature: Some(42.into()),
            temperature_margin: Some(53.into()),
            thresholds: Thresholds::default(),
            power_milliwatts: Some(72_000.into()),
            power_limit: Some(700_000.into()),
            power_default_limit: Some(700_000.into()),
            power_min_limit: Some(200_000.into()),
            power_max_limit: Some(700_000.into()),
            energy: Some(1_000_000_000.into()),
            clocks: Clocks::default(),
            pstate: Some(0.into()),
            throttle: Some(1.into()),
            violations_ns: Violations::default(),
            fan_speed: None,
            ecc: Some(Ecc::default()),
            remapped_rows: Some(RemappedRows::default()),
            retired_pages: None,
            pcie: Pcie::default(),
            nvlink: Some(NvLink::default()),
            gpm: None,
            virtualization: Some(0),
            fields: BTreeMap::new(),
            field_types: BTreeMap::new(),
            field_returns: BTreeMap::new(),
            processes: Vec::new(),
            churn: Churn::default(),
            mig: Some(Mig::default()),
            supported_events: 0x1F,
            xids: Vec::new(),
            state: State::default(),
            returns: BTreeMap::new(),
            latency_ms: BTreeMap::new(),
            hang: Vec::new(),
        }
    }
}

impl Device {
    /// Sets values that depend on the position in the list, if the file does not.
    pub(super) fn complete(&mut self, index: usize) {
        if self.uuid.is_empty() {
            self.uuid = format!("GPU-00000000-0000-4000-8000-{index:012x}");
        }
        if self.pci.is_empty() {
            self.pci = format!("00000000:{:02X}:00.0", 0x10 + index);
        }
        self.minor = self.minor.or(u32::try_from(index).ok());
        self.serial.get_or_insert_with(|| Some(format!("16500{index:08}")));
    }

    /// The board serial, where the GPU has one.
    pub(crate) fn serial(&self) -> Option<&str> {
        self.serial.as_ref()?.as_deref()
    }

    /// The N of `/dev/nvidiaN`.
    pub(crate) fn minor(&self) -> u32 {
        self.minor.unwrap_or(0)
    }

    /// Whether the GPU is partitioned now.
    pub(crate) fn mig_enabled(&self) -> bool {
        self.mig.as_ref().is_some_and(|mig| mig.enabled)
    }

    /// The MIG instances with their index; none where MIG is off.
    pub(crate) fn instances(&self) -> impl Iterator<Item = (usize, &Instance)> {
        let mig = self.mig.as_ref().filter(|mig| mig.enabled);
        let slots = mig.map_or(&[][..], |mig| &mig.instances);
        slots.iter().enumerate().filter_map(|(index, slot)| slot.as_ref().map(|instance| (index, instance)))
    }
}

/// Distinguishes absent keys from null.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}
