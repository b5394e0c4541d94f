//! One tick: everything known, as points and as the source's own state.

use std::collections::BTreeSet;
use std::time::Duration;

use super::protocol::Status;
use super::state::{Condition, Gpu, World, stale_after};
use super::{convert, metrics as m, xid};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Failure, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag};

/// A start that takes longer is worth a complaint.
const SLOW_START: Duration = Duration::from_secs(30);

/// Puts everything, and says what is wrong. `driver` is whether the kernel has the driver loaded.
pub fn put(
    world: &World,
    now: Timestamp,
    interval: Duration,
    driver: bool,
    out: &mut Batch,
) -> Result<(), SourceError> {
    worker(world, now, out);
    nvml(world, out);
    unplaced(world, out);
    meanings(world, out);
    if world.released {
        return Err(SourceError::unavailable("the GPU driver was released on request"));
    }
    let mut wrong: Vec<(Condition, &Label)> = Vec::new();
    for gpu in &world.gpus {
        let condition = world.condition(gpu, now, interval);
        if matches!(condition, Condition::Lost | Condition::Hung | Condition::UnknownError) {
            wrong.push((condition, &gpu.labels[0]));
        }
        put_gpu(gpu, condition, now, interval, out);
    }
    verdict(world, now, driver)?;
    let Some((condition, _)) = wrong.first() else { return Ok(()) };
    let kind = match condition {
        Condition::Hung => Failure::Timeout,
        Condition::Lost => Failure::Lost,
        _ => Failure::Io,
    };
    let named: Vec<String> =
        wrong.iter().map(|(condition, gpu)| format!("GPU {gpu}: {}", condition.label())).collect();
    Err(SourceError::failed(kind, named.join(", ")))
}

fn worker(world: &World, now: Timestamp, out: &mut Batch) {
    let silent = world.heard.filter(|_| world.running).map(|heard| now.since(heard));
    out.put(&m::WORKER_UP, &[], Flag(world.answers(now)));
    out.put_some(&m::WORKER_SILENT, &[], silent.map(Into::into));
    out.put(&m::WORKER_RESTARTS, &[], Count(world.restarts));
    out.put(&m::WORKER_ABANDONED, &[], Count(world.abandoned as u64));
    out.put(&m::WORKER_BAD_LINES, &[], Count(world.bad_lines));
    out.put_some(&m::WORKER_MEMORY, &[], world.resident.map(Bytes::new));
}

fn meanings(world: &World, out: &mut Batch) {
    let placed = world.gpus.iter().flat_map(|gpu| gpu.xids.counts()).filter(|(_, events)| *events > 0);
    let unplaced = world.unplaced.counts().map(|(_, number, events)| (number, events));
    let seen: BTreeSet<u32> = placed.chain(unplaced).map(|(number, _)| number).collect();
    for number in seen {
        let severity = xid::severity(number).label().into();
        out.put(&m::XID_MEANING, &[number.into(), severity, xid::meaning(number).into()], Flag(true));
    }
}

fn unplaced(world: &World, out: &mut Batch) {
    for (pci, number, events) in world.unplaced.counts() {
        let severity = xid::severity(number).label().into();
        out.put(&m::UNPLACED_XIDS, &[pci.as_str().into(), number.into(), severity], Count(events));
    }
    let others = Some(world.unplaced.others()).filter(|others| *others > 0);
    let labels = ["other".into(), "other".into(), xid::Severity::Unknown.label().into()];
    out.put_some(&m::UNPLACED_XIDS, &labels, others.map(Count));
}

fn nvml(world: &World, out: &mut Batch) {
    let state = &world.state;
    for status in Status::ALL {
        out.put(&m::NVML_STATUS, &[status.label().into()], Flag(status == state.status));
    }
    out.put_some(&m::NVML_RETURN_CODE, &[], state.code.map(|code| Count(code.into())));
    if state.status == Status::Ok {
        let versions = [&state.driver, &state.nvml, &state.cuda].map(Label::from);
        out.put(&m::DRIVER_INFO, &versions, Flag(true));
        out.put(&m::GPUS, &[], Count(state.gpus.into()));
    }
}

fn put_gpu(gpu: &Gpu, condition: Condition, now: Timestamp, interval: Duration, out: &mut Batch) {
    let [index, uuid] = &gpu.labels;
    let with = |label: Label| [index.clone(), uuid.clone(), label];
    for possible in Condition::ALL {
        out.put(&m::STATUS, &with(possible.label().into()), Flag(possible == condition));
    }
    let age = gpu.age(now);
    out.put(&m::SAMPLE_AGE, &gpu.labels, age.into());
    for (number, events) in gpu.xids.counts() {
        let severity = xid::severity(number).label().into();
        let labels = [index.clone(), uuid.clone(), number.into(), severity];
        out.put(&m::XID_ERRORS, &labels, Count(events));
    }
    if !gpu.identity.uuid.is_empty() {
        convert::info(gpu, out);
    }
    if let Some(sample) = &gpu.sample
        && age <= stale_after(interval)
        && condition != Condition::Lost
    {
        convert::values(gpu, sample, out);
    }
}

/// What NVML's own state means for the source.
fn verdict(world: &World, now: Timestamp, driver: bool) -> Result<(), SourceError> {
    let state = &world.state;
    let failed = |kind| Err(SourceError::failed(kind, state.why.clone()));
    match state.status {
        Status::Ok if world.answers(now) => Ok(()),
        Status::Ok => Err(SourceError::failed(Failure::Timeout, "the GPU worker is silent")),
        Status::LibraryAbsent if driver => failed(Failure::NotFound),
        Status::LibraryAbsent => Err(SourceError::unavailable(state.why.clone())),
        Status::DriverNotLoaded => failed(Failure::Lost),
        Status::NoPermission => failed(Failure::Permission),
        Status::VersionMismatch | Status::UnknownError => failed(Failure::Io),
        Status::WorkerFailed => failed(Failure::Lost),
        Status::Released => Err(SourceError::unavailable(state.why.clone())),
        Status::Initializing if world.begun.is_some_and(|begun| now.since(begun) > SLOW_START) => {
            Err(SourceError::failed(Failure::Timeout, "NVML has not answered yet"))
        }
        Status::Initializing => Err(SourceError::unavailable("NVML is being started")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::KernelXid;
    use crate::sources::gpu::field::Field;
    use crate::sources::gpu::protocol::{
        Identity, Instance, Line, Memory, Process, Reason, Refusal, Sample, State, Trouble,
    };
    use expect_test::{Expect, expect};

    const SECOND: Duration = Duration::from_secs(1);

    /// A world with one GPU that has said who it is at second 0.
    fn world() -> World {
        let mut world = World::default();
        let at = Timestamp::from_secs(0);
        let generation = world.worker_started(at);
        let lines = [
            Line::State(State { status: Status::Ok, gpus: 1, ..State::default() }),
            Line::Device(Box::new(Identity { uuid: "GPU-a".into(), ..Identity::default() })),
        ];
        lines.into_iter().for_each(|line| world.take(generation, at, line));
        world
    }

    fn take(world: &mut World, second: u64, line: Line) {
        world.take(1, Timestamp::from_secs(second), line);
    }

    fn sample(values: &[(Field, u64)], processes: Option<Vec<Process>>) -> Line {
        Line::Sample(Box::new(Sample { values: values.to_vec(), processes, ..Sample::default() }))
    }

    /// Compares every point of a metric whose name has `filter`, zeros of one-hot families left out.
    fn check(world: &World, second: u64, filter: &str, expected: Expect) {
        let mut batch = Batch::new();
        let outcome = put(world, Timestamp::from_secs(second), SECOND, true, &mut batch);
        let mut text = String::new();
        for family in batch.families().iter().filter(|family| family.desc.name.contains(filter)) {
            let one_hot = family.desc.labels.contains(&"status");
            for point in family.points.iter().filter(|point| !one_hot || point.value > 0.0) {
                let labels: Vec<_> = family
                    .desc
                    .labels
                    .iter()
                    .zip(&point.labels)
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                text += &format!("{} {} {}\n", family.desc.name, labels.join(","), point.value);
            }
        }
        let outcome = match outcome {
            Ok(()) => "ok".to_owned(),
            Err(SourceError::Unavailable { why }) => format!("unavailable: {why}"),
            Err(SourceError::Failed { kind, why }) => format!("{}: {why}", kind.label()),
        };
        expected.assert_eq(&format!("{text}{outcome}\n"));
    }

    fn process(pid: u32, memory: Option<u64>) -> Process {
        Process { pid, memory, sm: None }
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
    fn what_no_process_has_is_unattributed() {
        let used = [(Field::MemoryUsed, 1_000)];
        let mut world = world();
        take(&mut world, 1, sample(&used, Some(vec![process(7, Some(600)), process(8, Some(100))])));
        check(
            &world,
            1,
            "memory",
            expect![[r#"
            memwarden_gpu_memory_used_bytes gpu=0,uuid=GPU-a 1000
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
    fn more_than_all_of_the_time_is_no_share() {
        let mut world = world();
        let processes = vec![Process { pid: 7, memory: None, sm: Some(101) }];
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
    fn a_hung_gpu_keeps_its_status_and_loses_its_values() {
        let mut world = world();
        take(&mut world, 1, sample(&[(Field::Power, 1_000)], None));
        check(
            &world,
            5,
            "gpu_status",
            expect![[r#"
                memwarden_gpu_status gpu=0,uuid=GPU-a,status=unobserved 1
                timeout: the GPU worker is silent
            "#]],
        );
        take(&mut world, 5, Line::Beat {});
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
        (6..12).for_each(|second| take(&mut world, second, Line::Beat {}));
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
            "age",
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
    fn an_instance_names_its_parent() {
        let mut world = world();
        let memory = Some(Memory { total: 100, used: 60, free: 40, reserved: None });
        let instance = Instance { uuid: "MIG-b".into(), name: "1g".into(), gi: Some(9), ci: None, memory };
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
    fn a_counter_that_wraps_goes_on() {
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
        // What a dead worker left in its pipe is not taken.
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
    fn a_typed_failure_outlives_the_worker_that_told_it() {
        let mut world = World::default();
        let at = Timestamp::from_secs(0);
        world.begun = Some(at);
        check(
            &world,
            1,
            "nvml",
            expect![[r#"
            memwarden_nvml_status status=initializing 1
            unavailable: NVML is being started
        "#]],
        );
        check(
            &world,
            31,
            "nvml",
            expect![[r#"
            memwarden_nvml_status status=initializing 1
            timeout: NVML has not answered yet
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
    fn the_kernel_log_is_heard_before_any_gpu() {
        let mut world = World::default();
        let at = Timestamp::from_secs(0);
        let told = |pci: &str, xid| KernelXid { pci: pci.to_owned(), xid, kernel_us: 0 };
        world.take_kernel(at, &[told("0000:3b:00", 79), told("0000:3b:00", 79), told("?", 79)]);
        check(
            &world,
            1,
            "unplaced",
            expect![[r#"
                memwarden_gpu_unplaced_xid_errors_total pci=0000:3b:00,xid=79,severity=critical 2
                memwarden_gpu_unplaced_xid_errors_total pci=other,xid=other,severity=unknown 1
                unavailable: NVML is being started
            "#]],
        );
        world.take_kernel(at, &[told("0000:5e:00", 7)]);
        check(
            &world,
            1,
            "meaning",
            expect![[r#"
                memwarden_gpu_xid_meaning_info xid=7,severity=unknown,meaning=not in memwarden's table 1
                memwarden_gpu_xid_meaning_info xid=79,severity=critical,meaning=the GPU fell off the bus 1
                unavailable: NVML is being started
            "#]],
        );
        let generation = world.worker_started(at);
        world.take(generation, at, Line::State(State { status: Status::Ok, gpus: 1, ..State::default() }));
        let (uuid, pci) = ("GPU-a".to_owned(), "00000000:3B:00.0".to_owned());
        world.take(generation, at, Line::Device(Box::new(Identity { uuid, pci, ..Identity::default() })));
        assert_eq!(world.gpus[0].xids.counts().find(|xid| xid.0 == 79), Some((79, 2)));
        assert_eq!(world.unplaced.counts().count(), 1);
    }

    #[test]
    fn lines_about_gpus_that_are_not_there_are_refused() {
        let mut world = world();
        let before = world.bad_lines;
        take(&mut world, 1, Line::Sample(Box::new(Sample { gpu: 7, ..Sample::default() })));
        take(&mut world, 1, Line::State(State { status: Status::Ok, gpus: u32::MAX, ..State::default() }));
        take(&mut world, 1, Line::State(State { status: Status::Released, ..State::default() }));
        assert_eq!(world.bad_lines, before + 3);
        assert_eq!(world.gpus.len(), 1);
    }

    #[test]
    fn a_gpu_that_changes_its_index_keeps_what_is_known_of_it() {
        let mut world = world();
        take(&mut world, 1, Line::Xid(crate::sources::gpu::protocol::Xid { gpu: 0, xid: 79 }));
        let identity = |gpu, uuid: &str| {
            Line::Device(Box::new(Identity { gpu, uuid: uuid.into(), ..Identity::default() }))
        };
        take(&mut world, 2, Line::State(State { status: Status::Ok, gpus: 2, ..State::default() }));
        take(&mut world, 2, identity(0, "GPU-b"));
        take(&mut world, 2, identity(1, "GPU-a"));
        let mut known: Vec<_> = world
            .gpus
            .iter()
            .map(|gpu| {
                (
                    gpu.labels.clone().map(|label| label.to_string()),
                    gpu.xids.counts().map(|x| x.1).sum::<u64>(),
                )
            })
            .collect();
        known.sort();
        let expected = [(["0", "GPU-b"], 0), (["1", "GPU-a"], 1)];
        assert_eq!(known, expected.map(|(labels, count)| (labels.map(str::to_owned), count)));
    }
}
