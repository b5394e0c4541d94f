//! GPUs of fixture trees; those of real files are written from the kernel's documentation.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::card;
use super::clients::{Accounts, Finder, Holder, Of, Usages};
use super::fdinfo::Client;
use super::files::Files;
use super::vendor::Report;
use super::watch::{DeviceState, Setup};
use super::{Drm, REGISTRATION, VENDORS, amd, intel};
use crate::host::clock;
use crate::host::process::testing::{Process, Tree};
use crate::model::facts::{Facts, ProcessRow, ProcessTable};
use crate::model::ids::ProcessKey;
use crate::model::point::{Batch, Family};
use crate::model::source::{Source as _, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Ratio};
use crate::serve::prometheus::{Format, encode};
use crate::sources::testing::{self, Root};

const PATIENCE: Duration = Duration::from_secs(30);

/// The tree of a file of `tests/fixtures/drm`.
fn tree(name: &str) -> Root {
    let root = testing::root(&[]);
    unpack(name, root.path());
    root
}

fn unpack(name: &str, folder: &Path) {
    let text = std::fs::read_to_string(testing::fixture("drm").join(name)).unwrap();
    for part in text.split("\n== ").skip(1) {
        let (path, text) = part.split_once('\n').unwrap();
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match text.trim_end().strip_prefix("-> ") {
            Some(target) => symlink(target, path).unwrap(),
            None => std::fs::write(path, text).unwrap(),
        }
    }
}

fn link(root: &Root, path: &str, target: &str) {
    let path = root.path().join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

/// Processes as pid, start time and user.
fn table(processes: &[(u32, u64, u32)]) -> Arc<ProcessTable> {
    let row = |(pid, start, uid): &(u32, u64, u32)| ProcessRow {
        parent: 1,
        session: *pid,
        uid: *uid,
        ..ProcessRow::new(ProcessKey { pid: *pid, start: *start }, "python".into())
    };
    Arc::new(ProcessTable { rows: processes.iter().map(row).collect(), boot: None })
}

fn setup(root: &Root) -> Setup {
    let folder = root.path();
    Setup {
        proc: folder.join("proc"),
        sys: folder.join("sys"),
        interval: Duration::from_millis(100),
        processes: true,
        vendors: VENDORS,
    }
}

/// Reads every GPU once, without threads.
fn read(root: &Root, processes: &[(u32, u64, u32)], out: &mut Batch) {
    let setup = setup(root);
    let holders = Arc::new(Finder::default().round(&setup.proc, &table(processes)));
    for card in card::find(&setup.sys, VENDORS).unwrap() {
        let mut accounts = Accounts::default();
        let (folder, ignore) = (card.folder.clone(), |_: &str| {});
        let mut files = Files::new(&folder, card.vendor.hwmon, &ignore as Report<'_>);
        let sample = super::watch::sample(&setup, &card, Some(&holders), &mut accounts, &mut files);
        let at = Timestamp::from_secs(7);
        let state = DeviceState {
            card: Arc::new(card),
            sample: Some(Arc::new(sample)),
            sampled: Some(at),
            since: at,
            reading: None,
            lost: false,
        };
        let stale = Duration::from_secs(3);
        super::put(&state, super::condition(&state, at, stale), at, stale, out);
    }
}

fn shown(families: &[Family]) -> String {
    let text = encode(families, Format::Text);
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.ends_with(" 0"));
    lines.flat_map(|line| [line.trim_start_matches("memwarden_gpu_"), "\n"]).collect()
}

fn check(root: &Root, processes: &[(u32, u64, u32)], expected: Expect) -> Facts {
    let mut out = Batch::new();
    read(root, processes, &mut out);
    let (families, dropped, facts) = out.seal();
    assert!(dropped.is_empty(), "{dropped:?}");
    expected.assert_eq(&shown(&families));
    facts
}

#[test]
fn an_amd_gpu_has_the_metrics_of_an_nvidia_gpu() {
    let facts = check(
        &tree("amd.txt"),
        &[(100, 5, 1000)],
        expect![[r#"
        status{gpu="card1",uuid="GPU-5c88007760374b73",status="ok"} 1
        info{gpu="card1",uuid="GPU-5c88007760374b73",name="AMD Instinct MI300X OAM",serial="692251001124",pci="0000:c1:00.0",vendor="amd"} 1
        memory_total_bytes{gpu="card1",uuid="GPU-5c88007760374b73"} 206141652992
        memory_used_bytes{gpu="card1",uuid="GPU-5c88007760374b73"} 21474836480
        memory_used_peak_bytes{gpu="card1",uuid="GPU-5c88007760374b73"} 21474836480
        memory_free_bytes{gpu="card1",uuid="GPU-5c88007760374b73"} 184666816512
        gtt_total_bytes{gpu="card1",uuid="GPU-5c88007760374b73"} 540940648448
        gtt_used_bytes{gpu="card1",uuid="GPU-5c88007760374b73"} 23674880
        utilization_ratio{gpu="card1",uuid="GPU-5c88007760374b73"} 0.87
        memory_controller_utilization_ratio{gpu="card1",uuid="GPU-5c88007760374b73"} 0.12
        temperature_celsius{gpu="card1",uuid="GPU-5c88007760374b73"} 61
        memory_temperature_celsius{gpu="card1",uuid="GPU-5c88007760374b73"} 48
        power_watts{gpu="card1",uuid="GPU-5c88007760374b73"} 612
        power_limit_watts{gpu="card1",uuid="GPU-5c88007760374b73"} 750
        clock_hertz{gpu="card1",uuid="GPU-5c88007760374b73",clock="graphics"} 2100000000
        clock_hertz{gpu="card1",uuid="GPU-5c88007760374b73",clock="memory"} 1300000000
        pcie_replays_total{gpu="card1",uuid="GPU-5c88007760374b73"} 3
        ecc_errors_total{gpu="card1",uuid="GPU-5c88007760374b73",error="corrected",scope="volatile"} 42
        ecc_errors_total{gpu="card1",uuid="GPU-5c88007760374b73",error="uncorrected",scope="volatile"} 1
        processes{gpu="card1",uuid="GPU-5c88007760374b73"} 1
        process_memory_bytes{gpu="card1",uuid="GPU-5c88007760374b73",pid="100"} 10737418240
        memory_unattributed_bytes{gpu="card1",uuid="GPU-5c88007760374b73"} 10737418240
    "#]],
    );
    assert_eq!(facts.gpu_memory.len(), 1);
    let process = &facts.gpu_processes[0];
    assert_eq!(
        (process.pid, process.gpu.as_str(), process.uuid.as_str()),
        (100, "card1", "GPU-5c88007760374b73")
    );
    // The client is open twice and counts once.
    assert_eq!(process.memory, Some(Bytes::new(10 << 30)));
}

#[test]
fn an_apu_uses_the_memory_of_the_host() {
    let facts = check(
        &tree("apu.txt"),
        &[(100, 5, 1000)],
        expect![[r#"
        status{gpu="card1",uuid="pci-0000:c5:00.0",status="ok"} 1
        info{gpu="card1",uuid="pci-0000:c5:00.0",name="amd 0x1586",pci="0000:c5:00.0",vendor="amd"} 1
        uses_host_memory{gpu="card1",uuid="pci-0000:c5:00.0"} 1
        carveout_total_bytes{gpu="card1",uuid="pci-0000:c5:00.0"} 536870912
        carveout_used_bytes{gpu="card1",uuid="pci-0000:c5:00.0"} 477102080
        gtt_total_bytes{gpu="card1",uuid="pci-0000:c5:00.0"} 133143986176
        gtt_used_bytes{gpu="card1",uuid="pci-0000:c5:00.0"} 67645734912
        utilization_ratio{gpu="card1",uuid="pci-0000:c5:00.0"} 0.97
        field_status{gpu="card1",uuid="pci-0000:c5:00.0",field="ecc",status="unsupported",code="2"} 1
        field_status{gpu="card1",uuid="pci-0000:c5:00.0",field="memory_utilization",status="unsupported",code="2"} 1
        field_status{gpu="card1",uuid="pci-0000:c5:00.0",field="temperature",status="unsupported",code="0"} 1
        field_status{gpu="card1",uuid="pci-0000:c5:00.0",field="memory_temperature",status="unsupported",code="0"} 1
        field_status{gpu="card1",uuid="pci-0000:c5:00.0",field="power",status="unsupported",code="0"} 1
        field_status{gpu="card1",uuid="pci-0000:c5:00.0",field="power_limit",status="unsupported",code="0"} 1
        field_status{gpu="card1",uuid="pci-0000:c5:00.0",field="clock_graphics",status="unsupported",code="0"} 1
        field_status{gpu="card1",uuid="pci-0000:c5:00.0",field="clock_memory",status="unsupported",code="0"} 1
        field_status{gpu="card1",uuid="pci-0000:c5:00.0",field="pcie_replays",status="unsupported",code="2"} 1
        processes{gpu="card1",uuid="pci-0000:c5:00.0"} 1
        process_memory_bytes{gpu="card1",uuid="pci-0000:c5:00.0",pid="100"} 25864192000
    "#]],
    );
    assert!(facts.host_memory_is_pool && facts.gpu_memory.is_empty());
    assert_eq!(facts.gpus_of_host_memory, ["pci-0000:c5:00.0".into()]);
    // What the firmware set aside is not part of the memory of the host.
    assert_eq!(facts.gpu_processes[0].memory, Some(Bytes::new(25_258_000 << 10)));
    let is_pool = |tree: &Root, changes: &[(&str, &str)]| {
        for (file, text) in changes {
            tree.write(format!("sys/class/drm/card1/device/{file}"), format!("{text}\n"));
        }
        let mut out = Batch::new();
        read(tree, &[(100, 5, 1000)], &mut out);
        (out.facts.host_memory_is_pool, out.facts.gpu_processes[0].memory.map(Bytes::get))
    };
    // 96 GiB are set aside: what is left for GTT is less, and the driver allocates from the 96 GiB.
    let large = [("mem_info_vram_total", "103079215104"), ("mem_info_gtt_total", "16363954176")];
    assert_eq!(is_pool(&tree("apu.txt"), &large), (false, Some(5_348 << 10)));
    // A discrete card has GTT too, more than it has memory; MI300A has the same core and nothing set aside.
    assert_eq!(is_pool(&tree("amd.txt"), &[]), (false, Some(10 << 30)));
    let mi300a = [("device", "0x74a0"), ("mem_info_vram_total", "0"), ("mem_info_vram_used", "0")];
    assert_eq!(is_pool(&tree("amd.txt"), &mi300a), (true, Some(2_048 << 10)));
    let unknown = [("ip_discovery/die/0/GC/0/major", "99")];
    assert_eq!(is_pool(&tree("apu.txt"), &unknown), (false, Some(5_348 << 10)));
}

#[test]
fn intel_gpus_have_what_their_drivers_report() {
    check(
        &tree("intel.txt"),
        &[(200, 5, 1000)],
        expect![[r#"
            status{gpu="card0",uuid="pci-0000:03:00.0",status="ok"} 1
            status{gpu="card1",uuid="pci-0000:04:00.0",status="ok"} 1
            info{gpu="card0",uuid="pci-0000:03:00.0",name="intel 0x56c0",pci="0000:03:00.0",vendor="intel"} 1
            info{gpu="card1",uuid="pci-0000:04:00.0",name="intel 0xe20b",pci="0000:04:00.0",vendor="intel"} 1
            memory_total_bytes{gpu="card0",uuid="pci-0000:03:00.0"} 17179869184
            memory_total_bytes{gpu="card1",uuid="pci-0000:04:00.0"} 12884901888
            memory_used_bytes{gpu="card0",uuid="pci-0000:03:00.0"} 2147483648
            memory_used_peak_bytes{gpu="card0",uuid="pci-0000:03:00.0"} 2147483648
            memory_free_bytes{gpu="card0",uuid="pci-0000:03:00.0"} 15032385536
            energy_joules_total{gpu="card0",uuid="pci-0000:03:00.0"} 5.25
            energy_joules_total{gpu="card1",uuid="pci-0000:04:00.0"} 9
            clock_hertz{gpu="card0",uuid="pci-0000:03:00.0",clock="graphics"} 2050000000
            clock_hertz{gpu="card1",uuid="pci-0000:04:00.0",clock="graphics"} 2850000000
            field_status{gpu="card0",uuid="pci-0000:03:00.0",field="utilization",status="unsupported",code="0"} 1
            field_status{gpu="card0",uuid="pci-0000:03:00.0",field="temperature",status="unsupported",code="0"} 1
            field_status{gpu="card0",uuid="pci-0000:03:00.0",field="memory_temperature",status="unsupported",code="0"} 1
            field_status{gpu="card0",uuid="pci-0000:03:00.0",field="power_limit",status="unsupported",code="0"} 1
            field_status{gpu="card1",uuid="pci-0000:04:00.0",field="utilization",status="unsupported",code="0"} 1
            field_status{gpu="card1",uuid="pci-0000:04:00.0",field="memory_used",status="unsupported",code="0"} 1
            processes{gpu="card0",uuid="pci-0000:03:00.0"} 1
            processes{gpu="card1",uuid="pci-0000:04:00.0"} 1
            process_memory_bytes{gpu="card0",uuid="pci-0000:03:00.0",pid="200"} 1610612736
            process_memory_bytes{gpu="card1",uuid="pci-0000:04:00.0",pid="200"} 134217728
            memory_unattributed_bytes{gpu="card0",uuid="pci-0000:03:00.0"} 536870912
            temperature_celsius{gpu="card1",uuid="pci-0000:04:00.0"} 52
            memory_temperature_celsius{gpu="card1",uuid="pci-0000:04:00.0"} -1
            power_limit_watts{gpu="card1",uuid="pci-0000:04:00.0"} 190
        "#]],
    );
}

#[test]
fn what_a_gpu_does_not_have_is_absent_with_the_reason() {
    let root = testing::root(&[
        ("sys/class/drm/card0/device/vendor", "0x1002\n"),
        ("sys/class/drm/card0/device/mem_info_vram_total", "1000\n"),
        ("sys/class/drm/card0/device/mem_info_vram_used", "2000\n"),
        ("sys/class/drm/card0/device/gpu_busy_percent", "101\n"),
        ("sys/class/drm/card0/device/unique_id", "0000\n"),
    ]);
    let facts = check(
        &root,
        &[],
        expect![[r#"
            status{gpu="card0",uuid="drm-card0",status="ok"} 1
            info{gpu="card0",uuid="drm-card0",name="amd",vendor="amd"} 1
            field_status{gpu="card0",uuid="drm-card0",field="memory_used",status="implausible",code="0"} 1
            field_status{gpu="card0",uuid="drm-card0",field="ecc",status="unsupported",code="2"} 1
            field_status{gpu="card0",uuid="drm-card0",field="gtt_total",status="unsupported",code="2"} 1
            field_status{gpu="card0",uuid="drm-card0",field="gtt_used",status="unsupported",code="2"} 1
            field_status{gpu="card0",uuid="drm-card0",field="utilization",status="implausible",code="0"} 1
            field_status{gpu="card0",uuid="drm-card0",field="memory_utilization",status="unsupported",code="2"} 1
            field_status{gpu="card0",uuid="drm-card0",field="temperature",status="unsupported",code="0"} 1
            field_status{gpu="card0",uuid="drm-card0",field="memory_temperature",status="unsupported",code="0"} 1
            field_status{gpu="card0",uuid="drm-card0",field="power",status="unsupported",code="0"} 1
            field_status{gpu="card0",uuid="drm-card0",field="power_limit",status="unsupported",code="0"} 1
            field_status{gpu="card0",uuid="drm-card0",field="clock_graphics",status="unsupported",code="0"} 1
            field_status{gpu="card0",uuid="drm-card0",field="clock_memory",status="unsupported",code="0"} 1
            field_status{gpu="card0",uuid="drm-card0",field="pcie_replays",status="unsupported",code="2"} 1
        "#]],
    );
    // More used than there is: the memory is unknown, and so is the level that protection reads.
    assert!(facts.gpu_memory.is_empty());
}

#[test]
fn values_of_a_gpu_that_cannot_be_are_absent() {
    let root = tree("amd.txt");
    let all = u64::MAX.to_string();
    let degrees = i32::MAX.to_string();
    for (file, text) in [
        ("mem_info_vram_total", &all),
        ("mem_info_vram_used", &all),
        ("mem_info_gtt_total", &all),
        ("mem_info_gtt_used", &all),
        ("gpu_busy_percent", &all),
        ("mem_busy_percent", &all),
        ("pcie_replay_count", &all),
        ("temp", &degrees),
        ("power", &all),
        ("freq", &all),
    ] {
        let device = root.path().join("sys/class/drm/card1/device/").canonicalize().unwrap();
        let inputs = |folder: &Path| -> Vec<_> {
            let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
            entries.map(|entry| entry.unwrap().path()).collect()
        };
        let sensors = inputs(&device.join("hwmon")).into_iter().flat_map(|folder| inputs(&folder));
        for path in sensors.chain([device.join(file)]) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_sensor = name.starts_with(file) && !name.ends_with("label");
            if path.is_file() && is_sensor {
                std::fs::write(path, text).unwrap();
            }
        }
    }
    let mut out = Batch::new();
    read(&root, &[], &mut out);
    let shown = shown(out.families());
    for name in ["_bytes", "_ratio", "celsius", "watts", "hertz", "pcie"] {
        let is_value =
            |line: &&str| line.contains(r#"gpu="card1""#) && line.split('{').next().unwrap().contains(name);
        assert_eq!(shown.lines().find(is_value), None);
    }
    assert!(shown.contains(r#"field="power",status="implausible""#), "{shown}");
}

#[test]
fn gpus_with_the_same_unique_id_have_different_ids() {
    let mut files = Vec::new();
    for (card, slot) in [("card0", "0000:01:00.0"), ("card1", "0000:02:00.0")] {
        let file = |name: &str| format!("sys/class/drm/{card}/device/{name}");
        files.push((file("vendor"), "0x1002\n".to_owned()));
        files.push((file("unique_id"), "5c88007760374b73\n".to_owned()));
        files.push((file("uevent"), format!("PCI_SLOT_NAME={slot}\n")));
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    let root = testing::root(&files);
    let found = card::find(&root.path().join("sys"), VENDORS).unwrap();
    let ids: Vec<&str> = found.iter().map(|card| card.labels[1].as_str()).collect();
    assert_eq!(ids, ["GPU-5c88007760374b73", "pci-0000:02:00.0"]);
}

#[test]
fn a_gpu_that_sleeps_is_not_woken_up() {
    let root = tree("amd.txt");
    root.write("sys/class/drm/card1/device/power/runtime_status", "suspended\n");
    // A read would wait forever.
    replace_with_fifo(&root, "sys/class/drm/card1/device/mem_info_vram_used");
    let mut out = Batch::new();
    read(&root, &[(100, 5, 1000)], &mut out);
    let text = shown(&out.seal().0);
    assert!(
        text.contains(r#"status{gpu="card1",uuid="GPU-5c88007760374b73",status="unobserved"} 1"#),
        "{text}"
    );
    assert!(!text.contains("memory"), "{text}");
}

/// What the clients of the AMD GPU use.
fn usages(root: &Root, processes: &[(u32, u64, u32)]) -> Usages {
    let proc = root.path().join("proc");
    let holders = Finder::default().round(&proc, &table(processes));
    round(&mut Accounts::default(), &proc, holders, 1)
}

fn round(accounts: &mut Accounts, proc: &Path, holders: Vec<Holder>, second: u64) -> Usages {
    let devices = ["renderD129".to_owned()];
    let (vendor, uses_host_memory) = (&amd::VENDOR, false);
    let of = Of { proc, vendor, uses_host_memory, pci: "0000:c1:00.0", devices: &devices };
    accounts.round(of, &Arc::new(holders), Timestamp::from_secs(second))
}

/// Opens a client of the AMD GPU in a process.
fn open(root: &Root, pid: u32, descriptor: u32, text: &str) {
    link(root, &format!("proc/{pid}/fd/{descriptor}"), "/dev/dri/renderD129");
    root.write(format!("proc/{pid}/fdinfo/{descriptor}"), text);
}

fn client(id: u64, mib: u64) -> String {
    format!(
        "drm-driver:\tamdgpu\ndrm-client-id:\t{id}\ndrm-pdev:\t0000:c1:00.0\ndrm-memory-vram:\t{mib} MiB\n"
    )
}

#[test]
fn a_client_that_processes_share_counts_once_for_the_oldest() {
    let root = testing::root(&[]);
    for (pid, descriptor) in [(10, 3), (10, 9), (11, 3), (9, 3)] {
        open(&root, pid, descriptor, &client(1, 512));
    }
    open(&root, 11, 4, &client(2, 256));
    // Process 9 has a reused, lower pid and is the youngest.
    let found = usages(&root, &[(9, 300, 1000), (10, 100, 1000), (11, 200, 1000)]);
    let memory: Vec<_> = found.processes.iter().map(|usage| (usage.pid, usage.memory)).collect();
    assert_eq!(memory, [(10, Some(512 << 20)), (11, Some(256 << 20))]);
    assert!(found.whole);
}

#[test]
fn a_client_that_was_sent_to_another_user_counts_for_nobody() {
    let root = testing::root(&[]);
    for pid in [10, 11] {
        open(&root, pid, 3, &client(1, 512));
    }
    open(&root, 11, 4, &client(2, 256));
    let found = usages(&root, &[(10, 100, 0), (11, 200, 1000)]);
    let memory: Vec<_> = found.processes.iter().map(|usage| (usage.pid, usage.memory)).collect();
    assert_eq!(memory, [(11, Some(256 << 20))]);
    assert!(!found.whole, "memory that belongs to no process is not known");
}

#[test]
fn only_clients_of_the_gpu_count() {
    let root = testing::root(&[]);
    // A file that a user named like a device, in a mount namespace of its own.
    open(&root, 10, 3, "pos:\t0\nflags:\t02\nmnt_id:\t1\n");
    // A descriptor that is another GPU's by now.
    open(&root, 10, 4, &client(5, 100).replace("c1:00", "c2:00"));
    link(&root, "proc/10/fd/5", "/home/u/dri/renderD129");
    root.write("proc/10/fdinfo/5", client(6, 100));
    // A name of a process does not matter, nor what is in fdinfo besides.
    open(&root, 10, 6, &format!("drm-memory-vram: x\ndrm-engine-gfx\n:::\n\u{7}\n{}", client(7, 1)));
    let found = usages(&root, &[(10, 1, 1000)]);
    assert_eq!(found.processes.len(), 1);
    assert_eq!(found.processes[0].memory, Some(1 << 20));
}

#[test]
fn the_busy_share_is_that_of_the_busiest_compute_engine() {
    let root = testing::root(&[]);
    let proc = root.path().join("proc");
    let mut accounts = Accounts::default();
    let mut busy = |second, gfx: u64, compute: u64, dec: u64| {
        let _ = std::fs::remove_dir_all(&proc);
        let engines = format!(
            "drm-engine-gfx: {gfx} ns\ndrm-engine-compute: {compute} ns\ndrm-engine-capacity-compute: 2\ndrm-engine-dec: {dec} ns\n"
        );
        open(&root, 10, 3, &format!("{}{engines}", client(1, 1)));
        let holders = Finder::default().round(&proc, &table(&[(10, 1, 1000)]));
        round(&mut accounts, &proc, holders, second).processes[0].busy
    };
    assert_eq!(busy(1, 0, 0, 0), None);
    assert_eq!(busy(2, 0, 0, 900_000_000), None, "nothing was counted, as for user queues");
    assert_eq!(busy(3, 250_000_000, 1_000_000_000, 0), Ratio::new(0.5));
    assert_eq!(busy(4, 350_000_000, 900_000_000, 0), Ratio::new(0.1), "a value that fell");
    assert_eq!(busy(5, 350_000_000, 1_400_000_000, 0), Ratio::new(0.2), "counted from the larger one");
    assert_eq!(busy(6, 9_000_000_000, 1_400_000_000, 0), Ratio::new(1.0));
}

#[test]
fn cycles_are_related_to_all_cycles() {
    let root = tree("intel.txt");
    let proc = root.path().join("proc");
    let devices = ["renderD129".to_owned()];
    let (vendor, uses_host_memory) = (&intel::VENDOR, false);
    let of = Of { proc: &proc, vendor, uses_host_memory, pci: "0000:04:00.0", devices: &devices };
    let mut accounts = Accounts::default();
    let mut busy = |second| {
        let holders = Arc::new(Finder::default().round(&proc, &table(&[(200, 1, 1000)])));
        accounts.round(of, &holders, Timestamp::from_secs(second)).processes[0].busy
    };
    assert_eq!(busy(1), None);
    root.append("proc/200/fdinfo/7", "drm-cycles-ccs:\t1800\ndrm-total-cycles-ccs:\t5000\n");
    // 800 of 1,000 cycles, of two engines.
    assert_eq!(busy(2), Ratio::new(0.4));
}

#[test]
fn a_device_that_is_opened_late_is_found_and_a_new_process_at_once() {
    let root = testing::root(&[]);
    let proc = root.path().join("proc");
    std::fs::create_dir_all(proc.join("10/fd")).unwrap();
    let mut finder = Finder::default();
    for _ in 0..100 {
        assert!(finder.round(&proc, &table(&[(10, 1, 1000)])).is_empty());
    }
    open(&root, 10, 3, &client(1, 1));
    let rounds = (1..=32).find(|_| !finder.round(&proc, &table(&[(10, 1, 1000)])).is_empty());
    assert!(rounds.is_some(), "within 32 rounds");
    let mut finder = Finder::default();
    finder.round(&proc, &table(&[(11, 1, 1000)]));
    assert_eq!(finder.round(&proc, &table(&[(10, 2, 1000), (11, 1, 1000)])).len(), 1);
    // Another process with the same pid is another process.
    assert_eq!(finder.round(&proc, &table(&[(10, 3, 1000)]))[0].key.start, 3);
    assert!(finder.round(&proc, &table(&[(12, 3, 1000)])).is_empty(), "ended");
}

#[test]
fn one_process_with_many_descriptors_does_not_hide_the_others() {
    let root = testing::root(&[]);
    let proc = root.path().join("proc");
    for pid in 1..=2 {
        let folder = proc.join(format!("{pid}/fd"));
        std::fs::create_dir_all(&folder).unwrap();
        for descriptor in 0..16_000 {
            symlink("/tmp/x", folder.join(descriptor.to_string())).unwrap();
        }
    }
    open(&root, 3, 3, &client(1, 1));
    let mut finder = Finder::default();
    let processes = table(&[(1, 1, 1000), (2, 1, 1000), (3, 1, 2000)]);
    let rounds = (1..=3).find(|_| !finder.round(&proc, &processes).is_empty());
    assert!(rounds.is_some_and(|rounds| rounds > 1), "{rounds:?}: the budget of a round, and the next one");
}

fn replace_with_fifo(root: &Root, path: &str) {
    let path = root.path().join(path);
    let _ = std::fs::remove_file(&path);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
}

/// Ticks until `met` says so of the output and the result.
fn wait(drm: &mut Drm, processes: &Arc<ProcessTable>, met: impl Fn(&str, &Result<(), SourceError>) -> bool) {
    let begun = clock::now();
    loop {
        let mut out = Batch::new();
        out.facts.processes = Some(Arc::clone(processes));
        let outcome = drm.sample(clock::now(), &mut out);
        let text = shown(&out.seal().0);
        if met(&text, &outcome) {
            return;
        }
        assert!(clock::now().since(begun) < PATIENCE, "{outcome:?}\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_gpu_whose_read_hangs_ages_alone_and_one_that_disappears_is_lost() {
    let root = tree("intel.txt");
    replace_with_fifo(&root, "sys/class/drm/card1/device/tile0/gt0/freq0/act_freq");
    let mut drm = Drm { setup: setup(&root), background: None };
    let processes = table(&[(200, 5, 1000)]);
    wait(&mut drm, &processes, |text, outcome| {
        text.contains(r#"memory_used_bytes{gpu="card0",uuid="pci-0000:03:00.0"} 2147483648"#)
            && text
                .contains(r#"process_memory_bytes{gpu="card0",uuid="pci-0000:03:00.0",pid="200"} 1610612736"#)
            && text.contains(r#"status{gpu="card0",uuid="pci-0000:03:00.0",status="ok"} 1"#)
            && text.contains(r#"status{gpu="card1",uuid="pci-0000:04:00.0",status="hung"} 1"#)
            && text.contains(r#"hung_call_info{gpu="card1",uuid="pci-0000:04:00.0",call="act_freq"} 1"#)
            && outcome.as_ref().is_err_and(|error| error.to_string() == "GPU card1: hung")
    });
    std::fs::remove_dir_all(root.path().join("sys/class/drm/card0")).unwrap();
    wait(&mut drm, &processes, |text, _| {
        text.contains(r#"status{gpu="card0",uuid="pci-0000:03:00.0",status="lost"} 1"#)
            && !text.contains(r#"memory_used_bytes{gpu="card0""#)
    });
    drop(drm);
}

#[test]
fn the_workload_of_a_process_has_its_gpu_memory() {
    let host = Tree::new();
    host.add(&Process::new(1, "systemd"));
    host.add(&Process::new(100, "python"));
    let root = host.proc().parent().unwrap().to_owned();
    unpack("amd.txt", &root);
    let mut sources: Vec<_> = crate::sources::REGISTRY
        .iter()
        .filter(|registration| ["process", "drm", "workload"].contains(&registration.name))
        .map(|registration| testing::build(registration, &root))
        .collect();
    assert_eq!(sources.len(), 3);
    let begun = clock::now();
    let line = r#",gpu="card1",uuid="GPU-5c88007760374b73"} 10737418240"#;
    loop {
        let mut out = Batch::new();
        for source in &mut sources {
            // Until the threads have read, the source of GPUs is unavailable.
            let _ = source.sample(clock::now(), &mut out);
        }
        let text = encode(&out.seal().0, Format::Text);
        let of_workload =
            |text: &str| text.starts_with("memwarden_workload_gpu_memory_bytes{") && text.ends_with(line);
        if text.lines().any(of_workload) {
            return;
        }
        assert!(clock::now().since(begun) < PATIENCE, "{text}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_node_without_such_a_gpu_says_so() {
    let root = testing::root(&[("sys/class/drm/card0/device/vendor", "0x10de\n")]);
    let mut drm = Drm { setup: setup(&root), background: None };
    open(&root, 10, 3, &client(1, 1));
    wait(&mut drm, &table(&[(10, 1, 0)]), |text, outcome| {
        let why = outcome.as_ref().map_or_else(ToString::to_string, |()| String::new());
        text.is_empty() && why == "there is no GPU of AMD or Intel"
    });
    assert_eq!(REGISTRATION.name, "drm");
}

proptest! {
    #[test]
    fn reading_fdinfo_never_panics(text in "(drm-[a-z0-9-]{0,20}:?[ \t]*[0-9]{0,25} ?(KiB|MiB|ns)?\n){0,20}.*") {
        let _ = Client::parse(&text, &amd::VENDOR, text.len() % 2 == 0);
        let _ = Client::parse(&format!("drm-driver: x\ndrm-client-id: 1\n{text}"), &intel::VENDOR, false);
    }
}

#[test]
fn amounts_that_do_not_fit_are_left_out() {
    let parse = |lines: &str| {
        let text = format!("drm-driver: x\ndrm-client-id: 1\n{lines}");
        Client::parse(&text, &amd::VENDOR, false).unwrap().memory
    };
    assert_eq!(parse("drm-memory-vram: 18446744073709551615 MiB\n"), None);
    assert_eq!(parse("drm-memory-vram: 1 GiB\n"), None);
    assert_eq!(parse("drm-memory-vram: 7\n"), Some(7));
    assert_eq!(
        parse("drm-total-vram: 9 KiB\ndrm-resident-vram: 2 KiB\ndrm-memory-vram: 3 KiB\n"),
        Some(2048)
    );
    assert_eq!(parse("drm-total-vram: 9 KiB\n"), Some(9216));
    assert_eq!(Client::parse("drm-client-id: 1\n", &amd::VENDOR, false), None);
}
