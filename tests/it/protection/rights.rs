//! A daemon that lacks what protection could use says so, and says what it could not do.

use std::os::unix::fs::PermissionsExt as _;

use super::SOON;
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
        assert_eq!(daemon.logged(&["A prerequisite of protection is missing", lost]).len(), 1, "{name}");
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
    assert_eq!(daemon.logged(&["A prerequisite of protection is missing", "psi=1"]).len(), 1);
}
