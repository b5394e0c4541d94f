//! Every report over frames that are made up.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;
use crate::plot;

/// A node of 8 GiB whose workload `run` has `anon` MiB, as a daemon serves it.
fn frame(second: u32, anon: f64, more: &[Value]) -> FrameView {
    let mib = 1_048_576.0;
    let metric = |name: &str, labels: Value, value: f64| json!({ "name": name, "series": [{ "labels": labels, "value": value }] });
    let run = || json!({ "workload": "run" });
    let process = || json!({ "workload": "run", "pid": "7", "comm": "python3" });
    let mut metrics = vec![
        metric("memwarden_host_info", json!({ "hostname": "node01" }), 1.0),
        metric("memwarden_host_memory_total_bytes", json!({}), 8192.0 * mib),
        metric("memwarden_host_memory_used_bytes", json!({}), (2048.0 + anon) * mib),
        metric("memwarden_host_memory_anon_bytes", json!({}), (1000.0 + anon) * mib),
        metric("memwarden_workload_rss_bytes", run(), (anon + 16.0) * mib),
        metric("memwarden_workload_rss_anon_bytes", run(), anon * mib),
        metric("memwarden_workload_rss_file_bytes", run(), 16.0 * mib),
        metric("memwarden_workload_rss_shmem_bytes", run(), 0.0),
        metric("memwarden_process_rss_bytes", process(), (anon + 16.0) * mib),
        metric("memwarden_host_zone_free_bytes", json!({ "node": "0", "zone": "Normal" }), 4096.0 * mib),
        metric(
            "memwarden_host_unusable_free_ratio",
            json!({ "node": "0", "zone": "Normal", "order": "9" }),
            0.5 + f64::from(second) / 100.0,
        ),
    ];
    metrics.extend(more.iter().cloned());
    let text = json!({
        "sequence": second, "unix_seconds": 1.7e9 + f64::from(second), "metrics": metrics,
        "sources": [{ "source": "gpu", "status": "unavailable", "why": "no NVIDIA driver" }],
        "findings": [
            { "analyzer": "exhaustion", "subject": { "resource": "host" }, "state": "high", "severity": "critical",
              "summary": "Memory of host may run out: exhaustion within 15 minutes is more likely than not.",
              "advice": "Save a checkpoint." },
            { "analyzer": "leak", "subject": { "resource": "workload", "workload": "run" }, "state": "leaking", "severity": "warning",
              "summary": "The anonymous memory of workload run has been leaking for 1 minute.", "advice": "Look." }],
    });
    FrameView::read(text.to_string().as_bytes()).unwrap()
}

/// What the analyzers add once they know.
fn known() -> Vec<Value> {
    let host = |more: Value| {
        let mut labels = json!({ "resource": "host" });
        labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        labels
    };
    let run = |key: &str, value: &str| json!({ "resource": "workload", "workload": "run", key: value });
    let one = |name: &str, rows: Vec<(Value, f64)>| {
        let series: Vec<_> =
            rows.into_iter().map(|(labels, value)| json!({ "labels": labels, "value": value })).collect();
        json!({ "name": name, "series": series })
    };
    vec![
        one("memwarden_forecast_headroom_bytes", vec![(host(json!({})), 3e9), (run("a", "b"), 3e9)]),
        one("memwarden_forecast_growth_bytes_per_second", vec![(host(json!({})), 2e7)]),
        one(
            "memwarden_forecast_time_to_exhaustion_seconds",
            vec![
                (host(json!({ "estimate": "p10" })), 100.0),
                (host(json!({ "estimate": "p50" })), 150.0),
                (host(json!({ "estimate": "p90" })), 240.0),
            ],
        ),
        one(
            "memwarden_forecast_exhaustion_probability_ratio",
            vec![(host(json!({ "horizon": "15m" })), 0.875), (host(json!({ "horizon": "60m" })), 0.9)],
        ),
        one(
            "memwarden_forecast_risk",
            vec![(host(json!({ "level": "low" })), 0.0), (host(json!({ "level": "high" })), 1.0)],
        ),
        one("memwarden_leak_state", vec![(run("state", "steady"), 0.0), (run("state", "leaking"), 1.0)]),
        one("memwarden_leak_growth_bytes_per_second", vec![(run("a", "b"), 1e6)]),
        one("memwarden_leak_since_timestamp_seconds", vec![(run("a", "b"), 1.7e9 + 2.0)]),
        one("memwarden_leak_confidence_ratio", vec![(run("a", "b"), 0.97)]),
        one("memwarden_leak_rise_bytes", vec![(run("a", "b"), 6e7)]),
        one("memwarden_leak_window_seconds", vec![(run("a", "b"), 60.0)]),
        one("memwarden_leak_score", vec![(run("envelope", "floor"), 9.5), (run("envelope", "peak"), 8.25)]),
    ]
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
          utilization         30 %        25 %       30 %       36 %       36 %  00:00:09
          run resident   416.0 MiB    16.0 MiB  461.5 MiB  916.0 MiB  916.0 MiB  00:00:09
          run anonymous  400.0 MiB         0 B  445.5 MiB  900.0 MiB  900.0 MiB  00:00:09
          run file        16.0 MiB    16.0 MiB   16.0 MiB   16.0 MiB   16.0 MiB  00:00:00
        Host: 2.4 GiB of 8.0 GiB used.
        Largest processes
                     workload    current       peak   peak at
          python3 7       run  416.0 MiB  916.0 MiB  00:00:09
        Above the threshold of 30 %: host: 36 %
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
                             used    limit  share       growth  runs out in           p10 to p90  P(15 min)  P(60 min)  risk
          host            2.4 GiB  8.0 GiB   30 %  +19.1 MiB/s   2 min 30 s  1 min 40 s to 4 min       88 %       90 %  high
          workload run  400.0 MiB  3.2 GiB   12 %            -            -                    -          -          -     -
        Memory of host runs out in 2 min 30 s at its current growth.
          host: high, because exhaustion within 15 minutes is more likely than not (confidence 0.88).
            Save a checkpoint.
        GPUs: not visible: no NVIDIA driver.
    "#]],
    );
    let host = &report.json["resources"][0];
    assert_eq!(host["risk_level"], "high");
    assert_eq!(host["confidence_ratio"], 0.875);
    assert_eq!(host["time_to_exhaustion"]["p50_seconds"], 150.0);
    assert_eq!(report.plot.forecast.unwrap().series.as_deref(), Some("host used"));
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
                          state     memory      growth     since  confidence      rise  window
          workload run  leaking  400.0 MiB  +3.4 GiB/h  00:00:02        0.97  57.2 MiB   1 min
        workload run leaks by 3.4 GiB an hour.
          workload run: leaking, 3.4 GiB an hour, since 00:00:02.
            Evidence: a rise of 57.2 MiB in 1 min; slopes in standard errors: floor 9.5, center -, peak 8.2.
            What grows: anonymous memory.
            Look.
        GPUs: not visible: no NVIDIA driver.
    "#]],
    );
    assert_eq!(report.json["subjects"][0]["kind"], "anonymous memory");
    assert_eq!(report.json["subjects"][0]["since_seconds"], 2.0);
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
                            free  order 0  order 3  order 6  order 9  order 10   trend
          node 0 Normal  4.0 GiB        -        -        -     60 %         -  rising
        Of the free memory of node 0 Normal, 60 % is in blocks too small for a huge page (order 9); rising.
          Allocations of huge pages and large network buffers may fail or wait: sysctl vm.compact_memory=1 compacts, and a larger vm.min_free_kbytes keeps more free memory in large blocks.
          above the threshold of 55 %
        GPUs: fragmentation inside an allocator is not visible from outside the job; it requires the statistics that the job reports, or an allocator snapshot (torch.cuda.memory._dump_snapshot), which `memwarden snapshot FILE` reads.
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
          `python3 train.py` ended with code 3 after 11 s, 8 s of CPU time, 11 samples
                          peak        at       mean       last
          resident   916.0 MiB  00:00:09  461.5 MiB  416.0 MiB
          anonymous  900.0 MiB  00:00:09  445.5 MiB  400.0 MiB
          file        16.0 MiB  00:00:00   16.0 MiB   16.0 MiB
        A leak was found.
          workload run: leaking, 3.4 GiB an hour, since 00:00:02.
            Evidence: a rise of 57.2 MiB in 1 min; slopes in standard errors: floor 9.5, center -, peak 8.2.
            What grows: anonymous memory.
            Look.
    "#]]
    .assert_eq(&report.text);
    assert_eq!(report.json["exit_code"], 3);
    assert_eq!(report.plot.bands[0].from_s, 2.0);
}

#[test]
fn a_process_that_leaked_until_it_ended_is_a_leak_of_the_command() {
    let state = |state: &str, process: bool| {
        let labels = if process {
            json!({ "resource": "process", "workload": "run", "pid": "7", "state": state })
        } else {
            json!({ "resource": "workload", "workload": "run", "state": state })
        };
        json!({ "labels": labels, "value": 1.0 })
    };
    let report = |last: &[Value]| {
        let mut recorder = Recorder::new(Focus { workloads: ["run".to_owned()].into(), ..Focus::default() });
        let series = [state("leaking", false), state("leaking", true)];
        recorder.take(frame(1, 100.0, &[json!({ "name": "memwarden_leak_state", "series": series })]));
        recorder.take(frame(2, 1.0, &[json!({ "name": "memwarden_leak_state", "series": last })]));
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

/// The series of one metric.
fn family(name: &str, rows: &[(Value, f64)]) -> Value {
    let series = rows.iter().map(|(labels, value)| json!({ "labels": labels, "value": value }));
    json!({ "name": name, "series": series.collect::<Vec<_>>() })
}

/// A node whose GPU 1 has hung for 12 s; what the forecast says of GPU 0 is calm.
fn one_hangs() -> Vec<Value> {
    let gpu = |index: &str, more: Value| {
        let mut labels = json!({ "gpu": index, "uuid": format!("GPU-{index}") });
        labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        labels
    };
    let subject = |more: Value| {
        let mut labels = gpu("0", json!({ "resource": "gpu" }));
        labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        labels
    };
    let status = |index, status| (gpu(index, json!({ "status": status })), 1.0);
    vec![
        family("memwarden_gpu_status", &[status("0", "ok"), status("1", "hung")]),
        family(
            "memwarden_gpu_sample_age_seconds",
            &[(gpu("0", json!({})), 0.5), (gpu("1", json!({})), 12.0)],
        ),
        family("memwarden_gpu_memory_used_bytes", &[(gpu("0", json!({})), 4e9)]),
        family("memwarden_gpu_memory_free_bytes", &[(gpu("0", json!({})), 4e9)]),
        family("memwarden_forecast_headroom_bytes", &[(subject(json!({})), 4e9)]),
        family(
            "memwarden_forecast_exhaustion_probability_ratio",
            &[(subject(json!({ "horizon": "60m" })), 0.0)],
        ),
        family("memwarden_forecast_risk", &[(subject(json!({ "level": "low" })), 1.0)]),
    ]
}

#[test]
fn a_gpu_that_does_not_answer_is_reported_and_not_hidden_by_a_verdict() {
    let mut recorder = Recorder::new(Focus::default());
    recorder.take(frame(0, 1.0, &one_hangs()));
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
    recorder.take(frame(0, 1.0, &one_hangs()));
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
        recorder.take(frame(0, 1.0, &one_hangs()));
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
    let subject = |more: Value| {
        let mut labels = json!({ "resource": "allocator", "workload": "run", "pid": "7", "gpu": "0" });
        labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        labels
    };
    let rank = json!({ "workload": "run", "rank": "3", "pid": "7" });
    let device = json!({ "workload": "run", "rank": "3", "device": "0", "gpu": "0" });
    let more = [
        family("memwarden_rank_info", &[(rank, 1.0)]),
        family("memwarden_training_allocator_allocated_bytes", &[(device, 6e9)]),
        family("memwarden_forecast_headroom_bytes", &[(subject(json!({})), 2e9)]),
        family("memwarden_forecast_risk", &[(subject(json!({ "level": "high" })), 1.0)]),
    ];
    let mut recorder = Recorder::new(Focus::default());
    recorder.take(frame(0, 1.0, &more));
    let report = build(Kind::Oom, &recorder, &About::default(), Paint::Plain);
    assert!(
        report.alarm && report.text.contains("The risk of allocator 0 run pid 7 is high"),
        "{}",
        report.text
    );
    assert_eq!(report.json["resources"][0]["used_ratio"], 0.75);
}

#[test]
fn allocators_can_be_chosen() {
    let of = |workload: &str, gpu: &str, state: &str| {
        (json!({ "workload": workload, "rank": "0", "device": "0", "gpu": gpu, "state": state }), 1.0)
    };
    let states = [of("run", "0", "fragmented"), of("other", "1", "fine")];
    let more = [family("memwarden_fragmentation_allocator_state", &states)];
    let report = |focus| {
        let mut recorder = Recorder::new(focus);
        recorder.take(frame(0, 1.0, &more));
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
fn growth_that_began_before_the_watch_has_its_age() {
    let more = || {
        let mut more = known();
        let since = json!({ "resource": "workload", "workload": "run" });
        more.retain(|metric| metric["name"] != "memwarden_leak_since_timestamp_seconds");
        more.push(family("memwarden_leak_since_timestamp_seconds", &[(since, 1.7e9 - 600.0)]));
        more
    };
    let mut recorder = Recorder::new(Focus::default());
    recorder.take(frame(0, 400.0, &more()));
    let text = build(Kind::Leak, &recorder, &About::default(), Paint::Plain).text;
    assert!(text.contains("leaking, 3.4 GiB an hour, began 10 min ago."), "{text}");
    assert!(!text.contains("00:00:00"), "{text}");
}

#[test]
fn a_narrow_terminal_keeps_the_columns_that_decide() {
    let recorder = recorder(Focus::default());
    for (kind, head, last) in [(Kind::Oom, "runs out in", "risk"), (Kind::Leak, "growth", "confidence")] {
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
    let gpu = |workload: &str, gib: f64| {
        let labels = json!({ "workload": workload, "gpu": "0", "uuid": "GPU-a" });
        json!({ "labels": labels, "value": gib * 1_073_741_824.0 })
    };
    let held = |gib: f64| {
        let series = [gpu("run", gib), gpu("other", 30.0)];
        json!({ "name": "memwarden_workload_gpu_memory_bytes", "series": series })
    };
    recorder.take(frame(1, 512.0, &[held(10.0)]));
    recorder.take(frame(2, 256.0, &[held(4.0)]));
    assert_eq!(
        line(&recorder),
        "memwarden: 00:00:01  memory 272.0 MiB (peak 528.0 MiB)  GPU 4.0 GiB (peak 10.0 GiB)  no forecast yet"
    );
    // The host runs out in 150 s, a GPU that it uses in 90 s, and a GPU of others sooner.
    let tte = |gpu: &str, value: f64| {
        let labels =
            json!({ "resource": "gpu", "gpu": gpu, "uuid": format!("GPU-{gpu}"), "estimate": "p50" });
        json!({ "labels": labels, "value": value })
    };
    let mut more = known();
    let name = "memwarden_forecast_time_to_exhaustion_seconds";
    let forecast = more.iter_mut().find(|metric| metric["name"] == name).unwrap();
    let series = forecast["series"].as_array_mut().unwrap();
    series.extend([tte("a", 90.0), tte("b", 5.0)]);
    more.push(held(4.0));
    recorder.take(frame(3, 256.0, &more));
    assert!(line(&recorder).ends_with("  GPU a runs out in 1 min 30 s"), "{}", line(&recorder));
    let mut without = known();
    without.retain(|metric| metric["name"] == name);
    recorder.take(frame(4, 256.0, &without));
    // GPU memory that is no longer measured is not shown as current.
    let end = "(peak 528.0 MiB)  host runs out in 2 min 30 s (1 min 40 s to 4 min)";
    assert!(line(&recorder).ends_with(end), "{}", line(&recorder));
}
