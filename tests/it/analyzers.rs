//! The analyzers in the daemon: a host that fills up, found, reported, and known again after a restart.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::harness::{Daemon, now, wait_for};

const PATIENCE: Duration = Duration::from_secs(120);
const TTE: &str = "memwarden_forecast_time_to_exhaustion_seconds";

/// A host whose available memory falls by 64 MiB each tenth of a second.
struct Host {
    folder: tempfile::TempDir,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let proc = folder.path().join("proc");
        std::fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
        std::fs::write(proc.join("sys/kernel/random/boot_id"), "first\n").unwrap();
        let ending = Arc::new(AtomicBool::new(false));
        let (ended, begun) = (Arc::clone(&ending), now());
        write(&proc, 0);
        let fill = move || {
            while !ended.load(Ordering::Relaxed) {
                write(&proc, begun.elapsed().as_millis() / 100);
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        Self { folder, ending, thread: Some(std::thread::spawn(fill)) }
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state.json")
    }

    fn boot(&self, id: &str) {
        std::fs::write(self.folder.path().join("proc/sys/kernel/random/boot_id"), id).unwrap();
    }

    fn daemon(&self) -> Daemon {
        let proc = format!("paths.proc={}", self.folder.path().join("proc").display());
        let state = format!("state.file={}", self.state().display());
        Daemon::start(&["--set", &proc, "--set", &state, "--set", "sampling.interval=100ms"])
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn write(proc: &Path, tenths: u128) {
    const TOTAL: u128 = 64 << 20;
    let available = (TOTAL / 2).saturating_sub(tenths * (64 << 10));
    // In one call: a reader sees the old text or the new.
    let text =
        format!("MemTotal: {TOTAL} kB\nMemFree: {available:>10} kB\nMemAvailable: {available:>10} kB\n");
    // The daemon keeps its descriptor, so the file is not replaced; each text is as long as the one that it overwrites.
    let path = proc.join("meminfo");
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(path).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
}

fn foreseen(daemon: &Daemon) -> Option<f64> {
    daemon.page().get(TTE, &[("resource", "host"), ("estimate", "p50")])
}

#[test]
fn a_host_that_fills_up_is_detected_reported_and_known_after_a_restart() {
    let host = Host::start();
    let mut daemon = host.daemon();
    let first = wait_for("a time to exhaustion", PATIENCE, || foreseen(&daemon));
    let learned = daemon.value("memwarden_frames_total").unwrap();
    // 32 GiB at 640 MiB/s are 51 s.
    assert!(first > 5.0 && first < 55.0, "{first}");
    // When half of the time has passed, it is likely.
    let finding = wait_for("a finding", PATIENCE, || {
        let answer = daemon.get("/api/v1/findings");
        let found: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        let findings = found["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["subject"]["resource"] == "host").cloned()
    });
    assert_eq!(finding["analyzer"], "exhaustion", "{finding:#}");
    let logged = daemon.logged(&["analyzer=exhaustion", "subject=host"]).len();
    daemon.wait_frames(20.0);
    // A line for each change of severity, of which a busy machine sees several in 20 frames, and not for each frame.
    assert!(daemon.logged(&["analyzer=exhaustion", "subject=host"]).len() <= logged + 6, "{}", daemon.log());
    daemon.signal("TERM");
    assert!(daemon.wait(Duration::from_secs(5)).success());

    let daemon = host.daemon();
    // Read by another thread, and known from the next frame on: far sooner than it could be learned anew.
    wait_for("the forecast of the run before", PATIENCE, || foreseen(&daemon));
    let frames = daemon.value("memwarden_frames_total").unwrap();
    assert!(frames < learned / 2.0, "{frames} frames, and {learned} to learn it");
    drop(daemon);

    host.boot("second\n");
    let daemon = host.daemon();
    daemon.wait_frames(3.0);
    assert!(foreseen(&daemon).is_none(), "{}", daemon.log());
    daemon.logs_once(&["before the last boot"]);
    drop(daemon);

    std::fs::write(host.state(), "{\"memwarden_state\":1,").unwrap();
    let daemon = host.daemon();
    daemon.wait_frames(3.0);
    assert!(foreseen(&daemon).is_none(), "{}", daemon.log());
    daemon.logs_once(&["is damaged"]);
}

/// The name of the workload whose memory of an unused GPU is reported.
fn idle_workload(daemon: &Daemon) -> Option<String> {
    let page = daemon.metrics();
    let line = page.lines().find(|line| line.starts_with("memwarden_idle_gpu_memory_bytes{"))?;
    let (_, rest) = line.split_once("workload=\"")?;
    Some(rest.split('"').next()?.to_owned())
}

#[test]
fn a_workload_that_holds_a_gpu_without_using_it_is_reported_with_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = crate::harness::program("sleep").arg("600").spawn().unwrap();
    let device = |gpu: usize, utilization: u64, pid: u32| {
        serde_json::json!({
            "uuid": format!("GPU-{gpu}"),
            "minor": gpu,
            "pci": format!("0000:{gpu:02x}:00.0"),
            "utilization": utilization,
            "processes": [{"pid": pid, "memory": 40_u64 << 30, "type": "compute"}],
        })
    };
    // The test's own process uses its GPU.
    let devices = [device(0, 0, job.id()), device(1, 60, std::process::id())];
    let scenario = folder.path().join("scenario.json");
    std::fs::write(&scenario, serde_json::json!({"devices": devices}).to_string()).unwrap();
    let config = folder.path().join("memwarden.yaml");
    let settings = serde_json::json!({
        "sampling": {"interval": "100ms"},
        "sources": {
            "gpu": {"interval": "100ms", "nvml_library": crate::harness::fake_nvml()},
            "workload": {"trees": [format!("{} unused", job.id()), format!("{} used", std::process::id())]},
        },
        "analyzers": {"idle": {"after": "10s"}, "orphaned": {"after": "1s"}},
    });
    std::fs::write(&config, settings.to_string()).unwrap();
    let daemon = Daemon::start_with(&["--config.file", config.to_str().unwrap()], |command| {
        command.env("FAKE_NVML_SCENARIO", &scenario);
    });
    let reported = wait_for("a report", Duration::from_secs(60), || idle_workload(&daemon));
    assert_eq!(reported, "unused");
    let page = daemon.metrics();
    assert!(!page.contains("memwarden_idle_gpu_memory_bytes{workload=\"used\""), "{page}");
    let findings = daemon.get("/api/v1/findings").body;
    assert!(findings.contains("unused holds memory on GPU 0 without using it."), "{findings}");
    job.kill().unwrap();
    job.wait().unwrap();
    wait_for("the end", Duration::from_secs(60), || idle_workload(&daemon).is_none().then_some(()));

    // The driver lists the process no more, and does not release its memory.
    let kept = serde_json::json!({"uuid": "GPU-0", "minor": 0, "pci": "0000:00:00.0", "memory": {"used": 40_u64 << 30}});
    let beside = folder.path().join("next.json");
    let devices = [kept, device(1, 60, std::process::id())];
    std::fs::write(&beside, serde_json::json!({"devices": devices}).to_string()).unwrap();
    std::fs::rename(&beside, &scenario).unwrap();
    let orphaned = wait_for("orphaned memory", Duration::from_secs(60), || {
        let page = daemon.metrics();
        page.lines().find(|line| line.starts_with("memwarden_gpu_memory_orphaned_bytes{")).map(str::to_owned)
    });
    assert!(orphaned.contains("gpu=\"0\"") && orphaned.contains("workload=\"unused\""), "{orphaned}");
    assert_eq!(orphaned.rsplit(' ').next(), Some("42949672960"));
    let check = daemon.get("/api/v1/node").body;
    assert!(check.contains("belong to no running process: sleep (pid "), "{check}");
}
