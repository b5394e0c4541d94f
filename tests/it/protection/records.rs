//! What cannot be written down is done all the same, and said.

use std::path::PathBuf;

use super::SOON;
use super::job::{Job, saving};
use super::room::Room;
use crate::harness::{Daemon, program, wait_for};
use crate::skip::skip;

fn keys(room: &Room) -> String {
    format!("cgroup_headroom: {{soft: 70%}}, {}", room.acknowledged())
}

/// The job is asked and ended, and the ladder comes to its end.
#[track_caller]
fn is_protected(room: &Room, job: &mut Job, daemon: &Daemon) {
    room.wait_members(daemon, "train", 1.0);
    job.hold(64);
    assert!(job.wait().success());
    assert_eq!(job.said(), ["up", "asked", "saved", "told to end"]);
    daemon.wait_page("the end of the incident", SOON, |page| {
        page.get("memwarden_protection_transitions_total", &[("target", "train"), ("state", "cooldown")])
            == Some(1.0)
    });
}

fn writable(daemon: &Daemon, record: &str) -> Option<f64> {
    daemon.page().get("memwarden_records_writable", &[("record", record)])
}

#[test]
fn without_a_writable_folder_the_job_is_protected_and_the_failure_reported() {
    let Some(room) = Room::real() else { return };
    std::fs::write(room.state(), "in the way").unwrap();
    let mut job = Job::start(&room, &saving(&room.path("saved"), 0.0));
    let daemon = room.guard(&keys(&room));
    is_protected(&room, &mut job, &daemon);
    assert_eq!((writable(&daemon, "audit"), writable(&daemon, "incidents")), (Some(0.0), Some(0.0)));
    daemon.logs_once(&["Cannot write the audit log"]);
    // Once the way is free, what was kept is written.
    std::fs::remove_file(room.state()).unwrap();
    room.wait_move("cooldown");
    room.paired_audit();
}

/// A place of 64 KiB that is full, for the daemon alone.
const FULL: &str = "mkdir -p \"$0\" && mount -t tmpfs -o size=64k,mode=755 tmpfs \"$0\" || exit 1; \
                    head -c 65536 /dev/zero > \"$0/filler\"; exec \"$@\"";

#[test]
fn on_a_full_disk_the_job_is_protected_and_the_failure_reported() {
    let Some(room) = Room::real() else { return };
    let state = room.state();
    let place = state.to_str().unwrap();
    let unshared = ["unshare", "-m", "sh", "-c", FULL, place];
    let possible = program(unshared[0]).args(&unshared[1..]).arg("true").output().unwrap();
    if !possible.status.success() {
        skip(&format!("no mount here: {}", String::from_utf8_lossy(&possible.stderr)));
        return;
    }
    let mut job = Job::start(&room, &saving(&room.path("saved"), 0.0));
    room.configure("mode: enforce", &[room.target("train", &keys(&room))], "");
    let daemon = room.start_by(&unshared, env!("CARGO_BIN_EXE_memwarden").as_ref(), |_| {});
    is_protected(&room, &mut job, &daemon);
    assert_eq!(writable(&daemon, "incidents"), Some(0.0));
    daemon.logs_once(&["Cannot write incident records", "No space left"]);
    wait_for("the word on the audit log", SOON, || {
        let said = daemon.logged(&["Cannot write the audit log", "No space left"]);
        (said.len() == 1 && writable(&daemon, "audit") == Some(0.0)).then_some(())
    });
    // It sees its own disk, and so do we through it.
    let seen = PathBuf::from(format!("/proc/{}/root{place}", daemon.pid()));
    std::fs::remove_file(seen.join("filler")).unwrap();
    wait_for("the audit log", SOON, || {
        let audit = super::audit::Audit::read(&seen.join("audit.jsonl"));
        audit.went("train", "cooldown").then(|| audit.is_paired())
    });
    daemon.wait_page("the audit log's return", SOON, |page| {
        page.get("memwarden_records_writable", &[("record", "audit")]) == Some(1.0)
    });
    daemon.logs_once(&["The audit log is written again"]);
    assert!(!state.join("audit.jsonl").exists(), "the host's own disk was touched");
}
