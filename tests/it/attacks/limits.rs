//! One user who takes every place of a table, or forks until a pid is reused.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::people::{ALICE, MALLORY, as_user};
use crate::harness::{Daemon, Page, wait_for};
use crate::skip::skip;

const SOON: Duration = Duration::from_secs(30);

/// A process that prints one line when it is ready, and stays; killed when dropped.
struct Player(Child);

impl Player {
    /// Runs a Python script as this user; `None`, with a message, if this is not possible here.
    fn start(user: u32, script: &str, arguments: &[&str]) -> Option<(Self, String)> {
        let mut command = as_user(user, "python3")?;
        command.arg("-c").arg(script).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            skip("python3 is needed");
            return None;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Some((Self(child), line.trim().to_owned()))
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets every user reach the job socket, which is in the test's folder.
fn open_to_all(daemon: &Daemon) {
    let socket = daemon.job_socket();
    // The mode is set last.
    let ready =
        || std::fs::metadata(&socket).is_ok_and(|status| status.permissions().mode() & 0o777 == 0o666);
    wait_for("the job socket", SOON, || ready().then_some(()));
    let all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(socket.parent().unwrap(), all).unwrap();
}

fn socket_of(daemon: &Daemon) -> String {
    daemon.job_socket().to_str().unwrap().to_owned()
}

/// Whether a finding and the metric name this limit and this user.
#[track_caller]
fn wait_named(daemon: &Daemon, limit: &str, user: u32) {
    let user = user.to_string();
    daemon.wait_page("the limit's metric", SOON, |page| {
        page.sum("memwarden_limit_left_out", &[("limit", limit), ("user", &user)]) > 0.0
    });
    wait_for("the limit's finding", SOON, || {
        let body = daemon.get("/api/v1/findings").body;
        (body.contains(limit) && body.contains(&user)).then_some(())
    });
    wait_for("the limit's line in the log", SOON, || {
        (!daemon.logged(&[limit, &user]).is_empty()).then_some(())
    });
}

/// Connects several times, sends a hello on each, and keeps them open.
const STUFF: &str = r#"
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = []
for number in range(int(sys.argv[2])):
    job = socket.socket(socket.AF_UNIX)
    job.connect(sys.argv[1])
    try:
        job.sendall(b'{"type":"hello","v":1,"rank":%d,"world":100000}\n' % number)
    except OSError:
        pass
    kept.append(job)
print("done", flush=True)
sys.stdin.read()
"#;

/// Reports as rank 7 with step 77, and stays.
const RANK: &str = r#"
import os, socket, sys, time
# Before Linux 6.5 only a process that was there for a while is known.
time.sleep(3)
job = socket.socket(socket.AF_UNIX)
job.connect(sys.argv[1])
job.sendall(b'{"type":"hello","v":1,"rank":7,"world":8}\n{"type":"step","step":77}\n')
print(os.getpid(), flush=True)
sys.stdin.read()
"#;

#[test]
fn a_user_who_fills_the_job_socket_leaves_places_for_another() {
    let places = ["sources.training.max_clients=64", "sources.training.max_clients_per_user=64"];
    let daemon = Daemon::start(&["--set", "sampling.interval=200ms", "--set", places[0], "--set", places[1]]);
    open_to_all(&daemon);
    let socket = socket_of(&daemon);
    let Some(_mallory) = Player::start(MALLORY, STUFF, &[&socket, "1200"]) else { return };
    daemon.wait_page("the others to be turned away", SOON, |page| {
        page.sum("memwarden_training_clients_refused_total", &[]) >= 1_136.0
    });
    let Some((_alice, pid)) = Player::start(ALICE, RANK, &[&socket]) else { return };
    let page = daemon.wait_page("another user's job", SOON, |page| {
        page.all("memwarden_training_step", &[]).any(|series| series.value.to_bits() == 77_f64.to_bits())
    });
    let ranks = page.all("memwarden_rank_info", &[("pid", &pid)]).count();
    assert_eq!(ranks, 1, "the job has the pid that the kernel reports");
    assert_eq!(page.get("memwarden_training_clients", &[]), Some(64.0));
    wait_named(&daemon, "job_connections", MALLORY);
}

/// Connects once as each of several users, which requires root, and stays.
const CROWD: &str = r#"
import os, socket, sys
first, count = int(sys.argv[2]), int(sys.argv[3])
ours, theirs = socket.socketpair()
for user in range(first, first + count):
    if os.fork() == 0:
        ours.close()
        os.setresuid(user, user, user)
        job = socket.socket(socket.AF_UNIX)
        try:
            job.connect(sys.argv[1])
            job.sendall(b'{"type":"hello","v":1,"rank":%d,"world":1000000}\n' % user)
        except OSError:
            pass
        theirs.sendall(b"x")
        theirs.close()
        try:
            job.recv(1)
        except OSError:
            pass
        os._exit(0)
theirs.close()
seen = 0
while seen < count:
    more = ours.recv(count)
    if not more:
        break
    seen += len(more)
print("done", flush=True)
sys.stdin.read()
"#;

#[test]
fn the_ids_that_a_user_may_use_in_a_namespace_are_that_user() {
    let places = ["sources.training.max_clients=16", "sources.training.max_clients_per_user=16"];
    let folder = tempfile::tempdir().unwrap();
    let passwd = folder.path().join("passwd");
    std::fs::write(&passwd, format!("mallory:x:{MALLORY}:{MALLORY}::/:/bin/sh\n")).unwrap();
    std::fs::write(folder.path().join("subuid"), "mallory:200000:65536\n").unwrap();
    let passwd = format!("paths.passwd={}", passwd.display());
    let settings =
        ["--set", "sampling.interval=200ms", "--set", &passwd, "--set", places[0], "--set", places[1]];
    let daemon = Daemon::start(&settings);
    open_to_all(&daemon);
    let socket = socket_of(&daemon);
    let Some(_crowd) = Player::start(0, CROWD, &[&socket, "200000", "24"]) else { return };
    daemon.wait_page("the others to be turned away", SOON, |page| {
        page.sum("memwarden_training_clients_refused_total", &[]) >= 8.0
    });
    let Some((_alice, pid)) = Player::start(ALICE, RANK, &[&socket]) else { return };
    daemon.wait_page("another user's job", SOON, |page| {
        page.all("memwarden_rank_info", &[("pid", &pid)]).count() == 1
    });
    wait_named(&daemon, "job_connections", MALLORY);
}

/// Sends a message, leaves the connection to a child, and exits.
const LEAVE: &str = r#"
import os, socket, sys
job = socket.socket(socket.AF_UNIX)
job.connect(sys.argv[1])
job.sendall(b'{"type":"hello","v":1,"rank":5,"world":8}\n{"type":"step","step":4242}\n')
heir = os.fork()
if heir == 0:
    os.close(1)
    job.recv(1)
    os._exit(0)
print(heir, flush=True)
os._exit(0)
"#;

/// A process with this free pid; `None` if another process always takes it.
fn with_pid(pid: u32) -> Option<Player> {
    for _ in 0..200 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let mut command = as_user(ALICE, "sleep")?;
        let player = Player(command.arg("300").spawn().ok()?);
        if player.0.id() == pid {
            return Some(player);
        }
    }
    None
}

#[test]
fn values_of_an_exited_process_are_not_attributed_to_a_new_one_with_its_pid() {
    let daemon = Daemon::start(&["--set", "sampling.interval=200ms"]);
    open_to_all(&daemon);
    let socket = socket_of(&daemon);
    daemon.wait_value("memwarden_frames_total", |frames| frames >= 2.0);
    // As with a full queue and a busy thread: the connection is accepted late.
    daemon.signal("STOP");
    let Some((mut mallory, heir)) = Player::start(MALLORY, LEAVE, &[&socket]) else { return };
    let pid = mallory.0.id();
    mallory.0.wait().unwrap();
    let alice = with_pid(pid);
    daemon.signal("CONT");
    let end = || crate::harness::signal(heir.parse().unwrap(), "KILL");
    if alice.is_none() {
        end();
        skip("no process could be given the pid of one that ended");
        return;
    }
    let page = daemon.wait_page("the figures", SOON, |page| {
        page.all("memwarden_training_step", &[]).any(|series| series.value.to_bits() == 4242_f64.to_bits())
    });
    end();
    let info = page.all("memwarden_rank_info", &[]).next().unwrap();
    assert!(!info.labels.contains_key("workload"), "of {:?}", info.labels);
    assert!(!info.labels.contains_key("pid"), "of {:?}", info.labels);
    assert_eq!(page.get("memwarden_training_clients_unproven_total", &[]), Some(1.0));
}

#[test]
fn jobs_are_read_with_few_descriptors_and_after_a_shortage() {
    let shell = ["sh", "-c", "ulimit -n 64 && exec \"$0\" \"$@\""];
    let binary = Path::new(env!("CARGO_BIN_EXE_memwarden"));
    let daemon = Daemon::start_by(&shell, binary, &["--set", "sampling.interval=200ms"]);
    let up = |daemon: &Daemon| daemon.wait_value("memwarden_source_up{source=\"training\"}", |up| up == 1.0);
    up(&daemon);
    open_to_all(&daemon);
    let warnings = || daemon.logged(&["allows fewer training processes to connect"]).len();
    wait_for("the line about the limit", SOON, || (warnings() > 0).then_some(()));
    let speak = |step: u32| -> Option<UnixStream> {
        let mut job = UnixStream::connect(daemon.job_socket()).ok()?;
        let hello = "{\"type\":\"hello\",\"v\":1,\"rank\":1,\"world\":2}\n";
        // It is closed if there is no place for it.
        let _ = job.write_all(format!("{hello}{{\"type\":\"step\",\"step\":{step}}}\n").as_bytes());
        Some(job)
    };
    let wait_for_step = |step: f64, mut job: Option<UnixStream>| {
        let is = |page: &Page| {
            page.all("memwarden_training_step", &[]).any(|series| series.value.to_bits() == step.to_bits())
        };
        let begun = crate::harness::now();
        while !is(&daemon.page()) {
            let shown = daemon.metrics();
            let shown: Vec<&str> = shown.lines().filter(|line| line.contains("memwarden_training")).collect();
            assert!(begun.elapsed() < SOON, "no step {step} in\n{}", shown.join("\n"));
            std::thread::sleep(Duration::from_millis(100));
            // Where the last free descriptor was that of the connection, it was closed again, and clients connect again.
            let ended = |job: &mut UnixStream| {
                job.set_nonblocking(true).unwrap();
                match job.read(&mut [0; 64]) {
                    Ok(read) => read == 0,
                    Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
                }
            };
            if job.as_mut().is_some_and(ended) {
                job = speak(2);
            }
        }
    };
    let jobs: Vec<_> = (0..40).filter_map(|_| speak(1)).collect();
    wait_for_step(1.0, None);
    drop(jobs);
    daemon.wait_value("memwarden_training_clients", |clients| clients == 0.0);
    // The remaining descriptors are used by connections of the web server.
    let web: Vec<_> = (0..100).filter_map(|_| TcpStream::connect(daemon.address).ok()).collect();
    let job = speak(2);
    assert!(job.is_some());
    std::thread::sleep(Duration::from_secs(2));
    drop(web);
    wait_for_step(2.0, job);
    up(&daemon);
    assert_eq!(warnings(), 1);
}
