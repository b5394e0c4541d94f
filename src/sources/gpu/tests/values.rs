//! Units of values, values that are refused or implausible, and memory per process.

use expect_test::expect;

use super::super::owners::Owners;
use super::*;
use crate::model::facts::GpuMemory;
use crate::model::facts::{ProcessRow, ProcessTable};
use crate::model::ids::ProcessKey;
use crate::model::units::Bytes;
use crate::sources::gpu::metrics;
use crate::sources::gpu::protocol::{Instance, Memory, Polled, Reason, Refusal};

fn process(pid: u32, memory: Option<u64>) -> Process {
    Process { pid, memory, ..Process::default() }
}

#[test]
fn units_are_base_units() {
    let mut world = world();
    let values = [
        (Field::Power, 72_500),
        (Field::Energy, 1_500),
        (Field::ClockSm, 1_980),
        (Field::Temperature, 34),
        (Field::Utilization, 50),
        (Field::NvlinkSent, 2),
        (Field::ThrottledHwThermal, 1_500_000_000),
        (Field::ThrottleReasons, 0x44),
    ];
    take(&mut world, 1, sample(&values, None));
    check(
        &world,
        1,
        "power_watts",
        expect![[r#"
        memwarden_gpu_power_watts gpu=0,uuid=GPU-a 72.5
        ok
    "#]],
    );
    check(
        &world,
        1,
        "energy",
        expect![[r#"
        memwarden_gpu_energy_joules_total gpu=0,uuid=GPU-a 1.5
        ok
    "#]],
    );
    check(
        &world,
        1,
        "clock",
        expect![[r#"
        memwarden_gpu_clock_hertz gpu=0,uuid=GPU-a,clock=sm 1980000000
        ok
    "#]],
    );
    check(
        &world,
        1,
        "gpu_temperature",
        expect![[r#"
        memwarden_gpu_temperature_celsius gpu=0,uuid=GPU-a 34
        ok
    "#]],
    );
    check(
        &world,
        1,
        "utilization",
        expect![[r#"
        memwarden_gpu_utilization_ratio gpu=0,uuid=GPU-a 0.5
        ok
    "#]],
    );
    check(
        &world,
        1,
        "nvlink",
        expect![[r#"
        memwarden_gpu_nvlink_sent_bytes_total gpu=0,uuid=GPU-a,traffic=data 2048
        ok
    "#]],
    );
    check(
        &world,
        1,
        "gpu_throttled",
        expect![[r#"
            memwarden_gpu_throttled gpu=0,uuid=GPU-a,reason=gpu_idle 0
            memwarden_gpu_throttled gpu=0,uuid=GPU-a,reason=application_clocks 0
            memwarden_gpu_throttled gpu=0,uuid=GPU-a,reason=power_cap 1
            memwarden_gpu_throttled gpu=0,uuid=GPU-a,reason=hw_slowdown 0
            memwarden_gpu_throttled gpu=0,uuid=GPU-a,reason=sync_boost 0
            memwarden_gpu_throttled gpu=0,uuid=GPU-a,reason=sw_thermal 0
            memwarden_gpu_throttled gpu=0,uuid=GPU-a,reason=hw_thermal 1
            memwarden_gpu_throttled gpu=0,uuid=GPU-a,reason=hw_power_brake 0
            memwarden_gpu_throttled gpu=0,uuid=GPU-a,reason=display_clocks 0
            ok
        "#]],
    );
}

#[test]
fn free_memory_is_published_while_it_is_recent() {
    let free_memory = |world: &World, second| {
        let mut batch = Batch::new();
        let _ = put(world, Timestamp::from_secs(second), SECOND, true, &mut batch);
        batch.facts.gpu_memory
    };
    let mut world = world();
    take(&mut world, 1, sample(&[(Field::MemoryUsed, 50)], None));
    assert_eq!(free_memory(&world, 1), [], "what is free is not known");
    take(&mut world, 2, sample(&[(Field::MemoryUsed, 50), (Field::MemoryFree, 30)], None));
    let memory = GpuMemory { uuid: "GPU-a".into(), used: Bytes::new(50), free: Bytes::new(30) };
    assert_eq!(free_memory(&world, 2), [memory]);
    assert_eq!(free_memory(&world, 600), [], "it is stale");
}

#[test]
fn memory_of_no_process_is_unattributed() {
    let used = [(Field::MemoryUsed, 1_000)];
    let mut world = world();
    take(&mut world, 1, sample(&used, Some(vec![process(7, Some(600)), process(8, Some(100))])));
    check(
        &world,
        1,
        "memory",
        expect![[r#"
        memwarden_gpu_memory_used_bytes gpu=0,uuid=GPU-a 1000
        memwarden_gpu_memory_used_peak_bytes gpu=0,uuid=GPU-a 1000
        memwarden_gpu_process_memory_bytes gpu=0,uuid=GPU-a,pid=7 600
        memwarden_gpu_process_memory_bytes gpu=0,uuid=GPU-a,pid=8 100
        memwarden_gpu_memory_unattributed_bytes gpu=0,uuid=GPU-a 300
        ok
    "#]],
    );
    take(&mut world, 1, sample(&used, Some(vec![process(7, Some(5_000))])));
    check(
        &world,
        1,
        "unattributed",
        expect![[r#"
        memwarden_gpu_memory_unattributed_bytes gpu=0,uuid=GPU-a 0
        ok
    "#]],
    );
    take(&mut world, 1, sample(&used, Some(vec![process(7, None)])));
    check(
        &world,
        1,
        "memory",
        expect![[r#"
        memwarden_gpu_memory_used_bytes gpu=0,uuid=GPU-a 1000
        memwarden_gpu_memory_used_peak_bytes gpu=0,uuid=GPU-a 1000
        ok
    "#]],
    );
    take(&mut world, 1, sample(&used, None));
    check(
        &world,
        1,
        "memory",
        expect![[r#"
        memwarden_gpu_memory_used_bytes gpu=0,uuid=GPU-a 1000
        memwarden_gpu_memory_used_peak_bytes gpu=0,uuid=GPU-a 1000
        ok
    "#]],
    );
}

#[test]
fn a_refused_value_is_absent_and_named() {
    let mut world = world();
    let refusal = Refusal { reason: Reason::UnknownCode, code: 27 };
    let refused = vec![(Field::Power, refusal)];
    take(&mut world, 1, Line::Sample(Box::new(Sample { refused, ..Sample::default() })));
    check(
        &world,
        1,
        "power",
        expect![[r#"
        ok
    "#]],
    );
    check(
        &world,
        1,
        "field_status",
        expect![[r#"
        memwarden_gpu_field_status gpu=0,uuid=GPU-a,field=power,status=unknown_code,code=27 1
        ok
    "#]],
    );
}

#[test]
fn shares_above_one_are_absent() {
    let mut world = world();
    let processes = vec![Process { pid: 7, sm: Some(101), ..Process::default() }];
    take(
        &mut world,
        1,
        sample(&[(Field::Utilization, 101), (Field::MemoryUtilization, 100)], Some(processes)),
    );
    check(
        &world,
        1,
        "utilization",
        expect![[r#"
            memwarden_gpu_memory_controller_utilization_ratio gpu=0,uuid=GPU-a 1
            ok
        "#]],
    );
    check(
        &world,
        1,
        "field_status",
        expect![[r#"
            memwarden_gpu_field_status gpu=0,uuid=GPU-a,field=utilization,status=implausible,code=0 1
            memwarden_gpu_field_status gpu=0,uuid=GPU-a,field=process_utilization,status=implausible,code=0 1
            ok
        "#]],
    );
}

#[test]
fn values_that_cannot_be_are_absent_with_a_reason() {
    let mut world = world();
    let numbered = Field::ALL.into_iter().filter(|field| field.most() > 0);
    let values: Vec<_> = numbered.clone().map(|field| (field, u64::MAX)).collect();
    take(&mut world, 1, sample(&values, Some(vec![process(7, Some(18 << 50))])));
    let mut batch = Batch::new();
    put(&world, Timestamp::from_secs(1), SECOND, true, &mut batch).unwrap();
    let other = ["_info", "_status", "_age_", "_up", "restarts", "workers", "worker_", "_xid", "_gpus"];
    for family in batch.families() {
        let name = family.desc.name;
        let is_value =
            !other.iter().any(|other| name.contains(other)) && name != metrics::PROCESSES.desc.name;
        assert!(!is_value || family.points.is_empty(), "{name}: {:?}", family.points);
        if name == "memwarden_gpu_field_status" {
            assert_eq!(family.points.len(), numbered.clone().count() + 1);
        }
    }
    assert_eq!(batch.facts.gpu_memory, []);
    assert_eq!(batch.facts.gpu_processes[0].memory, None);
}

#[test]
fn memory_that_contradicts_its_total_is_absent() {
    for values in [
        [(Field::MemoryTotal, 0), (Field::MemoryUsed, 0), (Field::MemoryFree, 0)],
        [(Field::MemoryTotal, 80), (Field::MemoryUsed, 81), (Field::MemoryFree, 1)],
        [(Field::MemoryTotal, 80), (Field::MemoryUsed, 1), (Field::MemoryFree, 81)],
    ] {
        let mut world = world();
        let memory = Memory { total: 80, used: 81, free: 0, reserved: None };
        let instances = vec![Instance { uuid: "MIG-b".into(), memory: Some(memory), ..Instance::default() }];
        let polled = Some(Polled { used: u64::MAX, reads: 1 });
        let sample = Sample { values: values.to_vec(), instances, polled, ..Sample::default() };
        take(&mut world, 1, Line::Sample(Box::new(sample)));
        check(
            &world,
            1,
            "gpu_m",
            expect![[r#"
                memwarden_gpu_mig_info gpu=0,uuid=MIG-b,gpu_instance=,compute_instance=,parent=GPU-a,name= 1
                ok
            "#]],
        );
    }
}

#[test]
fn an_instance_names_its_parent() {
    let mut world = world();
    let memory = Some(Memory { total: 100, used: 60, free: 40, reserved: None });
    let instance = Instance {
        uuid: "MIG-b".into(),
        name: "1g".into(),
        gi: Some(9),
        ci: None,
        memory,
        ..Instance::default()
    };
    let instances = vec![instance];
    take(&mut world, 1, Line::Sample(Box::new(Sample { instances, ..Sample::default() })));
    check(
        &world,
        1,
        "mig",
        expect![[r#"
        memwarden_gpu_mig_info gpu=0,uuid=MIG-b,gpu_instance=9,compute_instance=,parent=GPU-a,name=1g 1
        memwarden_gpu_mig_memory_total_bytes gpu=0,uuid=MIG-b,gpu_instance=9,compute_instance= 100
        memwarden_gpu_mig_memory_used_bytes gpu=0,uuid=MIG-b,gpu_instance=9,compute_instance= 60
        memwarden_gpu_mig_memory_free_bytes gpu=0,uuid=MIG-b,gpu_instance=9,compute_instance= 40
        ok
    "#]],
    );
}

#[test]
fn a_peak_between_samples_is_exposed_until_the_next_tick() {
    let mut world = world();
    let with_reads = |used: u64, peak: u64| {
        let values = vec![(Field::MemoryUsed, used), (Field::MemoryFree, 100 - used)];
        let polled = Some(Polled { used: peak, reads: 12 });
        Line::Sample(Box::new(Sample { values, polled, ..Sample::default() }))
    };
    take(&mut world, 1, with_reads(40, 90));
    take(&mut world, 1, with_reads(41, 60));
    check(
        &world,
        1,
        "gpu_memory",
        expect![[r#"
        memwarden_gpu_memory_used_bytes gpu=0,uuid=GPU-a 41
        memwarden_gpu_memory_free_bytes gpu=0,uuid=GPU-a 59
        memwarden_gpu_memory_used_peak_bytes gpu=0,uuid=GPU-a 90
        memwarden_gpu_memory_polls_total gpu=0,uuid=GPU-a 24
        ok
    "#]],
    );
    world.peaks_exposed();
    check(
        &world,
        2,
        "used_peak",
        expect![[r#"
        memwarden_gpu_memory_used_peak_bytes gpu=0,uuid=GPU-a 41
        ok
    "#]],
    );
    take(&mut world, 2, with_reads(40, 30));
    check(
        &world,
        2,
        "used_peak",
        expect![[r#"
        memwarden_gpu_memory_used_peak_bytes gpu=0,uuid=GPU-a 40
        ok
    "#]],
    );
}

#[test]
fn a_gpu_without_reads_between_samples_exposes_no_number_of_them() {
    let mut world = world();
    take(&mut world, 1, sample(&[(Field::MemoryUsed, 7)], None));
    check(
        &world,
        1,
        "gpu_memory",
        expect![[r#"
        memwarden_gpu_memory_used_bytes gpu=0,uuid=GPU-a 7
        memwarden_gpu_memory_used_peak_bytes gpu=0,uuid=GPU-a 7
        ok
    "#]],
    );
}

#[test]
fn a_counter_that_wraps_continues() {
    let mut world = world();
    take(&mut world, 1, sample(&[(Field::PcieSent, 900)], None));
    take(&mut world, 2, sample(&[(Field::PcieSent, 100)], None));
    check(
        &world,
        2,
        "pcie_sent",
        expect![[r#"
        memwarden_gpu_pcie_sent_bytes_total gpu=0,uuid=GPU-a 1000
        ok
    "#]],
    );
}

#[test]
fn a_gpu_without_memory_of_its_own_uses_that_of_the_host() {
    let refused = |reason| vec![(Field::MemoryUsed, Refusal { reason, code: 3 })];
    let flags = |refused, processes| {
        let mut world = world();
        take(&mut world, 1, Line::Sample(Box::new(Sample { refused, processes, ..Sample::default() })));
        let mut batch = Batch::new();
        let _ = put(&world, Timestamp::from_secs(1), SECOND, true, &mut batch);
        let flagged =
            batch.families().iter().any(|family| std::ptr::eq(family.desc, &metrics::USES_HOST_MEMORY.desc));
        (flagged, batch.facts.gpus_of_host_memory.len())
    };
    let holders = Some(vec![process(7, Some(600))]);
    assert_eq!(flags(refused(Reason::Unsupported), holders.clone()), (true, 1));
    // It cannot be read now, or nothing of it can.
    assert_eq!(flags(refused(Reason::Error), holders.clone()), (false, 0));
    assert_eq!(flags(refused(Reason::Unsupported), None), (false, 0));
    assert_eq!(flags(Vec::new(), holders), (false, 0));
}

#[test]
fn a_pid_of_another_namespace_is_nobody_here() {
    let root = tempfile::tempdir().unwrap();
    let link = |path: &str, to: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(to, path).unwrap();
    };
    link("self/ns/pid", "pid:[4026532000]");
    link("7/fd/3", "/dev/null");
    link("8/fd/3", "/dev/nvidia0");
    let table = |pids: &[u32]| ProcessTable {
        rows: pids
            .iter()
            .map(|pid| ProcessRow::new(ProcessKey { pid: *pid, start: 1 }, "sleep".into()))
            .collect(),
        boot: None,
    };
    let listed = [7, 8, 9].map(|pid| Process { pid, memory: Some(5 << 30), ..Process::default() });
    let mut world = world();
    take(&mut world, 1, sample(&[(Field::MemoryUsed, 20 << 30)], Some(listed.to_vec())));
    let mut owners = Owners::new(root.path().to_owned());
    // Twice: the newest sample stays.
    owners.prove(&mut world.gpus, Some(&table(&[7, 8])));
    owners.prove(&mut world.gpus, Some(&table(&[7, 8])));
    let shown = expect![[r#"
        memwarden_gpu_memory_unattributed_bytes gpu=0,uuid=GPU-a 16106127360
        memwarden_gpu_process_memory_bytes gpu=0,uuid=GPU-a,pid=8 5368709120
        memwarden_gpu_processes gpu=0,uuid=GPU-a 3
        memwarden_gpu_processes_unknown gpu=0,uuid=GPU-a 2
    "#]];
    let points = |world: &World| {
        let mut batch = Batch::new();
        put(world, Timestamp::from_secs(1), SECOND, true, &mut batch).unwrap();
        let mut lines = Vec::new();
        for family in batch.families() {
            if ["process", "unattributed"].iter().any(|part| family.desc.name.contains(part)) {
                for point in &family.points {
                    let labels: Vec<_> = family.desc.labels.iter().zip(point.labels.iter()).collect();
                    let labels: Vec<_> =
                        labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
                    lines.push(format!("{} {} {}\n", family.desc.name, labels.join(","), point.value));
                }
            }
        }
        lines.sort();
        lines.concat()
    };
    shown.assert_eq(&points(&world));
    // In the first namespace the pids are those of the driver.
    std::fs::remove_file(root.path().join("self/ns/pid")).unwrap();
    link("self/ns/pid", "pid:[4026531836]");
    take(&mut world, 1, sample(&[(Field::MemoryUsed, 20 << 30)], Some(listed.to_vec())));
    owners.prove(&mut world.gpus, Some(&table(&[7, 8])));
    assert!(!points(&world).contains("unknown"));
}
