//! Workloads that use their memory, and workloads that do not.

use super::*;
use crate::model::point::Batch;
use crate::model::setting::Settings;
use crate::model::units::{Count, Flag, Ratio};

const GIB: u64 = 1 << 30;

/// A workload at one time.
#[derive(Clone, Copy)]
struct State {
    /// Utilization of its GPU; absent where it is unknown.
    gpu: Option<f64>,
    gpu_gib: u64,
    host_gib: u64,
    /// CPU seconds so far.
    cpu: f64,
    saving: bool,
    unit: bool,
}

/// Nothing is used: 40 GiB of a GPU and 20 GiB of the host are held.
const UNUSED: State =
    State { gpu: Some(0.0), gpu_gib: 40, host_gib: 20, cpu: 0.0, saving: false, unit: false };

/// The findings, and the exposed values, after each of `minutes`, with a sample every 10 s.
fn replay(
    minutes: u64,
    state: impl Fn(u64) -> State,
) -> Vec<(Vec<&'static str>, BTreeMap<&'static str, f64>)> {
    let mut analyzer = (REGISTRATION.build)(&Settings::default());
    let mut last = Vec::new();
    for second in (0..=minutes * 60).step_by(10) {
        let State { gpu, gpu_gib, host_gib, cpu, saving, unit } = state(second);
        let mut batch = Batch::new();
        let name: Label = "sft".into();
        let kind: Label = if unit { "unit".into() } else { "slurm".into() };
        let mut info = vec![Label::default(); workload::metrics::INFO.desc.labels.len()];
        (info[0], info[1]) = (name.clone(), kind);
        batch.put(&workload::metrics::INFO, &<[Label; 15]>::try_from(info).unwrap(), Flag(true));
        batch.put(&workload::metrics::RSS, std::slice::from_ref(&name), Bytes::new(host_gib * GIB));
        batch.put(&workload::metrics::ANON, std::slice::from_ref(&name), Bytes::new(host_gib * GIB));
        batch.put_some(&workload::metrics::CPU, std::slice::from_ref(&name), Seconds::new(cpu));
        let device: [Label; 3] = [name.clone(), "0".into(), "GPU-a".into()];
        if gpu_gib > 0 {
            batch.put(&workload::metrics::GPU_MEMORY, &device, Bytes::new(gpu_gib * GIB));
            batch.put(&workload::metrics::GPU_PROCESSES, &device, Count(1));
        }
        batch.put_some(
            &crate::sources::gpu::metrics::UTILIZATION,
            &["0".into(), "GPU-a".into()],
            gpu.and_then(Ratio::new),
        );
        let states = [("saving", saving), ("saved", false)];
        for (state, on) in states {
            batch.put(&training::metrics::CHECKPOINT, &[name.clone(), "0".into(), state.into()], Flag(on));
        }
        let mut out = Analysis::default();
        analyzer.analyze(&View::new(batch.families()), Timestamp::from_secs(second), &mut out);
        if second % 60 == 0 {
            let (families, ..) = out.batch.seal();
            let values = families.iter().map(|family| (family.desc.name, family.points[0].value)).collect();
            last.push((out.findings.iter().map(|finding| finding.state).collect(), values));
        }
    }
    last
}

/// The first minute with each finding.
fn first(minutes: u64, state: impl Fn(u64) -> State) -> Vec<(usize, &'static str)> {
    let all = replay(minutes, state);
    let mut found: Vec<(usize, &str)> = Vec::new();
    for (minute, (states, _)) in all.into_iter().enumerate() {
        for state in states {
            if found.iter().all(|(_, known)| *known != state) {
                found.push((minute, state));
            }
        }
    }
    found
}

#[test]
fn an_unused_gpu_is_reported_with_its_memory_since_its_last_use() {
    // Used for ten minutes, then not.
    let state = |second| State { gpu: Some(if second <= 600 { 0.9 } else { 0.0 }), cpu: 1.0, ..UNUSED };
    assert_eq!(first(60, state), [(26, "gpu_idle")]);
    let all = replay(40, state);
    let GibAndTimes { bytes, since, counted } = gib_and_times(&all[40].1);
    assert_eq!((bytes, since), (40.0, 610.0));
    assert!((counted - (2400.0 - 610.0)).abs() < 1.0, "{counted}");
    assert!(all[24].1.is_empty(), "nothing is exposed before");
}

struct GibAndTimes {
    bytes: f64,
    since: f64,
    counted: f64,
}

fn gib_and_times(values: &BTreeMap<&'static str, f64>) -> GibAndTimes {
    #[expect(clippy::cast_precision_loss, reason = "a unit")]
    let gib = GIB as f64;
    GibAndTimes {
        bytes: values["memwarden_idle_gpu_memory_bytes"] / gib,
        since: values["memwarden_idle_gpu_since_timestamp_seconds"],
        counted: values["memwarden_idle_gpu_seconds_total"],
    }
}

#[test]
fn start_up_evaluation_and_checkpoints_are_not_idle() {
    // Data preparation on four cores for 50 minutes.
    let preparing = |second: u64| State { cpu: 4.0 * seconds_f64(second), ..UNUSED };
    assert_eq!(first(50, preparing), []);
    assert_eq!(first(70, preparing), [(60, "gpu_idle")], "a job that never begins is reported in the end");
    // A step every ten minutes, as in an evaluation on the CPU.
    let now_and_then = |second| State { gpu: Some(if second % 600 == 0 { 0.5 } else { 0.0 }), ..UNUSED };
    assert_eq!(first(120, now_and_then), []);
    let saving = |_| State { saving: true, ..UNUSED };
    assert_eq!(first(120, saving), []);
}

#[test]
fn unknown_utilization_is_not_idle() {
    assert_eq!(first(120, |_| State { gpu: None, ..UNUSED }), []);
    // Half of the time without a value: each period begins again.
    let gaps = |second| State { gpu: (second % 600 < 300).then_some(0.0), ..UNUSED };
    assert_eq!(first(120, gaps), []);
}

#[test]
fn small_amounts_are_not_reported() {
    assert_eq!(first(120, |_| State { gpu_gib: 0, host_gib: 7, ..UNUSED }), []);
}

#[test]
fn host_memory_of_an_inactive_workload_is_reported_after_an_hour() {
    let inactive = |_| State { gpu_gib: 0, ..UNUSED };
    assert_eq!(first(120, inactive), [(60, "host_idle")]);
    assert_eq!(first(120, |_| State { unit: true, ..inactive(0) }), [], "services hold memory on purpose");
    // Three CPU seconds every ten minutes.
    let timer = |second: u64| State { cpu: 3.0 * seconds_f64(second / 600), ..inactive(0) };
    assert_eq!(first(120, timer), [(60, "host_idle")]);
    let worker = |second: u64| State { cpu: 0.1 * seconds_f64(second), ..inactive(0) };
    assert_eq!(first(120, worker), []);
}

#[expect(clippy::cast_precision_loss, reason = "seconds of a test")]
fn seconds_f64(second: u64) -> f64 {
    second as f64
}
