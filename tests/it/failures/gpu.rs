//! A driver that hangs, crashes, is stopped, or is released for another program.

use std::time::Duration;

use tempfile::TempDir;

use super::SOON;
use crate::harness::{Daemon, Page, children, fake_nvml, now, signal, wait_for};

const TWO: &str = r#"{"devices": [{"utilization": 50}, {"utilization": 9}]}"#;
const FIRST_HANGS: &str = r#"{"devices": [{"hang": ["*"]}, {"utilization": 9}]}"#;

/// A daemon with the GPUs of a scenario.
struct Node {
    // Dropped first: its worker reads the folder.
    daemon: Daemon,
    folder: TempDir,
}

impl Node {
    fn new(scenario: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scenario.json");
        std::fs::write(&file, scenario).unwrap();
        let library = format!("sources.gpu.nvml_library={}", fake_nvml().display());
        let sets = [&library, "sources.gpu.interval=200ms", "sampling.interval=200ms"];
        let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let daemon = Daemon::start_with(&args, |command| {
            command.env("FAKE_NVML_SCENARIO", &file);
        });
        Self { daemon, folder }
    }

    fn change(&self, scenario: &str) {
        let next = self.folder.path().join("next.json");
        std::fs::write(&next, scenario).unwrap();
        std::fs::rename(next, self.folder.path().join("scenario.json")).unwrap();
    }

    #[track_caller]
    fn until(&self, what: &str, good: impl Fn(&Page) -> bool) -> Page {
        self.daemon.wait_page(what, SOON, good)
    }

    #[track_caller]
    fn until_well(&self) -> Page {
        self.until("both GPUs", |page| gpu_is(page, "0", "ok") && gpu_is(page, "1", "ok"))
    }

    /// The only child of a daemon.
    fn worker(&self) -> u32 {
        let found = children(self.daemon.pid());
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }

    /// The logged states of the source: changes only.
    fn changes(&self) -> Vec<String> {
        self.daemon.logged(&["source=gpu"])
    }

    /// Waits for some ticks and checks that they logged nothing.
    #[track_caller]
    fn stays_silent(&self) {
        // The line of the last change may come after the page that shows it.
        let mut before = self.changes();
        for _ in 0..3 {
            self.daemon.wait_frames(8.0);
            let now = self.changes();
            if now == before {
                return;
            }
            before = now;
        }
        panic!("ticks without a change were logged: {before:#?}");
    }
}

fn gpu_is(page: &Page, gpu: &str, status: &str) -> bool {
    page.get("memwarden_gpu_status", &[("gpu", gpu), ("status", status)]) == Some(1.0)
}

fn nvml_is(page: &Page, status: &str) -> bool {
    page.get("memwarden_nvml_status", &[("status", status)]) == Some(1.0)
}

fn age(page: &Page, gpu: &str) -> f64 {
    page.get("memwarden_gpu_sample_age_seconds", &[("gpu", gpu)]).unwrap()
}

fn has_values(page: &Page, gpu: &str) -> bool {
    page.get("memwarden_gpu_power_watts", &[("gpu", gpu)]).is_some()
}

fn restarts(page: &Page) -> f64 {
    page.get("memwarden_gpu_worker_restarts_total", &[]).unwrap()
}

/// A scrape may wait for a CPU of a loaded machine, but none waits for the worker or for a call that hangs: the fastest of twenty
/// is fast.
fn scrapes_are_answered(daemon: &Daemon) {
    let times = (0..20).map(|_| {
        let begun = now();
        assert_eq!(daemon.get("/metrics").code, 200);
        begun.elapsed()
    });
    let fastest = times.min().unwrap();
    assert!(fastest < Duration::from_millis(50), "{fastest:?}");
}

#[test]
fn a_gpu_that_never_answers_delays_no_scrape_and_no_other_gpu() {
    let node = Node::new(TWO);
    node.until_well();
    node.change(FIRST_HANGS);
    let hung = node.until("the hang", |page| gpu_is(page, "0", "hung"));
    scrapes_are_answered(&node.daemon);
    let older = node.until("its age to grow", |page| age(page, "0") > age(&hung, "0") + 1.0);
    for page in [&hung, &older] {
        assert!(gpu_is(page, "0", "hung") && gpu_is(page, "1", "ok"));
        assert!(age(page, "1") < 5.0, "the other GPU is {} s old", age(page, "1"));
        assert!(!has_values(page, "0") && has_values(page, "1"));
    }
    let errors = older.get("memwarden_source_errors_total", &[("source", "gpu"), ("kind", "timeout")]);
    assert!(errors > Some(0.0));
    node.stays_silent();
    let failed = node.daemon.logged(&["Source failed", "source=gpu", "GPU 0: hung"]);
    assert_eq!(failed.len(), 1, "{failed:?}");
    node.change(TWO);
    let well = node.until_well();
    assert!(has_values(&well, "0") && age(&well, "0") < 5.0);
    assert_eq!(restarts(&well), 0.0, "a hung call is no reason for a new worker yet");
    wait_for("the end of it in the log", SOON, || {
        (node.daemon.logged(&["Source is available again", "source=gpu"]).len() == 2).then_some(())
    });
}

#[test]
fn a_killed_worker_is_reported_and_replaced() {
    let node = Node::new(TWO);
    node.until_well();
    let first = node.worker();
    // The next ones fail, so that the loss lasts.
    node.change(r#"{"crash_on_init": true}"#);
    signal(first, "KILL");
    let page = node.until("the loss", |page| nvml_is(page, "worker_failed"));
    assert!(!gpu_is(&page, "0", "ok") && !gpu_is(&page, "1", "ok"));
    assert_eq!(page.get("memwarden_gpu_worker_up", &[]), Some(0.0));
    assert_eq!(page.get("memwarden_source_up", &[("source", "gpu")]), Some(0.0));
    node.change(TWO);
    node.until("another worker", |page| restarts(page) >= 1.0);
    node.until_well();
    assert_ne!(node.worker(), first);
    let failed = node.daemon.logged(&["Source failed", "source=gpu"]);
    assert_eq!(failed.len(), 1, "{failed:?}");
    node.stays_silent();
}

#[test]
fn a_stopped_worker_is_reported_and_replaced() {
    let node = Node::new(TWO);
    node.until_well();
    let first = node.worker();
    signal(first, "STOP");
    let page = node.until("the silence", |page| page.get("memwarden_gpu_worker_up", &[]) == Some(0.0));
    assert!(gpu_is(&page, "0", "unobserved"), "a stopped worker says nothing about its GPUs");
    scrapes_are_answered(&node.daemon);
    let well = node.until("another worker", |page| restarts(page) == 1.0 && gpu_is(page, "0", "ok"));
    assert_eq!(well.get("memwarden_gpu_worker_up", &[]), Some(1.0));
    assert_ne!(node.worker(), first);
    let changes = node.changes();
    assert!(changes.len() <= 5, "{changes:#?}");
    node.stays_silent();
}

#[test]
fn a_driver_that_crashes_its_client_is_reported_and_retried() {
    let node = Node::new(r#"{"crash_on_init": true}"#);
    let page = node.until("the crash", |page| nvml_is(page, "worker_failed"));
    assert_eq!(page.all("memwarden_gpu_status", &[]).count(), 0);
    assert_eq!(page.get("memwarden_gpus", &[]), None, "no count is not a count of zero");
    assert!(page.get("memwarden_host_memory_total_bytes", &[]).is_some());
    node.until("more attempts", |page| restarts(page) >= 2.0);
    let failed = node.daemon.logged(&["Source failed", "source=gpu"]);
    assert_eq!(failed.len(), 1, "each attempt was logged: {failed:?}");
    node.change(TWO);
    node.until_well();
    node.stays_silent();
}

#[test]
fn signals_release_and_acquire_the_driver() {
    let node = Node::new(TWO);
    node.until_well();
    node.daemon.signal("USR1");
    let page = node.until("the release", |page| nvml_is(page, "released"));
    let about_gpus = page.0.iter().filter(|series| series.labels.contains_key("uuid"));
    let left: Vec<&str> = about_gpus.map(|series| series.name.as_str()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(page.get("memwarden_gpu_worker_up", &[]), Some(0.0));
    assert_eq!(children(node.daemon.pid()), [0_u32; 0], "nobody may hold the driver");
    let unavailable = [("source", "gpu"), ("status", "unavailable")];
    assert_eq!(page.get("memwarden_source_status", &unavailable), Some(1.0));
    node.daemon.logs_once(&["released on request", "source=gpu"]);
    node.stays_silent();
    node.daemon.signal("USR2");
    let well = node.until_well();
    assert!(has_values(&well, "0") && has_values(&well, "1"));
    node.worker();
}
