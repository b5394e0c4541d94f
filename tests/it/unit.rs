//! `deploy/memwarden.service`: the daemon, its worker and its hooks work with the system calls and capabilities that
//! the unit allows.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use crate::harness::{on_path, program, wait_for};
use crate::protection::SOON;
use crate::protection::job::{Job, saving, witness};
use crate::protection::room::Room;
use crate::skip::skip;

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn unit() -> String {
    std::fs::read_to_string(own("deploy/memwarden.service")).unwrap()
}

/// Starts a program as the unit with its drop-ins does, where a call that is not allowed ends its process; nothing if
/// this is not possible.
fn confined() -> Option<[String; 4]> {
    let files = ["deploy/memwarden.service", "deploy/memwarden-perf.conf", "deploy/memwarden-touch.conf"]
        .map(|name| own(name).display().to_string());
    let starter = [
        "python3".to_owned(),
        own("tests/confine.py").display().to_string(),
        "--kill".to_owned(),
        files.join(","),
    ];
    if !rustix::process::geteuid().is_root() {
        skip("only root has the capabilities of the unit");
        return None;
    }
    match program(&starter[0]).args(&starter[1..]).arg("true").output() {
        Ok(tried) if tried.status.success() => Some(starter),
        Ok(tried) => {
            skip(&format!("no filter can be made here: {}", String::from_utf8_lossy(&tried.stderr).trim()));
            None
        }
        Err(error) => {
            skip(&format!("python3 cannot be run: {error}"));
            None
        }
    }
}

#[test]
fn a_call_that_the_unit_does_not_allow_is_detected() {
    let Some(starter) = confined() else { return };
    let script = "import ctypes; ctypes.CDLL(None).reboot(0)";
    let done = program(&starter[0]).args(&starter[1..]).args(["python3", "-c", script]).output().unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&done.status);
    assert_eq!(signal, Some(rustix::process::Signal::SYS.as_raw()), "{done:?}");
    let allowed =
        program(&starter[0]).args(&starter[1..]).args(["cat", "/proc/self/status"]).output().unwrap();
    let status = String::from_utf8(allowed.stdout).unwrap();
    assert!(status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2"), "{status}");
    assert!(!status.contains("CapEff:\t000001ff"), "{status}");
}

/// A typical hook: a shell, Python with a thread and a child process, and an HTTP client.
fn hook(room: &Room, told: &Path) -> PathBuf {
    let path = room.path("hook");
    let curl = on_path("curl").map_or_else(|| "true".to_owned(), |curl| curl.display().to_string());
    let text = format!(
        "#!/bin/sh
set -e
folder=$(mktemp -d)
cat > \"$folder/input\"
{curl} --silent --max-time 1 http://127.0.0.1:9/ || test $? = 7 -o \"$(basename {curl})\" = true
python3 - \"$folder\" <<'END'
import pathlib, socket, subprocess, sys, threading
thread = threading.Thread(target=lambda: subprocess.run(['sh', '-c', 'ls -la / | sort | head -n 3'], check=True))
thread.start()
thread.join()
socket.socket().close()
pathlib.Path(sys.argv[1], 'done').write_text('done')
END
mv \"$folder/done\" {}
chmod 0644 {}
rm -r \"$folder\"
",
        told.display(),
        told.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_daemon_its_worker_and_its_hooks_make_only_calls_that_the_unit_allows() {
    let Some(starter) = confined() else { return };
    let Some(room) = Room::real() else { return };
    let starter: Vec<&str> = starter.iter().map(String::as_str).collect();
    let (saved, told, logs) = (room.path("saved"), room.path("told"), room.path("logs"));
    let hook = hook(&room, &told);
    let mut job = Job::start(&room, &saving(&saved, 0.2));
    let mut more = format!("perf_logs: {{folder: {logs:?}}}\n");
    let scenario = room.path("scenario.json");
    std::fs::write(&scenario, r#"{"devices": [{"utilization": 50}]}"#).unwrap();
    let gpu = format!("gpu: {{nvml_library: {:?}, interval: 200ms}}", crate::harness::fake_nvml());
    room.configure(
        "mode: enforce",
        &[room.target(
            "train",
            &format!(
                "cgroup_headroom: {{soft: 70%, hard: 3%}}, hook: {{program: {hook:?}, timeout: 30s, wait: 5s}}, \
                 checkpoint: {{file: {saved:?}, grace: 10s, longest_grace: 20s}}"
            ),
        )],
        "",
    );
    // The sources beside the matchers of the room.
    let file = room.path("memwarden.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    more.push_str(&text.replace("sources: {", &format!("sources: {{perf: {{enabled: true}}, {gpu}, ")));
    std::fs::write(&file, more.replace(", , ", ", ")).unwrap();
    let daemon = room.start_by(&starter, env!("CARGO_BIN_EXE_memwarden").as_ref(), |command| {
        command.env("FAKE_NVML_SCENARIO", &scenario);
    });
    room.wait_members(&daemon, "train", 1.0);
    daemon.wait_page("the GPU", SOON, |page| page.sum("memwarden_gpu_utilization_ratio", &[]) > 0.0);
    daemon.wait_page("counters", SOON, |page| page.sum("memwarden_perf_event_available", &[]) > 0.0);
    for path in ["/", "/metrics", "/-/ready", "/-/healthy"] {
        assert_eq!(daemon.get(path).code, 200, "{path}");
    }
    std::os::unix::net::UnixStream::connect(daemon.job_socket()).unwrap();

    job.hold(64);
    assert!(job.wait().success(), "it ended by itself");
    room.wait_move("ok");
    assert_eq!(std::fs::read_to_string(&told).unwrap(), "done");
    let audit = room.audit();
    audit.is_paired();
    let begun = audit.begun("hook").next().unwrap();
    assert_eq!(audit.end(begun)["result"], "ok", "{:#?}", audit.end(begun));
    room.wait_incidents(1);

    // A reload, the kill, and the release of the memory.
    room.configure("mode: enforce", &[room.target("train", "cgroup_headroom: {soft: 50%, hard: 40%}")], "");
    let time = "memwarden_config_last_reload_success_timestamp_seconds";
    let before = daemon.value(time).unwrap();
    daemon.signal("HUP");
    daemon.wait_value(time, |now| now > before);
    let mut stubborn = Job::start(&room, &witness());
    room.wait_members(&daemon, "train", 1.0);
    stubborn.hold(70);
    let status = wait_for("the kill", SOON, || stubborn.ended());
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    wait_for("the release of its memory", SOON, || {
        let audit = room.audit();
        let begun = audit.begun("release").next()?;
        let ended = |line: &&serde_json::Value| line["entry"] == "ended" && line["number"] == begun["number"];
        audit.0.iter().find(ended)?;
        let end = audit.end(begun);
        assert_ne!(end["result"], "failed", "{end:#?}");
        Some(())
    });
    daemon.wait_frames(2.0);
    let log = daemon.log();
    assert!(!log.contains("panic") && !log.contains("Operation not permitted"), "{log}");
    let mut daemon = daemon;
    daemon.signal("TERM");
    assert!(daemon.wait(SOON).success(), "{}", daemon.log());
}

#[test]
fn a_file_is_touched_for_the_job_of_a_user() {
    const ALICE: u32 = 61_001;
    let Some(starter) = confined() else { return };
    let starter: Vec<&str> = starter.iter().map(String::as_str).collect();
    let room = Room::staged();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(ALICE), Some(ALICE)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let path = folder.path().join("requested");
    let mut job = program("sh");
    job.args(["-c", "read line; :", &room.mark("train")])
        .stdin(std::process::Stdio::piped())
        .uid(ALICE)
        .gid(ALICE);
    let mut job = job.spawn().unwrap();
    room.show(job.id());
    let keys = format!(
        "host: {{soft: 30%}}, checkpoint: {{signal: \"\", touch: {path:?}, grace: 1h, longest_grace: 1h}}"
    );
    let target = room.target("train", &keys).replace("allow_users: [\"0\"]", "allow_users: [\"61001\"]");
    room.configure("mode: enforce", &[target], "");
    let daemon = room.start_by(&starter, env!("CARGO_BIN_EXE_memwarden").as_ref(), |_| {});
    room.wait_members(&daemon, "train", 1.0);
    room.available(100);
    let status = wait_for("the file", SOON, || std::fs::metadata(&path).ok());
    job.kill().unwrap();
    job.wait().unwrap();
    assert_eq!((status.uid(), status.gid()), (ALICE, ALICE));
}

#[test]
fn the_memory_of_the_unit_is_limited_and_suffices_for_a_snapshot() {
    let unit = unit();
    let limit = unit.lines().find_map(|line| line.strip_prefix("MemoryMax=")?.strip_suffix('M')).unwrap();
    assert_eq!(limit.parse::<u32>().unwrap(), 1_024 + 256);
    let config = std::fs::read_to_string(own("config/memwarden.yaml")).unwrap();
    assert!(config.contains("max_memory: 1GiB"), "the limit of the unit follows it");
}

#[test]
fn documented_paths_below_the_log_folder_are_writable() {
    let page = std::fs::read_to_string(own("docs/jobs.md")).unwrap();
    assert!(page.contains("folder: /var/log/memwarden/"), "the example is elsewhere: change the unit");
    assert!(unit().lines().any(|line| line == "LogsDirectory=memwarden"));
}

#[test]
fn the_exposure_of_the_unit_is_no_more_than_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memwarden.service");
    std::fs::write(&path, unit()).unwrap();
    let analyzed =
        program("systemd-analyze").args(["security", "--offline=true", "--threshold=40"]).arg(&path).output();
    match analyzed {
        // Before 250 there was no --offline.
        Ok(done) if !String::from_utf8_lossy(&done.stdout).contains("Overall exposure level") => {
            skip("systemd-analyze cannot rate a file");
        }
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success(), "more than 4.0: {said}");
        }
        Err(error) => skip(&format!("systemd-analyze cannot be run: {error}")),
    }
}
