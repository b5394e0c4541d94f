//! systemd-oomd says which cgroup it is about to kill, and waits until the job in it has saved.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use std::os::unix::fs::PermissionsExt as _;

use super::SOON;
use super::job::{Job, saving, witness};
use super::room::Room;
use crate::harness::{Daemon, program, wait_for};
use crate::skip::skip;

/// A room with a memory group, and its daemon with a socket; nothing where there can be none.
fn room(checkpoint: impl FnOnce(&Room) -> String, more: &str) -> Option<(Room, Daemon)> {
    if !rustix::process::geteuid().is_root() {
        skip("only root may call the socket");
        return None;
    }
    let room = Room::real()?;
    let keys = format!("cgroup_headroom: {{soft: 5%, hard: 1%}}, checkpoint: {{{}}}", checkpoint(&room));
    let socket = room.path("hook/memwarden");
    let protection = format!("mode: enforce, prekill_socket: {}", socket.display());
    room.configure(&protection, &[room.target("train", &keys)], more);
    let daemon = room.start();
    wait_for("the socket", SOON, || socket.exists().then_some(()));
    Some((room, daemon))
}

/// The connection of systemd-oomd that has called, as it is about to kill a cgroup.
fn call(room: &Room, cgroup: &str) -> UnixStream {
    let mut stream = UnixStream::connect(room.path("hook/memwarden")).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let call =
        format!(r#"{{"method":"io.systemd.oom.Prekill.Notify","parameters":{{"cgroup":"{cgroup}"}}}}"#);
    stream.write_all(format!("{call}\0").as_bytes()).unwrap();
    stream
}

#[track_caller]
fn is_answered(mut stream: UnixStream) {
    let expected = b"{\"parameters\":{}}\0";
    let mut reply = [0; 18];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, expected);
}

fn counted(daemon: &Daemon, outcome: &str) {
    daemon.wait_page(outcome, SOON, |page| {
        page.get("memwarden_protection_prekills_total", &[("outcome", outcome)]) == Some(1.0)
    });
}

#[test]
fn the_kill_waits_until_the_job_has_saved() {
    let file = |room: &Room| format!("file: {:?}, grace: 60s", room.path("saved"));
    let Some((room, daemon)) = room(file, "") else { return };
    let saved = room.path("saved");
    let mut job = Job::start(&room, &saving(&saved, 1.0));
    room.wait_members(&daemon, "train", 1.0);
    let group = room.group.as_ref().unwrap().path.clone();
    is_answered(call(&room, &group));
    assert_eq!(job.said(), ["up", "asked", "saved"], "the answer comes after the save");
    assert_eq!(job.ended(), None);
    room.wait_move("cooldown");
    let audit = room.paired_audit();
    assert!(audit.moves("train").starts_with(&["checkpoint", "cooldown"]), "{:?}", audit.moves("train"));
    let text = std::fs::read_to_string(room.state().join("audit.jsonl")).unwrap();
    assert!(text.contains("prekill_notified") && text.contains(&group), "{text}");
    counted(&daemon, "asked");
    // It has just saved, and is not asked again; nor is a cgroup waited for that has no job.
    is_answered(call(&room, &group));
    counted(&daemon, "already");
    is_answered(call(&room, "/nothing.slice"));
    counted(&daemon, "no_job");
    assert_eq!(job.count("asked"), 1);
}

#[test]
fn a_job_that_does_not_save_is_waited_for_until_its_grace_is_over() {
    let Some((room, daemon)) = room(|_| "grace: 500ms".to_owned(), "") else { return };
    let job = Job::start(&room, &witness());
    room.wait_members(&daemon, "train", 1.0);
    let group = room.group.as_ref().unwrap().path.clone();
    let first = call(&room, &group);
    // A client that gives up is not waited for, and the socket answers others meanwhile.
    drop(call(&room, &group));
    is_answered(call(&room, "/nothing.slice"));
    is_answered(first);
    room.wait_move("cooldown");
    assert_eq!(job.said(), ["up", "signal 10"], "it gets no signal to end");
}

#[test]
fn a_job_without_a_handler_delays_no_kill() {
    let Some((room, daemon)) = room(|_| "grace: 5m".to_owned(), "") else { return };
    let job = Job::start(&room, "say('up')\nwhile True: work()\n");
    room.wait_members(&daemon, "train", 1.0);
    is_answered(call(&room, &room.group.as_ref().unwrap().path));
    counted(&daemon, "no_handler");
    assert_eq!(job.said(), ["up"]);
}

/// A Python that every user can run.
const PYTHON: &str = "/usr/bin/python3";

/// What the socket answers a process of user 65533 with these capabilities, or the error.
fn of_user(room: &Room, capabilities: &str) -> String {
    let script = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry:\n    s.connect(sys.argv[1])\n    \
                  s.sendall(b'{\"method\":\"a.B\"}\\0')\n    print(s.recv(99))\nexcept OSError as error:\n    print(error.errno)";
    let done = program("setpriv")
        .args(["--reuid=65533", "--regid=65533", "--clear-groups"])
        .args([format!("--inh-caps={capabilities}"), format!("--ambient-caps={capabilities}")])
        .args([PYTHON, "-S", "-c", script])
        .arg(room.path("hook/memwarden"))
        .output()
        .unwrap();
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

#[test]
fn only_root_and_systemd_oomd_may_call() {
    if !std::path::Path::new(PYTHON).exists() {
        return skip(&format!("there is no {PYTHON}"));
    }
    let folder = tempfile::tempdir().unwrap();
    let passwd = folder.path().join("passwd");
    std::fs::write(&passwd, "root:x:0:0::/:/bin/sh\n").unwrap();
    let more = format!("paths: {{passwd: {passwd:?}}}");
    let Some((room, daemon)) = room(|_| "grace: 1s".to_owned(), &more) else { return };
    let everyone = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(room.path("."), everyone).unwrap();
    let denied = rustix::io::Errno::ACCESS.raw_os_error().to_string();
    assert_eq!(of_user(&room, "-all"), denied);
    // As systemd-oomd does, by CAP_DAC_OVERRIDE.
    let refused = of_user(&room, "-all,+dac_override");
    assert!(!refused.is_empty() && !refused.contains("MethodNotFound"), "{refused}");
    counted(&daemon, "refused");
    std::fs::write(&passwd, "systemd-oom:x:65533:65533::/:/bin/sh\n").unwrap();
    let answered = of_user(&room, "-all,+dac_override");
    assert!(answered.contains("MethodNotFound"), "{answered}");
}
