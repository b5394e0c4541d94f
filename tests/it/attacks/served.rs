//! Requests from other users and other sites.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use crate::harness::{Daemon, memwarden, now, request, wait_for};

use super::people::{MALLORY, as_user};

/// Generous: the machine may be busy with other tests.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn another_user_of_the_node_reads_no_incident() {
    let state = tempfile::tempdir().unwrap();
    let file = format!("state.file={}", state.path().join("state.json").display());
    let daemon = Daemon::start(&["--set", &file]);
    let script = "import sys, urllib.request, urllib.error\n\
                  try: print(urllib.request.urlopen(sys.argv[1]).status)\n\
                  except urllib.error.HTTPError as error: print(error.code)";
    daemon.metrics();
    for (path, code) in [
        ("/metrics", "200"),
        ("/api/v1/incidents", "403"),
        ("/api/v1/incidents/x/report.md", "403"),
        ("/incidents", "200"),
    ] {
        let Some(mut client) = as_user(MALLORY, "python3") else { return };
        let url = format!("http://{}{path}", daemon.address);
        let output = client.args(["-c", script, &url]).env_remove("http_proxy").output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), code, "{path}");
    }
    // The pages say why, and nothing of an incident.
    for path in ["/incidents", "/incidents/x"] {
        assert!(daemon.get(path).body.contains("to authenticated clients only"), "{path}");
    }
}

#[test]
fn a_name_that_anybody_can_point_here_is_not_answered() {
    let daemon = Daemon::start(&["--web.enable-lifecycle"]);
    let status = |method: &str, path: &str, headers: &str| {
        let text =
            format!("{method} {path} HTTP/1.1\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n");
        request(daemon.address, &text).code
    };
    let here = format!("Host: {}\r\n", daemon.address);
    assert_eq!(status("GET", "/-/healthy", &here), 200);
    for path in
        ["/", "/gpus/0", "/api/v1/node", "/api/v1/history", "/metrics", "/-/healthy", "/api/v1/findings"]
    {
        assert_eq!(status("GET", path, "Host: evil.example\r\n"), 421, "{path}");
    }
    assert_eq!(status("POST", "/-/reload", &format!("{here}Origin: http://evil.example\r\n")), 403);
    assert_eq!(status("POST", "/-/reload", &here), 200);
}

/// Binds a free port, prints it, and keeps it until its input ends.
const SQUATTER: &str = "import socket, sys; own = socket.socket(); own.bind(('127.0.0.1', 0)); own.listen(); \
                        print(own.getsockname()[1], flush=True); sys.stdin.read()";

#[test]
fn a_user_who_holds_the_port_keeps_no_protection_from_starting() {
    let Some(mut command) = as_user(MALLORY, "python3") else { return };
    command.args(["-c", SQUATTER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut squatter = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(squatter.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], line.trim().parse().unwrap()));

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("memwarden.yaml");
    let state = folder.path().join("state.json");
    let target = "{name: train, workload: train, allow_users: [root], mode: enforce}";
    let text = format!(
        "state: {{file: {}}}\nsampling: {{interval: 200ms}}\nprotection: {{mode: enforce, targets: [{target}]}}\n",
        state.display()
    );
    std::fs::write(&file, text).unwrap();
    let jobs = format!("sources.training.socket={}", folder.path().join("job.sock").display());
    let listen = address.to_string();
    let args =
        ["serve", "--web.listen-address", &listen, "--config.file", file.to_str().unwrap(), "--set", &jobs];
    let log = folder.path().join("log");
    let output = std::fs::File::create(&log).unwrap();
    let mut daemon = memwarden(&args).stderr(output).stdout(Stdio::null()).spawn().unwrap();
    let logged = |text: &str| std::fs::read_to_string(&log).unwrap().contains(text).then_some(());
    wait_for("who holds the port", SOON, || logged(&format!("in use by user {MALLORY}")));
    let tasks = format!("/proc/{}/task", daemon.id());
    let named = |name: &str| {
        let mut tasks = std::fs::read_dir(&tasks).unwrap().flatten();
        tasks.any(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        })
    };
    wait_for("the guard", SOON, || named("guard").then_some(()));
    assert!(daemon.try_wait().unwrap().is_none(), "it goes on");
    drop(squatter.stdin.take());
    squatter.wait().unwrap();
    wait_for("its readiness", SOON, || {
        TcpStream::connect(address).ok()?;
        let ready = format!("GET /-/ready HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        (request(address, &ready).code == 200).then_some(())
    });
    logged("The address is free").expect("a line that says so");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

#[test]
fn reloads_that_anybody_may_request_are_seconds_apart() {
    let daemon = Daemon::start(&["--web.enable-lifecycle"]);
    let post = format!("POST /-/reload HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", daemon.address);
    let begun = now();
    for _ in 0..2 {
        assert_eq!(request(daemon.address, &post).code, 200);
    }
    assert!(begun.elapsed() >= Duration::from_secs(5));
}
