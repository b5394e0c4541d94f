//! The page shows a training job that reports through its log only.

use std::io::Write as _;
use std::time::Duration;

use crate::harness::Daemon;

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_job_is_measured_through_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("train.log");
    let pipe = folder.path().join("pipe.log");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let config = folder.path().join("memwarden.yaml");
    let text = "sampling: {interval: 200ms}\nsources:\n  logs:\n    interval: 100ms\n    files:\n      \
        - {path: train.log, workload: gpt}\n      - {path: pipe.log}\n";
    std::fs::write(&config, text).unwrap();
    let daemon = Daemon::start(&["--config.file", config.to_str().unwrap()]);
    let read = |page: &crate::harness::Page, name: &str| page.get(name, &[("workload", "gpt")]);
    // The pipe has no writer and must not block anything; the log does not exist yet.
    daemon.wait_page("the pipe's refusal", SOON, |page| {
        page.sum("memwarden_log_errors_total", &[("kind", "not_regular")]) == 1.0
    });
    let mut file = std::fs::File::create(&log).unwrap();
    file.write_all(b"compiling the model...\niter 300: loss 2.4512, time 135.22ms, mfu 37.29%\r").unwrap();
    let page =
        daemon.wait_page("the job's loss", SOON, |page| read(page, "memwarden_training_loss").is_some());
    assert_eq!(read(&page, "memwarden_training_loss"), Some(2.4512));
    assert_eq!(read(&page, "memwarden_training_step"), Some(300.0));
    assert_eq!(read(&page, "memwarden_training_step_last_duration_seconds"), Some(0.13522));
    assert_eq!(read(&page, "memwarden_training_reported_mfu_ratio"), Some(0.3729));
    // Rotated while the job runs.
    std::fs::rename(&log, folder.path().join("train.log.1")).unwrap();
    std::fs::write(&log, "iter 310: loss nan, time 135.22ms, mfu 37.29%\n").unwrap();
    let page =
        daemon.wait_page("the next step", SOON, |page| read(page, "memwarden_training_step") == Some(310.0));
    assert_eq!(read(&page, "memwarden_training_loss"), None);
    assert_eq!(read(&page, "memwarden_training_nonfinite_steps_total"), Some(1.0));
    daemon.logs_once(&["pipe.log", "is not a regular file"]);
}
