//! Victims that do not go: those the kernel holds, which we can only say.

use std::path::PathBuf;

use super::SOON;
use super::job::{Job, witness};
use super::room::Room;
use crate::skip::skip;

/// A freezer of the older kind: who is in it and frozen does not die before it thaws, as one that waits for a device.
struct Ice(PathBuf);

impl Ice {
    fn around(pid: u32) -> Option<Self> {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/freezer/memwarden-ice-{pid}"));
        std::fs::create_dir(&folder).ok()?;
        let ice = Self(folder);
        std::fs::write(ice.0.join("cgroup.procs"), pid.to_string()).ok()?;
        std::fs::write(ice.0.join("freezer.state"), "FROZEN").ok()?;
        Some(ice)
    }

    fn thaw(&self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Ice {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
        for _ in 0..250 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn who_stays_after_a_kill_is_said_and_waited_for() {
    let Some(room) = Room::real() else { return };
    let mut job = Job::start(&room, &witness());
    let daemon = room.guard(
        "limit: {soft: 50%, hard: 1%}, checkpoint: {signal: \"\", grace: 100ms}, hook: {program: /bin/true}, \
                             term_time: 200ms, verify_time: 500ms",
    );
    room.wait_members(&daemon, "train", 1.0);
    job.hold(70);
    crate::harness::wait_for("the memory", SOON, || room.audit().went("train", "warn").then_some(()));
    let Some(ice) = Ice::around(job.pid()) else {
        skip("no freezer of the older kind here");
        return;
    };
    daemon.wait_page("an overdue victim", SOON, |page| {
        page.get("memwarden_protection_overdue", &[("target", "train")]) == Some(1.0)
    });
    assert_eq!(job.ended(), None);
    daemon.wait_frames(3.0);
    let kills = |audit: &super::audit::Audit| audit.begun("kill_group").count();
    assert_eq!(kills(&room.audit()), 1, "no second kill");
    ice.thaw();
    job.wait();
    room.wait_move("cooldown");
    daemon.wait_page("nothing overdue", SOON, |page| {
        page.get("memwarden_protection_overdue", &[("target", "train")]) == Some(0.0)
    });
    let audit = room.audit();
    audit.is_paired();
    assert!(audit.0.iter().any(|line| line["reason"] == "victims are still there after their time"));
}
