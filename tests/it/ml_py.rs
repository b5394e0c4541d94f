//! NVIDIA's Python bindings read the values that memwarden exports from the same library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Daemon, Page, fake_nvml, program, python_with};

const SOON: Duration = Duration::from_secs(30);

/// A GPU with a different value for everything, a partitioned one, and one that supports almost nothing. Values are
/// constant, so that two readers at different times agree.
const SCENARIO: &str = r#"{"driver_version": "580.95.05", "epoch": 1750000000, "devices": [
  {"uuid": "GPU-rich", "architecture": "ampere", "pci": "00000000:1B:00.0", "serial": "1650123456789", "minor": 5,
   "memory": {"total": 85520809984, "reserved": 600000000, "used": 42949672960},
   "bar1": {"total": 137438953472, "used": 4194304},
   "utilization": 97, "memory_utilization": 53, "encoder_utilization": 4, "decoder_utilization": 6,
   "temperature": 71, "memory_temperature": 86,
   "thresholds": {"shutdown": 92, "slowdown": 89, "memory_max": 95, "gpu_max": 87},
   "power_milliwatts": 651234, "power_limit": 690000, "energy": 123456789012,
   "clocks": {"graphics": 1755, "sm": 1754, "memory": 2619, "video": 1515,
              "max": {"graphics": 1980, "sm": 1981, "memory": 2620, "video": 1545}},
   "pstate": 2, "throttle": 238,
   "violations_ns": {"power": 1500000000, "thermal": 2500000000, "sync_boost": 3500000000, "board_limit": 4500000000,
                     "low_utilization": 5500000000, "reliability": 6500000000, "sw_thermal": 7500000000,
                     "hw_thermal": 8500000000, "hw_power_brake": 9500000000},
   "ecc": {"enabled": true, "pending": true,
           "dram": {"corrected": 12, "uncorrected": 1, "corrected_aggregate": 120, "uncorrected_aggregate": 3},
           "sram": {"corrected": 5, "uncorrected": 2, "corrected_aggregate": 50, "uncorrected_aggregate": 4}},
   "remapped_rows": {"corrected": 7, "uncorrected": 8, "pending": true, "failure": true},
   "retired_pages": {"single_bit": [4096], "double_bit": [], "pending": true},
   "pcie": {"generation": 4, "width": 8, "max_generation": 5, "max_width": 16, "replays": 17,
            "tx_bytes": 1234567, "rx_bytes": 7654321},
   "nvlink": {"links": 18, "down": [3, 11], "data_tx_kib": 1000, "data_rx_kib": 2000, "raw_tx_kib": 3000,
              "raw_rx_kib": 4000, "errors": {"replay": 1, "recovery": 2, "crc_flit": 3, "crc_data": 4}},
   "processes": [{"pid": 3000001, "memory": 32212254720, "sm": 81, "mem": 30, "enc": 1, "dec": 2},
                 {"pid": 3000002, "memory": 9663676416, "type": "graphics", "sm": 11, "mem": 3},
                 {"pid": 3000003, "memory": 1048576, "type": "mps"}]},
  {"uuid": "GPU-split", "architecture": "ampere", "power_milliwatts": 310000, "memory": {"used": 34359738368},
   "mig": {"enabled": true, "instances": [
     {"uuid": "MIG-large", "gi": 1, "ci": 0, "name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "gpu_slices": 3,
      "memory": {"total": 42144366592, "reserved": 67108864, "used": 17179869184},
      "processes": [{"pid": 3000004, "memory": 8053063680}]},
     null,
     {"uuid": "MIG-small", "gi": 9, "ci": 0, "memory": {"total": 10468982784, "reserved": 16777216},
      "processes": [{"pid": 3000005, "memory": 1073741824}, {"pid": 3000006, "memory": null}]}]}},
  {"uuid": "GPU-poor", "name": "NVIDIA GB10", "serial": null, "memory": null, "bar1": null, "utilization": null,
   "encoder_utilization": null, "decoder_utilization": null, "memory_temperature": null, "energy": null,
   "power_limit": null, "throttle": null, "pstate": null, "thresholds": {"shutdown": null, "slowdown": null},
   "clocks": {"memory": null, "max": {"memory": null}}, "ecc": null, "remapped_rows": null, "nvlink": null,
   "pcie": {"generation": null, "replays": null, "tx_bytes": null, "rx_bytes": null}, "mig": null,
   "returns": {"nvmlDeviceGetPowerUsage": 4242, "nvmlDeviceGetTemperature": "no_permission"},
   "processes": [{"pid": 3000007, "memory": null}]}]}"#;

/// Conversion of their number to memwarden's.
#[derive(Clone, Copy)]
enum How {
    /// Multiplied.
    Times(f64),
    /// Whether this bit is set.
    Bit(u64),
    /// The sum over the links.
    SumOfLinks,
    /// Number of links with a 1.
    LinksUp,
}
use How::{Bit, LinksUp, SumOfLinks, Times};

const KIB: f64 = 1024.0;
const MHZ: f64 = 1e6;
const NANO: f64 = 1e-9;

/// Their key, the conversion, memwarden's metric after `memwarden_gpu_`, its label.
type Row = (&'static str, How, &'static str, &'static [(&'static str, &'static str)]);

const ROWS: &[Row] = &[
    ("memory_total", Times(1.0), "memory_total_bytes", &[]),
    ("memory_used", Times(1.0), "memory_used_bytes", &[]),
    ("memory_free", Times(1.0), "memory_free_bytes", &[]),
    ("memory_reserved", Times(1.0), "memory_reserved_bytes", &[]),
    ("bar1_total", Times(1.0), "bar1_total_bytes", &[]),
    ("bar1_used", Times(1.0), "bar1_used_bytes", &[]),
    ("utilization", Times(0.01), "utilization_ratio", &[]),
    ("memory_utilization", Times(0.01), "memory_controller_utilization_ratio", &[]),
    ("encoder_utilization", Times(0.01), "encoder_utilization_ratio", &[]),
    ("decoder_utilization", Times(0.01), "decoder_utilization_ratio", &[]),
    ("temperature", Times(1.0), "temperature_celsius", &[]),
    ("memory_temperature", Times(1.0), "memory_temperature_celsius", &[]),
    ("threshold_slowdown", Times(1.0), "temperature_threshold_celsius", &[("threshold", "slowdown")]),
    ("threshold_shutdown", Times(1.0), "temperature_threshold_celsius", &[("threshold", "shutdown")]),
    ("power_usage", Times(1e-3), "power_watts", &[]),
    ("enforced_power_limit", Times(1e-3), "power_limit_watts", &[]),
    ("energy", Times(1e-3), "energy_joules_total", &[]),
    ("clock_graphics", Times(MHZ), "clock_hertz", &[("clock", "graphics")]),
    ("clock_sm", Times(MHZ), "clock_hertz", &[("clock", "sm")]),
    ("clock_memory", Times(MHZ), "clock_hertz", &[("clock", "memory")]),
    ("max_clock_graphics", Times(MHZ), "clock_limit_hertz", &[("clock", "graphics")]),
    ("max_clock_sm", Times(MHZ), "clock_limit_hertz", &[("clock", "sm")]),
    ("max_clock_memory", Times(MHZ), "clock_limit_hertz", &[("clock", "memory")]),
    ("pstate", Times(1.0), "performance_state", &[]),
    ("throttle_reasons", Bit(0x1), "throttled", &[("reason", "gpu_idle")]),
    ("throttle_reasons", Bit(0x2), "throttled", &[("reason", "application_clocks")]),
    ("throttle_reasons", Bit(0x4), "throttled", &[("reason", "power_cap")]),
    ("throttle_reasons", Bit(0x8), "throttled", &[("reason", "hw_slowdown")]),
    ("throttle_reasons", Bit(0x10), "throttled", &[("reason", "sync_boost")]),
    ("throttle_reasons", Bit(0x20), "throttled", &[("reason", "sw_thermal")]),
    ("throttle_reasons", Bit(0x40), "throttled", &[("reason", "hw_thermal")]),
    ("throttle_reasons", Bit(0x80), "throttled", &[("reason", "hw_power_brake")]),
    ("throttle_reasons", Bit(0x100), "throttled", &[("reason", "display_clocks")]),
    ("violation_power", Times(NANO), "throttle_seconds_total", &[("reason", "power_cap")]),
    ("violation_thermal", Times(NANO), "throttle_seconds_total", &[("reason", "thermal")]),
    ("violation_sync_boost", Times(NANO), "throttle_seconds_total", &[("reason", "sync_boost")]),
    ("violation_board_limit", Times(NANO), "throttle_seconds_total", &[("reason", "board_limit")]),
    ("violation_low_utilization", Times(NANO), "throttle_seconds_total", &[("reason", "low_utilization")]),
    ("violation_reliability", Times(NANO), "throttle_seconds_total", &[("reason", "reliability")]),
    ("slowdown_sw_thermal", Times(NANO), "throttle_seconds_total", &[("reason", "sw_thermal")]),
    ("slowdown_hw_thermal", Times(NANO), "throttle_seconds_total", &[("reason", "hw_thermal")]),
    ("slowdown_hw_power_brake", Times(NANO), "throttle_seconds_total", &[("reason", "hw_power_brake")]),
    ("ecc_mode", Times(1.0), "ecc_enabled", &[]),
    (
        "ecc_total_corrected_volatile",
        Times(1.0),
        "ecc_errors_total",
        &[("error", "corrected"), ("scope", "volatile")],
    ),
    (
        "ecc_total_uncorrected_volatile",
        Times(1.0),
        "ecc_errors_total",
        &[("error", "uncorrected"), ("scope", "volatile")],
    ),
    (
        "ecc_total_corrected_aggregate",
        Times(1.0),
        "ecc_errors_total",
        &[("error", "corrected"), ("scope", "aggregate")],
    ),
    (
        "ecc_total_uncorrected_aggregate",
        Times(1.0),
        "ecc_errors_total",
        &[("error", "uncorrected"), ("scope", "aggregate")],
    ),
    ("remapped_corrected", Times(1.0), "remapped_rows", &[("error", "correctable")]),
    ("remapped_uncorrected", Times(1.0), "remapped_rows", &[("error", "uncorrectable")]),
    ("remapped_pending", Times(1.0), "row_remap_pending", &[]),
    ("remapped_failure", Times(1.0), "row_remap_failure", &[]),
    ("retired_pages_pending", Times(1.0), "page_retirement_pending", &[]),
    ("pcie_tx_bytes", Times(1.0), "pcie_sent_bytes_total", &[]),
    ("pcie_rx_bytes", Times(1.0), "pcie_received_bytes_total", &[]),
    ("pcie_replays", Times(1.0), "pcie_replays_total", &[]),
    ("pcie_generation", Times(1.0), "pcie_link_generation", &[("state", "current")]),
    ("pcie_max_generation", Times(1.0), "pcie_link_generation", &[("state", "maximum")]),
    ("pcie_width", Times(1.0), "pcie_link_width", &[("state", "current")]),
    ("pcie_max_width", Times(1.0), "pcie_link_width", &[("state", "maximum")]),
    ("nvlink_data_tx", Times(KIB), "nvlink_sent_bytes_total", &[("traffic", "data")]),
    ("nvlink_data_rx", Times(KIB), "nvlink_received_bytes_total", &[("traffic", "data")]),
    ("nvlink_raw_tx", Times(KIB), "nvlink_sent_bytes_total", &[("traffic", "raw")]),
    ("nvlink_raw_rx", Times(KIB), "nvlink_received_bytes_total", &[("traffic", "raw")]),
    ("state", LinksUp, "nvlink_active_links", &[]),
    ("replay", SumOfLinks, "nvlink_errors_total", &[("error", "replay")]),
    ("recovery", SumOfLinks, "nvlink_errors_total", &[("error", "recovery")]),
    ("crc_flit", SumOfLinks, "nvlink_errors_total", &[("error", "crc_flit")]),
    ("crc_data", SumOfLinks, "nvlink_errors_total", &[("error", "crc_data")]),
    ("mig_mode", Times(1.0), "mig_enabled", &[]),
];

/// Of a MIG instance, memwarden's metric after `memwarden_gpu_mig_`.
const INSTANCE_ROWS: &[(&str, &str)] = &[
    ("memory_total", "memory_total_bytes"),
    ("memory_used", "memory_used_bytes"),
    ("memory_free", "memory_free_bytes"),
    ("memory_reserved", "memory_reserved_bytes"),
];

/// Identity of a GPU: their key, the label of `memwarden_gpu_info`.
const IDENTITY: &[(&str, &str)] = &[
    ("name", "name"),
    ("serial", "serial"),
    ("pci_bus_id", "pci"),
    ("minor_number", "minor"),
    ("index", "gpu"),
];

/// The values that they read, by UUID.
pub(crate) fn theirs(mut python: Command, library: &Path) -> BTreeMap<String, Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-nvml/check_ml_py.py");
    python.arg(script).arg("--library").arg(library);
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Their number in memwarden's unit; nothing if they got an error.
#[track_caller]
fn converted(gpu: &Value, key: &str, how: How) -> Option<f64> {
    let answer = |key: &str| {
        let value = gpu.get(key).unwrap_or_else(|| panic!("they do not read {key}"));
        value.as_f64().or_else(|| value.as_bool().map(|flag| f64::from(u8::from(flag))))
    };
    // The call of drivers before 510.
    let before = |key: &str| key.strip_prefix("memory_").map(|part| format!("memory_v1_{part}"));
    let number = |key: &str| {
        answer(key).or_else(|| before(key).filter(|key| gpu.get(key).is_some()).and_then(|key| answer(&key)))
    };
    let links = || (0..18).filter_map(|link| number(&format!("nvlink_{link}_{key}")));
    match how {
        Times(factor) => number(key).map(|value| value * factor),
        Bit(bit) => gpu[key].as_u64().map(|mask| f64::from(u8::from(mask & bit != 0))),
        SumOfLinks => links().reduce(|sum, link| sum + link),
        LinksUp => links().reduce(|up, link| up + f64::from(u8::from(link == 1.0))),
    }
}

/// Their processes: pid, and memory if reported.
fn processes(gpu: &Value) -> BTreeMap<String, Option<f64>> {
    ["compute_processes", "graphics_processes", "mps_processes"]
        .iter()
        .filter_map(|kind| gpu[kind].as_array())
        .flatten()
        .map(|process| (process["pid"].to_string(), process["memory"].as_f64()))
        .collect()
}

/// Counts of what was compared, so that the test cannot pass without comparisons.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) equal: usize,
    absent: usize,
    pub(crate) wrong: Vec<String>,
    /// Rows that had a number on some GPU.
    rows: BTreeSet<String>,
}

impl Tally {
    pub(crate) fn compare(&mut self, page: &Page, name: &str, labels: &[(&str, &str)], theirs: Option<f64>) {
        let exported = page.get(name, labels);
        match (theirs, exported) {
            (None, None) => self.absent += 1,
            // A product of two doubles may differ in its last bit.
            (Some(a), Some(b)) if (a - b).abs() <= a.abs() * 1e-12 => {
                self.equal += 1;
                let more: Vec<_> = labels
                    .iter()
                    .filter(|label| !["uuid", "pid", "gpu_instance"].contains(&label.0))
                    .collect();
                self.rows.insert(format!("{name}{more:?}"));
            }
            _ => self.wrong.push(format!("{name} {labels:?}: they say {theirs:?}, we {exported:?}")),
        }
    }
}

pub(crate) fn compare_gpu(tally: &mut Tally, page: &Page, uuid: &str, gpu: &Value) {
    let id = ("uuid", uuid);
    for (key, how, metric, labels) in ROWS {
        let labels: Vec<_> = std::iter::once(id).chain(labels.iter().copied()).collect();
        tally.compare(page, &format!("memwarden_gpu_{metric}"), &labels, converted(gpu, key, *how));
    }
    let processes = processes(gpu);
    for (pid, memory) in &processes {
        tally.compare(page, "memwarden_gpu_process_memory_bytes", &[id, ("pid", pid)], *memory);
    }
    let count = u32::try_from(processes.len()).unwrap();
    tally.compare(page, "memwarden_gpu_processes", &[id], Some(f64::from(count)));
    let samples = gpu["process_utilization"].as_array().map_or(&[][..], Vec::as_slice);
    for pid in processes.keys() {
        let sample = samples.iter().find(|sample| sample["pid"].as_u64() == pid.parse().ok());
        let sm = sample.and_then(|sample| sample["sm"].as_f64()).map(|percent| percent * 0.01);
        tally.compare(page, "memwarden_gpu_process_sm_utilization_ratio", &[id, ("pid", pid)], sm);
    }
    let labels = [id];
    let info: Vec<_> = page.all("memwarden_gpu_info", &labels).collect();
    for (key, label) in IDENTITY {
        let expected = match &gpu[key] {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => String::new(),
        };
        // Values that are not reported have no label.
        let exported = info[0].labels.get(*label).map_or("", String::as_str);
        assert_eq!(exported, expected, "{label} of {uuid}");
    }
}

#[test]
fn nvidias_bindings_read_the_exported_values() {
    let Some(python) = python_with("pynvml") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.json");
    std::fs::write(&file, SCENARIO).unwrap();
    let mut python = program(python);
    python.env("FAKE_NVML_SCENARIO", &file);
    let theirs = theirs(python, &fake_nvml());
    assert_eq!(theirs.len(), 5, "{:?}", theirs.keys());

    let library = format!("sources.gpu.nvml_library={}", fake_nvml().display());
    let args = ["--set", &library, "--set", "sources.gpu.interval=200ms", "--set", "sampling.interval=200ms"];
    let daemon = Daemon::start_with(&args, |command| {
        command.env("FAKE_NVML_SCENARIO", &file);
    });
    let page = daemon.wait_page("all GPUs", SOON, |page| {
        let well = page.sum("memwarden_gpu_status", &[("status", "ok")]);
        well == 3.0 && page.all("memwarden_gpu_process_sm_utilization_ratio", &[]).count() == 2
    });

    let mut tally = Tally::default();
    for (uuid, gpu) in &theirs {
        if uuid.starts_with("MIG-") {
            for (key, metric) in INSTANCE_ROWS {
                let instance = gpu["gpu_instance"].to_string();
                let labels = [("uuid", uuid.as_str()), ("gpu_instance", &instance)];
                let value = converted(gpu, key, Times(1.0));
                tally.compare(&page, &format!("memwarden_gpu_mig_{metric}"), &labels, value);
            }
            let parent = gpu["mig_parent"].as_str().unwrap();
            assert_eq!(page.get("memwarden_gpu_mig_info", &[("uuid", uuid), ("parent", parent)]), Some(1.0));
        } else {
            compare_gpu(&mut tally, &page, uuid, gpu);
        }
    }
    println!(
        "{} values equal, {} absent on both sides, {} different series",
        tally.equal,
        tally.absent,
        tally.rows.len()
    );
    assert!(tally.wrong.is_empty(), "{} differ:\n{}", tally.wrong.len(), tally.wrong.join("\n"));
    let rows = ROWS.len() + INSTANCE_ROWS.len() + 3;
    assert_eq!(tally.rows.len(), rows, "some row never had a number");
    assert!(tally.equal > 150 && tally.absent > 40, "{} equal, {} absent", tally.equal, tally.absent);
}
