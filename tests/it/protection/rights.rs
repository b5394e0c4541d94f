//! A daemon that lacks what protection could use says so, and says what it could not do.

use std::os::unix::fs::PermissionsExt as _;

use super::SOON;
use super::group::Freezer;
use super::hooks::script;
use super::job::{Job, witness};
use super::room::Room;
use crate::harness::{Daemon, program};
use crate::skip::skip;

/// A user who owns nothing here, and may do nothing that others may not.
const NOBODY: [&str; 5] =
    ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"];

fn need(daemon: &Daemon, need: &str) -> Option<f64> {
    daemon.page().get("memwarden_protection_prerequisite_met", &[("need", need)])
}

#[test]
fn without_the_right_to_signal_the_target_is_disarmed_with_the_reason() {
    let able = rustix::process::geteuid().is_root()
        && program(NOBODY[0]).args(&NOBODY[1..]).arg("true").status().is_ok_and(|status| status.success());
    if !able {
        skip("only root can start the daemon as another user");
        return;
    }
    let Some(room) = Room::real() else { return };
    let mut job = Job::start(&room, &witness());
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let folder = room.path("");
    open(&folder, 0o755);
    std::fs::create_dir(room.state()).unwrap();
    open(&room.state(), 0o777);
    let binary = room.path("memwarden");
    std::fs::copy(env!("CARGO_BIN_EXE_memwarden"), &binary).unwrap();
    room.configure(
        "mode: enforce",
        &[room.target("train", "cgroup_headroom: {soft: 50%, hard: 40%}, verify_timeout: 500ms")],
        "",
    );
    let daemon = room.start_by(&NOBODY, &binary, |_| {});
    for (name, lost) in [
        ("cap_kill", "processes of other users cannot be signalled"),
        ("cap_sys_resource", "pressure notifications come at most every 2 s"),
        ("cap_ipc_lock", "memory cannot be locked"),
    ] {
        assert_eq!(need(&daemon, name), Some(0.0), "{name}");
        daemon.logs_once(&["A prerequisite of protection is missing", lost]);
    }
    let why = [("target", "train"), ("reason", "no_permission")];
    daemon.wait_page("a target that is disarmed", SOON, |page| {
        page.get("memwarden_protection_disarmed_reason", &why) == Some(1.0)
            && page.get("memwarden_protection_state", &[("target", "train"), ("state", "disarmed")])
                == Some(1.0)
    });
    job.hold(70);
    let low = [("target", "train"), ("condition", "cgroup_hard")];
    daemon.wait_page("the hard level", SOON, |page| {
        page.get("memwarden_protection_condition", &low) == Some(1.0)
    });
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!((job.said(), job.ended()), (vec!["up".to_owned()], None));
    assert_eq!(room.audit().begun("kill_group").count(), 0);
}

#[test]
fn a_kernel_without_pressure_is_reported() {
    let room = Room::staged();
    std::fs::remove_file(room.staged_file("pressure")).unwrap();
    let daemon = room.guard("host: {soft: 5%}");
    assert_eq!(need(&daemon, "psi"), Some(0.0));
    daemon.logs_once(&["A prerequisite of protection is missing", "psi=1"]);
}

/// Starts a program where the memory controller and the freezer are mounted read-only.
const READ_ONLY: [&str; 6] = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    "cd /sys/fs/cgroup; test -d memory && set -- memory freezer -- \"$@\" || set -- . -- \"$@\"
     while test \"$1\" != --; do mount -o remount,bind,ro \"/sys/fs/cgroup/$1\" || exit; shift; done
     shift; cd /; exec \"$@\"",
    "sh",
];

#[test]
fn where_cgroups_are_read_only_steps_that_write_them_fail_and_the_others_are_taken() {
    let able = program(READ_ONLY[0]).args(&READ_ONLY[1..]).arg("true").output();
    if !able.is_ok_and(|output| output.status.success()) {
        skip("cgroups cannot be mounted read-only here");
        return;
    }
    let Some(room) = Room::real() else { return };
    let mut job = Job::start(&room, &witness());
    let group = room.group.as_ref().unwrap();
    // cgroup v1 freezes in another hierarchy.
    let freezer = if group.version1() { Freezer::beside(group) } else { None };
    match &freezer {
        Some(freezer) => freezer.put(job.pid()),
        None if group.version1() => return,
        None => {}
    }
    let hook = script(&room, "true");
    let policy = format!(
        "cgroup_headroom: {{soft: 70%, hard: 3%}}, raise: {{to: 400MiB, by: 200MiB, keep_free: 1MiB}}, \
         hook: {{program: \"{hook}\", wait: 200ms}}, freeze: true, checkpoint: {{grace: 100ms, longest_grace: 100ms}}, \
         term_grace: 100ms"
    );
    let file = room.configure("mode: enforce", &[room.target("train", &policy)], "");
    let file = file.to_str().unwrap();

    let drill = ["drill", "--config.file", file, "--target", "train"];
    let mut command = program(READ_ONLY[0]);
    command.args(&READ_ONLY[1..]).arg(env!("CARGO_BIN_EXE_memwarden")).args(drill);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for step in ["raise the memory limit of ", "freeze /"] {
        let line = text.lines().find(|line| line.contains(step)).unwrap_or_default();
        assert!(line.contains("Read-only file system"), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }

    let daemon = room.start_by(&READ_ONLY, env!("CARGO_BIN_EXE_memwarden").as_ref(), |_| {});
    assert_eq!(need(&daemon, "cgroup_writable"), Some(0.0));
    daemon.logs_once(&["A prerequisite of protection is missing", "mounted read-only"]);
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    job.wait();
    room.wait_move("cooldown");
    let audit = room.paired_audit();
    for step in ["raise", "freeze"] {
        let begun = audit.begun(step).next().unwrap_or_else(|| panic!("no {step}"));
        let end = audit.end(begun);
        assert_eq!(end["result"], "failed", "{end}");
        assert!(end["error"].as_str().unwrap().contains("Read-only file system"), "{end}");
    }
    assert!(audit.went("train", "checkpoint"));
    assert_eq!(audit.reached(), [u64::from(job.pid())]);
}

#[test]
fn where_cgroups_can_be_written_that_is_said() {
    let Some(room) = Room::real() else { return };
    assert_eq!(need(&room.guard(""), "cgroup_writable"), Some(1.0));
}
