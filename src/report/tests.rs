//! Every report over frames that are made up.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;
use crate::model::ends::OomKill;
use crate::model::ends::{End, EndEvidence};
use crate::model::outlook::Outlook;
use crate::node_view::{Allocator, Gpu, Host, Process, Rank, Workload, Zone};
use crate::plot;

const MIB: f64 = 1_048_576.0;

/// A node of 8 GiB whose workload `run` has `anon` MiB, and what is concluded.
fn frame(second: u32, anon: f64, conclusions: &[Value]) -> NodeView {
    let process = Process {
        pid: "7".to_owned(),
        name: "python3".to_owned(),
        rss: Some((anon + 16.0) * MIB),
        ..Process::default()
    };
    let run = Workload {
        name: "run".to_owned(),
        rss: Some((anon + 16.0) * MIB),
        anonymous: Some(anon * MIB),
        file: Some(16.0 * MIB),
        shared: Some(0.0),
        processes: vec![process],
        ..Workload::default()
    };
    let zone = Zone {
        node: "0".to_owned(),
        zone: "Normal".to_owned(),
        free: Some(4096.0 * MIB),
        unusable: vec![(9, 0.5 + f64::from(second) / 100.0)],
    };
    let host = Host {
        total: Some(8192.0 * MIB),
        used: Some((2048.0 + anon) * MIB),
        anonymous: Some((1000.0 + anon) * MIB),
        zones: vec![zone],
        ..Host::default()
    };
    let source = json!({ "name": "gpu", "health": "ok", "status": "unavailable", "why": "no NVIDIA driver" });
    NodeView {
        node: "node01".to_owned(),
        sequence: second.into(),
        unix_seconds: 1.7e9 + f64::from(second),
        host,
        workloads: vec![run],
        sources: vec![serde_json::from_value(source).unwrap()],
        conclusions: conclusions.iter().map(|known| serde_json::from_value(known.clone()).unwrap()).collect(),
        ..NodeView::default()
    }
}

/// A conclusion about memory against a limit; `more` are further keys.
fn forecast(subject: Value, used: f64, limit: f64, rule: &str, more: Value) -> Value {
    let mut forecast =
        json!({ "used_bytes": used, "limit_bytes": limit, "rule": rule, "since_unix_seconds": 1.7e9 });
    forecast.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "subject": subject, "forecast": forecast })
}

/// A conclusion about growth.
fn growth(subject: Value, bytes: f64, state: &str, more: Value) -> Value {
    let mut growth = json!({ "state": state, "evaluated_bytes": bytes });
    growth.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "subject": subject, "growth": growth })
}

/// What the analyzers conclude once they know: the host runs out, and its workload of so many bytes leaks since then.
fn known_since(since: f64) -> Vec<Value> {
    let run = || json!({ "resource": "workload", "workload": "run" });
    let host = json!({
        "rate": { "bytes_per_second": 2e7, "error_bytes_per_second": 1e5 },
        "time_to_exhaustion": { "p10": 100.0, "p50": 150.0, "p90": 240.0 },
        "within": [0.1, 0.5, 0.875, 0.9], "growth_continues": 0.9,
    });
    let used = 2448.0 * 1_048_576.0;
    let leak = json!({
        "rate": { "bytes_per_second": 1e6, "error_bytes_per_second": 1e3 }, "since_unix_seconds": since,
        "confidence": 0.97,
        "evidence": { "rise_bytes": 6e7, "window_seconds": 60.0, "floor_standard_errors": 9.5,
                      "center_standard_errors": 9.0, "peak_standard_errors": 8.25 },
        "stated": { "state": "leaking", "since_unix_seconds": since, "memory": "anonymous" },
    });
    let bytes = 400.0 * 1_048_576.0;
    vec![
        forecast(json!({ "resource": "host" }), used, 8.0 * 1_073_741_824.0, "exhaustion_within_15m", host),
        forecast(run(), bytes, bytes + 3e9, "too_few_samples", json!({})),
        growth(run(), bytes, "leaking", leak),
    ]
}

fn known() -> Vec<Value> {
    known_since(1.7e9 + 2.0)
}

fn recorder(focus: Focus) -> Recorder {
    let mut recorder = Recorder::new(focus);
    for second in 0..10 {
        assert!(recorder.take(frame(second, 100.0 * f64::from(second), &[])));
    }
    assert!(recorder.take(frame(10, 400.0, &known())));
    assert!(!recorder.take(frame(10, 999.0, &[])), "the same frame twice");
    recorder
}

fn check(kind: Kind, focus: Focus, threshold: Option<f64>, alarm: bool, expected: Expect) -> ReportOutput {
    let about = About { interval_seconds: 1.0, threshold, ..About::default() };
    let report = build(kind, &recorder(focus), &about, Paint::Plain);
    expected.assert_eq(&report.text);
    assert_eq!((report.alarm, report.found), (alarm, true));
    // What is written can be drawn.
    let text = serde_json::to_vec(&report.json).unwrap();
    assert_eq!(plot::report::read(&text).unwrap(), report.plot);
    assert_eq!(report.json["schema"], SCHEMA);
    report
}

#[test]
fn profile() {
    let report = check(
        Kind::Profile,
        Focus::default(),
        Some(0.3),
        true,
        expect![[r#"
            memwarden profile: node01, 11 samples in 10 s
                               current         min       mean        p95       peak   peak at
              host used        2.4 GiB     2.0 GiB    2.4 GiB    2.9 GiB    2.9 GiB  00:00:09
                anonymous      1.4 GiB  1000.0 MiB    1.4 GiB    1.9 GiB    1.9 GiB  00:00:09
              used share          30 %        25 %       30 %       36 %       36 %  00:00:09
              run resident   416.0 MiB    16.0 MiB  461.5 MiB  916.0 MiB  916.0 MiB  00:00:09
              run anonymous  400.0 MiB         0 B  445.5 MiB  900.0 MiB  900.0 MiB  00:00:09
              run file        16.0 MiB    16.0 MiB   16.0 MiB   16.0 MiB   16.0 MiB  00:00:00
            Host: 2.4 GiB of 8.0 GiB used.
            Largest processes
                         workload    current       peak   peak at
              python3 7  run       416.0 MiB  916.0 MiB  00:00:09
            Highest use: host: 36 %
              above the threshold of 30 %
            GPUs: not visible: no NVIDIA driver.
        "#]],
    );
    assert_eq!(report.json["host_memory"]["peak_memory_bytes"], (2048.0 + 900.0) * 1_048_576.0);
    assert_eq!(report.json["workloads"][0]["memory"]["anonymous_bytes"]["max_at_seconds"], 9.0);
}

#[test]
fn oom() {
    let report = check(
        Kind::Oom,
        Focus::default(),
        None,
        true,
        expect![[r#"
            memwarden oom: node01, 11 samples in 10 s
                                 used    limit  share       growth  runs out in      p10 to p90  P(15 min)  P(60 min)  health
              host            2.4 GiB  8.0 GiB   30 %  +19.1 MiB/s        2 min  2 min to 4 min       88 %       90 %  critical
              workload run  400.0 MiB  3.2 GiB   12 %            –            –               –          –          –  unknown
            Memory of the host runs out in 2 min at its current growth.
              host: critical, because exhaustion within 15 minutes is more likely than not (confidence 0.88).
                What grows: anonymous memory of workload run, +57.2 MiB/min.
                Check what the program keeps across steps or requests: lists and caches that grow, and losses that retain the autograd graph.
                Look which workload grows; save a checkpoint before the kernel chooses a victim.
            GPUs: not visible: no NVIDIA driver.
        "#]],
    );
    let host = &report.json["resources"][0];
    assert_eq!((&host["health"], &host["rule"]), (&"critical".into(), &"exhaustion_within_15m".into()));
    assert_eq!(host["within"][2], 0.875);
    assert_eq!(host["time_to_exhaustion"]["p50"], 150.0);
    assert_eq!(report.plot.forecast.unwrap().series.as_deref(), Some("host used"));
}

#[test]
fn what_grew_is_known_after_the_processes_have_ended() {
    let mut recorder = recorder(Focus::default());
    assert!(recorder.take(frame(11, 100.0, &[])));
    let text = build(Kind::Oom, &recorder, &About::default(), Page::default()).text;
    assert!(text.contains("    What grew: anonymous memory of workload run, +57.2 MiB/min.\n"), "{text}");
}

#[test]
fn a_leak_is_stated_though_its_processes_exit_in_the_last_sample() {
    let mut recorder = recorder(Focus::default());
    let stated = json!({ "state": "leaking", "since_unix_seconds": 1.7e9, "memory": "anonymous" });
    let run = || json!({ "resource": "workload", "workload": "run" });
    let exiting = growth(run(), 0.0, "steady", json!({ "stated": stated }));
    assert!(recorder.take(frame(11, 0.0, &[exiting])));
    let ended = CommandEnd { workload: "run".to_owned(), code: Some(0), ..CommandEnd::default() };
    let report = super::build_run(&ended, &recorder, &About::default(), Page::default());
    assert!(report.text.contains("A leak was found."), "{}", report.text);
    let leak = &report.json["leaks"][0];
    assert_eq!(
        (&leak["state"], &leak["evaluated_bytes"]),
        (&"leaking".into(), &(400.0 * 1_048_576.0).into())
    );
    // Growth that has ended is no longer shown.
    assert!(recorder.take(frame(12, 1.0, &[growth(run(), 1.0, "steady", json!({}))])));
    assert!(!super::build_run(&ended, &recorder, &About::default(), Page::default()).alarm);
}

#[test]
fn growth_that_ended_while_the_command_ran_is_not_stated() {
    let mut recorder = recorder(Focus::default());
    let stated = json!({ "state": "leaking", "since_unix_seconds": 1.7e9, "memory": "anonymous" });
    let run = || json!({ "resource": "workload", "workload": "run" });
    // The daemon states it for a minute.
    for second in 11..30 {
        let flat = growth(run(), 400.0 * 1_048_576.0, "steady", json!({ "stated": stated }));
        assert!(recorder.take(frame(second, 0.0, &[flat])));
    }
    let ended = CommandEnd { workload: "run".to_owned(), code: Some(0), ..CommandEnd::default() };
    let report = super::build_run(&ended, &recorder, &About::default(), Page::default());
    assert!(!report.alarm && report.text.contains("No leak was found."), "{}", report.text);
}

#[test]
fn what_grows_in_a_resource_is_a_workload_in_it() {
    let workload = |name: &str, cgroup: &str| Workload {
        name: name.to_owned(),
        cgroup: cgroup.to_owned(),
        ..Workload::default()
    };
    let grows = |name: &str, pace: f64| {
        growth(
            json!({ "resource": "workload", "workload": name }),
            1e6,
            "growing",
            json!({
                "rate": { "bytes_per_second": pace, "error_bytes_per_second": 1e3 },
                "stated": { "state": "growing", "since_unix_seconds": 1.7e9, "memory": "anonymous" },
            }),
        )
    };
    let mut recorder = Recorder::new(Focus::default());
    let mut take = |second, workloads: &[Workload], conclusions: &[Value]| {
        let view = NodeView { workloads: workloads.to_vec(), ..frame(second, 100.0, conclusions) };
        assert!(recorder.take(view));
    };
    let [ended, inside, faster] =
        [workload("ended", "/jobs/a/0"), workload("inside", "/jobs/a/1"), workload("faster", "/jobs/ab")];
    take(1, &[ended], &[grows("ended", 9e6)]);
    take(2, &[inside, faster], &[grows("inside", 1e6), grows("faster", 3e6)]);
    let named = |resource: Subject| super::leak::grown(&recorder, &resource);
    let of = |workload: &str| format!("    What grows: anonymous memory of workload {workload}, ");
    for (resource, workload) in [
        (Subject::cgroup(&"/jobs/a".into()), "inside"),
        (Subject::cgroup(&"/jobs".into()), "faster"),
        (Subject::host(), "faster"),
    ] {
        let text = named(resource);
        assert!(text.starts_with(&of(workload)), "{text}");
    }
    assert_eq!(named(Subject::cgroup(&"/other".into())), "");
}

#[test]
fn leak() {
    let narrow = Focus { workloads: ["run".to_owned()].into(), ..Focus::default() };
    let report = check(
        Kind::Leak,
        narrow,
        None,
        true,
        expect![[r#"
            memwarden leak: node01, 11 samples in 10 s
                            state       memory         growth      since  confidence       rise  window
              workload run  leaking  400.0 MiB  +57.2 MiB/min  22:13 UTC        0.97  +57.2 MiB    60 s
            workload run leaks +57.2 MiB/min.
              workload run: leaking, +57.2 MiB/min, since 22:13 UTC.
                Evidence: a rise of 57.2 MiB in 60 s; slopes in standard errors: floor 9.5, center 9.0, peak 8.2.
                What grows: anonymous memory.
                Check what the program keeps across steps or requests: lists and caches that grow, and losses that retain the autograd graph.
            GPUs: not visible: no NVIDIA driver.
        "#]],
    );
    assert_eq!(report.json["subjects"][0]["stated"]["memory"], "anonymous");
    assert_eq!(report.json["subjects"][0]["since_seconds"], 2.0);
}

#[test]
fn what_grows_inside_a_leaking_program_is_named() {
    let mut recorder = recorder(Focus { workloads: ["run".to_owned()].into(), ..Focus::default() });
    let event = |workload: &str, grown| crate::node_view::JobEvent {
        unix_seconds: 0.0,
        workload: workload.to_owned(),
        rank: "0".to_owned(),
        what: "grew inside: type list: 64 more".to_owned(),
        failed: false,
        grown,
    };
    recorder.last.job_events =
        vec![event("run", true), event("run", true), event("run", false), event("other", true)];
    let growing = recorder.subjects.growing.keys().map(|subject| subject.workload.as_str());
    assert!(growing.clone().any(|workload| workload == "run"), "{:?}", growing.collect::<Vec<_>>());
    let page = Page::default();
    let body = super::leak::body(&recorder, &About::default(), page, &[]);
    assert_eq!(
        body.details.matches("run, rank 0, grew inside: type list: 64 more.").count(),
        1,
        "{}",
        body.details
    );
    assert!(!body.details.contains("other"), "{}", body.details);
    // The report of `run` has it too.
    let body = super::run::body(&CommandEnd::default(), &recorder, page);
    assert_eq!(body.details.matches("rank 0, grew inside: type list").count(), 1, "{}", body.details);
}

#[test]
fn fragmentation() {
    let report = check(
        Kind::Fragmentation,
        Focus::default(),
        Some(0.55),
        true,
        expect![[r#"
            memwarden fragmentation: node01, 11 samples in 10 s
            Share of the free memory that is in blocks too small for one of 2^order pages
                                free  order 0  order 3  order 6  order 9  order 10  trend
              node 0 Normal  4.0 GiB        –        –        –     60 %         –  rising
            Of the free memory of node 0 Normal, 60 % is in blocks too small for a huge page (order 9); rising.
              Allocations of huge pages and large network buffers may fail or wait: sysctl vm.compact_memory=1 compacts, and a larger vm.min_free_kbytes keeps more free memory in large blocks.
            GPUs: fragmentation inside an allocator is not visible from outside the job; it requires the statistics that the job reports, or an allocator snapshot (torch.cuda.memory._dump_snapshot), which `memwarden snapshot FILE` reads.
              above the threshold of 55 %
            GPUs: not visible: no NVIDIA driver.
        "#]],
    );
    assert_eq!(report.json["zones"][0]["unusable_free_ratio"]["9"]["max"], 0.6);
}

#[test]
fn run() {
    let ended = CommandEnd {
        command: "python3 train.py".to_owned(),
        workload: "run".to_owned(),
        code: Some(3),
        seconds: 10.5,
        cpu_seconds: Some(8.0),
        ..CommandEnd::default()
    };
    let narrow = Focus { workloads: ["run".to_owned()].into(), ..Focus::default() };
    let report = build_run(&ended, &recorder(narrow), &About::default(), Paint::Plain);
    expect![[r#"
        memwarden run: python3 train.py
          `python3 train.py` ended with code 3 after 10 s, 8 s of CPU time, 11 samples
                          peak        at       mean       last
          resident   916.0 MiB  00:00:09  461.5 MiB  416.0 MiB
          anonymous  900.0 MiB  00:00:09  445.5 MiB  400.0 MiB
          file        16.0 MiB  00:00:00   16.0 MiB   16.0 MiB
        A leak was found.
          workload run: leaking, +57.2 MiB/min, since 22:13 UTC.
            Evidence: a rise of 57.2 MiB in 60 s; slopes in standard errors: floor 9.5, center 9.0, peak 8.2.
            What grows: anonymous memory.
            Check what the program keeps across steps or requests: lists and caches that grow, and losses that retain the autograd graph.
    "#]]
    .assert_eq(&report.text);
    assert_eq!(report.json["exit_code"], 3);
    assert_eq!(report.plot.bands[0].from_s, 2.0);
}

#[test]
fn a_process_that_leaked_until_it_ended_is_a_leak_of_the_command() {
    let state = |state: &str, process: bool| {
        let subject = if process {
            json!({ "resource": "process", "workload": "run", "pid": "7" })
        } else {
            json!({ "resource": "workload", "workload": "run" })
        };
        growth(subject, 1e6, state, json!({}))
    };
    let report = |last: &[Value]| {
        let mut recorder = Recorder::new(Focus { workloads: ["run".to_owned()].into(), ..Focus::default() });
        let series = [state("leaking", false), state("leaking", true)];
        recorder.take(frame(1, 100.0, &series));
        recorder.take(frame(2, 1.0, last));
        let ended = CommandEnd { workload: "run".to_owned(), code: Some(0), ..CommandEnd::default() };
        build_run(&ended, &recorder, &About::default(), Paint::Plain).json["verdict"].clone()
    };
    assert_eq!(report(&[state("steady", false)]), "A leak was found: a process leaked until it ended.");
    assert_eq!(report(&[state("steady", false), state("steady", true)]), "No leak was found.");
}

#[test]
fn what_was_not_measured_is_stated_as_such() {
    let empty = Recorder::new(Focus::default());
    for kind in [Kind::Profile, Kind::Oom, Kind::Leak, Kind::Fragmentation] {
        let report = build(kind, &empty, &About::default(), Paint::Plain);
        assert!(!report.found && !report.alarm, "{kind:?}");
        assert!(!report.text.contains(" 0 B"), "{}", report.text);
    }
    let report = build_run(&CommandEnd::default(), &empty, &About::default(), Paint::Plain);
    assert!(report.text.contains("ended before its memory could be sampled"), "{}", report.text);
}

#[test]
fn a_daemon_tells_to_which_workload_a_process_belongs() {
    let focus = Focus { pids: ["7".to_owned()].into(), ..Focus::default() };
    let recorder = recorder(focus);
    assert!(recorder.focus.has_workload("run") && !recorder.focus.has_workload("other"));
}

/// A node whose GPU 1 has hung for 12 s; what the forecast says of GPU 0 is calm.
fn one_hangs() -> NodeView {
    let gpu = |index: &str, status: &str, age: f64| Gpu {
        index: index.to_owned(),
        uuid: format!("GPU-{index}"),
        status: status.to_owned(),
        sample_age: Some(age),
        ..Gpu::default()
    };
    let calm = forecast(
        json!({ "resource": "gpu", "gpu": "0", "uuid": "GPU-0" }),
        4e9,
        8e9,
        "none",
        json!({ "within": [0.0, 0.0, 0.0, 0.0] }),
    );
    let first = Gpu { used: Some(4e9), free: Some(4e9), ..gpu("0", "ok", 0.5) };
    NodeView { gpus: vec![first, gpu("1", "hung", 12.0)], ..frame(0, 1.0, &[calm]) }
}

#[test]
fn a_gpu_that_does_not_answer_is_reported_and_not_hidden_by_a_verdict() {
    let mut recorder = Recorder::new(Focus::default());
    recorder.take(one_hangs());
    for kind in [Kind::Profile, Kind::Oom, Kind::Leak, Kind::Fragmentation] {
        let report = build(kind, &recorder, &About::default(), Paint::Plain);
        assert!(report.unseen, "{kind:?}");
        assert!(
            report.text.contains("  gpu 1  unknown: no answer for 12 s (hung)\n"),
            "{kind:?}: {}",
            report.text
        );
        assert_eq!(report.json["unseen"][0]["uuid"], "GPU-1");
    }
    let report = build(Kind::Oom, &recorder, &About::default(), Paint::Plain);
    assert!(
        report
            .text
            .contains("No exhaustion is predicted for what could be measured. No data for: gpu 1 (hung)."),
        "{}",
        report.text
    );
    let report = build_run(&CommandEnd::default(), &recorder, &About::default(), Paint::Plain);
    assert!(report.text.contains("  gpu 1  unknown: "), "{}", report.text);
    let first = Focus { devices: Some(["0".to_owned()].into()), ..Focus::default() };
    let mut recorder = Recorder::new(first);
    recorder.take(one_hangs());
    let report = build(Kind::Oom, &recorder, &About::default(), Paint::Plain);
    assert!(
        !report.unseen && !report.text.contains("gpu 1"),
        "the other GPU was not asked for: {}",
        report.text
    );
}

#[test]
fn a_gpu_that_is_not_there_is_reported_with_those_that_are() {
    let absent = |names: &[&str]| {
        let devices = Some(names.iter().map(|name| (*name).to_owned()).collect());
        let mut recorder = Recorder::new(Focus { devices, ..Focus::default() });
        recorder.take(one_hangs());
        recorder.absent_devices(false)
    };
    assert_eq!(absent(&["1", "GPU-0"]), None);
    assert_eq!(absent(&["0", "7"]).as_deref(), Some("GPU 7 was not found; available: 0 (GPU-0), 1 (GPU-1)"));
    let mut recorder = Recorder::new(Focus { devices: Some(["0".to_owned()].into()), ..Focus::default() });
    recorder.take(frame(0, 1.0, &[]));
    assert_eq!(recorder.absent_devices(false), None, "NVML may be on its way");
    assert_eq!(
        recorder.absent_devices(true).as_deref(),
        Some("GPU 0 was not found: no GPU is visible (no NVIDIA driver)")
    );
}

#[test]
fn an_allocator_that_the_daemon_warns_of_is_reported() {
    let subject = json!({ "resource": "allocator", "workload": "run", "pid": "7", "gpu": "0" });
    let more = [forecast(subject, 6e9, 8e9, "nearly_full_and_grows", json!({}))];
    let mut recorder = Recorder::new(Focus::default());
    recorder.take(frame(0, 1.0, &more));
    let report = build(Kind::Oom, &recorder, &About::default(), Paint::Plain);
    assert!(
        report.alarm
            && report
                .text
                .contains("Memory of the allocator of process 7 of run on GPU 0 is warning: at least 90 %"),
        "{}",
        report.text
    );
    let resource = &report.json["resources"][0];
    let [used, limit] = ["used_bytes", "limit_bytes"].map(|key| resource[key].as_f64().unwrap());
    assert_eq!(used / limit, 0.75);
}

#[test]
fn allocators_can_be_chosen() {
    let of = |workload: &str, gpu: &str, state: &str| {
        let own = Allocator {
            device: "0".to_owned(),
            gpu: gpu.to_owned(),
            state: state.to_owned(),
            ..Allocator::default()
        };
        let rank = Rank { rank: "0".to_owned(), allocators: vec![own], ..Rank::default() };
        Workload { name: workload.to_owned(), ranks: vec![rank], ..Workload::default() }
    };
    let report = |focus| {
        let mut recorder = Recorder::new(focus);
        let workloads = vec![of("run", "0", "fragmented"), of("other", "1", "fine")];
        recorder.take(NodeView { workloads, ..frame(0, 1.0, &[]) });
        build(Kind::Fragmentation, &recorder, &About::default(), Paint::Plain)
    };
    let all = report(Focus::default());
    assert_eq!(all.json["allocators"].as_array().unwrap().len(), 2);
    let run = report(Focus { workloads: ["run".to_owned()].into(), ..Focus::default() });
    assert!(
        run.text.contains("1 of 1 allocators are fragmented") && !run.text.contains("node 0"),
        "{}",
        run.text
    );
    let second = report(Focus { devices: Some(["1".to_owned()].into()), ..Focus::default() });
    assert!(second.text.contains("other") && !second.text.contains("run"), "{}", second.text);
    let none = report(Focus { workloads: ["absent".to_owned()].into(), ..Focus::default() });
    assert!(!none.found);
}

#[test]
fn growth_that_began_before_the_watch_has_its_time() {
    let mut recorder = Recorder::new(Focus::default());
    recorder.take(frame(0, 400.0, &known_since(1.7e9 - 600.0)));
    let text = build(Kind::Leak, &recorder, &About::default(), Paint::Plain).text;
    assert!(text.contains("leaking, +57.2 MiB/min, since 22:03 UTC."), "{text}");
}

#[test]
fn a_narrow_terminal_keeps_the_columns_that_decide() {
    let recorder = recorder(Focus::default());
    for (kind, head, last) in [(Kind::Oom, "runs out in", "health"), (Kind::Leak, "growth", "confidence")] {
        for columns in [80, 100] {
            let page = Page { columns: Some(columns), ..Page::default() };
            let text = build(kind, &recorder, &About::default(), page).text;
            let table: Vec<&str> = text.lines().skip(1).take(3).collect();
            assert!(table.iter().all(|line| line.chars().count() <= columns), "{columns}: {text}");
            assert!(table[0].contains(head) && table[0].contains(last), "{columns}: {text}");
        }
    }
}

#[test]
fn the_progress_of_a_run_is_that_of_its_workload() {
    let focus = Focus { workloads: ["run".to_owned()].into(), ..Focus::default() };
    let mut recorder = Recorder::new(focus);
    let line = |recorder: &Recorder| RunProgress::of(recorder, "run").line(recorder.seconds(), 10.0, 200);
    assert_eq!(line(&recorder), "memwarden: 00:00:00  no forecast yet");
    let holding = |mut view: NodeView, gib: f64| {
        let held = gib * 1_073_741_824.0;
        view.workloads[0].gpu_memory = Some(held);
        view.workloads[0].gpus = vec![("a".to_owned(), Some(held))];
        view
    };
    recorder.take(holding(frame(1, 512.0, &[]), 10.0));
    recorder.take(holding(frame(2, 256.0, &[]), 4.0));
    assert_eq!(
        line(&recorder),
        "memwarden: 00:00:01  memory 272.0 MiB (peak 528.0 MiB)  GPU 4.0 GiB (peak 10.0 GiB)  no forecast yet"
    );
    // The host runs out in 150 s, a GPU that it uses in 90 s, and a GPU of others sooner.
    let soon = |gpu: &str, p50: f64| {
        let subject = json!({ "resource": "gpu", "gpu": gpu, "uuid": format!("GPU-{gpu}") });
        let tte = json!({ "time_to_exhaustion": { "p10": p50, "p50": p50, "p90": p50 } });
        forecast(subject, 1e9, 2e9, "full", tte)
    };
    let mut more = known();
    more.extend([soon("a", 90.0), soon("b", 5.0)]);
    recorder.take(holding(frame(3, 256.0, &more), 4.0));
    assert!(line(&recorder).contains("  GPU a runs out in 2 min"), "{}", line(&recorder));
    recorder.take(frame(4, 256.0, &known()));
    // GPU memory that is no longer measured is not shown as current.
    let end = "(peak 528.0 MiB)  host runs out in 2 min (2 to 4)";
    assert!(line(&recorder).ends_with(end), "{}", line(&recorder));
}

#[test]
fn oom_kills_of_other_jobs_are_no_alarm_of_the_selected_ones() {
    let marks = |focus: Focus, own: [f64; 2]| {
        let mut recorder = Recorder::new(focus);
        for (second, own) in (0..2).zip(own) {
            let mut view = frame(second, 100.0, &[]);
            view.host.oom_kills = Some(f64::from(second) * 3.0);
            view.workloads[0].oom_kills = Some(own);
            recorder.take(view);
        }
        recorder.marks.iter().map(|mark| mark.text.clone()).collect::<Vec<_>>()
    };
    let run = || Focus { workloads: ["run".to_owned()].into(), ..Focus::default() };
    assert_eq!(marks(Focus::default(), [0.0; 2]), ["3 OOM kills by the kernel"]);
    assert!(marks(run(), [5.0; 2]).is_empty());
    assert_eq!(marks(run(), [5.0, 6.0]), ["1 OOM kill by the kernel"]);
}

#[test]
fn the_kills_that_the_kernel_log_has_of_the_selected_workload_are_marked_once() {
    let end = |number: u64, workload: &str, evidence: EndEvidence| {
        let (workload, evidence) = (workload.into(), vec![evidence]);
        std::sync::Arc::new(End { number, workload, pid: 7, evidence, ..End::default() })
    };
    let logged = || EndEvidence::KernelLog(OomKill { limit_cgroup: "/a".into(), ..OomKill::default() });
    let ends = [
        end(1, "run", logged()),
        end(2, "other", logged()),
        end(3, "run", EndEvidence::KillCounter { cgroup: "/a".into() }),
    ];
    let mut recorder = Recorder::new(Focus { workloads: ["run".to_owned()].into(), ..Focus::default() });
    for known in [&ends[..1], &ends] {
        recorder.record_ends(&Outlook { ends: known.into(), ..Outlook::default() });
    }
    let marks: Vec<_> = recorder.marks.iter().map(|mark| mark.text.as_str()).collect();
    assert_eq!(marks, ["OOM kill of process 7 by the kernel"]);
}
