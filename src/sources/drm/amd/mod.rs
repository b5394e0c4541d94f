//! AMD GPUs with the driver amdgpu.
//!
//! Files and units: Documentation/gpu/amdgpu/driver-misc.rst, thermal.rst and ras.rst of Linux, and
//! Documentation/hwmon/sysfs-interface.rst.

use super::files::Files;
use super::vendor::{Report, Values, Vendor};
use crate::model::units::Count;

pub static VENDOR: Vendor = Vendor {
    name: "amd",
    id: "0x1002",
    hwmon: &["amdgpu"],
    allocates_from: |region, uses_host_memory| region == if uses_host_memory { "gtt" } else { "vram" },
    // Queues of ROCm are not in the engines' times.
    engines: &["gfx", "compute"],
    identity: |files| {
        ["product_name", "serial_number", "unique_id"]
            .map(|file| super::files::line(&files.card.join("device").join(file)))
    },
    is_integrated,
    read,
};

/// The versions of the graphics core of APUs, as `amdgpu_discovery_set_ip_blocks` lists them (Linux 7.0, with the patch for 11.5.6).
const APUS: &[&str] = &[
    "9.1.0", "9.2.2", "9.3.0", "10.1.3", "10.1.4", "10.3.1", "10.3.3", "10.3.6", "10.3.7", "11.0.1",
    "11.0.4", "11.5.0", "11.5.1", "11.5.2", "11.5.3", "11.5.4", "11.5.6",
];

/// The PCI id of MI300A, which has the same version as the discrete MI300X. The driver reads the type of the package, and no file
/// has it.
const MI300A: &str = "0x74a0";

/// Whether it is an APU.
///
/// The topology of KFD does not tell: it lists the CPU and the GPU of a Strix Halo as two nodes, as those of a discrete card. The size
/// of GTT does not either: a discrete card has one too, by default half of the memory of the host.
fn is_integrated(files: &Files<'_, Report<'_>>) -> bool {
    let device = files.card.join("device");
    let core = device.join("ip_discovery/die/0/GC/0");
    let [major, minor, revision] =
        ["major", "minor", "revision"].map(|file| super::files::line(&core.join(file)));
    APUS.contains(&format!("{major}.{minor}.{revision}").as_str())
        || super::files::line(&device.join("device")) == MI300A
}

fn read(files: &mut Files<'_, Report<'_>>) -> Values {
    let errors = files.card.join("device/ras/umc_err_count");
    let errors = files.parsed("ecc", &errors, errors_of);
    Values {
        memory_total: files.bytes("memory_total", "device/mem_info_vram_total"),
        memory_used: files.bytes("memory_used", "device/mem_info_vram_used"),
        gtt_total: files.bytes("gtt_total", "device/mem_info_gtt_total"),
        gtt_used: files.bytes("gtt_used", "device/mem_info_gtt_used"),
        utilization: files.percent("utilization", "device/gpu_busy_percent"),
        memory_utilization: files.percent("memory_utilization", "device/mem_busy_percent"),
        // Server GPUs have no sensor at the edge.
        temperature: files.temperature("temperature", &["edge", "junction"]),
        memory_temperature: files.temperature("memory_temperature", &["mem"]),
        power: files.power("power", &["power1_average", "power1_input"], true),
        power_limit: files.power("power_limit", &["power1_cap"], false),
        energy: None,
        clock: files.frequency("clock_graphics", &["sclk"]),
        memory_clock: files.frequency("clock_memory", &["mclk"]),
        pcie_replays: files
            .number("pcie_replays", "device/pcie_replay_count", u64::from(u32::MAX) - 1)
            .map(Count),
        ecc_corrected: errors.map(|(corrected, _)| Count(corrected)),
        ecc_uncorrected: errors.map(|(_, uncorrected)| Count(uncorrected)),
    }
}

/// Corrected and uncorrected errors: lines `ue: 0` and `ce: 0`; newer kernels add others.
fn errors_of(text: &str) -> Option<(u64, u64)> {
    let of = |name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
        value.trim().parse().ok()
    };
    Some((of("ce")?, of("ue")?))
}
