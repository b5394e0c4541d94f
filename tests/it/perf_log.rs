//! Performance logs of a job, written by the daemon and read back by TensorBoard itself.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::harness::{Daemon, program, wait_for};
use crate::skip::skip;

const SOON: Duration = Duration::from_secs(20);

const READ: &str = "
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
for tag in sorted(events.Tags()['scalars']):
    print(tag, [(event.step, round(event.value, 4)) for event in events.Scalars(tag)])
";

#[test]
fn tensorboard_reads_what_the_daemon_writes() {
    let folder = tempfile::tempdir().unwrap();
    let setting = format!("perf_log.folder={}", folder.path().display());
    let args = ["--set", "sampling.interval=100ms", "--set", &setting, "--set", "perf_log.every_steps=1"];
    let mut daemon = Daemon::start(&args);
    let mut job = wait_for("the job socket", SOON, || UnixStream::connect(daemon.job_socket()).ok());
    job.write_all(b"{\"type\":\"hello\",\"v\":1}\n").unwrap();
    let text = |kind: &str| {
        let run = std::fs::read_dir(folder.path()).ok()?.next()?.ok()?.path();
        let found = std::fs::read_dir(&run).ok()?.filter_map(Result::ok).map(|entry| entry.path());
        let path = found
            .into_iter()
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(kind)))?;
        Some((run, std::fs::read_to_string(path).ok()?))
    };
    for step in 1..4 {
        let line = format!("{{\"type\":\"step\",\"step\":{step},\"seconds\":0.5,\"loss\":{step}.25}}\n");
        job.write_all(line.as_bytes()).unwrap();
        wait_for("a row", SOON, || {
            text("perf_metrics_").filter(|(_, text)| text.contains(&format!("step={step} ")))
        });
    }
    let (run, table) = text("perf_realtime").unwrap();
    assert_eq!(table.lines().count(), 4, "{table}");
    daemon.signal("TERM");
    assert!(daemon.wait(Duration::from_secs(5)).success());
    let (_, summary) = text("perf_summary_").unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!((&summary["last_step"], &summary["statistics"]["loss"]["mean"]), (&3.into(), &2.25.into()));
    let python = std::env::var("MEMWARDEN_TENSORBOARD_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = program(&python)
        .args(["-c", "import tensorboard"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !has {
        return skip("event files are not read back: there is no python3 with tensorboard");
    }
    let output = program(&python).args(["-c", READ]).arg(&run).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "training/loss [(1, 1.25), (2, 2.25), (3, 3.25)]\ntraining/step_seconds [(1, 0.5), (2, 0.5), (3, 0.5)]\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
