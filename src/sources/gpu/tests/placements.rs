//! The index of each GPU, and the GPU of each XID in the kernel log.

use expect_test::expect;

use super::*;
use crate::model::facts::KernelXid;
use crate::model::health::Health;
use crate::sources::gpu::protocol::{MOST_GPUS, Xid};
use crate::sources::gpu::state::Gpu;

fn identity(gpu: u32, uuid: &str) -> Line {
    Line::Device(Box::new(Identity { gpu, uuid: uuid.to_owned(), ..Identity::default() }))
}

/// Starts a worker at a second, which reports this number of GPUs.
fn start(world: &mut World, second: u64, gpus: u32) -> (u64, Timestamp) {
    let at = Timestamp::from_secs(second);
    let generation = world.worker_started(at);
    world.take(generation, at, Line::State(State { status: Status::Ok, gpus, ..State::default() }));
    (generation, at)
}

/// Starts a worker that finds these GPUs, in this order, and samples them; returns its number.
fn look(world: &mut World, second: u64, uuids: &[&str]) -> u64 {
    let (generation, at) = start(world, second, u32::try_from(uuids.len()).unwrap());
    for (gpu, uuid) in (0..).zip(uuids) {
        world.take(generation, at, identity(gpu, uuid));
    }
    for (gpu, _) in (0..).zip(uuids) {
        world.take(generation, at, Line::Sample(Box::new(Sample { gpu, ..Sample::default() })));
    }
    generation
}

/// Each GPU, as `index uuid condition`.
fn shown(world: &World, second: u64) -> Vec<String> {
    let show = |gpu: &Gpu| {
        let condition = world.condition(gpu, Timestamp::from_secs(second), Duration::from_secs(1));
        format!("{} {} {}", gpu.labels[0], gpu.labels[1], condition.label())
    };
    let mut shown: Vec<String> = world.gpus.iter().map(show).collect();
    shown.sort();
    shown
}

#[test]
fn two_gpus_may_swap_their_indices() {
    let mut world = World::default();
    look(&mut world, 0, &["a", "b"]);
    look(&mut world, 9, &["b", "a"]);
    assert_eq!(shown(&world, 9), ["0 b ok", "1 a ok"]);
    assert_eq!(world.bad_lines, 0);
}

#[test]
fn gpus_with_the_same_uuid_or_none_are_named_by_their_addresses() {
    let mut world = World::default();
    // The second worker reports them in another order.
    for (second, order) in [(0, [0, 1, 2]), (9, [2, 1, 0])] {
        let (generation, at) = start(&mut world, second, 3);
        for gpu in order {
            let identity = Identity {
                gpu,
                uuid: if gpu == 2 { "" } else { "a" }.to_owned(),
                pci: format!("00000000:0{gpu}:00.0"),
                ..Identity::default()
            };
            world.take(generation, at, Line::Device(Box::new(identity)));
            world.take(generation, at, Line::Sample(Box::new(Sample { gpu, ..Sample::default() })));
        }
        assert_eq!(shown(&world, second), ["0 a ok", "1 pci-0000:01:00.0 ok", "2 pci-0000:02:00.0 ok"]);
    }
    assert_eq!(world.bad_lines, 0);
}

#[test]
fn indices_shift_when_a_gpu_is_taken_out_and_put_back() {
    let mut world = World::default();
    look(&mut world, 0, &["a", "b", "c", "d"]);
    look(&mut world, 9, &["b", "c", "d"]);
    assert_eq!(shown(&world, 9), ["0 a lost", "0 b ok", "1 c ok", "2 d ok"]);
    look(&mut world, 20, &["a", "b", "c", "d"]);
    assert_eq!(shown(&world, 20), ["0 a ok", "1 b ok", "2 c ok", "3 d ok"]);
    look(&mut world, 30, &["e", "a", "d", "c"]);
    assert_eq!(shown(&world, 30), ["0 e ok", "1 a ok", "1 b lost", "2 d ok", "3 c ok"]);
    assert_eq!(world.bad_lines, 0);
}

#[test]
fn an_old_identity_is_not_used_for_a_gpu_that_may_be_another() {
    let mut world = World::default();
    look(&mut world, 0, &["a", "b", "c"]);
    // Index 0 never reports a UUID: with the same count it remains `a`, until another index has shifted.
    let (generation, at) = start(&mut world, 9, 3);
    assert_eq!(shown(&world, 13), ["0 a unobserved", "1 b unobserved", "2 c unobserved"]);
    world.take(generation, at, identity(1, "b"));
    (10..16).for_each(|second| world.take(generation, Timestamp::from_secs(second), Line::alive()));
    assert_eq!(shown(&world, 15), ["0 a hung", "1 b hung", "2 c hung"]);
    world.take(generation, at.plus(Duration::from_secs(6)), identity(2, "d"));
    assert_eq!(
        shown(&world, 15),
        ["0  unobserved", "0 a unobserved", "1 b hung", "2 c unobserved", "2 d unobserved"]
    );
    let (generation, at) = start(&mut world, 20, 2);
    world.take(generation, at, identity(1, "c"));
    assert_eq!(
        shown(&world, 20),
        ["0  unobserved", "0 a unobserved", "1 b unobserved", "1 c unobserved", "2 d unobserved"]
    );
}

#[test]
fn gpus_that_appear_and_disappear_are_bounded() {
    let mut world = World::default();
    for second in 0..2_000 {
        look(&mut world, second, &[&format!("GPU-{second}")]);
    }
    assert!(world.gpus.len() <= MOST_GPUS as usize + 1, "{}", world.gpus.len());
    assert_eq!(world.bad_lines, 0);
}

#[test]
fn a_gpu_that_changes_its_index_keeps_its_state() {
    let mut world = world();
    take(&mut world, 1, Line::Xid(Xid { gpu: 0, xid: 79 }));
    let identity =
        |gpu, uuid: &str| Line::Device(Box::new(Identity { gpu, uuid: uuid.into(), ..Identity::default() }));
    take(&mut world, 2, Line::State(State { status: Status::Ok, gpus: 2, ..State::default() }));
    take(&mut world, 2, identity(0, "GPU-b"));
    take(&mut world, 2, identity(1, "GPU-a"));
    let mut known: Vec<_> = world
        .gpus
        .iter()
        .map(|gpu| {
            (gpu.labels.clone().map(|label| label.to_string()), gpu.xids.counts().map(|x| x.2).sum::<u64>())
        })
        .collect();
    known.sort();
    let expected = [(["0", "GPU-b"], 0), (["1", "GPU-a"], 1)];
    assert_eq!(known, expected.map(|(labels, count)| (labels.map(str::to_owned), count)));
}

#[test]
fn xids_of_the_kernel_log_are_kept_before_the_first_gpu() {
    let mut world = World::default();
    let at = Timestamp::from_secs(0);
    let event = |pci: &str, xid| KernelXid {
        pci: pci.to_owned(),
        xid,
        severity: crate::model::xid::severity(xid),
        kernel_us: 0,
    };
    world.take_kernel(at, &[event("0000:3b:00", 79), event("0000:3b:00", 79), event("?", 79)]);
    check(
        &world,
        1,
        "unattributed",
        expect![[r#"
            memwarden_gpu_unattributed_xid_errors_total pci=0000:3b:00,xid=79,severity=critical 2
            memwarden_gpu_unattributed_xid_errors_total pci=other,xid=other,severity=unknown 1
            unavailable: NVML is being initialized
        "#]],
    );
    world.take_kernel(at, &[event("0000:5e:00", 7)]);
    check(
        &world,
        1,
        "meaning",
        expect![[r#"
            memwarden_gpu_xid_meaning_info xid=7,severity=unknown,meaning=not in memwarden's table 1
            memwarden_gpu_xid_meaning_info xid=79,severity=critical,meaning=the GPU fell off the bus 1
            unavailable: NVML is being initialized
        "#]],
    );
    let generation = world.worker_started(at);
    world.take(generation, at, Line::State(State { status: Status::Ok, gpus: 1, ..State::default() }));
    let (uuid, pci) = ("GPU-a".to_owned(), "00000000:3B:00.0".to_owned());
    world.take(generation, at, Line::Device(Box::new(Identity { uuid, pci, ..Identity::default() })));
    assert_eq!(world.gpus[0].xids.counts().find(|xid| xid.0 == 79), Some((79, Health::Critical, 2)));
    assert_eq!(world.unplaced.counts().count(), 1);
}

#[test]
fn the_newest_xid_is_exposed_and_zero_before_the_first() {
    let mut world = world();
    let none = expect![[r#"
        memwarden_gpu_newest_xid gpu=0,uuid=GPU-a 0
        ok
    "#]];
    take(&mut world, 1, sample(&[], None));
    check(&world, 1, "newest_xid", none);
    for xid in [31, 79, 31, 48] {
        take(&mut world, 1, Line::Xid(Xid { gpu: 0, xid }));
    }
    let newest = expect![[r#"
        memwarden_gpu_newest_xid gpu=0,uuid=GPU-a 48
        ok
    "#]];
    check(&world, 1, "newest_xid", newest);
}

#[test]
fn a_daemon_that_was_stopped_reports_no_gpu_as_hung() {
    let mut world = World::default();
    let generation = look(&mut world, 0, &["a"]);
    world.take(generation, Timestamp::from_secs(9), Line::alive());
    assert_eq!(shown(&world, 9), ["0 a unobserved"]);
    world.exclude_pause(Timestamp::from_secs(20));
    assert!(world.answers(Timestamp::from_secs(20)));
    assert_eq!(shown(&world, 20), ["0 a unobserved"]);
    (21..27).for_each(|second| world.take(generation, Timestamp::from_secs(second), Line::alive()));
    assert_eq!(shown(&world, 26), ["0 a hung"]);
}
