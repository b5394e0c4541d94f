//! Victims that do not go: those the kernel holds, which we can only say.

use super::SOON;
use super::group::Freezer;
use super::job::{Job, witness};
use super::room::Room;

#[test]
fn a_process_that_remains_after_a_kill_is_reported_and_awaited() {
    let Some(room) = Room::real() else { return };
    let Some(freezer) = Freezer::elsewhere(room.group.as_ref().unwrap()) else { return };
    let mut job = Job::start(&room, &witness());
    let daemon = room.guard(
        "cgroup_headroom: {soft: 60%, hard: 1%}, checkpoint: {signal: \"\", grace: 4s}, hook: {program: /bin/true}, \
                             term_grace: 200ms, verify_timeout: 500ms",
    );
    room.wait_members(&daemon, "train", 1.0);
    job.hold(70);
    let group = room.group.as_ref().unwrap();
    let usage = group.file(if group.version1() { "memory.usage_in_bytes" } else { "memory.current" });
    crate::harness::wait_for("the memory", SOON, || {
        let used: u64 = std::fs::read_to_string(&usage).unwrap().trim().parse().unwrap();
        (used >= 70 << 20 && room.audit().went("train", "soft")).then_some(())
    });
    // Who is frozen there does not die before it thaws, as one that waits for a device.
    freezer.put(job.pid());
    freezer.set("FROZEN");
    daemon.wait_page("an overdue victim", SOON, |page| {
        page.get("memwarden_protection_overdue", &[("target", "train")]) == Some(1.0)
    });
    assert_eq!(job.ended(), None);
    daemon.wait_frames(3.0);
    let kills = |audit: &super::audit::Audit| audit.begun("kill_group").count();
    assert_eq!(kills(&room.audit()), 1, "no second kill");
    freezer.set("THAWED");
    job.wait();
    room.wait_move("cooldown");
    daemon.wait_page("nothing overdue", SOON, |page| {
        page.get("memwarden_protection_overdue", &[("target", "train")]) == Some(0.0)
    });
    let audit = room.paired_audit();
    assert!(audit.0.iter().any(|line| line["reason"] == "unkillable"));
}
