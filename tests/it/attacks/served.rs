//! Requests from other users and other sites.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use crate::harness::{Daemon, memwarden, now, program, request, tool, try_get, wait_for};
use crate::skip::skip;

use super::people::{ALICE, MALLORY, as_user};

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
        ("/incidents/../..", "404"),
        ("/incidents/%2e%2e%2f%2e%2e", "404"),
        ("/api/v1/incidents/..%2f../report.md", "403"),
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
    let api = format!("web.socket={}", folder.path().join("api.sock").display());
    let listen = address.to_string();
    let file = file.to_str().unwrap();
    let args =
        ["serve", "--web.listen-address", &listen, "--config.file", file, "--set", &jobs, "--set", &api];
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
    wait_for("its readiness", SOON, || try_get(address, "/-/ready"));
    // A thread writes the log, perhaps after the answer.
    wait_for("a line that says so", SOON, || logged("The address is free"));
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

/// A false daemon on the default port: prints a line for each connection.
const FALSE_PORT: &str = "import socket; own = socket.socket(); own.bind(('127.0.0.1', 10636)); own.listen(); \
                          print('listens', flush=True)\nwhile True: one = own.accept()[0]; print('asked', flush=True); one.close()";

#[test]
fn a_user_who_holds_the_port_of_a_daemon_that_is_not_running_is_not_asked() {
    if tool("unshare").and(tool("ip")).and(tool("setpriv")).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let said = folder.path().join("said");
    // A network and a /run of their own, in which nothing else listens.
    let script = "export PATH=/usr/sbin:/usr/bin:/sbin:/bin; mount -t tmpfs none /run && ip link set lo up || exit 77\n\
                  setpriv --reuid 61002 --clear-groups python3 -c \"$2\" >$0 & false=$!\n\
                  while ! [ -s $0 ]; do kill -0 $false && sleep 0.05 || exit 76; done\n\
                  $1 check; echo \"exit $?\"; $1 oom --url http://127.0.0.1:10636 >&2; kill $false";
    let output = program("unshare")
        .args(["--mount", "--net", "sh", "-c", script])
        .args([said.as_os_str(), env!("CARGO_BIN_EXE_memwarden").as_ref(), FALSE_PORT.as_ref()])
        .output()
        .unwrap();
    if matches!(output.status.code(), Some(1 | 77)) && output.stdout.is_empty() {
        return skip("no mount and network namespace can be made here");
    }
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, "unknown: nothing listens on /run/memwarden/api.sock (is it running there?)\nexit 2\n");
    // Only the command that names the port asks it.
    assert_eq!(std::fs::read_to_string(&said).unwrap(), "listens\nasked\n");
}

/// A false daemon on a socket: prints what it was sent.
const FALSE_SOCKET: &str = "import socket, sys; own = socket.socket(socket.AF_UNIX); own.bind(sys.argv[1]); own.listen(); \
                            print('listens', flush=True); print(own.accept()[0].recv(4096), flush=True)";

#[test]
fn a_socket_that_another_user_serves_is_not_asked() {
    let Some(mut command) = as_user(MALLORY, "python3") else { return };
    // As a folder in which everybody can create files.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let path = folder.path().join("api.sock");
    let mut server = command.args(["-c", FALSE_SOCKET]).arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "listens");
    let url = format!("unix:{}", path.display());
    let output = memwarden(&["check", "--url", &url, "--format", "json"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let why = format!("served by user {MALLORY}, and not by root or the owner of its folder");
    assert!(output.status.code() == Some(2) && text.contains(&why), "{text}");
    assert_eq!(said.next().unwrap().unwrap(), "b''", "nothing was sent");
    server.wait().unwrap();
    // Nor does a daemon replace this socket: the folder is one in which others have files.
    let daemon = Daemon::start(&["--set", &format!("web.socket={}", path.display())]);
    wait_for("the reason", SOON, || daemon.logged(&["web.socket", "is not a socket of memwarden"]).pop());
}

/// Prints the status of a path, asked over a socket.
const LOCAL_CLIENT: &str = "import socket, sys; own = socket.socket(socket.AF_UNIX); own.connect(sys.argv[1]); \
                            own.sendall(f'GET {sys.argv[2]} HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n'.encode()); \
                            print(own.recv(4096).split()[1].decode())";

/// The status that this user gets over the socket of the daemon.
fn status_of(user: u32, daemon: &Daemon, path: &str) -> Option<String> {
    let output = as_user(user, "python3")?
        .args(["-c", LOCAL_CLIENT])
        .args([daemon.socket_folder().join("api.sock").as_os_str(), path.as_ref()])
        .output()
        .unwrap();
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// A daemon with these arguments, whose sockets all users reach.
fn open_to_all(args: &[&str]) -> Daemon {
    let daemon = Daemon::start(args);
    std::fs::set_permissions(daemon.socket_folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
    daemon.metrics();
    daemon
}

#[test]
fn a_user_of_the_node_reads_only_its_own_jobs() {
    let jobs = tempfile::tempdir().unwrap();
    std::fs::write(jobs.path().join("0"), format!("4711 {ALICE}\n")).unwrap();
    let daemon = open_to_all(&["--set", &format!("sources.slurm.gpu_jobs={}", jobs.path().display())]);
    let job = "/api/v1/jobs/4711";
    wait_for("the job", SOON, || (daemon.get_local(job).code == 200).then_some(()));
    for (user, code) in [(ALICE, "200"), (MALLORY, "403")] {
        let Some(found) = status_of(user, &daemon, job) else { return };
        assert_eq!(found, code, "{user}");
        assert_eq!(status_of(user, &daemon, "/api/v1/node").unwrap(), "200");
        for private in ["/api/v1/incidents", "/api/v1/incidents/x/report.md"] {
            assert_eq!(status_of(user, &daemon, private).unwrap(), "403");
        }
    }
    // The port cannot tell users apart.
    assert_eq!(daemon.get(job).code, 403);
}

/// Reports every text of the protocol over the job socket, and stays.
const TALKS: &str = r#"import json, socket, sys, time; own = socket.socket(socket.AF_UNIX); own.connect(sys.argv[1])
def say(**text): own.sendall((json.dumps(text) + "\n").encode())
say(type="hello", v=1, rank=0, run="public", saves=False, saves_reason="public")
say(type="step", step=1)
say(type="event", name="secret1", detail={"secret2": "secret3"})
say(type="oom", device="0", requested=5, snapshot="/secret4")
say(type="checkpoint", state="failed", step=1, path="/secret5", reason="secret6")
say(type="evidence", seconds=20, items=[{"what": "secret7", "name": "secret8", "now": 9, "more": 9}])
say(type="prediction", phase="save", resource="host", certainty="bound", peak=1 << 50, held=0, basis="secret9", sequence=1)
print("said", flush=True); sys.stdin.readline()
say(type="bye", end="exception", reason="secret0")"#;

/// Prints what the socket answers.
const READER: &str = "import socket, sys; own = socket.socket(socket.AF_UNIX); own.connect(sys.argv[1]); \
                      own.sendall(f'GET {sys.argv[2]} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n'.encode())\n\
                      while part := own.recv(65536): sys.stdout.buffer.write(part)";

#[test]
fn the_words_of_a_job_are_read_by_its_owner_and_root_only() {
    let Some(mut job) = as_user(ALICE, "python3") else { return };
    let daemon = open_to_all(&["--set", "sampling.interval=200ms"]);
    job.args(["-c", TALKS]).arg(daemon.job_socket()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut job = job.spawn().unwrap();
    let mut said = BufReader::new(job.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "said");
    let timeline = "/api/v1/timeline";
    wait_for("its events", SOON, || daemon.get_local(timeline).body.contains("secret8").then_some(()));
    let read = |user: u32, path: &str| {
        let mut reader = as_user(user, "python3").unwrap();
        let output = reader
            .args(["-c", READER])
            .args([daemon.socket_folder().join("api.sock").as_os_str(), path.as_ref()])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let check = |secrets: &[&str]| {
        let workload = daemon.get_local("/api/v1/node").body;
        let workload: serde_json::Value = serde_json::from_str(&workload).unwrap();
        let workload = workload["job_events"][0]["workload"].as_str().unwrap_or_default().replace('/', "%2F");
        for path in [
            "/",
            "/events",
            "/workloads",
            "/protection",
            "/metrics",
            "/api/v1/node",
            "/api/v1/frame",
            "/api/v1/findings",
            "/api/v1/history",
            "/api/v1/ends",
            "/api/v1/past-runs",
            timeline,
            &format!("/workloads/{workload}"),
            &format!("/workloads/{workload}/ranks/0"),
        ] {
            let seen = read(MALLORY, path);
            assert!(seen.starts_with("HTTP/1.1 ") && !seen.contains("secret"), "{path}: {seen}");
            let seen = daemon.get(path).body;
            assert!(!seen.contains("secret"), "{path} of the port: {seen}");
        }
        for of_owner in [read(ALICE, timeline), daemon.get_local(timeline).body] {
            assert!(secrets.iter().all(|secret| of_owner.contains(secret)), "{of_owner}");
        }
    };
    check(&["secret1", "secret2", "secret3", "secret4", "secret5", "secret6", "secret7", "secret8"]);
    // Root sees them on the page too.
    assert!(daemon.get_local("/events").body.contains("secret8"));
    drop(job.stdin.take());
    job.wait().unwrap();
    wait_for("its end", SOON, || daemon.get_local(timeline).body.contains("secret0").then_some(()));
    check(&["secret0"]);
}

#[test]
fn only_root_passes_the_socket_without_the_password_of_the_port() {
    let folder = tempfile::tempdir().unwrap();
    let web = folder.path().join("web.yml");
    // The hash of an empty password.
    let hash = "$2y$04$kbZTPcvyJQOwMIlNzqVDgOQFEIhGUaGiqGXyqbHRYKDqpkAoBT8mG";
    std::fs::write(&web, format!("basic_auth_users: {{alice: '{hash}'}}\n")).unwrap();
    let daemon = Daemon::start(&["--web.config.file", web.to_str().unwrap()]);
    std::fs::set_permissions(daemon.socket_folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
    wait_for("a sample", SOON, || (daemon.get_local("/metrics").code == 200).then_some(()));
    assert_eq!(daemon.get("/metrics").code, 401);
    let Some(found) = status_of(MALLORY, &daemon, "/metrics") else { return };
    assert_eq!(found, "401");
    // Root is no listed user: what is for those stays with them.
    assert_eq!(daemon.get_local("/api/v1/incidents").code, 403);
}
