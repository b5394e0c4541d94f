//! A daemon that is told otherwise, ends or dies in the middle of an incident.

use std::time::Duration;

use super::SOON;
use super::group::Freezer;
use super::job::{Job, saving, witness};
use super::room::Room;
use crate::harness::wait_for;

const KEYS: &str = "cgroup_headroom: {soft: 70%}";

fn slow(room: &Room) -> (Job, String) {
    let saved = room.path("saved");
    let keys = format!(
        "{KEYS}, checkpoint: {{file: {saved:?}, grace: 10s, longest_grace: 20s, request_interval: 0s}}"
    );
    (Job::start(room, &saving(&saved, 5.0)), keys)
}

#[test]
fn a_reload_in_the_middle_takes_effect_afterwards() {
    let Some(room) = Room::real() else { return };
    let (mut job, keys) = slow(&room);
    let daemon = room.guard(&keys);
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    job.wait_said("asked");
    room.configure("mode: enforce", &[room.target("train", "mode: \"off\"")], "");
    daemon.signal("HUP");
    wait_for("the word on the reload", SOON, || {
        daemon.log().contains("the new protection configuration takes effect after it").then_some(())
    });
    assert!(job.wait().success());
    assert_eq!(job.said(), ["up", "asked", "saved", "told to end"], "the incident went on as it began");
    room.wait_move("cooldown");
    daemon.wait_page("no protection", SOON, |page| {
        page.0.iter().all(|series| series.name != "memwarden_protection_state")
    });
    daemon.logs_once(&["takes effect after it"]);
    room.paired_audit();
}

#[test]
fn a_reload_without_the_matcher_of_the_job_takes_effect_afterwards() {
    let Some(room) = Room::real() else { return };
    let (mut job, keys) = slow(&room);
    let daemon = room.guard(&keys);
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    job.wait_said("asked");
    let file = room.path("memwarden.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("matchers: [{name: train,", "matchers: [{name: renamed,")).unwrap();
    daemon.signal("HUP");
    wait_for("the word on the reload", SOON, || {
        daemon.log().contains("analyzers and sampling wait for its end").then_some(())
    });
    assert!(job.wait().success());
    assert_eq!(job.said(), ["up", "asked", "saved", "told to end"], "the incident went on as it began");
    room.wait_move("cooldown");
    let (second, _) = slow(&room);
    daemon.wait_page("the new name", SOON, |page| {
        page.0.iter().any(|series| series.labels.get("workload").is_some_and(|name| name == "renamed"))
    });
    drop(second);
}

#[test]
fn a_daemon_that_is_killed_in_the_middle_is_followed_by_one_that_continues() {
    let Some(room) = Room::real() else { return };
    let (mut job, keys) = slow(&room);
    let mut first = room.guard(&keys);
    room.wait_members(&first, "train", 1.0);
    job.hold(64);
    job.wait_said("asked");
    wait_for("the record", SOON, || room.incidents().first()?.join("incident.json").exists().then_some(()));
    first.signal("KILL");
    assert!(!first.wait(SOON).success());
    assert_eq!(job.ended(), None, "nobody is ended by our end");
    let _second = room.start();
    assert!(job.wait().success());
    room.wait_move("cooldown");
    let folders = room.wait_incidents(2);
    let read = |folder: &std::path::Path| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.join("incident.json")).unwrap()).unwrap()
    };
    let (cut, whole) = (read(&folders[0]), read(&folders[1]));
    assert_eq!(cut["interrupted"], "memwarden ended during the incident");
    assert_eq!(
        whole["summary"],
        "Memory of train ran low; it received a checkpoint request, saved its checkpoint, received SIGTERM and ended."
    );
    room.paired_audit();
}

#[test]
fn a_daemon_that_is_told_to_end_in_the_middle_ends_and_leaves_the_job() {
    let Some(room) = Room::real() else { return };
    let (mut job, keys) = slow(&room);
    let mut daemon = room.guard(&keys);
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    job.wait_said("asked");
    daemon.signal("TERM");
    assert!(daemon.wait(Duration::from_secs(5)).success());
    job.wait_said("saved");
    assert_eq!(job.ended(), None);
    let audit = room.paired_audit();
    assert!(audit.went("train", "checkpoint"));
    let folder = room.incidents().remove(0);
    let record = std::fs::read_to_string(folder.join("incident.json")).unwrap();
    assert!(record.contains("checkpoint"), "{record}");
}

#[test]
fn a_frozen_job_is_thawed_by_the_next_daemon() {
    let Some(room) = Room::real() else { return };
    let group = room.group.as_ref().unwrap();
    let Some(freezer) = Freezer::beside(group) else { return };
    let mut job = Job::start(&room, &witness());
    freezer.put(job.pid());
    let mut first = room.guard(&format!("{KEYS}, freeze: true, hook: {{program: /bin/true, wait: 60s}}"));
    room.wait_members(&first, "train", 1.0);
    job.hold(64);
    wait_for("the stop", SOON, || (freezer.state() == "FROZEN").then_some(()));
    wait_for("the word on it", SOON, || {
        room.audit().0.iter().any(|line| line["step"]["do"] == "freeze").then_some(())
    });
    first.signal("KILL");
    assert!(!first.wait(SOON).success());
    assert_eq!(freezer.state(), "FROZEN", "nobody else lets it go on");
    // With nothing to protect, and with another policy.
    room.configure("mode: enforce", &[room.target("train", "mode: \"off\"")], "");
    let second = room.start();
    wait_for("the start", SOON, || (freezer.state() == "THAWED").then_some(()));
    second.logs_once(&["Thawed a cgroup that an earlier run froze"]);
    assert_eq!(job.ended(), None);
}
