//! The memory of past runs, over restarts of the daemon.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Daemon, memwarden, program, wait_for};

const SOON: Duration = Duration::from_secs(60);

fn daemon(state: &Path) -> Daemon {
    let state = format!("state.file={}", state.display());
    Daemon::start(&["--set", &state, "--set", "sampling.interval=200ms"])
}

/// Whether the kernel tells how a process ended that is no child: Linux 6.15.
fn tells_exits() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse::<u32>().ok());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 15)
}

/// Runs a program with the Python client that ends as these lines do, in the first step and between two samples.
fn die(daemon: &Daemon, lines: &str) {
    let text = format!(
        "import os, time, memwarden\nmonitor = memwarden.Monitor('sft')\nphase = monitor.phase('optimizer')\nphase.__enter__()\ntime.sleep(0.5)\n{lines}"
    );
    let python = std::env::var_os("MEMWARDEN_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    let mut command = program(python);
    command.args(["-c", &text]).env("PYTHONPATH", client).env("MEMWARDEN_JOB_SOCKET", daemon.job_socket());
    assert!(!command.output().unwrap().status.success());
}

#[test]
fn a_run_that_dies_in_its_first_step_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let state = format!("state.file={}", folder.path().join("state.json").display());
    let daemon = Daemon::start(&["--set", &state, "--set", "sampling.interval=2s"]);
    wait_for("the job socket", SOON, || UnixStream::connect(daemon.job_socket()).ok());
    let ends = [
        ("os.kill(os.getpid(), 9)", [if tells_exits() { "killed" } else { "unknown" }, ""]),
        ("raise MemoryError('a secret')", ["process_limit", "MemoryError"]),
        ("raise ValueError('a secret')", ["failed", "ValueError"]),
    ];
    for (count, (lines, end)) in ends.into_iter().enumerate() {
        die(&daemon, lines);
        let runs = wait_for("the run", SOON, || Some(known(&daemon)).filter(|runs| runs.len() > count));
        let run = &runs[0];
        assert_eq!([&run["cause"], &run["exception"]], end, "{run}");
        assert_eq!((&run["phase"], &run["step"]), (&"optimizer".into(), &Value::Null), "{run}");
    }
    let list = memwarden(&["history", "--url", &daemon.socket_url()]).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.contains("out of host memory") && list.contains("exception ValueError"), "{list}");
    assert!(!list.contains("secret"), "{list}");
}

/// A rank that predicts its largest step, of which it has measured this much, and has completed 261 steps.
fn train(daemon: &Daemon, measured: u64) -> UnixStream {
    let mut job = wait_for("the job socket", SOON, || UnixStream::connect(daemon.job_socket()).ok());
    let lines = format!(
        r#"{{"type":"hello","v":1,"verdicts":true,"run":"sft","model":{{"parameters":7}}}}
{{"type":"prediction","phase":"step","resource":"host","certainty":"exact","peak":{measured},"held":1,"measured":{measured}}}
{{"type":"step","step":261,"seconds":0.3}}
"#
    );
    job.write_all(lines.as_bytes()).unwrap();
    job
}

fn known(daemon: &Daemon) -> Vec<Value> {
    let url = daemon.socket_url();
    let done = memwarden(&["history", "--url", &url, "--format", "json"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let shown: Value = serde_json::from_slice(&done.stdout).unwrap();
    shown["runs"].as_array().unwrap().clone()
}

#[test]
fn the_end_of_the_last_runs_is_told_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.json");
    for (count, measured) in [(1, 1_000_000), (2, 1_200_000)] {
        let mut daemon = daemon(&state);
        let mut job = train(&daemon, measured);
        daemon.wait_page("the rank", SOON, |page| page.get("memwarden_training_step", &[]) == Some(261.0));
        writeln!(job, r#"{{"type":"oom","device":"0","requested":5}}"#).unwrap();
        // Without it the process, which still runs, is expected to connect again.
        writeln!(job, r#"{{"type":"bye"}}"#).unwrap();
        drop(job);
        wait_for("the end of the run", SOON, || (known(&daemon).len() == count).then_some(()));
        daemon.signal("TERM");
        assert!(daemon.wait(SOON).success());
    }
    let daemon = daemon(&state);
    let runs = known(&daemon);
    assert_eq!(
        (&runs[0]["number"], &runs[0]["cause"], &runs[0]["step"]),
        (&2.into(), &"gpu_memory".into(), &261.into())
    );
    assert_eq!((&runs[0]["run"], &runs[0]["parameters"]), (&"sft".into(), &7.into()));
    assert_eq!(runs[0]["peaks"][0]["bytes"], 1_200_000);

    let job = train(&daemon, 1);
    job.set_read_timeout(Some(SOON)).unwrap();
    let died = "the last 2 runs of this command died after step 261 (out of GPU memory)";
    let mut lines = BufReader::new(job).lines();
    let told = lines.find_map(|line| {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        (message["type"] == "past").then(|| message["text"].clone())
    });
    assert_eq!(told.unwrap(), died);
    let shown = wait_for("the row of the prediction", SOON, || {
        let node: Value = serde_json::from_str(&daemon.get("/api/v1/node").body).unwrap();
        node["fits"][0]["past"].as_str().map(str::to_owned)
    });
    assert_eq!(shown, died);
    assert_eq!(daemon.get("/api/v1/past-runs").code, 403, "this address cannot tell users apart");

    let url = daemon.socket_url();
    let compare = |args: &[&str]| {
        let done = memwarden(&[&["compare", "--url", &url], args].concat()).output().unwrap();
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    };
    let (code, text) = compare(&["1", "2"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("Run 2 takes more than run 1") && text.contains("step/host"), "{text}");
    assert_eq!(compare(&["1", "2", "--tolerance", "25%"]).0, Some(0));
    assert_eq!(compare(&["1", "9"]).0, Some(2));
    let list = memwarden(&["history", "--url", &url]).output().unwrap();
    assert!(String::from_utf8(list.stdout).unwrap().contains("out of GPU memory"));
}
