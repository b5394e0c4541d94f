//! A training job reports to the daemon over the job socket, and is shown on every page.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::harness::{Daemon, program, wait_for};
use crate::skip::skip;

const SOON: Duration = Duration::from_secs(20);

fn connect(daemon: &Daemon) -> UnixStream {
    wait_for("the job socket", SOON, || UnixStream::connect(daemon.job_socket()).ok())
}

#[test]
fn a_job_has_series_while_it_is_connected() {
    let daemon = Daemon::start(&["--set", "sampling.interval=200ms"]);
    let mut job = connect(&daemon);
    let hello = r#"{"type":"hello","v":1,"rank":1,"world":2,"run":"test","framework":"none"}"#;
    let step = r#"{"type":"step","step":5,"seconds":0.3,"tokens":4096,"loss":1.5}"#;
    let memory = r#"{"type":"mem","devices":{"0":{"allocated":100,"reserved":200,"free":800}}}"#;
    let event = r#"{"type":"event","name":"after eval","step":5,"detail":{"note":"ä"}}"#;
    job.write_all(format!("{hello}\n{step}\nnonsense\n{memory}\n{event}\n").as_bytes()).unwrap();
    let page = daemon.wait_page("the job's series", SOON, |page| {
        page.0.iter().any(|series| series.name == "memwarden_training_allocator_reserved_bytes")
    });
    let series =
        |name: &str| page.0.iter().find(|series| series.name == name).unwrap_or_else(|| panic!("{name}"));
    let info = series("memwarden_rank_info");
    assert_eq!((info.labels["rank"].as_str(), info.labels["run"].as_str()), ("1", "test"));
    assert_eq!(info.labels["pid"], std::process::id().to_string());
    assert_eq!(series("memwarden_training_step").value, 5.0);
    assert_eq!(series("memwarden_training_tokens_total").value, 4096.0);
    let bucket = |le: &str| {
        let mut buckets =
            page.0.iter().filter(|series| series.name == "memwarden_training_step_duration_seconds_bucket");
        buckets.find(|series| series.labels["le"] == le).unwrap().value
    };
    assert_eq!((bucket("0.25"), bucket("0.5"), bucket("+Inf")), (0.0, 1.0, 1.0));
    let wrong = page
        .0
        .iter()
        .find(|series| series.name == "memwarden_training_errors_total" && series.labels["kind"] == "json");
    assert_eq!(wrong.unwrap().value, 1.0);
    daemon.logs_once(&["training job", "json"]);
    let answer = daemon.get_local("/api/v1/timeline?rank=1");
    let timeline: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    let kinds: Vec<&str> =
        timeline["entries"].as_array().unwrap().iter().map(|entry| entry["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["start", "first_step", "event"], "{}", answer.body);
    assert_eq!(timeline["entries"][2]["detail"]["note"], "ä");
    drop(job);
    daemon.wait_page("the job's end", SOON, |page| {
        !page.0.iter().any(|series| series.labels.contains_key("rank"))
    });
    let answer = daemon.get("/api/v1/timeline?after=3");
    let timeline: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(timeline["entries"][0]["kind"], "end", "{}", answer.body);
    assert_eq!(daemon.get("/api/v1/timeline?since=x").code, 400);
}

/// Reports as rank 0, and stays until the daemon ends.
const RANK: &str = r#"
import socket, sys
job = socket.socket(socket.AF_UNIX)
job.connect(sys.argv[1])
job.sendall(b'{"type":"hello","v":1,"rank":0}\n{"type":"step","step":1}\n')
job.recv(1)
"#;

#[test]
fn two_unconfigured_jobs_are_two_workloads() {
    let daemon = Daemon::start(&["--set", "sampling.interval=200ms"]);
    drop(connect(&daemon));
    let socket = daemon.job_socket();
    for _ in 0..2 {
        // Each with a separate tree: its parent exits at once.
        let mut job = program("setsid");
        job.args(["--fork", "python3", "-c", RANK]).arg(&socket);
        if !job.status().is_ok_and(|status| status.success()) {
            skip("setsid and python3 are needed");
            return;
        }
    }
    let page = daemon.wait_page("both jobs", SOON, |page| {
        page.0.iter().filter(|series| series.name == "memwarden_training_step").count() == 2
    });
    let steps = page.0.iter().filter(|series| series.name == "memwarden_training_step");
    let reported: BTreeSet<(&str, bool)> = steps
        .map(|series| (series.labels["rank"].as_str(), series.labels.contains_key("workload")))
        .collect();
    assert_eq!(reported, BTreeSet::from([("0", true)]));
    let kinds = page.0.iter().filter(|series| series.name == "memwarden_workload_info");
    assert_eq!(kinds.filter(|series| series.labels["kind"] == "job").count(), 2);
}

#[test]
fn the_socket_is_removed_at_shutdown_and_created_by_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memwarden.yaml");
    std::fs::write(&file, "sampling: {interval: 200ms}\n").unwrap();
    let mut daemon = Daemon::start(&["--config.file", file.to_str().unwrap()]);
    let first = connect(&daemon);
    // Otherwise "none" below may be reported before any process was counted.
    daemon.wait_value("memwarden_training_clients", |clients| clients == 1.0);
    std::fs::write(&file, "sampling: {interval: 200ms}\nsources: {training: {max_clients: 3}}\n").unwrap();
    daemon.signal("HUP");
    daemon.wait_value("memwarden_training_clients", |clients| clients == 0.0);
    let second = connect(&daemon);
    daemon.wait_value("memwarden_training_clients", |clients| clients == 1.0);
    let path = daemon.job_socket();
    daemon.signal("TERM");
    assert!(daemon.wait(Duration::from_secs(5)).success());
    assert!(!path.exists());
    drop((first, second));
}
