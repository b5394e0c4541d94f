//! The flight recorder: the kernel kills, nobody else did anything, and there is a folder that tells it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Daemon, Page, memwarden, program, wait_for};
use crate::skip::skip;

const LONG: Duration = Duration::from_secs(30);
/// What the job may have; it asks for more.
const LIMIT: u64 = 64 << 20;

/// A memory group of our own, below the one that we are in.
struct Group(PathBuf);

impl Group {
    fn make() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("memwarden-oom-{}", std::process::id());
        let v1 = text.lines().find_map(|line| line.split_once(":memory:").map(|(_, path)| path.to_owned()));
        let (folder, limit) = match v1 {
            Some(path) => (
                Path::new("/sys/fs/cgroup/memory").join(path.trim_start_matches('/')),
                "memory.limit_in_bytes",
            ),
            None => (PathBuf::from("/sys/fs/cgroup"), "memory.max"),
        };
        let folder = folder.join(name);
        std::fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        std::fs::write(group.0.join(limit), LIMIT.to_string()).ok()?;
        // Without swap the end comes at once.
        let _ = std::fs::write(group.0.join("memory.swap.max"), "0");
        Some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What `memwarden incidents --format json` lists.
fn incidents(folder: &Path) -> Value {
    let output = memwarden(&["incidents", "--format", "json", "--folder"]).arg(folder).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_kernel_oom_kill_is_reported() {
    let Some(group) = Group::make() else {
        skip("no memory group can be made here");
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let file = format!("state.file={}", state.path().join("state.json").display());
    let daemon = Daemon::start(&["--set", &file, "--set", "sampling.interval=500ms"]);
    if daemon.page().0.iter().all(|series| series.name != "memwarden_kernel_log_records_total") {
        skip("the kernel log cannot be read here");
        return;
    }
    let name = group.0.file_name().unwrap().to_str().unwrap();
    // Other tests may have the kernel kill, too.
    let ours = || {
        let listed = incidents(&state.path().join("incidents"));
        let entries = listed["incidents"].as_array().unwrap();
        entries.iter().find(|entry| entry.to_string().contains(name)).cloned()
    };
    assert_eq!(daemon.get("/api/v1/incidents").code, 403, "nobody is authenticated");
    assert_eq!(ours(), None);
    // It enters the group by itself, takes more than it may, and is never more than this machine can bear.
    let script = "import sys\nopen(sys.argv[1], 'w').write('0')\nheld = []\nfor _ in range(256): held.append(b'x' * (1 << 20))\nprint('alive')";
    let kill = || program("python3").args(["-S", "-c", script]).arg(group.0.join("cgroup.procs")).output();
    let output = kill().unwrap();
    if !output.stdout.is_empty() || output.status.code() == Some(1) {
        skip("the kernel does not hold a group to its limit here");
        return;
    }
    let entry = wait_for("an incident", LONG, || ours().filter(|entry| entry["complete"] == true));
    let id = entry["id"].as_str().unwrap();
    assert_eq!(entry["cause"], "kernel_oom");
    let summary = entry["summary"].as_str().unwrap();
    assert!(summary.starts_with("The kernel killed python3 (pid "), "{summary}");
    let folder = state.path().join("incidents").join(id);
    let record: Value =
        serde_json::from_slice(&std::fs::read(folder.join("incident.json")).unwrap()).unwrap();
    assert!(record["victim"]["resident"][0].as_f64().unwrap() > 1e7, "{record}");
    assert_eq!((&record["resource"], &entry["resource"]), (&"cgroup".into(), &"cgroup".into()));
    assert_eq!(record["limit_bytes"].as_f64(), Some(67_108_864.0), "{record}");
    for name in ["incident.json", "memory-host.csv", "processes.csv"] {
        assert!(std::fs::metadata(folder.join(name)).unwrap().len() > 0, "{name}");
    }
    daemon.wait_value("memwarden_incidents_recorded_total", |count| count >= 1.0);
    let told = |args: &[&str]| {
        let config = state.path().join("incidents");
        let output = memwarden(&["incidents"])
            .args(args)
            .args(["--folder", config.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(told(&[]).lines().any(|line| line.trim_start().starts_with(id)));
    assert!(
        told(&[id]).contains("| cause | kernel\\_oom |") || told(&[id]).contains("| cause | kernel_oom |")
    );
    assert_eq!(serde_json::from_str::<Value>(&told(&["--format", "json", id])).unwrap(), record);
    let picture = state.path().join("memory.svg");
    told(&["--plot", picture.to_str().unwrap(), id]);
    assert!(std::fs::read_to_string(picture).unwrap().starts_with("<svg"));
    // A storm of kills in one cgroup is one record, and one line of the log.
    kill().unwrap();
    wait_for("the second kill", LONG, || {
        let text = std::fs::read(folder.join("incident.json")).ok()?;
        let record: Value = serde_json::from_slice(&text).ok()?;
        (record["kills"] == 2).then_some(())
    });
    daemon.logs_once(&["The kernel killed", id]);
}

#[test]
fn a_folder_that_cannot_be_written_is_reported_at_start() {
    let state = tempfile::tempdir().unwrap();
    let blocked = state.path().join("blocked");
    std::fs::write(&blocked, "").unwrap();
    let file = format!("state.file={}", blocked.join("state.json").display());
    let daemon = Daemon::start(&["--set", &file]);
    daemon.logs_once(&["Cannot write the audit log"]);
    daemon.logs_once(&["Cannot write incident records"]);
    let page = daemon.wait_page("the records", LONG, |page| {
        page.0.iter().any(|series| series.name == "memwarden_records_writable" && series.value == 0.0)
    });
    let needs = page.0.iter().filter(|series| series.name == "memwarden_protection_prerequisite_met").count();
    assert_eq!(needs, 6, "each need of protection is told");
}

#[test]
fn without_a_folder_nothing_is_reported_as_unwritable() {
    let daemon = Daemon::start_with(&[], |command| {
        command.env_remove("STATE_DIRECTORY");
    });
    daemon.wait_value("memwarden_incidents_recorded_total", |count| count == 0.0);
    assert!(daemon.value("memwarden_records_writable").is_none());
}

#[test]
fn a_kill_by_another_program_is_reported_once() {
    let state = tempfile::tempdir().unwrap();
    let mark = format!("memwarden-victim-{}", std::process::id());
    let user = rustix::process::getuid().as_raw();
    let config = state.path().join("config.yaml");
    let text = format!(
        "state: {{file: {}}}\nsampling: {{interval: 500ms}}\n\
         sources: {{workload: {{matchers: [{{name: victims, command_line: {mark}}}]}}}}\n\
         protection: {{mode: observe, targets: [{{name: watched, workload: victims, allow_users: [{user}]}}]}}\n",
        state.path().join("state.json").display()
    );
    std::fs::write(&config, text).unwrap();
    let daemon = Daemon::start(&["--config.file", config.to_str().unwrap()]);
    if daemon.page().0.iter().all(|series| series.name != "memwarden_host_process_exits_total") {
        skip("how processes end is not known here");
        return;
    }
    let mut job: Vec<_> = (0..3)
        .map(|_| {
            program("sh").args(["-c", "read line; exit 0", &mark]).stdin(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let members = [("target", "watched"), ("workload", "victims")];
    let all = |page: &Page| page.get("memwarden_protection_members", &members) == Some(3.0);
    daemon.wait_page("three members", LONG, all);
    // One ends by itself, and nobody needs to know.
    drop(job[0].stdin.take());
    job[0].wait().unwrap();
    for victim in &mut job[1..] {
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    // Others' incidents are told as well: the kernel may kill in another test's group meanwhile.
    let ours = || -> Vec<Value> {
        let listed = incidents(&state.path().join("incidents"));
        let all = listed["incidents"].as_array().unwrap().iter();
        all.filter(|incident| incident["target"] == "watched").cloned().collect()
    };
    wait_for("an incident", LONG, || Some(()).filter(|()| !ours().is_empty()));
    daemon.wait_frames(3.0);
    let told = ours();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0]["cause"], "killed");
    let record = state.path().join("incidents").join(told[0]["id"].as_str().unwrap()).join("incident.json");
    let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    assert_eq!(
        (&record["end"]["cause"], &record["workload"]),
        (&"killed".into(), &"victims".into()),
        "{record}"
    );
}
