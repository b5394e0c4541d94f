//! How processes ended, as `memwarden why` says it.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use memwarden::host::clock;
use serde_json::{Value, json};

use crate::harness::{Daemon, memwarden, program, wait_for};
use crate::skip::skip;

const SOON: Duration = Duration::from_secs(60);

/// A program of a name of its own, in a workload of that name.
struct Program {
    folder: tempfile::TempDir,
    name: String,
}

impl Program {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("dies{}", std::process::id());
        let path = folder.path().join(&name);
        std::fs::copy("/bin/sh", &path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, name }
    }

    fn daemon(&self) -> Daemon {
        let config = self.folder.path().join("config.yaml");
        let text = format!(
            "sources:\n  workload:\n    matchers:\n      - {{name: doomed, executable: {}}}\nsampling: {{interval: 200ms}}\n",
            self.name
        );
        std::fs::write(&config, text).unwrap();
        Daemon::start(&["--config.file", config.to_str().unwrap()])
    }

    /// Runs a script once the daemon sees the process.
    fn run(&self, daemon: &Daemon, script: &str) -> Child {
        let mut command = program(self.folder.path().join(&self.name));
        let child =
            command.args(["-c", &format!("read line; {script}")]).stdin(Stdio::piped()).spawn().unwrap();
        daemon.wait_page("the workload", SOON, |page| {
            page.get("memwarden_workload_rss_bytes", &[("workload", "doomed")]).is_some()
        });
        child
    }
}

fn why(daemon: &Daemon, more: &[&str]) -> (Option<i32>, String) {
    let url = daemon.socket_url();
    let done = memwarden(&[&["why", "--url", &url], more].concat()).output().unwrap();
    (done.status.code(), String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap())
}

#[test]
fn the_exit_status_says_why_a_process_ended() {
    let program = Program::new();
    let daemon = program.daemon();
    let page = daemon.wait_page("the source", SOON, |page| {
        page.get("memwarden_source_up", &[("source", "exits")]).is_some()
    });
    if page.get("memwarden_source_up", &[("source", "exits")]) != Some(1.0) {
        skip("no process events of the kernel here");
        return;
    }
    assert_eq!(why(&daemon, &["doomed"]).0, Some(3), "nothing has ended yet");
    let cases = [
        ("exit 3", "failed", "failed with exit code 3"),
        ("kill -9 $$", "killed", "was ended by SIGKILL"),
        ("true", "finished", "finished"),
    ];
    let url = daemon.socket_url();
    let mut follower = memwarden(&["why", "--url", &url, "--follow", "--format", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut followed = BufReader::new(follower.stdout.take().unwrap()).lines();
    for (count, (script, cause, words)) in (1..).zip(cases) {
        let mut child = program.run(&daemon, script);
        let pid = child.id();
        drop(child.stdin.take());
        child.wait().unwrap();
        let end = wait_for("the end", SOON, || {
            let (_, text) = why(&daemon, &["--all", "--format", "json"]);
            let shown: Value = serde_json::from_str(&text).unwrap();
            // Processes of other tests may end, too.
            let mut ends = shown["ends"].as_array().unwrap().iter().filter(|end| end["workload"] == "doomed");
            (ends.clone().count() == count).then(|| ends.next().unwrap().clone())
        });
        // Without the kernel log it is less certain, and may be another cause for SIGKILL.
        assert_eq!(
            (&end["cause"], &end["pid"], &end["is_whole"]),
            (&cause.into(), &pid.into(), &true.into()),
            "{end}"
        );
        let (code, text) = why(&daemon, &[&pid.to_string()]);
        assert!(code == Some(0) && text.contains(words), "{code:?} {text}");
        // A success is not what people wait for.
        if cause != "finished" {
            let mut lines =
                (&mut followed).map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap());
            let line = lines.find(|line| line["end"]["workload"] == "doomed").unwrap();
            assert_eq!((&line["end"]["pid"], &line["end"]["cause"]), (&pid.into(), &cause.into()), "{line}");
            assert!(line["text"].as_str().unwrap().contains(words), "{line}");
        }
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
    // Without a name, the last one that did not finish; the kernel may since have killed a process of another test.
    let told = why(&daemon, &[]).1;
    assert!(told.contains("SIGKILL") || told.contains("killed by the kernel"), "{told}");
    // Each is counted once.
    wait_for("the counters", SOON, || {
        let shown: Value = serde_json::from_str(&why(&daemon, &["--all", "--format", "json"]).1).ok()?;
        let page = daemon.page();
        let is_counted = |cause: &str| {
            let ends = shown["ends"].as_array().unwrap().iter().filter(|end| end["cause"] == cause).count();
            ends >= 1 && ends.to_string() == page.sum("memwarden_ends_total", &[("cause", cause)]).to_string()
        };
        ["failed", "killed", "finished"].into_iter().all(is_counted).then_some(())
    });
}

#[test]
fn the_report_of_a_run_says_why_a_signal_ended_it() {
    let script = "sleep 1; kill -9 $$";
    let done = memwarden(&["run", "--", "sh", "-c", script]).output().unwrap();
    let text = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(137));
    assert!(text.contains("was ended by SIGKILL") || text.contains("why is not known"), "{text}");
    assert!(text.contains("  Cause: "), "{text}");
}

#[test]
fn a_command_that_fails_at_once_has_a_cause_too() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let run = ["run", "--termination-log", log.to_str().unwrap(), "--", "sh", "-c", "exit 3"];
    let done = memwarden(&run).output().unwrap();
    let text = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(3));
    assert!(text.contains("Cause: failed"), "{text}");
    assert!(std::fs::read_to_string(&log).unwrap().contains("exit code 3"), "{text}");
}

#[test]
fn a_launcher_is_told_why_and_that_a_retry_cannot_help() {
    let folder = tempfile::tempdir().unwrap();
    let [log, errors] = ["log", "errors.json"].map(|name| folder.path().join(name));
    std::fs::write(&errors, r#"{"message": "own"}"#).unwrap();
    let mut run = memwarden(&[
        "run",
        "--quiet",
        "--termination-log",
        log.to_str().unwrap(),
        "--no-retry-code",
        "75",
        // Where it is not known how full /dev/shm was, SIGBUS means that it was full.
        "--set",
        "sources.tmpfs.enabled=false",
        "--",
    ]);
    let done = run
        .args(["sh", "-c", "sleep 1; kill -7 $$"])
        .env("TORCHELASTIC_ERROR_FILE", &errors)
        .output()
        .unwrap();
    let told = std::fs::read_to_string(&log).unwrap_or_default();
    let known: Value = serde_json::from_slice(&std::fs::read(&errors).unwrap()).unwrap();
    assert_eq!(known["message"], "own");
    if known["memwarden"]["cause"] == "unknown" {
        skip("no process events of the kernel here");
        return;
    }
    assert!(told.contains("SIGBUS") && told.contains("cannot help"), "{told:?}");
    assert_eq!(
        (&known["memwarden"]["cause"], done.status.code()),
        (&"shared_memory".into(), Some(75)),
        "{done:?}"
    );
}

#[test]
fn the_end_of_a_command_that_no_sample_has_is_not_waited_for() {
    let took = (0..3).map(|_| {
        let begun = clock::now();
        let done = memwarden(&["run", "--", "false"]).output().unwrap();
        let text = String::from_utf8(done.stderr).unwrap();
        let is_sampled = !text.contains("before its memory could be sampled");
        assert_eq!(done.status.code(), Some(1));
        if is_sampled { Duration::ZERO } else { clock::now().since(begun) }
    });
    assert!(took.min().unwrap() < Duration::from_millis(1_900));
}

#[test]
fn the_end_of_a_pod_becomes_an_event() {
    if program("jq").arg("--version").output().is_err() {
        skip("jq is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let end = |workload: &str| {
        let end = json!({ "workload": workload, "cause": "cgroup_limit", "unix_seconds": 1_795_707_748.8 });
        json!({ "text": "It was killed.", "end": end })
    };
    // One that is spelled like a pod and is none.
    let ends = format!("{}\n{}\n{}\n", end("slurm-17"), end("team-a/gone"), end("team-a/train-0"));
    std::fs::write(folder.path().join("ends"), ends).unwrap();
    let cat = format!("cat {:?}", folder.path().join("ends"));
    let kubectl = "echo \"$*\" >&2; case \"$*\" in *' gone '*) exit 1;; get*) printf 'uid-1';; *) cat;; esac";
    for (name, script) in [("memwarden", &*cat), ("kubectl", kubectl)] {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hooks/pod-event");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let done = program(hook).env("PATH", path).output().unwrap();
    let get = |pod| format!("get pod {pod} --namespace=team-a --output=jsonpath={{.metadata.uid}}\n");
    let asked = [get("gone"), get("train-0"), "create --filename=-\n".to_owned()].concat();
    assert_eq!(String::from_utf8_lossy(&done.stderr), asked);
    let event: Value = serde_json::from_slice(&done.stdout).unwrap();
    let pod = &event["involvedObject"];
    assert_eq!(
        (&pod["namespace"], &pod["name"], &pod["uid"]),
        (&"team-a".into(), &"train-0".into(), &"uid-1".into()),
        "{event}"
    );
    assert_eq!(
        (&event["reason"], &event["message"], &event["firstTimestamp"]),
        (&"CgroupLimit".into(), &"It was killed.".into(), &"2026-11-26T15:42:28Z".into())
    );
}
