//! Parses `/proc/PID/fdinfo/N` of a DRM device: Documentation/gpu/drm-usage-stats.rst of Linux.
//!
//! Only the kernel writes these files. Which process has the descriptor is up to the users: descriptors are inherited and sent
//! to other processes, so that [`Client`] has the id of the client to count it once.

use std::collections::BTreeMap;

use super::vendor::Vendor;

/// Most engines or regions of one client.
const MOST_KEYS: usize = 64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// Busy time in nanoseconds.
    pub busy: Option<u64>,
    /// Busy cycles.
    pub cycles: Option<u64>,
    pub total_cycles: Option<u64>,
    /// Number of equal engines; 0 where the kernel says nothing, which is one.
    pub capacity: u64,
}

/// Memory of one region, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    resident: Option<u64>,
    /// The older name of `resident`.
    memory: Option<u64>,
    /// Includes what is not in the region now.
    total: Option<u64>,
}

/// One client of a DRM device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Its id, which is unique for a device.
    pub id: u64,
    /// The PCI address of the device; absent for a device that has none.
    pub pci: Option<String>,
    /// Its memory on the GPU, in bytes; absent where the driver does not report it.
    pub memory: Option<u64>,
    pub engines: BTreeMap<String, Engine>,
}

impl Client {
    /// Parses the text; nothing if the file is not of a DRM client.
    pub fn parse(text: &str, vendor: &Vendor, uses_host_memory: bool) -> Option<Self> {
        let mut client = Self::default();
        let (mut id, mut driver) = (None, false);
        let mut regions: BTreeMap<&str, Region> = BTreeMap::new();
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match key {
                "drm-driver" => driver = true,
                "drm-client-id" => id = value.parse().ok(),
                "drm-pdev" => client.pci = Some(value.to_owned()),
                _ => {
                    client.engine(key, value, vendor);
                    let counts = |name: &str| (vendor.allocates_from)(name, uses_host_memory);
                    region(&mut regions, key, value, counts);
                }
            }
        }
        client.id = id.filter(|_| driver)?;
        for region in regions.values() {
            let bytes = region.resident.or(region.memory).or(region.total);
            client.memory =
                bytes.map(|bytes| client.memory.unwrap_or(0).saturating_add(bytes)).or(client.memory);
        }
        Some(client)
    }

    fn engine(&mut self, key: &str, value: &str, vendor: &Vendor) {
        type Set = fn(&mut Engine, u64);
        // The longer prefix first.
        let kinds: [(&str, Set); 4] = [
            ("drm-engine-capacity-", |engine, capacity| engine.capacity = capacity),
            ("drm-engine-", |engine, busy| engine.busy = Some(busy)),
            ("drm-cycles-", |engine, cycles| engine.cycles = Some(cycles)),
            ("drm-total-cycles-", |engine, cycles| engine.total_cycles = Some(cycles)),
        ];
        for (prefix, set) in kinds {
            let Some(name) = key.strip_prefix(prefix) else { continue };
            let number = value.split_whitespace().next().and_then(|number| number.parse().ok());
            if let Some(number) = number.filter(|_| vendor.engines.contains(&name)) {
                set(self.engines.entry(name.to_owned()).or_default(), number);
            }
            return;
        }
    }
}

fn region<'t>(
    regions: &mut BTreeMap<&'t str, Region>,
    key: &'t str,
    value: &str,
    counts: impl Fn(&str) -> bool,
) {
    type Set = fn(&mut Region, u64);
    let kinds: [(&str, Set); 3] = [
        ("drm-resident-", |region, bytes| region.resident = Some(bytes)),
        ("drm-memory-", |region, bytes| region.memory = Some(bytes)),
        ("drm-total-", |region, bytes| region.total = Some(bytes)),
    ];
    for (prefix, set) in kinds {
        let Some(name) = key.strip_prefix(prefix).filter(|name| counts(name)) else { continue };
        if let Some(bytes) = bytes(value).filter(|_| regions.len() < MOST_KEYS) {
            set(regions.entry(name).or_default(), bytes);
        }
    }
}

/// Bytes, from a number with the unit KiB, MiB or none.
fn bytes(value: &str) -> Option<u64> {
    let mut parts = value.split_whitespace();
    let number: u64 = parts.next()?.parse().ok()?;
    let unit = match parts.next() {
        None => 1,
        Some("KiB") => 1 << 10,
        Some("MiB") => 1 << 20,
        Some(_) => return None,
    };
    number.checked_mul(unit)
}
