//! Policies that must not run are refused by name, before anything is started.

use super::room::Room;
use crate::harness::memwarden;

#[track_caller]
fn is_refused(target: &str, expected: &[&str]) {
    let room = Room::staged();
    let file = room.configure("mode: enforce", &[target.to_owned()], "");
    for args in [&["check-config"][..], &["serve", "--web.listen-address", "127.0.0.1:0", "--config.file"]] {
        let output = memwarden(args).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        for part in expected {
            assert!(said.contains(part), "no `{part}` in {said}");
        }
    }
}

#[test]
fn a_policy_that_names_everything_is_refused_by_its_key() {
    let everything = "would match everything on the machine";
    is_refused("{name: a, workload: \"*\", allow_users: [root]}", &["targets[0].workload", everything]);
    is_refused("{name: a, cgroup: /, allow_users: [root]}", &["targets[0].cgroup", everything]);
    is_refused("{name: a, cgroup: \"/*/x\", allow_users: [root]}", &["targets[0].cgroup", "system services"]);
    is_refused("{name: a, workload: b}", &["targets[0].allow_users"]);
    is_refused(
        "{name: a, workload: b, allow_users: [\"*\"]}",
        &["targets[0].allow_users[0]", "wildcards are not supported"],
    );
}
