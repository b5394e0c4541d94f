//! Forecasts of exhaustion.

use super::*;
use crate::model::facts::{GpuProcess, ProcessRow, ProcessTable};
use crate::model::finding::{Severity, Subject};
use crate::model::units::Seconds;

const TTE: &str = "memwarden_forecast_time_to_exhaustion_seconds";

const HEALTH: &str = "memwarden_forecast_health";

#[test]
fn exhaustion_of_a_host_that_fills_up_is_forecast() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 1800, growing_host);
    // 44 GiB at 8 MiB/s are 5,632 s, of which 1,800 have passed.
    let p50 = value(&analysis, TTE, &["host", "p50"]).unwrap();
    assert!((p50 - 3832.0).abs() < 400.0, "{p50}");
    let (p10, p90) =
        (value(&analysis, TTE, &["host", "p10"]).unwrap(), value(&analysis, TTE, &["host", "p90"]).unwrap());
    assert!(p10 < p50 && p50 < p90, "{p10} {p50} {p90}");
    let growth = value(&analysis, "memwarden_forecast_growth_bytes_per_second", &["host"]).unwrap();
    assert!((growth / (GIB / 128.0) - 1.0).abs() < 0.1, "{growth}");
    assert_eq!(value(&analysis, HEALTH, &["host", "warning", "leaks"]), Some(1.0));
    assert_eq!(analysis.findings.len(), 1);
    assert_eq!(analysis.findings[0].state, "leaks");
}

#[test]
fn a_healthy_host_has_no_time_to_exhaustion() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 1800, |second, batch| {
        let used = 30.0 * GIB + f64::from(second % 40) * GIB / 8.0 + noise(second) * GIB / 64.0;
        bytes(batch, &memory::metrics::TOTAL, &[], 64.0 * GIB);
        bytes(batch, &memory::metrics::AVAILABLE, &[], 64.0 * GIB - used);
    });
    assert_eq!(value(&analysis, TTE, &["host"]), None);
    assert_eq!(value(&analysis, HEALTH, &["host", "ok", "none"]), Some(1.0));
    assert_eq!(
        value(&analysis, "memwarden_forecast_exhaustion_probability_ratio", &["host", "60m"]),
        Some(0.0)
    );
    assert!(analysis.findings.is_empty(), "{:?}", analysis.findings);
}

/// A host of 24 GB with this much used memory.
fn host(used: f64, batch: &mut Batch) {
    let total = 24_032.0 * 1_048_576.0;
    bytes(batch, &memory::metrics::TOTAL, &[], total);
    bytes(batch, &memory::metrics::AVAILABLE, &[], total - used);
    bytes(batch, &memory::metrics::ANON, &[], used);
    bytes(batch, &memory::metrics::SHMEM, &[], 0.0);
}

#[test]
fn a_host_on_which_programs_are_compiled_neither_leaks_nor_is_about_to_be_full() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    for (second, used) in (0..).zip(builds()) {
        let analysis = run(&mut *analyzer, second, second + 1, |_, batch| host(used, batch));
        assert!(analysis.findings.is_empty(), "{second} s, {used} bytes: {:?}", analysis.findings);
    }
}

#[test]
fn what_held_within_the_last_minute_is_not_said_of_now() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let total = 24_032.0 * 1_048_576.0;
    let mut said = |second: u32, share: f64| {
        let analysis = run(&mut *analyzer, second, second + 1, |_, batch| host(share * total, batch));
        analysis.findings.first().map(|finding| finding.summary.clone())
    };
    let last = (0..60).map(|second| said(second, 0.95)).last().flatten();
    assert_eq!(last.as_deref(), Some("Memory of the host may run out: at least 90 % of the limit is used."));
    for second in 60..150 {
        let now = said(second, 0.7);
        let expected = "Memory of the host may run out: it was nearly full less than a minute ago.";
        assert_eq!(now.as_deref(), (second < 120).then_some(expected), "{second}");
    }
}

#[test]
fn a_host_that_fills_up_within_minutes_is_critical_when_half_of_the_time_has_passed() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let critical = (0..400).find(|second| {
        let since = f64::from(second.max(&100) - 100);
        let used = 1e9 + since * 80e6 + noise(*second) * 10e6;
        let analysis = run(&mut *analyzer, *second, second + 1, |_, batch| host(used, batch));
        analysis.findings.iter().any(|finding| finding.severity == Severity::Critical)
    });
    // The host is full after 402 s, of which it grows for 302.
    assert!(critical.is_some_and(|second| (200..300).contains(&second)), "{critical:?}");
}

#[test]
fn what_was_learned_survives_a_restart() {
    let mut first = build(&exhaustion::REGISTRATION);
    run(&mut *first, 0, 1800, growing_host);
    let mut text = Vec::new();
    first.save().unwrap()(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let mut second = build(&exhaustion::REGISTRATION);
    second.restore(&text).unwrap();
    let analysis = run(&mut *second, 1805, 1807, growing_host);
    let p50 = value(&analysis, TTE, &["host", "p50"]).unwrap();
    assert!((p50 - 3826.0).abs() < 400.0, "{p50}");
    let mut third = build(&exhaustion::REGISTRATION);
    assert!(third.restore("{\"not\": \"ours\"}").is_err());
    let analysis = run(&mut *third, 1805, 1807, growing_host);
    assert_eq!(value(&analysis, TTE, &["host"]), None, "nothing was learned");
}

/// GPU 0 of 80 GiB with this memory in use and these processes, each with its pid as its start time in seconds.
fn gpu(used: f64, pids: &[u32], batch: &mut Batch) {
    use crate::sources::gpu::metrics::{MEMORY_FREE, MEMORY_USED, PROCESSES};
    let labels: [Label; 2] = ["0".into(), "GPU-0".into()];
    bytes(batch, &MEMORY_USED, &labels, used);
    bytes(batch, &MEMORY_FREE, &labels, 80.0 * GIB - used);
    batch.put(&PROCESSES, &labels, Count(pids.len() as u64));
    let [index, uuid] = labels;
    let held = |pid: &u32| GpuProcess { pid: *pid, gpu: index.clone(), uuid: uuid.clone(), memory: None };
    batch.facts.gpu_processes = pids.iter().map(held).collect();
    let row = |pid: &u32| ProcessRow {
        parent: 1,
        state: b'R',
        ..ProcessRow::new(ProcessKey { pid: *pid, start: u64::from(*pid) * 100 }, "python".into())
    };
    let rows = pids.iter().map(row).collect();
    batch.facts.processes = Some(Arc::new(ProcessTable { rows, boot: None }));
}

#[test]
fn the_leak_of_a_run_that_has_ended_is_not_that_of_the_next_one_on_the_gpu() {
    let leaks = |analysis: &Analysis| analysis.findings.iter().any(|finding| finding.state != "none");
    let base = 60.0 * GIB;
    let leak = |second: u32| base + f64::from(second) * GIB / 50.0;
    let mut analyzer = build(&exhaustion::REGISTRATION);
    assert!(leaks(&run(&mut *analyzer, 0, 640, |second, batch| gpu(leak(second), &[100], batch))));
    // The same memory with a process more, and without the first one: it is still the load that leaks.
    assert!(leaks(&run(&mut *analyzer, 640, 650, |second, batch| gpu(leak(second), &[100, 300], batch))));
    assert!(leaks(&run(&mut *analyzer, 650, 660, |second, batch| gpu(leak(second), &[300], batch))));
    for (from, to, used, pids) in [(660, 690, 0.0, &[][..]), (690, 900, base, &[700])] {
        for second in from..to {
            let analysis = run(&mut *analyzer, second, second + 1, |_, batch| gpu(used, pids, batch));
            assert!(!leaks(&analysis), "{second}: {:?}", analysis.findings);
        }
    }
}

#[test]
fn a_workload_runs_out_where_its_cgroup_does() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 900, |second, batch| {
        let used = GIB + f64::from(second) * GIB / 1024.0 + noise(second) * GIB / 512.0;
        let (path, name): (Label, Label) = ("/jobs/7".into(), "train".into());
        bytes(batch, &memory::metrics::TOTAL, &[], 64.0 * GIB);
        bytes(batch, &memory::metrics::AVAILABLE, &[], 50.0 * GIB);
        bytes(batch, &cgroup::metrics::LIMIT, &["/jobs".into()], 4.0 * GIB);
        for cgroup in [&path, &"/jobs".into()] {
            let cgroup = std::slice::from_ref(cgroup);
            bytes(batch, &cgroup::metrics::ANON, cgroup, used + GIB / 2.0);
            bytes(batch, &cgroup::metrics::SHMEM, cgroup, 0.0);
            // Full of file cache, which is healthy.
            bytes(batch, &cgroup::metrics::WORKING_SET, cgroup, 4.0 * GIB);
        }
        let mut labels = vec![Label::default(); workload::metrics::INFO.desc.labels.len()];
        (labels[0], labels[3]) = (name.clone(), path);
        batch.put(&workload::metrics::INFO, &labels, Flag(true));
        let name = std::slice::from_ref(&name);
        bytes(batch, &workload::metrics::RSS, name, used + GIB);
        bytes(batch, &workload::metrics::ANON, name, used);
        bytes(batch, &workload::metrics::SHMEM, name, 0.0);
    });
    // 2.5 GiB at 1 MiB/s are 2,560 s, of which 900 have passed; the host would last far longer.
    for subject in ["workload", "cgroup"] {
        let p50 = value(&analysis, TTE, &[subject, "p50"]).unwrap();
        assert!((p50 - 1660.0).abs() < 250.0, "{subject}: {p50}");
    }
    assert_eq!(value(&analysis, TTE, &["host"]), None);
    let headroom = value(&analysis, "memwarden_forecast_headroom_bytes", &["cgroup"]).unwrap();
    assert!((headroom / (1.62 * GIB) - 1.0).abs() < 0.05, "{headroom}");
}

/// A workload in `/jobs/7` that takes 1 MiB of a region more each second, from 1 GiB on; these cgroups have limits.
fn device_memory(limits: &[(&str, f64)], second: u32, batch: &mut Batch) {
    let region: Label = "drm/0000:03:00.0/vram".into();
    let used = GIB + f64::from(second) * GIB / 1024.0 + noise(second) * GIB / 512.0;
    let mut labels = vec![Label::default(); workload::metrics::INFO.desc.labels.len()];
    (labels[0], labels[3]) = ("train".into(), "/jobs/7".into());
    batch.put(&workload::metrics::INFO, &labels, Flag(true));
    for (path, used) in [("/jobs", used + GIB), ("/jobs/7", used), ("/jobs/8", GIB), ("/jobs/7/child", used)]
    {
        bytes(batch, &cgroup::metrics::DEVICE_USAGE, &[path.into(), region.clone()], used);
    }
    for (path, limit) in limits {
        bytes(batch, &cgroup::metrics::DEVICE_LIMIT, &[(*path).into(), region.clone()], *limit);
    }
}

#[test]
fn device_memory_runs_out_at_the_nearest_limit_on_the_path() {
    let seen = |limits: &[(&str, f64)]| {
        let mut analyzer = build(&exhaustion::REGISTRATION);
        let analysis = run(&mut *analyzer, 0, 900, |second, batch| device_memory(limits, second, batch));
        let known = analysis.outlook.conclusions.iter().map(|known| {
            let forecast = known.forecast.as_ref().unwrap();
            assert!(known.identity.is_none(), "protection has no level for it");
            let limit = (forecast.limit_bytes / GIB * 10.0).round() / 10.0;
            format!("{}: {limit}, {}", known.subject, forecast.rule.label())
        });
        let known: Vec<String> = known.collect();
        (known, analysis)
    };
    let (known, analysis) = seen(&[("/jobs/7", 4.0 * GIB)]);
    assert_eq!(known, ["device memory /jobs/7 drm/0000:03:00.0/vram: 4, exhaustion_within_60m"]);
    // 3 GiB at 1 MiB/s are 3,072 s, of which 900 have passed.
    let region = "drm/0000:03:00.0/vram";
    let p50 = value(&analysis, TTE, &["device_memory", "/jobs/7", region, "p50"]).unwrap();
    assert!((p50 - 2172.0).abs() < 300.0, "{p50}");
    let [finding] = &*analysis.findings else { panic!("{:?}", analysis.findings) };
    assert_eq!(finding.severity, Severity::Warning);
    expect!["Memory of device memory /jobs/7 drm/0000:03:00.0/vram may run out: exhaustion within an hour is more likely than not (by the trend)."]
        .assert_eq(&finding.summary);
    assert!(finding.advice.contains("dmem.max"), "{}", finding.advice);
    // The limit of the cgroup above is nearer for the job, although it is larger.
    let (known, _) = seen(&[("/jobs", 4.5 * GIB), ("/jobs/7", 4.0 * GIB)]);
    expect![[r#"
        [
            "device memory /jobs drm/0000:03:00.0/vram: 4.5, exhaustion_within_60m",
            "device memory /jobs/7 drm/0000:03:00.0/vram: 3.5, exhaustion_within_60m",
        ]
    "#]]
    .assert_debug_eq(&known);
    // Only the cgroup above has one: it limits the cgroup of the workload, and others are not stated.
    let (known, _) = seen(&[("/jobs", 3.0 * GIB)]);
    expect![[r#"
        [
            "device memory /jobs drm/0000:03:00.0/vram: 3, exhaustion_within_15m",
            "device memory /jobs/7 drm/0000:03:00.0/vram: 2, exhaustion_within_15m",
        ]
    "#]]
    .assert_debug_eq(&known);
    // 0 forbids the region; without a limit there is none.
    assert!(seen(&[("/jobs/9", 0.0)]).0.is_empty());
    assert!(seen(&[]).0.is_empty());
}

#[test]
fn a_workload_without_a_limit_has_what_it_holds_on_gpus_of_the_host() {
    let at = |limit: Option<f64>| {
        let mut analyzer = build(&exhaustion::REGISTRATION);
        let analysis = run(&mut *analyzer, 0, 5, |_, batch| {
            let name = &["job".into()][..];
            bytes(batch, &memory::metrics::TOTAL, &[], 120.0 * GIB);
            bytes(batch, &memory::metrics::AVAILABLE, &[], 30.0 * GIB);
            for (metric, value) in [
                (&workload::metrics::RSS, 3.0),
                (&workload::metrics::ANON, 2.0),
                (&workload::metrics::SHMEM, 0.0),
                (&workload::metrics::POOL, 83.0),
            ] {
                bytes(batch, metric, name, value * GIB);
            }
            let mut labels = vec![Label::default(); workload::metrics::INFO.desc.labels.len()];
            let cgroup = workload::metrics::INFO.desc.labels.iter().position(|label| *label == "cgroup");
            (labels[0], labels[cgroup.unwrap()]) = ("job".into(), "/jobs".into());
            batch.put(&workload::metrics::INFO, &labels, Flag(true));
            if let Some(limit) = limit {
                bytes(batch, &cgroup::metrics::LIMIT, &["/jobs".into()], limit);
                bytes(batch, &cgroup::metrics::WORKING_SET, &["/jobs".into()], 2.0 * GIB);
            }
        });
        let mut found = analysis.outlook.conclusions.iter();
        let found = found.find(|found| found.subject == Subject::workload(&"job".into()));
        found
            .and_then(|found| found.forecast.as_ref())
            .map(|forecast| (forecast.used_bytes / GIB, forecast.limit_bytes / GIB))
    };
    assert_eq!(at(None), Some((82.0, 112.0)));
    // The limit of a cgroup does not limit the memory on the GPU.
    assert_eq!(at(Some(8.0 * GIB)), Some((2.0, 8.0)));
}

#[test]
fn a_workload_that_starts_again_is_forecast_again() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    // Two hours flat, a leak of ten minutes, a kill, and the same leak once more.
    let put = |second: u32, batch: &mut Batch| {
        let life = if second < 7_800 { 100.0 } else { 7_800.0 };
        let leaked = f64::from(if second < 7_800 { second.saturating_sub(7_200) } else { second - 7_800 });
        let used = GIB + leaked * GIB / 200.0 + noise(second) * GIB / 512.0;
        let name: Label = "train".into();
        let name = std::slice::from_ref(&name);
        bytes(batch, &memory::metrics::TOTAL, &[], 5.0 * GIB);
        bytes(batch, &memory::metrics::AVAILABLE, &[], 4.0 * GIB - leaked * GIB / 200.0);
        bytes(batch, &workload::metrics::RSS, name, used);
        bytes(batch, &workload::metrics::ANON, name, used);
        bytes(batch, &workload::metrics::SHMEM, name, 0.0);
        batch.put_some(&workload::metrics::START, name, crate::model::units::Seconds::new(life));
    };
    let analysis = run(&mut *analyzer, 0, 8_100, put);
    // 4 GiB at 5 MiB/s are 800 s, of which 300 have passed.
    let p50 = value(&analysis, TTE, &["workload", "p50"]).unwrap();
    assert!((p50 - 500.0).abs() < 100.0, "{p50}");
}

#[test]
fn an_allocator_runs_out_by_its_tensors_and_not_by_what_it_has_taken() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 1800, growing_rank);
    let labels = ["allocator", "5", "job", "9"];
    let with = |last: &'static str| [labels.as_slice(), &[last]].concat();
    let left = value(&analysis, "memwarden_forecast_headroom_bytes", &labels).unwrap();
    assert!((left / GIB - 26.0).abs() < 0.2, "{left}");
    // 40 GiB at 8 MiB/s are 5,120 s, of which 1,800 have passed: the driver sees nothing grow.
    let p50 = value(&analysis, TTE, &with("p50")).unwrap();
    assert!((p50 - 3_320.0).abs() < 400.0, "{p50}");
}

#[test]
fn the_outlook_names_by_identity_who_is_meant() {
    use crate::model::facts::{Facts, GpuProcess, Membership, ReportedRank};
    use crate::model::ids::ProcessKey;
    use crate::model::outlook::Resource;
    let process = ProcessKey { pid: 9, start: 4_711 };
    let workload = Membership::named(process, "job").workload;
    let put = |second: u32, batch: &mut Batch| {
        growing_rank(second, batch);
        growing_host(second, batch);
        let name: Label = "job".into();
        let used = 2.0 * GIB + f64::from(second) * GIB / 128.0 + noise(second) * GIB / 64.0;
        bytes(batch, &workload::metrics::RSS, std::slice::from_ref(&name), used);
    };
    let analysis = |registration: &Registration, facts: &Facts| {
        let mut analyzer = build(registration);
        run(&mut *analyzer, 0, 1799, put);
        let (mut batch, mut last) = (Batch::new(), Analysis::default());
        put(1799, &mut batch);
        let view = View::new(batch.families()).with_facts(facts);
        analyzer.analyze(&view, Timestamp::from_secs(1799), &mut last);
        last
    };
    let rank = ReportedRank {
        key: Some(process),
        workload: "job".into(),
        rank: "3".into(),
        run: Label::default(),
        cannot_save: None,
    };
    let gpu = GpuProcess { pid: 9, gpu: "5".into(), uuid: "GPU-5".into(), memory: None };
    let facts = Facts {
        ranks: vec![rank],
        gpu_processes: vec![gpu],
        workloads: vec![std::sync::Arc::clone(&workload)],
        ..Facts::default()
    };
    let foreseen = analysis(&exhaustion::REGISTRATION, &facts);
    let forecasts: Vec<_> = foreseen.outlook.forecasts().unwrap().collect();
    let resources: Vec<_> = forecasts.iter().map(|(resource, _)| (*resource).clone()).collect();
    let allocator = Resource::Allocator { process, device: Some("GPU-5".into()) };
    let workload = Resource::Workload(workload.key.clone());
    assert_eq!(resources, [Resource::Host, allocator.clone(), workload.clone()]);
    let labels = [&["host"][..], &["allocator", "9"], &["workload", "job"]];
    for ((_, forecast), labels) in forecasts.iter().zip(labels) {
        let point = |metric: &str, last| value(&foreseen, metric, &[labels, &[last]].concat());
        let tte = forecast.time_to_exhaustion.unwrap();
        let points = [Some(tte.p10), Some(tte.p50), tte.p90];
        assert_eq!(points, ["p10", "p50", "p90"].map(|estimate| point(TTE, estimate)));
        let within = forecast.within;
        let name = "memwarden_forecast_exhaustion_probability_ratio";
        assert_eq!(within, ["1m", "5m", "15m", "60m"].map(|horizon| point(name, horizon)));
    }
    let outlook = analysis(&leak::REGISTRATION, &facts).outlook;
    let leaking = outlook.growths().unwrap().filter(|(_, growth)| growth.leaks());
    assert_eq!(leaking.map(|(resource, _)| resource.clone()).collect::<Vec<_>>(), [allocator, workload]);
    // Who is not known is not named, though somebody has the name and the pid; both still look.
    let unknown = analysis(&exhaustion::REGISTRATION, &Facts::default()).outlook;
    assert_eq!(
        unknown.forecasts().unwrap().map(|(resource, _)| resource).collect::<Vec<_>>(),
        [&Resource::Host]
    );
    let unknown = analysis(&leak::REGISTRATION, &Facts::default()).outlook;
    assert!(unknown.forecasts().is_none() && unknown.growths().unwrap().next().is_none());
}

/// A rank that takes two steps a second and evaluates after every 200 steps. An evaluation takes 10 GiB for less than a
/// second, which no sample shows. `per_step` bytes of each step are never released.
fn evaluating_rank(second: u32, per_step: f64, reports: bool, batch: &mut Batch) {
    use crate::model::units::{Count, Flag};
    use crate::sources::training::metrics::{
        ALLOCATED, DEVICE_FREE, INFO, PHASE_PEAK, PHASES, RESERVED, STEPS,
    };
    let mut info: Vec<Label> = INFO.desc.labels.iter().map(|_| Label::default()).collect();
    for (name, value) in [("workload", "job"), ("rank", "3"), ("pid", "9")] {
        info[INFO.desc.labels.iter().position(|label| *label == name).unwrap()] = value.into();
    }
    batch.put(&INFO, &info, Flag(true));
    let labels = ["job".into(), "3".into(), "0".into(), "5".into()];
    let base = |step: f64| 40.0 * GIB + per_step * step;
    let step = f64::from(2 * second);
    bytes(batch, &ALLOCATED, &labels, base(step) + noise(second) * GIB / 1024.0);
    bytes(batch, &RESERVED, &labels, 55.0 * GIB);
    bytes(batch, &DEVICE_FREE, &labels, 5.0 * GIB);
    let rank = ["job".into(), "3".into()];
    batch.put(&STEPS, &rank, Count(u64::from(2 * second)));
    let evaluations = 2 * second / 200;
    if reports && evaluations > 0 {
        let phase = ["job".into(), "3".into(), "evaluate".into()];
        batch.put(&PHASES, &phase, Count(evaluations.into()));
        bytes(batch, &PHASE_PEAK, &phase, base(f64::from(evaluations * 200)) + 10.0 * GIB);
    }
}

#[test]
fn the_peaks_of_a_reported_phase_are_forecast_by_steps() {
    // 60 GiB are exhausted by the evaluation at 10,000 steps, 5,000 s: the level itself is then at 50 GiB.
    let per_step = GIB / 1000.0;
    let labels = ["allocator", "5", "job", "9"];
    let with = |last: &'static str| [labels.as_slice(), &[last]].concat();
    let forecast = |reports: bool| {
        let mut analyzer = build(&exhaustion::REGISTRATION);
        run(&mut *analyzer, 0, 3_950, |second, batch| evaluating_rank(second, per_step, reports, batch))
    };
    let known = forecast(true);
    let [p10, p50, p90] = ["p10", "p50", "p90"].map(|estimate| value(&known, TTE, &with(estimate)).unwrap());
    assert!((p50 - 1_050.0).abs() < 150.0 && p10 <= 1_050.0 && p90 >= 1_000.0, "{p10} {p50} {p90}");
    let summary = &known.findings.iter().find(|finding| finding.subject.resource.as_str() == "allocator");
    let summary = &summary.unwrap().summary;
    assert!(summary.contains("by the peaks of phase evaluate, which occurs every 200 steps"), "{summary}");
    // Without the report, the level is known to reach the limit after twice the time.
    let unknown = value(&forecast(false), TTE, &with("p50")).unwrap();
    assert!(unknown > 3.0 * p50, "{unknown}");
}

/// A job on the host, or in a cgroup with a limit: each evaluation after 200 steps holds 10 GiB more for 10 s; the level
/// grows by `per_step`. Its steps take longer and longer.
fn evaluating_host(second: u32, per_step: f64, group: Option<&str>, batch: &mut Batch) {
    use crate::model::units::{Count, Flag};
    use crate::sources::cgroup::metrics::{LIMIT, WORKING_SET};
    use crate::sources::memory::metrics::{AVAILABLE, TOTAL};
    use crate::sources::training::metrics::{PHASE_NOW, PHASES, STEPS};
    use crate::sources::workload::metrics::{INFO, RSS};
    let steps = (4.0 * 4_000.0 * (1.0 + f64::from(second) / 4_000.0).ln()).floor();
    let evaluations = (steps / 200.0).floor();
    let evaluates = steps - 200.0 * evaluations < 20.0 && evaluations > 0.0;
    let used = 40.0 * GIB + per_step * steps + if evaluates { 10.0 * GIB } else { 0.0 };
    match group {
        None => {
            bytes(batch, &TOTAL, &[], 60.0 * GIB);
            bytes(batch, &AVAILABLE, &[], 60.0 * GIB - used);
        }
        Some(path) => {
            let mut info: Vec<Label> = INFO.desc.labels.iter().map(|_| Label::default()).collect();
            for (name, value) in [("workload", "job"), ("cgroup", "/pod/trainer")] {
                info[INFO.desc.labels.iter().position(|label| *label == name).unwrap()] = value.into();
            }
            batch.put(&INFO, &info, Flag(true));
            // Another process in the group has 3 GiB.
            bytes(batch, &LIMIT, &[path.into()], 63.0 * GIB);
            bytes(batch, &WORKING_SET, &[path.into()], used + (3.0 + noise(second) / 1024.0) * GIB);
        }
    }
    bytes(batch, &RSS, &["job".into()], used + noise(second) * GIB / 1024.0);
    let count = |number: f64| Count(crate::model::units::whole(number));
    batch.put(&STEPS, &["job".into(), "0".into()], count(steps));
    let phase = ["job".into(), "0".into(), "evaluate".into()];
    batch.put(&PHASES, &phase, count(if evaluates { evaluations - 1.0 } else { evaluations }));
    if evaluates {
        batch.put(&PHASE_NOW, &phase, Flag(true));
    }
}

#[test]
fn the_peaks_of_a_reported_phase_of_host_memory_are_forecast_by_steps() {
    let of = |per_step: f64, group: Option<&str>| {
        let mut analyzer = build(&exhaustion::REGISTRATION);
        run(&mut *analyzer, 0, 1_500, |second, batch| evaluating_host(second, per_step, group, batch))
    };
    let pod = Some("/pod");
    for (group, labels) in
        [(None, ["workload", "job"]), (pod, ["workload", "job"]), (pod, ["cgroup", "/pod"])]
    {
        let known = of(GIB / 1000.0, group);
        let finding = known.findings.iter().find(|finding| finding.subject.resource.as_str() == labels[0]);
        let summary = &finding.unwrap().summary;
        assert!(
            summary.contains("by the peaks of phase evaluate, which occurs every 200 steps"),
            "{summary}"
        );
        let p50 = value(&known, TTE, &[labels.as_slice(), &["p50"]].concat()).unwrap();
        assert!((1_200.0..2_200.0).contains(&p50), "{labels:?}: {p50}");
    }
    for group in [None, pod] {
        let steady = of(0.0, group);
        assert!(steady.findings.is_empty(), "{:?}", steady.findings);
    }
}

#[test]
fn peaks_of_a_phase_that_do_not_grow_are_no_forecast() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    // 50 of 60 GiB, again and again.
    let steady = run(&mut *analyzer, 0, 3_000, |second, batch| evaluating_rank(second, 0.0, true, batch));
    assert_eq!(value(&steady, TTE, &["allocator", "5", "job", "9", "p50"]), None);
    let within = value(&steady, "memwarden_forecast_exhaustion_probability_ratio", &["allocator", "60m"]);
    assert_eq!(within, Some(0.0));
}

#[test]
fn conclusions_of_series_without_noise_survive_json() {
    let shapes: [fn(u32) -> f64; 4] = [
        |_| 30.0,
        |second| 20.0 + f64::from(second) / 128.0,
        |second| if second % 60 < 3 { 40.0 } else { 20.0 + f64::from(second) / 1000.0 },
        |second| if second < 600 { 10.0 } else { 60.0 },
    ];
    for (place, shape) in shapes.into_iter().enumerate() {
        for registration in [&exhaustion::REGISTRATION, &leak::REGISTRATION] {
            let analysis = run(&mut *build(registration), 0, 1200, |second, batch| {
                let used = shape(second) * GIB;
                bytes(batch, &memory::metrics::TOTAL, &[], 64.0 * GIB);
                bytes(batch, &memory::metrics::AVAILABLE, &[], 64.0 * GIB - used);
                bytes(batch, &workload::metrics::RSS, &["train".into()], used);
            });
            assert!(!analysis.outlook.conclusions.is_empty(), "{place}");
            for own in &analysis.outlook.conclusions {
                let json = serde_json::to_string(own).unwrap();
                // A number that is not finite would be null, and is not read as one.
                let read: Result<crate::model::outlook::Conclusion, _> = serde_json::from_str(&json);
                assert_eq!(read.map(|read| read.health()).ok(), Some(own.health()), "{place}: {json}");
            }
        }
    }
}

/// A cgroup of 64 GiB with this much used memory, in which one workload runs.
fn job(used: f64, (name, start): (&str, f64), batch: &mut Batch) {
    let path: [Label; 1] = ["/job".into()];
    bytes(batch, &cgroup::metrics::LIMIT, &path, 64.0 * GIB);
    bytes(batch, &cgroup::metrics::ANON, &path, used);
    bytes(batch, &cgroup::metrics::SHMEM, &path, 0.0);
    let about: Vec<Label> = workload::metrics::INFO
        .desc
        .labels
        .iter()
        .map(|label| match *label {
            "workload" => name.into(),
            "cgroup" => "/job".into(),
            _ => "".into(),
        })
        .collect();
    batch.put(&workload::metrics::INFO, &about, Flag(true));
    batch.put_some(&workload::metrics::START, &[name.into()], Seconds::new(start));
}

#[test]
fn a_job_that_restarts_in_its_cgroup_begins_anew() {
    let findings = |analysis: Analysis| analysis.findings.len();
    for next in [("train", 2_000.0), ("resumed", 2_000.0)] {
        let mut analyzer = build(&exhaustion::REGISTRATION);
        let fills =
            |second: u32, batch: &mut Batch| job(f64::from(second) * GIB / 20.0, ("train", 100.0), batch);
        assert_eq!(findings(run(&mut *analyzer, 0, 1_200, fills)), 1);
        let resumed = |second: u32, batch: &mut Batch| job(3.0 * GIB + noise(second) * 1e6, next, batch);
        let analysis = run(&mut *analyzer, 1_200, 1_230, resumed);
        assert_eq!(value(&analysis, HEALTH, &["cgroup", "critical"]), None);
        assert_eq!(findings(analysis), 0, "{next:?}");
    }
}

#[test]
fn an_instance_that_fills_up_is_forecast_beside_a_gpu_with_room() {
    use crate::sources::gpu::metrics as gpu;
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 900, |second, batch| {
        let used = GIB + f64::from(second) * GIB / 128.0 + noise(second) * GIB / 512.0;
        bytes(batch, &gpu::MEMORY_USED, &["0".into(), "GPU-0".into()], used);
        bytes(batch, &gpu::MEMORY_FREE, &["0".into(), "GPU-0".into()], 400.0 * GIB - used);
        // Both compute instances report the memory of their GPU instance.
        for (compute, uuid) in [("0", "MIG-0"), ("1", "MIG-1")] {
            let labels = ["0", uuid, "9", compute].map(Label::from);
            bytes(batch, &gpu::MIG_USED, &labels, used);
            bytes(batch, &gpu::MIG_FREE, &labels, 10.0 * GIB - used);
        }
    });
    let known: Vec<String> =
        analysis.outlook.conclusions.iter().map(|known| known.subject.to_string()).collect();
    assert_eq!(known, ["gpu 0", "MIG instance 9 on gpu 0"]);
    let p50 = value(&analysis, TTE, &["gpu_instance", "0", "MIG-0", "9", "p50"]).unwrap();
    // 9 GiB at 8 MiB/s are 1,152 s, of which 900 have passed.
    assert!((p50 - 252.0).abs() < 60.0, "{p50}");
    let critical = analysis.findings.iter().filter(|finding| finding.severity == Severity::Critical);
    let told: Vec<&str> = critical.map(|finding| finding.summary.as_str()).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("Memory of MIG instance 9 on GPU 0 may run out"), "{told:?}");
}

#[test]
fn instances_without_a_number_are_forecast_each() {
    use crate::sources::gpu::metrics as gpu;
    let analysis = run(&mut *build(&exhaustion::REGISTRATION), 0, 120, |second, batch| {
        for uuid in ["MIG-0", "MIG-1"] {
            let labels = ["0", uuid, "", ""].map(Label::from);
            let used = GIB + noise(second) * GIB / 512.0;
            bytes(batch, &gpu::MIG_USED, &labels, used);
            bytes(batch, &gpu::MIG_FREE, &labels, 10.0 * GIB - used);
        }
    });
    let known = analysis.outlook.conclusions.iter().map(|known| known.subject.uuid.as_str());
    assert_eq!(known.collect::<Vec<_>>(), ["MIG-0", "MIG-1"]);
}
