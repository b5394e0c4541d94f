//! `memwarden check`: one line and an exit code for each health of a node.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use crate::harness::{Daemon, fake_nvml, memwarden, program, wait_for};
use crate::skip::skip;

/// Exit code and standard output of one check.
fn check(url: &str, args: &[&str]) -> (Option<i32>, String) {
    let all = [&["check", "--url", url, "--timeout", "20"], args].concat();
    let done = memwarden(&all).output().unwrap();
    (done.status.code(), String::from_utf8(done.stdout).unwrap())
}

/// The address of a server that answers each request with `answer`, or with nothing if it is empty.
fn server(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            if !answer.is_empty() {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            }
            // Kept, so that a client without an answer waits.
            open.push(stream);
        }
    });
    url
}

#[test]
fn a_node_without_forecasts_is_unknown() {
    // What the machine of the test is like decides nothing.
    let off = ["exhaustion", "leak", "fragmentation", "imbalance", "visibility"];
    let off = off.map(|name| format!("analyzers.{name}.enabled=false"));
    let off = off.iter().chain([&"sources.gpu.enabled=false".to_owned()]).cloned().collect::<Vec<_>>();
    let sources = ["kmsg", "perf", "training", "vmstat", "buddyinfo", "pressure", "cgroup"];
    let sources = sources.map(|name| format!("sources.{name}.enabled=false"));
    let sets: Vec<&str> = off.iter().chain(&sources).flat_map(|set| ["--set", set.as_str()]).collect();
    let daemon = Daemon::start(&sets);
    daemon.metrics();
    let url = format!("http://{}", daemon.address);
    let line = "unknown: No forecast is made: the analyzer `exhaustion` is disabled\n";
    assert_eq!(check(&url, &[]), (Some(2), line.to_owned()));
    let (code, json) = check(&url, &["--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["health"], &json["exit_code"]), (Some(2), &"unknown".into(), &2.into()));
}

#[test]
fn the_socket_of_the_node_is_asked_where_no_url_is_given() {
    let daemon =
        Daemon::start(&["--set", "analyzers.exhaustion.enabled=false", "--set", "sources.gpu.enabled=false"]);
    daemon.metrics();
    let script =
        "mount -t tmpfs none /run && mkdir /run/memwarden && mount --bind $0 /run/memwarden && exec $1 $2";
    for (command, expected) in [("check", "unknown: No forecast is made"), ("job-summary 7", "Job not found")]
    {
        let output = program("unshare")
            .args(["--mount", "sh", "-c", script])
            .args([daemon.socket_folder().to_str().unwrap(), env!("CARGO_BIN_EXE_memwarden"), command])
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        if text.contains("unshare: ") || text.contains("mount: ") {
            return skip("no mount namespace can be made here");
        }
        assert!(text.contains(expected), "{text}");
    }
    let answer = check(&daemon.socket_url(), &[]);
    assert_eq!(answer, check(&format!("http://{}", daemon.address), &[]));
}

#[test]
fn a_gpu_that_hangs_is_a_problem_of_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.json");
    std::fs::write(&file, r#"{"devices": [{"hang": ["*"]}]}"#).unwrap();
    let library = format!("sources.gpu.nvml_library={}", fake_nvml().display());
    let sets = ["--set", &library, "--set", "analyzers.exhaustion.enabled=false"];
    let daemon = Daemon::start_with(&sets, |command| {
        command.env("FAKE_NVML_SCENARIO", &file);
    });
    let url = format!("http://{}", daemon.address);
    let line = wait_for("a problem", Duration::from_secs(60), || {
        Some(check(&url, &[])).filter(|(code, _)| *code == Some(1)).map(|(_, line)| line)
    });
    assert!(line.starts_with("critical: GPU 0 does not respond") && line.len() <= 81, "{line}");
}

#[test]
fn an_xid_that_needs_an_operator_is_a_problem_of_the_node_until_it_is_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let (file, state) = (folder.path().join("scenario.json"), folder.path().join("state.json"));
    std::fs::write(&file, r#"{"devices": [{}]}"#).unwrap();
    let library = format!("sources.gpu.nvml_library={}", fake_nvml().display());
    let kept = format!("state.file={}", state.display());
    let sets = ["--set", &library, "--set", &kept, "--set", "sampling.interval=200ms"];
    let sets =
        [&sets[..], &["--set", "analyzers.exhaustion.enabled=false", "--set", "sources.gpu.interval=200ms"]]
            .concat();
    let start = || {
        Daemon::start_with(&sets, |command| {
            command.env("FAKE_NVML_SCENARIO", &file);
        })
    };
    let daemon = start();
    daemon.wait_value("memwarden_gpu_sample_age_seconds{gpu=\"0\"", |_| true);
    // One of an application comes first, so that its absence means something.
    std::fs::write(&file, r#"{"devices": [{"xids": [{"xid": 31}, {"xid": 43}, {"xid": 48}]}]}"#).unwrap();
    let url = format!("http://{}", daemon.address);
    let critical = || Some(check(&url, &[])).filter(|(code, _)| *code == Some(1)).map(|(_, line)| line);
    let line = wait_for("a problem", Duration::from_secs(60), critical);
    assert!(line.starts_with("critical: GPU 0 reported XID 48: double-bit ECC error"), "{line}");
    let node = daemon.get("/api/v1/node").body;
    assert!(!node.contains("GPU 0 reported XID 31") && node.contains("\"name\":\"xid/gpu/0\""), "{node}");
    let page = daemon.get("/").body;
    assert!(page.contains("GPU 0 reported XID 48") && page.contains("memwarden acknowledge xid/gpu/0"));
    let acknowledge = |problem: &str| {
        let socket = daemon.socket_url();
        let args = ["acknowledge", problem, "--by", "alice", "--url", &socket];
        memwarden(&args).output().unwrap()
    };
    let unknown = acknowledge("xid/gpu/7");
    let err = String::from_utf8(unknown.stderr).unwrap();
    assert!(
        unknown.status.code() == Some(1)
            && err.contains("the node has no problem `xid/gpu/7`; it has xid/gpu/0"),
        "{err}"
    );
    assert!(critical().is_some(), "it was not that one");
    // Others cannot: over TCP nobody is known, and on the socket only root is allowed.
    let request = r#"{"problem": "xid/gpu/0", "by": "mallory"}"#;
    let post = |more: &[&str]| {
        let json = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Content-Type: application/json"];
        let curl = program("curl").args(json).args(["-d", request]).args(more).output();
        curl.map(|output| String::from_utf8(output.stdout).unwrap())
    };
    match post(&[&format!("{url}/api/v1/acknowledge")]) {
        Ok(code) => assert_eq!(code, "403"),
        Err(_) => skip("curl is not installed"),
    }
    let done = acknowledge("xid/gpu/0");
    assert!(done.status.success() && done.stdout.starts_with(b"xid/gpu/0 is acknowledged by alice"));
    wait_for("no problem", Duration::from_secs(60), || critical().is_none().then_some(()));
    let node = daemon.get("/api/v1/node").body;
    assert!(
        node.contains(", acknowledged by alice at ") || node.contains("\"acknowledged by alice at "),
        "{node}"
    );
    assert!(node.contains("\"acknowledged\":{\"by\":\"alice\""), "{node}");
    daemon.wait_value("memwarden_gpu_xid_unresolved{gpu=\"0\"", |value| value == 0.0);
    wait_for("the state", Duration::from_secs(60), || {
        std::fs::read_to_string(&state).ok().filter(|text| text.contains("\"by\":\"alice\""))
    });
    // It outlasts a restart of the daemon.
    std::fs::write(&file, r#"{"devices": [{}]}"#).unwrap();
    drop(daemon);
    let daemon = start();
    wait_for("the acknowledged problem", Duration::from_secs(60), || {
        Some(daemon.get("/api/v1/node").body)
            .filter(|node| node.contains("\"acknowledged\":{\"by\":\"alice\""))
    });
    assert_eq!(check(&format!("http://{}", daemon.address), &[]).0, Some(2), "forecasts are disabled");
}

#[test]
fn a_daemon_that_is_not_ready_or_not_there_is_unknown() {
    const STALE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 31\r\nConnection: close\r\n\r\n\
                         The newest sample is 60 s old.\n";
    const OTHER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    let unbound = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("http://{}", unbound.local_addr().unwrap());
    drop(unbound);
    for (url, args, part) in [
        (nobody.as_str(), &[][..], "unknown: the daemon does not answer: Connection refused"),
        (&server(STALE), &[], "The newest sample is"),
        (&server(OTHER), &[], "does not answer as"),
        (&server(""), &["--timeout", "0.1"], "no response within 100ms"),
        ("ftp://localhost", &[], "has a scheme other than http"),
        ("localhost:10636", &[], "has no scheme"),
    ] {
        let (code, line) = if args.is_empty() {
            check(url, args)
        } else {
            let done = memwarden(&[&["check", "--url", url], args].concat()).output().unwrap();
            (done.status.code(), String::from_utf8(done.stdout).unwrap())
        };
        assert_eq!(code, Some(2), "{line}");
        assert!(line.starts_with("unknown: ") && line.contains(part), "{line}");
        assert!(line.len() <= 81 && line.lines().count() == 1, "{line}");
    }
}

#[test]
fn the_documented_script_mails_each_change_of_the_health_once() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/alerts.md")).unwrap();
    let (_, block) = page.split_once("<!-- script, run by a test -->\n\n```sh\n").unwrap();
    let (script, _) = block.split_once("```").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [line, mails] = ["line", "mails"].map(|name| folder.path().join(name));
    let program = |name: &str, text: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        let path = folder.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("memwarden", &format!("cat {}; exit 1", line.display()));
    program("mail", &format!("[ $1 = -s ] && cat >> {}", mails.display()));
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut sent = Vec::new();
    let lines = [
        "ok: no problem is known",
        "warning: W",
        "warning: X",
        "critical: C",
        "critical: C",
        "ok: no problem is known",
    ];
    for stated in lines {
        std::fs::write(&line, format!("{stated}\n")).unwrap();
        let mut sh = crate::harness::program("sh");
        sh.args(["-c", script]).env("PATH", &path).env("STATE_DIRECTORY", folder.path());
        sh.status().unwrap();
        sent.push(std::fs::read_to_string(&mails).unwrap_or_default().lines().count());
    }
    assert_eq!(sent, [0, 1, 1, 2, 2, 3]);
}
