//! What will not fit on a GPU is named before it fails: the Python client on the fake GPU, the daemon on the fake driver.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::{Daemon, fake_nvml, program, wait_for};
use crate::skip::skip;

const SOON: Duration = Duration::from_secs(20);

/// The GPU of the fake PyTorch with the 24 GiB of the planted runs, on which the driver lists a process.
fn scenario(path: &Path, pid: Option<u32>) {
    let (total, used) = (24_u64 << 30, 1_u64 << 30);
    let processes = pid.map_or_else(String::new, |pid| format!(r#"{{"pid": {pid}, "memory": {used}}}"#));
    let text = format!(
        r#"{{"devices": [{{"uuid": "GPU-5f1d2a7c-0", "memory": {{"total": {total}, "reserved": 0, "used": {used}}},
            "processes": [{processes}]}}]}}"#
    );
    let next = path.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, path).unwrap();
}

/// The output of a run in which `kind` fails: standard output and error, in order.
fn planted(kind: &str) -> Option<String> {
    if !program("python3").arg("--version").output().is_ok_and(|done| done.status.success()) {
        skip("python3 is not installed");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.json");
    scenario(&file, None);
    let daemon = Daemon::start_with(&["--set", "sampling.interval=200ms"], |command| {
        command.env("FAKE_NVML_SCENARIO", &file).arg("--nvml-library").arg(fake_nvml());
    });
    wait_for("the job socket", SOON, || UnixStream::connect(daemon.job_socket()).ok());
    daemon.wait_page("the GPU", SOON, |page| page.0.iter().any(|series| series.name == "memwarden_gpu_info"));
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    let paths = format!("{}:{}", client.display(), client.join("tests/fake_torch").display());
    let mut command = program("sh");
    command.args(["-c", "exec python3 \"$@\" 2>&1", "sh"]);
    command.arg(client.join("tests/fit/planted_gpu.py")).arg(kind).arg(folder.path());
    command.env("PYTHONPATH", paths).env("MEMWARDEN_JOB_SOCKET", daemon.job_socket());
    command.env_remove("MEMWARDEN_DISABLE").env_remove("MEMWARDEN_FIT").stdout(Stdio::piped());
    let child = command.spawn().unwrap();
    scenario(&file, Some(child.id()));
    let done = child.wait_with_output().unwrap();
    let output = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(3), "{output}\n{}", daemon.log());
    Some(output)
}

/// Checks that the failure was named on a line before it.
#[track_caller]
fn named(kind: &str, phase: &str, failure: &str) {
    let Some(output) = planted(kind) else { return };
    let before = output.split(failure).next().unwrap();
    assert!(before.len() < output.len(), "it did not fail: {output}");
    let names =
        |line: &str| line.starts_with("memwarden:") && line.contains(phase) && line.contains(" not fit");
    assert!(before.lines().any(names), "{output}");
}

#[test]
fn a_first_optimizer_step_that_will_not_fit_on_a_gpu() {
    named("optimizer", "the first optimizer step (expected at step 1) needs 28.0 GiB", "out of memory");
}

#[test]
fn a_longest_batch_that_will_not_fit_on_a_gpu() {
    // The sizes before it are few and far from it.
    named("longest", "the largest step (4 samples of 1024 tokens) may not fit (28", "out of memory");
}

#[test]
fn an_evaluation_that_will_not_fit_on_a_gpu() {
    named("evaluation", "evaluation (the outputs of 100 batches kept) needs", "out of memory");
}

#[test]
fn a_save_that_will_not_fit() {
    named("save", "the save on the disk needs 3.0 GiB", "no space left");
}
