//! Intel GPUs with the drivers i915 and xe.
//!
//! Files and units: Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon and sysfs-driver-intel-xe-hwmon of Linux. Neither
//! driver reports the utilization of the GPU, and xe no memory in use: they are absent.

use std::path::PathBuf;

use super::files::{self, Files};
use super::vendor::{Report, Values, Vendor};
use crate::model::units::Bytes;

pub static VENDOR: Vendor = Vendor {
    name: "intel",
    id: "0x8086",
    // Those of i915 for one tile of the GPU have other names.
    hwmon: &["i915", "xe"],
    allocates_from: |region, _| region.starts_with("local") || region.starts_with("vram"),
    engines: &["render", "compute", "rcs", "ccs"],
    identity: |_| [const { String::new() }; 3],
    is_integrated: |_| false,
    read,
};

fn read(files: &mut Files<'_, Report<'_>>) -> Values {
    let i915 = files.text(&files.card.join("lmem_total_bytes")).is_ok();
    let (memory_total, memory_used) = if i915 {
        let total = files.bytes("memory_total", "lmem_total_bytes");
        let free = files.bytes("memory_used", "lmem_avail_bytes");
        (
            total,
            total
                .zip(free)
                .filter(|(total, free)| free <= total)
                .map(|(total, free)| total.saturating_sub(free)),
        )
    } else {
        (of_tiles(files), None)
    };
    files.unsupported("utilization");
    if !i915 {
        files.unsupported("memory_used");
    }
    let i915_clock = files.text(&files.card.join("gt_act_freq_mhz")).is_ok();
    let clock = if i915_clock { "gt_act_freq_mhz" } else { "device/tile0/gt0/freq0/act_freq" };
    Values {
        memory_total,
        memory_used,
        temperature: files.temperature("temperature", &["pkg"]),
        memory_temperature: files.temperature("memory_temperature", &["vram"]),
        // Of the card, or else of the package: which of them xe has, and counts, depends on the card.
        power_limit: files.power(
            "power_limit",
            &["power1_max", "power1_cap", "power2_max", "power2_cap"],
            false,
        ),
        energy: files.energy("energy", &["energy1_input", "energy2_input"]),
        clock: files.megahertz("clock_graphics", clock),
        ..Values::default()
    }
}

/// The memory of all tiles of xe; nothing if that of one is not known.
fn of_tiles(files: &mut Files<'_, Report<'_>>) -> Option<Bytes> {
    let device = files.card.join("device");
    let tiles = files::names(&device).unwrap_or_default();
    let mut tiles: Vec<PathBuf> = tiles
        .iter()
        .filter(|name| name.strip_prefix("tile").is_some_and(|number| number.parse::<u8>().is_ok()))
        .map(|name| device.join(name).join("physical_vram_size_bytes"))
        .collect();
    if tiles.is_empty() {
        tiles.push(device.join("tile0/physical_vram_size_bytes"));
    }
    let parse = |text: &str| {
        let text = text.trim();
        let number = text.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
        number.unwrap_or_else(|| text.parse()).ok()
    };
    let sizes = tiles.iter().map(|path| files.parsed("memory_total", path, parse));
    let sum: Option<u64> = sizes.collect::<Option<Vec<u64>>>()?.into_iter().try_fold(0_u64, u64::checked_add);
    // A GPU without own memory.
    sum.filter(|sum| *sum > 0).map(Bytes::new)
}
