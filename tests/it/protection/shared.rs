//! Two targets that need the same memory: one ends, and the other waits for what that gives back.

use super::SOON;
use super::job::{Job, saving, witness};
use super::room::{HOST, Room};
use crate::harness::Page;

/// Whether a job of a target is in a state; one that is gone keeps its own for a while.
fn is(page: &Page, target: &str, state: &str) -> bool {
    page.sum("memwarden_protection_state", &[("target", target), ("state", state)]) >= 1.0
}

#[test]
fn the_second_target_is_not_ended_for_what_the_first_gives_back() {
    let room = Room::staged();
    let mut first = Job::start(&room, &saving(&room.path("unused"), 0.0));
    let keys = "host: {soft: 20%}, checkpoint: {grace: 300ms}, verify_timeout: 300s";
    room.configure("mode: enforce", &[room.target("train", keys), room.target("other", keys)], "");
    let daemon = room.start();
    room.wait_members(&daemon, "train", 1.0);
    // After the first one, so that it is ended after it.
    let mut second = Job::named(&room, "other", &witness());
    room.wait_members(&daemon, "other", 1.0);
    room.available(100);
    assert!(first.wait().success());
    // It is gone, and its memory is not back yet.
    room.wait_move("verify");
    daemon.wait_frames(5.0);
    assert!(is(&daemon.page(), "train", "verify"));
    let alone = [("target", "other"), ("condition", "alone_on_host")];
    assert_eq!(daemon.page().get("memwarden_protection_condition", &alone), Some(0.0), "why it waits");
    // It comes back slowly.
    for mib in [150, 190, 230, HOST] {
        room.available(mib);
        daemon.wait_frames(1.0);
    }
    daemon.wait_page("quiet", SOON, |page| is(page, "other", "ok"));
    assert_eq!((second.said(), second.ended()), (vec!["up".to_owned(), "signal 10".to_owned()], None));
    let audit = room.paired_audit();
    assert!(audit.went("train", "term") && !audit.went("other", "term") && !audit.went("other", "kill"));
}
