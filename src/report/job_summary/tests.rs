//! The summary in each format.

use std::io::Read as _;

use base64::Engine as _;

use super::*;
use crate::job_summary::{JobGpu, JobMemory, JobState, LimitState, PeakBasis};

const GIB: u64 = 1 << 30;

fn summary() -> JobSummary {
    JobSummary {
        job: "4711".to_owned(),
        node: "node1".to_owned(),
        state: JobState::Ended,
        user: "ada".to_owned(),
        user_id: Some(1000),
        account: "physics".to_owned(),
        partition: "gpu".to_owned(),
        start_timestamp_seconds: 1000.0,
        last_sample_timestamp_seconds: 8261.4,
        cpu_seconds: Some(57_620.84),
        memory: JobMemory {
            limit: LimitState::Set,
            limit_bytes: Some(128 * GIB),
            peak_bytes: Some(64 * GIB),
            peak_basis: PeakBasis::WorkingSet,
            anonymous_peak_bytes: Some(60 * GIB),
            charged_peak_bytes: Some(100 * GIB),
            suggested_request_bytes: Some(77 * GIB),
            ..JobMemory::default()
        },
        gpus: vec![
            JobGpu {
                gpu: "0".to_owned(),
                uuid: "GPU-a".to_owned(),
                held_seconds: Some(7200.0),
                used_seconds: 3600.0,
                memory_peak_bytes: Some(70 * GIB),
                memory_total_bytes: Some(80 * GIB),
                mean_utilization_ratio: Some(0.9862),
            },
            JobGpu {
                gpu: "1".to_owned(),
                uuid: "GPU-b".to_owned(),
                held_seconds: Some(7200.0),
                memory_total_bytes: Some(80 * GIB),
                mean_utilization_ratio: Some(0.0),
                ..JobGpu::default()
            },
        ],
        ..JobSummary::default()
    }
}

fn node(summary: JobSummary) -> NodeUse {
    NodeUse { summary, cpus: Some(12), leftovers: None, end: None }
}

#[test]
fn text_has_what_a_user_needs() {
    let files = LeftFiles {
        files: 7,
        bytes: 3 * GIB,
        incomplete: false,
        largest: vec![LeftFile { name: "torch_\x1b[2J".to_owned(), bytes: 2 * GIB }],
    };
    let leftovers = Some(Leftovers::new(Path::new("/dev/shm"), Ok(files)));
    let text = JobReport::new(vec![NodeUse { leftovers, ..node(summary()) }]).text(Page::default());
    expect_test::expect![[r#"
        Job 4711 of ada on node1 partition gpu account physics: ended
          run time              02:01:01
          memory limit          128.0 GiB
          peak memory           64.0 GiB (50 % of the limit): working set of the cgroup
          peak with page cache  100.0 GiB
          OOM kills             0
          suggested request     --mem=78848M
          CPU time              16:00:20
          GPU hours             4.00 held, 1.00 in use
          GPU 0                 peak memory 70.0 GiB of 80.0 GiB, mean utilization 99 %
          GPU 1                 not used, mean utilization 0 %
          left in /dev/shm      7 files, 3.0 GiB
                                2.0 GiB torch_\x1b[2J
    "#]]
    .assert_eq(&text);
}

#[test]
fn text_says_what_is_not_known() {
    let gpu = JobGpu { uuid: "MIG-x".to_owned(), used_seconds: 36.0, ..JobGpu::default() };
    let summary = JobSummary { job: "9".to_owned(), gpus: vec![gpu], ..JobSummary::default() };
    let leftovers = Some(Leftovers::new(Path::new("/dev/shm"), Err("the job has not ended".to_owned())));
    let text =
        JobReport::new(vec![NodeUse { summary, cpus: None, leftovers, end: None }]).text(Page::default());
    expect_test::expect![[r#"
        Job 9: running
          run time          00:00:00
          memory limit      unknown: the cgroup of the job was not read
          peak memory       unknown
          OOM kills         0
          CPU time          unknown
          GPU hours         allocation unknown, 0.01 in use
          GPU MIG-x         peak memory unknown
          left in /dev/shm  unknown: the job has not ended
    "#]]
    .assert_eq(&text);
}

/// The JSON that jobstats reads from a line, as its `Jobstats.__init__` does.
fn unpacked(report: &JobReport) -> serde_json::Value {
    let line = report.jobstats().unwrap();
    let packed =
        base64::engine::general_purpose::STANDARD.decode(line.strip_prefix("JS1:").unwrap()).unwrap();
    let mut json = String::new();
    flate2::read::GzDecoder::new(&*packed).read_to_string(&mut json).unwrap();
    serde_json::from_str(&json).unwrap()
}

#[test]
fn jobstats_gets_the_keys_that_it_reads() {
    let other = JobSummary { node: "node2".to_owned(), gpus: Vec::new(), ..summary() };
    let json = unpacked(&JobReport::new(vec![node(summary()), node(other)]));
    expect_test::expect![[r#"
        {
          "gpus": 2,
          "nodes": {
            "node1": {
              "cpus": 12,
              "gpu_total_memory": {
                "0": 85899345920,
                "1": 85899345920
              },
              "gpu_used_memory": {
                "0": 75161927680,
                "1": 0
              },
              "gpu_utilization": {
                "0": 98.6,
                "1": 0.0
              },
              "total_memory": 137438953472,
              "total_time": 57620.8,
              "used_memory": 64424509440
            },
            "node2": {
              "cpus": 12,
              "total_memory": 137438953472,
              "total_time": 57620.8,
              "used_memory": 64424509440
            }
          },
          "total_time": 7261
        }"#]]
    .assert_eq(&serde_json::to_string_pretty(&json).unwrap());
}

#[test]
fn jobstats_gets_no_value_that_is_not_known() {
    let summary = JobSummary { node: "n".to_owned(), ..JobSummary::default() };
    let json = unpacked(&JobReport::new(vec![NodeUse { summary, cpus: None, leftovers: None, end: None }]));
    assert_eq!(json, serde_json::json!({"nodes": {"n": {}}, "total_time": 0, "gpus": 0}));
}

#[test]
fn json_has_each_node() {
    let json = serde_json::to_value(JobReport::new(vec![node(summary())])).unwrap();
    assert_eq!(json["schema"], "memwarden.job-summary/1");
    assert_eq!(json["nodes"][0]["memory"]["peak_basis"], "working_set");
    assert_eq!(json["nodes"][0]["cpus"], 12);
    assert_eq!(json["nodes"][0]["leftovers"], serde_json::Value::Null);
}

#[test]
fn a_terminal_shows_what_requires_attention() {
    let page = Page { columns: Some(80), paint: crate::report::Paint::Plain };
    let mut own = summary();
    let shown = |summary: &JobSummary| JobReport::new(vec![node(summary.clone())]).text(page);
    own.memory.oom_kills = 2;
    own.memory.limit = LimitState::Set;
    (own.memory.peak_bytes, own.memory.limit_bytes) = (Some(95), Some(100));
    let text = shown(&own);
    assert!(text.contains("!! 2\n") && text.contains("! 95 B (95 % of the limit)"), "{text}");
    own.memory.oom_kills = 0;
    own.memory.peak_bytes = Some(50);
    let text = shown(&own);
    assert!(text.contains("  ok 0\n") && text.contains("  50 B (50 % of the limit)"), "{text}");
    own.memory.peak_bytes = None;
    assert!(shown(&own).contains("? unknown"), "{}", shown(&own));
    assert!(!JobReport::new(vec![node(own)]).text(Page::default()).contains("? unknown"));
}
