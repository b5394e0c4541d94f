//! The scenario file: raw JSON into a checked description of the machine.

mod device;
mod faults;
mod gauges;
mod links;
mod occupants;
mod reliability;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

pub(crate) use device::{Architecture, Device};
pub(crate) use faults::Xid;
pub(crate) use links::{LinkErrors, NvLink, PciAddress};
pub(crate) use occupants::{Instance, Kind, Process};
pub(crate) use reliability::Ecc;

use crate::abi::Code;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) driver_version: String,
    pub(crate) nvml_version: String,
    /// As NVML counts: 13000 is 13.0.
    pub(crate) cuda_version: u32,
    pub(crate) init: Code,
    pub(crate) count: Code,
    pub(crate) crash_on_init: bool,
    /// Confidential compute; `null` is a driver without it.
    pub(crate) confidential_compute: Option<ConfidentialCompute>,
    pub(crate) driver_generation: u16,
    /// Unix seconds from which every moving value counts; the library's load time if absent.
    pub(crate) epoch: Option<f64>,
    pub(crate) devices: Vec<Device>,
    /// Faults of the calls that take no device.
    pub(crate) returns: BTreeMap<String, Code>,
    pub(crate) latency_ms: BTreeMap<String, f64>,
    pub(crate) hang: Vec<String>,
}

/// Confidential compute, of the whole machine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ConfidentialCompute {
    pub(crate) enabled: bool,
    pub(crate) protected_kib: u64,
    pub(crate) unprotected_kib: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            driver_version: "580.95.05".into(),
            nvml_version: "13.580.95.05".into(),
            cuda_version: 13_000,
            init: Code::SUCCESS,
            count: Code::SUCCESS,
            crash_on_init: false,
            confidential_compute: Some(ConfidentialCompute::default()),
            driver_generation: 0,
            epoch: None,
            devices: Vec::new(),
            returns: BTreeMap::new(),
            latency_ms: BTreeMap::new(),
            hang: Vec::new(),
        }
    }
}

impl Scenario {
    /// One healthy GPU: used if there is no file.
    pub(crate) fn built_in() -> Self {
        let mut scenario = Self { devices: vec![Device::default()], ..Self::default() };
        for (index, device) in scenario.devices.iter_mut().enumerate() {
            device.complete(index);
        }
        scenario
    }

    /// A driver that refuses to start: used if the file was never valid.
    pub(crate) fn unreadable() -> Self {
        Self { init: Code::UNKNOWN, ..Self::default() }
    }

    /// Parses and checks the text; the message names the place or the device.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut scenario: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let mut uuids = BTreeSet::new();
        for (index, device) in scenario.devices.iter_mut().enumerate() {
            device.complete(index);
            PciAddress::parse(&device.pci)
                .ok_or_else(|| format!("device {index}: {:?} is not a PCI address", device.pci))?;
            let instances = device.instances().map(|(_, instance)| &instance.uuid);
            for uuid in std::iter::once(&device.uuid).chain(instances) {
                if !uuids.insert(uuid.clone()) {
                    return Err(format!("device {index}: the UUID {uuid} is taken"));
                }
            }
        }
        Ok(scenario)
    }

    /// Whether field ids 251 to 273 follow the numbering that driver 580.82 brought.
    pub(crate) fn renumbered_fields(&self) -> bool {
        self.driver() >= 580_082
    }

    /// The first two numbers of the driver's version, the first in thousands.
    pub(crate) fn driver(&self) -> u32 {
        let mut parts = self.driver_version.split('.').map(|part| part.parse().unwrap_or(0));
        parts.next().unwrap_or(0) * 1_000 + parts.next().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, part: &str) {
        let message = Scenario::parse(text).unwrap_err();
        assert!(message.contains(part), "{message}");
    }

    #[test]
    fn an_empty_device_is_a_healthy_one() {
        let scenario = Scenario::parse(r#"{"devices": [{}, {}]}"#).unwrap();
        let second = &scenario.devices[1];
        assert_eq!(second.uuid, "GPU-00000000-0000-4000-8000-000000000001");
        assert_eq!(second.pci, "00000000:11:00.0");
        assert_eq!(second.minor(), 1);
        assert!(second.memory.is_some() && second.serial().is_some());
    }

    #[test]
    fn null_means_not_supported() {
        let text = r#"{"devices": [{"memory": null, "serial": null, "ecc": null}]}"#;
        let scenario = Scenario::parse(text).unwrap();
        let device = &scenario.devices[0];
        assert!(device.memory.is_none() && device.serial().is_none() && device.ecc.is_none());
    }

    #[test]
    fn mistakes_are_named() {
        refused(r#"{"device": []}"#, "unknown field `device`");
        refused(r#"{"devices": [{"temprature": 3}]}"#, "unknown field `temprature`");
        refused(r#"{"devices": [{"memory": {"usd": 3}}]}"#, "unknown field `usd`");
        refused(r#"{"init": "sleepy"}"#, "no return code is named \"sleepy\"");
        refused(r#"{"devices": [{"uuid": "a"}, {"uuid": "a"}]}"#, "the UUID a is taken");
        refused(r#"{"devices": [{"pci": "here"}]}"#, "is not a PCI address");
        refused(r#"{"devices": ["#, "EOF");
    }

    #[test]
    fn the_field_numbering_follows_the_driver() {
        let renumbered = |version: &str| {
            let scenario = Scenario { driver_version: version.into(), ..Scenario::default() };
            scenario.renumbered_fields()
        };
        assert!(!renumbered("575.51.03"));
        assert!(!renumbered("580.65.06"));
        assert!(renumbered("580.82.07"));
        assert!(renumbered("610.57.04"));
    }

    #[test]
    fn the_examples_parse() {
        for text in [
            include_str!("../../scenarios/healthy-8.json"),
            include_str!("../../scenarios/mig.json"),
            include_str!("../../scenarios/troubled.json"),
        ] {
            Scenario::parse(text).unwrap();
        }
    }
}
