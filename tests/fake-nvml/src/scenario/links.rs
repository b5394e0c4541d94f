//! PCIe and NVLink.

use serde::Deserialize;

use crate::value::Value;

/// The PCIe link and its counters.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Pcie {
    pub(crate) generation: Option<Value>,
    pub(crate) width: Option<Value>,
    pub(crate) max_generation: Option<Value>,
    pub(crate) max_width: Option<Value>,
    pub(crate) replays: Option<Value>,
    pub(crate) tx_bytes: Option<Value>,
    pub(crate) rx_bytes: Option<Value>,
    /// The result of nvmlDeviceGetPcieThroughput, in KiB per second.
    pub(crate) tx_kib_per_second: Option<Value>,
    pub(crate) rx_kib_per_second: Option<Value>,
}

impl Default for Pcie {
    fn default() -> Self {
        Self {
            generation: Some(5.into()),
            width: Some(16.into()),
            max_generation: Some(5.into()),
            max_width: Some(16.into()),
            replays: Some(0.into()),
            tx_bytes: Some(0.into()),
            rx_bytes: Some(0.into()),
            tx_kib_per_second: Some(0.into()),
            rx_kib_per_second: Some(0.into()),
        }
    }
}

/// A PCI address, parsed for comparison: clients write the domain with four or eight digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PciAddress {
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
}

impl PciAddress {
    /// Reads `[domain:]bus:device[.function]`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let hex = |part: &str| u32::from_str_radix(part, 16).ok();
        let (address, _function) = text.split_once('.').unwrap_or((text, "0"));
        let parts: Vec<&str> = address.split(':').collect();
        let (domain, bus, device) = match parts[..] {
            [domain, bus, device] => (domain, bus, device),
            [bus, device] => ("0", bus, device),
            _ => return None,
        };
        Some(Self { domain: hex(domain)?, bus: hex(bus)?, device: hex(device)? })
    }
}

/// The NVLinks of a GPU; the figures are for one link.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NvLink {
    pub(crate) links: u32,
    /// Links that are not active.
    pub(crate) down: Vec<u32>,
    /// An NVML_NVLINK_VERSION number: 6 is NVLink 4.
    pub(crate) version: u32,
    pub(crate) speed_mbps: Value,
    pub(crate) data_tx_kib: Option<Value>,
    pub(crate) data_rx_kib: Option<Value>,
    pub(crate) raw_tx_kib: Option<Value>,
    pub(crate) raw_rx_kib: Option<Value>,
    pub(crate) errors: LinkErrors,
}

impl Default for NvLink {
    fn default() -> Self {
        Self {
            links: 18,
            down: Vec::new(),
            version: 6,
            speed_mbps: 26_562.into(),
            data_tx_kib: Some(0.into()),
            data_rx_kib: Some(0.into()),
            raw_tx_kib: Some(0.into()),
            raw_rx_kib: Some(0.into()),
            errors: LinkErrors::default(),
        }
    }
}

impl NvLink {
    /// Whether a link that exists is active.
    pub(crate) fn is_active(&self, link: u32) -> bool {
        !self.down.contains(&link)
    }

    /// The number of active links.
    pub(crate) fn active(&self) -> u64 {
        let active = (0..self.links).filter(|link| self.is_active(*link));
        active.map(|_| 1).sum()
    }
}

/// Error counters of one link.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LinkErrors {
    pub(crate) replay: Value,
    pub(crate) recovery: Value,
    pub(crate) crc_flit: Value,
    pub(crate) crc_data: Value,
    pub(crate) ecc_data: Value,
}

impl Default for LinkErrors {
    fn default() -> Self {
        Self {
            replay: 0.into(),
            recovery: 0.into(),
            crc_flit: 0.into(),
            crc_data: 0.into(),
            ecc_data: 0.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_compare_whatever_their_form() {
        let address = PciAddress::parse("00000000:1B:00.0");
        assert!(address.is_some());
        assert_eq!(address, PciAddress::parse("0000:1b:00.0"));
        assert_eq!(address, PciAddress::parse("1b:00"));
        assert_eq!(PciAddress::parse("gpu0"), None);
    }

    #[test]
    fn links_that_are_down_do_not_count() {
        let nvlink = NvLink { down: vec![3, 17], ..NvLink::default() };
        assert_eq!(nvlink.active(), 16);
        assert!(!nvlink.is_active(3) && nvlink.is_active(4));
    }
}
