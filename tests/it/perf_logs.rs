//! Performance logs of a connected job, read by their consumers: people, `memwarden plot`, TensorBoard.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Daemon, memwarden, now, program, python_with, wait_for};
use crate::training_job::{SAMPLES, TOKENS, hello, say, step};

const SOON: Duration = Duration::from_secs(30);
/// Step duration that the job reports.
const SECONDS: f64 = 0.25;

/// Reads event files as TensorBoard does: the steps and values of each tag.
const READ: &str = "
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
scalars = {tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in events.Tags()['scalars']}
print(json.dumps({'version': events.file_version, 'scalars': scalars}))
";

/// The files that a daemon wrote for one workload.
struct Logs {
    _folder: tempfile::TempDir,
    folder: PathBuf,
}

impl Logs {
    /// A job that sends `hello` first and reports until `perf.log` has enough lines.
    fn of(hello: &Value, lines: usize) -> Self {
        let parent = tempfile::tempdir().unwrap();
        let config = parent.path().join("memwarden.yaml");
        let settings = json!({
            "sampling": {"interval": "200ms"},
            "perf_logs": {"folder": parent.path().join("logs"), "every_steps": 4},
            // This process under a name that is not valid for a folder.
            "sources": {"gpu": {"enabled": false}, "workload": {"trees": [format!("{} our/run", std::process::id())]}},
        });
        std::fs::write(&config, settings.to_string()).unwrap();
        let mut daemon = Daemon::start(&["--config.file", config.to_str().unwrap()]);
        let mut job = wait_for("the job socket", SOON, || UnixStream::connect(daemon.job_socket()).ok());
        assert!(say(&mut job, std::slice::from_ref(hello)));
        let logs = Self { folder: parent.path().join("logs/our_run"), _folder: parent };
        let begun = now();
        for number in 1.. {
            assert!(say(&mut job, &step(number, SECONDS)), "the daemon hears");
            std::thread::sleep(Duration::from_millis(50));
            let text = std::fs::read_to_string(logs.folder.join("perf.log")).unwrap_or_default();
            // Rates require a second.
            if text.matches("tokens/s").count() >= lines {
                break;
            }
            assert!(begun.elapsed() < SOON, "perf.log has only\n{text}");
        }
        assert!(say(&mut job, &[json!({"type": "bye", "reason": "finished", "dropped": 0})]));
        daemon.signal("TERM");
        assert!(daemon.wait(SOON).success());
        logs
    }

    fn read(&self, name: &str) -> String {
        let path = self.folder.join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn summary(&self) -> Value {
        serde_json::from_str(&self.read("perf_summary.json")).unwrap()
    }

    /// The steps that have a line in `perf.log`.
    fn steps(&self) -> Vec<u64> {
        let text = self.read("perf.log");
        let steps = text.lines().map(|line| {
            let (_, rest) = line.split_once("] step ").unwrap();
            rest.split(' ').next().unwrap().parse().unwrap()
        });
        steps.collect()
    }

    /// The data that `memwarden plot` draws for a file.
    fn plot(&self, name: &str) -> String {
        let mut command = memwarden(&["plot", name, "-o", "-"]);
        let done = command.current_dir(&self.folder).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }
}

fn check_text(logs: &Logs) {
    let text = logs.read("perf.log");
    let last = text.lines().last().unwrap();
    for part in ["UTC] step ", "| step time 250.0 ms | throughput ", " tokens/s | samples ", "/s | compute "]
    {
        assert!(last.contains(part), "{part:?} is not in {last}");
    }
    for part in [" TFLOP/s per GPU | MFU ", " | allocated 8.00 GiB | reserved 11.00 GiB"] {
        assert!(last.contains(part), "{part:?} is not in {last}");
    }
    let steps = logs.steps();
    assert!(steps.windows(2).all(|pair| pair[1] >= pair[0] + 4), "every fourth step or later: {steps:?}");
    let table = logs.read("perf_realtime.log");
    let header = "Timestamp            Step     TFLOPS/GPU   TFLOPS       Samples/s    Tokens/s     Time(ms)   Memory(GB)";
    assert!(table.lines().any(|line| line.trim_end() == header), "{table}");
    let rows: Vec<u64> = table
        .lines()
        .filter(|line| line.starts_with("20"))
        .map(|line| line.split_whitespace().nth(2).unwrap().parse().unwrap())
        .collect();
    assert_eq!(rows, steps);
}

fn check_summary(logs: &Logs) {
    let (summary, steps) = (logs.summary(), logs.steps());
    assert_eq!(summary["session_info"]["workload"], "our/run");
    assert_eq!(summary["session_info"]["total_iterations"], steps.len());
    let logged: Vec<u64> = summary["iteration_logs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["iteration"].as_u64().unwrap())
        .collect();
    assert_eq!(logged, steps);
    let figure =
        |name: &str| summary["statistics"][name]["last"].as_f64().unwrap_or_else(|| panic!("{name}"));
    assert!((figure("step_time_ms") - 250.0).abs() < 1e-6 && (figure("memory_GB") - 8.0).abs() < 1e-6);
    // Six for each parameter that multiplies (four layers of attention and a gated MLP, and the output layer), and
    // attention over all pairs, 12 · layers · hidden · sequence.
    let layer = 2 * 1024 * 1024 + 2 * 1024 * 512 + 3 * 1024 * 2816;
    let per_token = f64::from(6 * (4 * layer + 1024 * 32_000) + 12 * 4 * 1024 * 2048);
    let found = figure("TFLOPS_per_GPU") * 1e12 / figure("tokens_per_second");
    assert!((found / per_token - 1.0).abs() < 1e-6, "{found} and not {per_token}");
    // Both rates are of the same steps, over different windows.
    let tokens = figure("samples_per_second") * f64::from(TOKENS / SAMPLES);
    assert!((0.1..10.0).contains(&(tokens / figure("tokens_per_second"))), "{summary}");
}

fn check_plots(logs: &Logs) {
    for name in ["perf_realtime.log", "perf_summary.json"] {
        let svg = logs.plot(name);
        for part in ["logged by FlagScale", "allocated", "step time", "TFLOPS per GPU"] {
            assert!(svg.contains(part), "{part:?} is not in the plot of {name}");
        }
    }
}

#[test]
fn a_job_is_logged_as_text_table_and_summary() {
    let logs = Logs::of(&hello(0), 3);
    check_text(&logs);
    check_summary(&logs);
    check_plots(&logs);
    let files = std::fs::read_dir(&logs.folder).unwrap().map(|entry| entry.unwrap().file_name());
    let files: BTreeSet<String> = files.map(|name| name.into_string().unwrap()).collect();
    let known = ["perf.log", "perf_realtime.log", "perf_summary.json"];
    let events = files.iter().filter(|name| name.starts_with("events.out.tfevents.")).count();
    assert!(files.len() == 4 && events == 1 && known.iter().all(|name| files.contains(*name)), "{files:?}");
}

#[test]
fn unreported_values_are_in_no_format() {
    let mut hello = hello(0);
    hello.as_object_mut().unwrap().remove("model");
    let logs = Logs::of(&hello, 2);
    assert!(!logs.read("perf.log").contains("FLOP"));
    let table = logs.read("perf_realtime.log");
    let last: Vec<&str> = table.lines().last().unwrap().split_whitespace().collect();
    assert_eq!((last[3], last[4], last[7], last[8]), ("nan", "nan", "250.0", "8.00"), "{last:?}");
    let statistics = &logs.summary()["statistics"];
    assert!(statistics.get("TFLOPS_per_GPU").is_none() && statistics.get("mfu_ratio").is_none());
    for name in ["perf_realtime.log", "perf_summary.json"] {
        let svg = logs.plot(name);
        assert!(
            svg.contains("step time") && !svg.contains("TFLOPS") && !svg.contains("NaN"),
            "{name}: {svg}"
        );
    }
}

#[test]
fn tensorboard_reads_the_event_files() {
    let Some(python) = python_with("tensorboard.backend.event_processing.event_accumulator") else { return };
    let logs = Logs::of(&hello(0), 3);
    let output = program(python).args(["-c", READ]).arg(&logs.folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["version"], 2.0);
    let scalars: BTreeMap<String, Vec<(u64, f64)>> =
        serde_json::from_value(found["scalars"].clone()).unwrap();
    let all = [
        "memory/allocated_bytes",
        "memory/reserved_bytes",
        "perf/flops_per_second",
        "perf/flops_per_second_per_gpu",
        "perf/mfu_ratio",
        "perf/samples_per_second",
        "perf/step_time_seconds",
        "perf/tokens_per_second",
        "train/loss",
    ];
    assert_eq!(scalars.keys().collect::<Vec<_>>(), all);
    let steps: Vec<u64> = scalars["train/loss"].iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, logs.steps());
    for (step, loss) in &scalars["train/loss"] {
        // They have single precision.
        #[expect(clippy::cast_precision_loss, reason = "a few steps")]
        let wanted = 10.0 / *step as f64;
        assert!((loss / wanted - 1.0).abs() < 1e-6, "{loss} at {step}");
    }
    assert!(scalars["perf/step_time_seconds"].iter().all(|(_, seconds)| *seconds == SECONDS));
    assert!(scalars["memory/allocated_bytes"].iter().all(|(_, bytes)| *bytes == 8_589_934_592.0));
}
