//! What the guard cannot see it does not act on, and what others cannot see does not stop it.

use std::os::unix::process::ExitStatusExt as _;

use super::SOON;
use super::job::{Job, saving, witness};
use super::room::{HOST, Room};
use crate::harness::{program, wait_for};

#[test]
fn stale_sensors_make_it_blind_and_not_violent() {
    let room = Room::staged();
    let mut job = Job::start(&room, &saving(&room.path("unused"), 0.0));
    let daemon = room.guard("host: {soft: 20%, hard: 10%}, checkpoint: {grace: 100ms}, for: 10s");
    room.wait_members(&daemon, "train", 1.0);
    // Low, but not for long enough; then nothing more is heard.
    room.available(150);
    room.wait_move("warn");
    room.write_meminfo("MemTotal: none\n");
    daemon.wait_page("blindness", SOON, |page| {
        page.get("memwarden_protection_state", &[("target", "train"), ("state", "blind")]) == Some(1.0)
    });
    let fresh = [("target", "train"), ("condition", "fresh")];
    assert_eq!(daemon.page().get("memwarden_protection_condition", &fresh), Some(0.0));
    assert_eq!((job.said(), job.ended()), (vec!["up".to_owned()], None));
    room.available(HOST);
    daemon.wait_page("sight", SOON, |page| {
        page.get("memwarden_protection_state", &[("target", "train"), ("state", "ok")]) == Some(1.0)
    });
    assert_eq!(room.audit().moves("train"), ["warn", "blind", "warn", "ok"]);
    assert_eq!(room.audit().reached(), [0_u64; 0]);
}

#[test]
fn a_hard_level_after_blindness_kills_at_once() {
    let room = Room::staged();
    let mut job = Job::start(&room, &witness());
    let daemon = room.guard("host: {soft: 20%, hard: 10%}");
    room.wait_members(&daemon, "train", 1.0);
    room.write_meminfo("MemTotal: none\n");
    room.wait_move("blind");
    room.available(50);
    assert_eq!(job.wait().signal(), Some(9));
    room.wait_move("verify");
    assert_eq!(room.audit().moves("train")[..3], ["blind", "kill", "verify"]);
}

/// A child of the job, on the stage only, whose file of this name is never told.
fn stage_beside(room: &Room, job: &Job, hangs: &str) {
    let next = room.path("stuck");
    std::fs::create_dir(&next).unwrap();
    for name in ["stat", "statm", "status", "cgroup", "cmdline", "io"].iter().filter(|name| **name != hangs) {
        let text = std::fs::read_to_string(format!("/proc/{}/{name}", job.pid())).unwrap();
        let text = match text.rsplit_once(") ").filter(|_| *name == "stat") {
            // Behind its state and its parent all is as the job's.
            Some((_, rest)) => {
                format!("4000000 (python3) S {} {}", job.pid(), rest.splitn(3, ' ').nth(2).unwrap())
            }
            None => text,
        };
        std::fs::write(next.join(name), text).unwrap();
    }
    assert!(program("mkfifo").arg(next.join(hangs)).status().unwrap().success());
    std::fs::rename(next, room.staged_file("4000000")).unwrap();
}

#[test]
fn a_member_that_cannot_be_read_stops_neither_the_sampler_nor_protection() {
    let room = Room::staged();
    let mut job = Job::start(&room, &saving(&room.path("saved"), 0.0));
    let daemon = room.guard(&format!("host: {{soft: 20%}}, {}", room.acknowledged()));
    room.wait_members(&daemon, "train", 1.0);
    stage_beside(&room, &job, "cmdline");
    room.wait_members(&daemon, "train", 2.0);
    let finding = || daemon.get("/api/v1/findings").body;
    wait_for("a finding", SOON, || finding().contains("Process 4000000 (python3) of user").then_some(()));
    daemon.wait_frames(3.0);
    room.available(100);
    assert!(job.wait().success());
    assert_eq!(job.said(), ["up", "asked", "saved", "told to end"]);
    daemon.wait_frames(3.0);
    room.paired_audit();
}

#[test]
fn a_sampler_that_hangs_does_not_stop_the_guard() {
    let room = Room::staged();
    let mut job = Job::start(&room, &saving(&room.path("saved"), 0.0));
    let daemon = room.guard(&format!("host: {{soft: 20%}}, {}", room.acknowledged()));
    room.wait_members(&daemon, "train", 1.0);
    // A process whose group is never told: what can hang on the process itself is not read by the sampler.
    stage_beside(&room, &job, "cgroup");
    // Which step hangs, and at whom, is said once it has lasted 5 s.
    wait_for("the step that hangs", SOON, || {
        let ready = daemon.get("/-/ready");
        let named = ready.body.contains("the step process has lasted") && ready.body.contains("4000000");
        (ready.code == 503 && named).then_some(())
    });
    wait_for("the line in the log", SOON, || {
        let lines = daemon.logged(&["The sampler has stalled", "step=process", "pid=4000000"]).len();
        (lines == 1).then_some(())
    });
    room.available(100);
    assert!(job.wait().success());
    assert_eq!(job.said(), ["up", "asked", "saved", "told to end"]);
    assert_ne!(daemon.get("/-/ready").code, 200, "the sampler still hangs");
    room.paired_audit();
}
