//! Jobs of several processes and threads, counted as the kernel counts their memory.

use std::path::Path;

use serde_json::Value;

use super::SOON;
use super::group::LIMIT;
use super::job::Job;
use super::room::Room;
use crate::harness::{memwarden, program, wait_for};

/// Begins a program that holds memory in MiB.
const BEGIN: &str = "
import ctypes, os, platform, subprocess, sys, threading, time
held = []
def hold(mib):
    for _ in range(mib): held.append(os.urandom(1) * (1 << 20))
";

/// Its first thread ends, as by pthread_exit(3), once another one has begun.
const WITHOUT_FIRST_THREAD: &str = "
import ctypes, platform, threading
def stay():
    while ') Z ' not in open('/proc/%d/stat' % os.getpid()).read(): time.sleep(0.01)
    say('up')
    while True: work()
threading.Thread(target=stay).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)
";

/// How `memwarden run --guard` ended, what it said, and its report.
struct Run {
    code: Option<i32>,
    said: String,
    report: Value,
}

/// Runs a program under this limit; nothing where there is no Python.
fn guarded(limit: &str, script: &str, folder: &Path) -> Option<Run> {
    if !program("python3").arg("--version").output().is_ok_and(|done| done.status.success()) {
        crate::skip::skip("python3 is not installed");
        return None;
    }
    let (output, script) = (folder.join("run.json"), format!("{BEGIN}{script}"));
    let arguments = ["run", "--guard", "--limit", limit, "--no-instrument", "--output"];
    let done = memwarden(&arguments)
        .arg(&output)
        .args(["--", "python3", "-S", "-c", &script])
        .arg(folder)
        .env("XDG_STATE_HOME", folder)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    Some(Run { code: done.status.code(), said: String::from_utf8(done.stderr).unwrap(), report })
}

impl Run {
    /// The largest memory in MiB.
    fn peak(&self, kind: &str) -> f64 {
        self.report["memory"][kind]["max"].as_f64().expect("a peak") / f64::from(1 << 20)
    }

    /// Nothing was done, and the memory is so many MiB and an interpreter.
    #[track_caller]
    fn is_left_alone_with(&self, mib: f64) {
        assert!(self.code == Some(0) && !self.said.contains("Protection acts"), "{}", self.said);
        for kind in ["memory_bytes", "anonymous_bytes"] {
            let peak = self.peak(kind);
            assert!(peak >= mib && peak < mib + 40.0, "{kind} {peak}: {}", self.report["memory"]);
        }
    }
}

#[test]
fn pages_shared_since_a_fork_count_once() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
hold(100)
for _ in range(5):
    if not os.fork():
        time.sleep(4)
        os._exit(0)
time.sleep(5)
";
    let Some(run) = guarded("250MiB", script, folder.path()) else { return };
    run.is_left_alone_with(100.0);
    assert!(run.peak("resident_bytes") > 500.0, "{}", run.report["memory"]);
}

#[test]
fn processes_with_one_address_space_count_once() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
hold(100)
libc = ctypes.CDLL(None)
pause = ctypes.cast(libc.pause, ctypes.c_void_p)
stacks = [ctypes.create_string_buffer(65536) for _ in range(4)]
tops = [ctypes.c_void_p(ctypes.addressof(stack) + 65536 & ~15) for stack in stacks]
# CLONE_VM and SIGCHLD.
children = [libc.clone(pause, top, 0x100 | 17, None) for top in tops]
time.sleep(4)
for child in children: os.kill(child, 9)
";
    let Some(run) = guarded("250MiB", script, folder.path()) else { return };
    run.is_left_alone_with(100.0);
}

#[test]
fn children_between_fork_and_exec_do_not_count_twice() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
hold(150)
end = time.monotonic() + 5
while time.monotonic() < end:
    child = os.fork()
    if not child: os.execv('/bin/true', ['true'])
    os.waitpid(child, 0)
    time.sleep(0.02)
";
    let Some(run) = guarded("250MiB", script, folder.path()) else { return };
    run.is_left_alone_with(150.0);
}

#[test]
fn a_command_without_its_first_thread_is_reached() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
def fill():
    time.sleep(1)
    for _ in range(400):
        hold(1)
        time.sleep(0.02)
threading.Thread(target=fill).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)
";
    let Some(run) = guarded("150MiB", script, folder.path()) else { return };
    assert!(run.said.contains("received SIGTERM") || run.said.contains("was killed"), "{}", run.said);
    assert_ne!(run.code, Some(0));
}

#[test]
fn a_grandchild_that_loses_its_parent_is_ended_with_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
import signal
if not os.fork():
    os.setsid()
    if os.fork(): os._exit(0)
    # The first one has ended before anybody looks.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(sys.argv[1] + '/pid', 'w').write(str(os.getpid()))
    time.sleep(1)
    for _ in range(400):
        hold(1)
        time.sleep(0.02)
time.sleep(60)
";
    let Some(run) = guarded("150MiB", script, folder.path()) else { return };
    assert!(run.said.contains("received SIGTERM") || run.said.contains("was killed"), "{}", run.said);
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
    assert!(run.peak("memory_bytes") > 60.0, "{}", run.report["memory"]);
}

#[test]
fn a_daemon_that_the_command_leaves_behind_stays() {
    let folder = tempfile::tempdir().unwrap();
    let script = "
if not os.fork():
    os.setsid()
    if os.fork(): os._exit(0)
    for number in range(3): os.close(number)
    open(sys.argv[1] + '/pid', 'w').write(str(os.getpid()))
    time.sleep(600)
time.sleep(1)
";
    let Some(run) = guarded("150MiB", script, folder.path()) else { return };
    assert_eq!(run.code, Some(0), "{}", run.said);
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it still runs");
    assert!(!stat.contains(") Z "), "{stat}");
    program("kill").args(["-9", &pid]).status().unwrap();
}

#[test]
fn a_target_by_cgroup_has_its_job_without_first_thread() {
    let Some(room) = Room::real() else { return };
    let mut job = Job::start(&room, WITHOUT_FIRST_THREAD);
    let daemon = room.guard("cgroup_headroom: {soft: 30%, hard: 10%}");
    room.wait_members(&daemon, "train", 1.0);
    job.hold(LIMIT - 6);
    job.wait();
    wait_for("its line", SOON, || room.audit().reached().contains(&u64::from(job.pid())).then_some(()));
}

#[test]
fn a_target_by_workload_has_its_job_without_first_thread() {
    let room = Room::staged();
    let mut job = Job::start(&room, WITHOUT_FIRST_THREAD);
    let keys = "memory_limit: 200MiB, host: {soft: \"\"}";
    let target =
        room.target("train", keys).replace("cgroup_headroom: {soft: \"\"}", "cgroup_headroom: {soft: 20%}");
    room.configure("mode: enforce", &[target], "");
    let daemon = room.start();
    room.wait_members(&daemon, "train", 1.0);
    job.hold(190);
    job.wait();
    wait_for("its line", SOON, || room.audit().reached().contains(&u64::from(job.pid())).then_some(()));
}
