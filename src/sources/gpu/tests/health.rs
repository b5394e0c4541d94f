//! Condition of a GPU, NVML and the worker: hung, lost, silent, exited.

use expect_test::expect;

use super::*;
use crate::model::facts::KernelXid;
use crate::model::health::Health;
use crate::sources::gpu::protocol::{Reason, Refusal, Trouble, Xid};

#[test]
fn a_gpu_that_the_driver_does_not_list_is_lost() {
    let mut world = world();
    let statuses = |world: &World, expected| check(world, 1, "gpu_status", expected);
    let listed = Identity { uuid: "GPU-a".into(), pci: "00000000:1B:00.0".into(), ..Identity::default() };
    world.present = Some([(0, 0x1b, 0), (0, 0x2b, 0)].into());
    take(&mut world, 1, sample(&[(Field::Power, 1_000)], None));
    statuses(
        &world,
        expect![[r#"
            memwarden_gpu_status gpu=0,uuid=GPU-a,status=ok 1
            ok
        "#]],
    );
    take(&mut world, 1, Line::Device(Box::new(listed)));
    take(&mut world, 1, sample(&[(Field::Power, 1_000)], None));
    let xid = |pci: &str, xid| crate::model::facts::KernelXid {
        pci: pci.into(),
        xid,
        severity: crate::model::xid::severity(xid),
        kernel_us: 0,
    };
    world.take_kernel(Timestamp::from_secs(1), &[xid("0000:3b:00", 79), xid("0000:4b:00", 13)]);
    statuses(
        &world,
        expect![[r#"
            memwarden_gpu_status gpu=0,uuid=GPU-a,status=ok 1
            memwarden_gpu_status gpu=0000:2b:00,uuid=,status=lost 1
            memwarden_gpu_status gpu=0000:3b:00,uuid=,status=lost 1
            lost: GPU 0000:2b:00: not listed by the driver, GPU 0000:3b:00: not listed by the driver
        "#]],
    );
    world.present = None;
    statuses(
        &world,
        expect![[r#"
            memwarden_gpu_status gpu=0,uuid=GPU-a,status=ok 1
            ok
        "#]],
    );
}

#[test]
fn a_hung_gpu_keeps_its_status_and_loses_its_values() {
    let mut world = world();
    take(&mut world, 1, sample(&[(Field::Power, 1_000)], None));
    check(
        &world,
        5,
        "gpu_status",
        expect![[r#"
            memwarden_gpu_status gpu=0,uuid=GPU-a,status=unobserved 1
            timeout: the GPU worker does not respond
        "#]],
    );
    take(&mut world, 5, Line::alive());
    check(
        &world,
        5,
        "gpu_status",
        expect![[r#"
        memwarden_gpu_status gpu=0,uuid=GPU-a,status=ok 1
        ok
    "#]],
    );
    check(
        &world,
        5,
        "power_watts",
        expect![[r#"
            memwarden_gpu_power_watts gpu=0,uuid=GPU-a 1
            ok
        "#]],
    );
    (6..12).for_each(|second| take(&mut world, second, Line::alive()));
    check(
        &world,
        11,
        "gpu_status",
        expect![[r#"
        memwarden_gpu_status gpu=0,uuid=GPU-a,status=hung 1
        timeout: GPU 0: hung
    "#]],
    );
    check(
        &world,
        11,
        "power_watts",
        expect![[r#"
        timeout: GPU 0: hung
    "#]],
    );
    check(
        &world,
        11,
        "sample_age",
        expect![[r#"
        memwarden_gpu_sample_age_seconds gpu=0,uuid=GPU-a 10
        timeout: GPU 0: hung
    "#]],
    );
    assert_eq!(world.hung(Timestamp::from_secs(11), SECOND), Some(Duration::from_secs(6)));
}

#[test]
fn a_lost_gpu_loses_its_values_at_once() {
    let mut world = world();
    take(&mut world, 1, sample(&[(Field::Power, 1_000)], None));
    let refusal = Refusal { reason: Reason::Lost, code: 15 };
    take(&mut world, 2, Line::Trouble(Trouble { gpu: 0, refusal }));
    check(
        &world,
        2,
        "gpu_status",
        expect![[r#"
        memwarden_gpu_status gpu=0,uuid=GPU-a,status=lost 1
        lost: GPU 0: lost
    "#]],
    );
    check(
        &world,
        2,
        "power_watts",
        expect![[r#"
        lost: GPU 0: lost
    "#]],
    );
    take(&mut world, 3, sample(&[(Field::Power, 1_000)], None));
    check(
        &world,
        3,
        "gpu_status",
        expect![[r#"
        memwarden_gpu_status gpu=0,uuid=GPU-a,status=ok 1
        ok
    "#]],
    );
}

#[test]
fn a_worker_that_ends_leaves_gpus_unobserved() {
    let mut world = world();
    take(&mut world, 1, sample(&[(Field::Power, 1_000)], None));
    world.worker_ended(false, "the worker ended: signal: 9".to_owned());
    check(
        &world,
        2,
        "status",
        expect![[r#"
        memwarden_nvml_status status=worker_failed 1
        memwarden_gpu_status gpu=0,uuid=GPU-a,status=unobserved 1
        lost: the worker ended: signal: 9
    "#]],
    );
    // Messages that an exited worker left in its pipe are ignored.
    take(&mut world, 3, sample(&[(Field::Power, 2_000)], None));
    check(
        &world,
        3,
        "power_watts",
        expect![[r#"
        memwarden_gpu_power_watts gpu=0,uuid=GPU-a 1
        lost: the worker ended: signal: 9
    "#]],
    );
}

#[test]
fn a_typed_failure_is_kept_after_its_worker_exits() {
    let mut world = World::default();
    let at = Timestamp::from_secs(0);
    world.begun = Some(at);
    check(
        &world,
        1,
        "nvml",
        expect![[r#"
        memwarden_nvml_status status=initializing 1
        unavailable: NVML is being initialized
    "#]],
    );
    check(
        &world,
        31,
        "nvml",
        expect![[r#"
        memwarden_nvml_status status=initializing 1
        timeout: NVML has not finished initializing
    "#]],
    );
    let state = |status| Line::State(State { status, why: "no library".into(), ..State::default() });
    let generation = world.worker_started(at);
    world.take(generation, at, state(Status::LibraryAbsent));
    world.worker_ended(true, String::new());
    check(
        &world,
        1,
        "nvml",
        expect![[r#"
        memwarden_nvml_status status=library_absent 1
        not_found: no library
    "#]],
    );
    world.worker_started(at);
    check(
        &world,
        1,
        "nvml",
        expect![[r#"
        memwarden_nvml_status status=library_absent 1
        not_found: no library
    "#]],
    );
    world.worker_ended(false, "the worker ended: signal: 6".to_owned());
    check(
        &world,
        1,
        "nvml",
        expect![[r#"
        memwarden_nvml_status status=worker_failed 1
        lost: the worker ended: signal: 6
    "#]],
    );
    world.worker_released();
    check(
        &world,
        1,
        "nvml",
        expect![[r#"
        memwarden_nvml_status status=released 1
        unavailable: the GPU driver was released on request
    "#]],
    );
}

#[test]
fn lines_about_unknown_gpus_are_refused() {
    let mut world = world();
    let before = world.bad_lines;
    take(&mut world, 1, Line::Sample(Box::new(Sample { gpu: 7, ..Sample::default() })));
    take(&mut world, 1, Line::State(State { status: Status::Ok, gpus: u32::MAX, ..State::default() }));
    take(&mut world, 1, Line::State(State { status: Status::Released, ..State::default() }));
    assert_eq!(world.bad_lines, before + 3);
    assert_eq!(world.gpus.len(), 1);
}

#[test]
fn an_event_whose_severity_only_the_kernel_log_tells_is_counted_once_in_either_order() {
    for is_nvml_first in [true, false] {
        let mut world = world();
        let listed = Identity { uuid: "GPU-a".into(), pci: "00000000:1B:00.0".into(), ..Identity::default() };
        take(&mut world, 1, Line::Device(Box::new(listed)));
        world.reads_log = true;
        let of_nvml = |world: &mut World| take(world, 1, Line::Xid(Xid { gpu: 0, xid: 149 }));
        let line = KernelXid { pci: "0000:1b:00".into(), xid: 149, severity: Health::Critical, kernel_us: 0 };
        if is_nvml_first {
            of_nvml(&mut world);
        }
        world.take_kernel(Timestamp::from_secs(1), &[line]);
        if !is_nvml_first {
            of_nvml(&mut world);
        }
        let counts = || world.gpus[0].xids.counts().filter(|counted| counted.0 == 149);
        assert_eq!(counts().map(|counted| counted.2).sum::<u64>(), 1, "{is_nvml_first}");
        assert!(counts().any(|counted| counted == (149, Health::Critical, 1)), "{is_nvml_first}");
        // Without the log, NVML's word is all there is.
        world.reads_log = false;
        take(&mut world, 60, Line::Xid(Xid { gpu: 0, xid: 149 }));
        let counts: Vec<_> = world.gpus[0].xids.counts().filter(|counted| counted.0 == 149).collect();
        assert_eq!(counts, [(149, Health::Warning, 1), (149, Health::Critical, 1)]);
    }
}
