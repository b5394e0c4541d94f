//! Many processes, and processes that end while they are read.

use std::collections::BTreeSet;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::SOON;
use crate::harness::{Daemon, Page, now, program, slow_tests, wait_for};

const HERD: u32 = 2_000;

/// Children that end with their test.
#[derive(Default)]
struct Herd(Vec<Child>);

impl Herd {
    fn spawn(&mut self, command: &str, arguments: &[&str]) {
        let mut child = program(command);
        child.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.0.push(child.spawn().unwrap());
    }

    /// Reaps children that have exited.
    fn reap(&mut self) -> usize {
        let before = self.0.len();
        self.0.retain_mut(|child| child.try_wait().unwrap().is_none());
        before - self.0.len()
    }
}

impl Drop for Herd {
    fn drop(&mut self) {
        // Those that have exited already need no signal.
        self.0.iter_mut().for_each(|child| drop(child.kill()));
        self.0.iter_mut().for_each(|child| drop(child.wait()));
    }
}

/// A daemon that watches every process whose command line has `mark`.
fn watching(mark: &str, interval: &str) -> (Daemon, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memwarden.yaml");
    let matcher = format!("{{name: herd, executable: sleep, command_line: \"{mark}\"}}");
    let text =
        format!("sampling: {{interval: {interval}}}\nsources: {{workload: {{matchers: [{matcher}]}}}}\n");
    std::fs::write(&file, text).unwrap();
    (Daemon::start(&["--config.file", file.to_str().unwrap()]), folder)
}

fn members(page: &Page) -> f64 {
    page.sum("memwarden_workload_processes", &[("workload", "herd")])
}

fn skipped(page: &Page) -> f64 {
    page.get("memwarden_ticks_skipped_total", &[]).unwrap()
}

fn frames(page: &Page) -> f64 {
    page.get("memwarden_frames_total", &[]).unwrap()
}

/// The pids of these processes that a page shows individually.
fn shown(page: &Page) -> BTreeSet<String> {
    let series = page.all("memwarden_process_rss_bytes", &[("workload", "herd")]);
    series.map(|series| series.labels["pid"].clone()).collect()
}

/// The kernel's own count, which the daemon's follows within some ticks.
fn forks_of_kernel() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    stat.lines().find_map(|line| line.strip_prefix("processes ")).unwrap().parse().unwrap()
}

#[track_caller]
fn no_failures(page: &Page) {
    for source in ["process", "workload"] {
        let errors = page.all("memwarden_source_errors_total", &[]);
        let errors: Vec<_> = errors
            .filter(|series| series.labels["source"] == source && series.value > 0.0)
            .map(|series| (&series.labels, series.value))
            .collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

#[test]
fn many_processes_and_many_forks_are_measured_without_a_failure() {
    if !slow_tests() {
        return;
    }
    // A unique mark, so that no other process matches.
    let mark = format!("3{:06}", std::process::id());
    let (daemon, _folder) = watching(&mark, "1s");
    daemon.metrics();
    let mut herd = Herd::default();
    (0..HERD).for_each(|_| herd.spawn("sleep", &[&mark]));
    let page = daemon.wait_page("the herd", SOON, |page| members(page) == f64::from(HERD));
    no_failures(&page);
    assert_eq!(shown(&page).len(), 10, "the largest are shown one by one");
    assert_eq!(
        page.get("memwarden_workload_other_processes", &[("workload", "herd")]),
        Some(f64::from(HERD) - 10.0)
    );

    let (before, forks) = (daemon.page(), forks_of_kernel());
    let mut storm = Herd::default();
    (0..2).for_each(|_| storm.spawn("sh", &["-c", "while :; do /bin/true; done"]));
    let begun = now();
    let mut slowest = Duration::ZERO;
    let mut scrapes = 0;
    let mut sampled = 0.0;
    // Five seconds, or until enough was sampled where the machine is slow.
    while begun.elapsed() < Duration::from_secs(5) || (sampled < 3.0 && begun.elapsed() < SOON) {
        let asked = now();
        let answer = daemon.get("/metrics");
        slowest = slowest.max(asked.elapsed());
        assert_eq!(answer.code, 200);
        sampled = frames(&Page::parse(&answer.body)) - frames(&before);
        scrapes += 1;
        // Thirty per second, as from many Prometheus servers; not a wait for anything.
        std::thread::sleep(Duration::from_millis(30));
    }
    drop(storm);
    let after = daemon.page();
    let (ticks, late) = (frames(&after) - frames(&before), skipped(&after) - skipped(&before));
    let forks = forks_of_kernel() - forks;
    let took = |source| after.get("memwarden_source_duration_seconds", &[("source", source)]).unwrap();
    println!(
        "storm: {forks} forks, {scrapes} scrapes, slowest {slowest:?}, {ticks} frames, {late} skipped, process \
         {:.4} s, workload {:.4} s, {} races",
        took("process"),
        took("workload"),
        after.get("memwarden_process_races_total", &[]).unwrap()
    );
    no_failures(&after);
    assert!(forks > 500, "{forks} forks are no storm");
    assert_eq!(members(&after), f64::from(HERD));
    assert!(ticks >= 3.0, "{ticks} frames, {late} ticks skipped");

    drop(herd);
    let gone_at = daemon.page();
    let next = daemon.wait_page("two frames", SOON, |page| frames(page) >= frames(&gone_at) + 2.0);
    assert_eq!(shown(&next), BTreeSet::new(), "ended processes are still shown");
    assert_eq!(members(&next), 0.0);
    no_failures(&next);
}

#[test]
fn processes_that_exit_while_they_are_read_are_not_failures() {
    let mark = format!(".15{:06}", std::process::id());
    let (daemon, _folder) = watching(&mark, "100ms");
    daemon.metrics();
    let mut herd = Herd::default();
    let (mut spawned, mut ended, mut seen) = (0_u32, 0, 0.0_f64);
    let begun = now();
    while begun.elapsed() < Duration::from_secs(3) || (seen == 0.0 && begun.elapsed() < SOON) {
        // Each runs for little more than a tick, and longer if the machine is too slow for ticks.
        let lifetime = format!("{}{mark}", begun.elapsed().as_secs() / 3);
        // Two hundred per second, or as many as the machine can start, in portions between two checks.
        for _ in 0..20 {
            if f64::from(spawned) < begun.elapsed().as_secs_f64() * 200.0 && herd.0.len() < 400 {
                herd.spawn("sleep", &[&lifetime]);
                spawned += 1;
            }
        }
        ended += herd.reap();
        let page = daemon.page();
        let exited = page.get("memwarden_workload_processes_exited_total", &[("workload", "herd")]);
        seen = seen.max(exited.unwrap_or(0.0));
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_for("the last of them", SOON, || {
        ended += herd.reap();
        herd.0.is_empty().then_some(())
    });
    daemon.wait_frames(2.0);
    let page = daemon.page();
    let races = page.get("memwarden_process_races_total", &[]).unwrap();
    println!("churn: {spawned} spawned, {ended} ended, {seen} of them seen, {races} races");
    assert!(spawned > 100 && seen > 0.0, "{spawned} spawned and {seen} seen are no churn");
    no_failures(&page);
    assert_eq!(daemon.logged(&["Source failed", "source=process"]), [""; 0]);
    assert_eq!(daemon.logged(&["Source failed", "source=workload"]), [""; 0]);
    assert_eq!(usize::try_from(spawned).unwrap(), ended);
}
