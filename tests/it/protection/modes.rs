//! What does not act does not act, whatever happens.

use std::os::unix::process::CommandExt as _;

use super::SOON;
use super::job::{Job, witness};
use super::room::Room;
use crate::harness::wait_for;

/// A whole ladder's worth of pressure.
#[track_caller]
fn no_process_is_signalled(
    room: &Room,
    mode: &str,
    target: &str,
    check: impl FnOnce(&crate::harness::Daemon),
) {
    let mut job = Job::start(room, &witness());
    let keys = "cgroup_headroom: {soft: 60%, hard: 40%}, term_grace: 200ms, checkpoint: {grace: 200ms}";
    room.configure(&format!("mode: {mode}"), &[room.target("train", &format!("{target}, {keys}"))], "");
    let daemon = room.start();
    daemon.wait_frames(3.0);
    for mib in [48, 72, 4] {
        job.hold(mib);
        daemon.wait_frames(5.0);
    }
    check(&daemon);
    assert_eq!((job.said(), job.ended()), (vec!["up".to_owned()], None));
    assert_eq!(room.audit().reached(), [0_u64; 0]);
}

#[test]
fn observing_records_everything_and_sends_no_signal() {
    let Some(room) = Room::real() else { return };
    no_process_is_signalled(&room, "observe", "mode: enforce", |daemon| {
        room.wait_move("kill");
        let audit = room.paired_audit();
        assert!(audit.0.iter().all(|line| line["mode"] == "observe"));
        for step in audit.begun("kill_group").chain(audit.begun("signal")) {
            assert_eq!(audit.end(step)["outcome"], "would_have", "{step}");
        }
        assert!(audit.begun("kill_group").count() > 0);
        let page = daemon.wait_page("what it would have done", SOON, |page| {
            page.get(
                "memwarden_protection_dry_run_transitions_total",
                &[("target", "train"), ("state", "kill")],
            ) == Some(1.0)
        });
        assert_eq!(page.get("memwarden_protection_mode", &[("mode", "observe")]), Some(1.0));
        let folder = room.wait_incidents(1).remove(0);
        let report = room.report(&folder, None);
        assert!(
            report.contains("no action was taken. Protection would have sent it a checkpoint request"),
            "{report}"
        );
    });
}

#[test]
fn off_is_off() {
    let Some(room) = Room::real() else { return };
    no_process_is_signalled(&room, "enforce", "mode: \"off\"", |daemon| {
        assert_eq!(room.audit().0.len(), 0);
        let page = daemon.page();
        assert!(page.0.iter().all(|series| !series.name.starts_with("memwarden_protection_state")));
        let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
        let names: Vec<String> = threads
            .map(|thread| std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap())
            .collect();
        assert!(names.iter().all(|name| name.trim() != "guard"), "{names:?}");
    });
}

#[test]
fn a_drill_walks_the_whole_ladder_and_touches_nobody() {
    let Some(room) = Room::real() else { return };
    let mut job = Job::start(&room, &witness());
    let file = room.configure("mode: enforce", &[room.target("train", "term_grace: 1s")], "");
    let output = wait_for("a drill", SOON, || {
        let args = ["drill", "--config.file", file.to_str().unwrap(), "--target", "train"];
        Some(crate::harness::memwarden(&args).output().unwrap())
    });
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let pid = job.pid();
    for line in [
        "1 process, 0 left out".to_owned(),
        format!("send SIGUSR1 to pid {pid}, if it has a handler"),
        format!("send SIGTERM to pid {pid}"),
        "\n  kill  ".to_owned(),
    ] {
        assert!(text.contains(&line), "no `{line}` in {text}");
    }
    assert_eq!((job.said(), job.ended()), (vec!["up".to_owned()], None));
    assert!(!room.state().exists(), "nothing is written");
}

#[test]
fn a_drill_states_why_a_process_is_left_out() {
    let Some(room) = Room::real() else { return };
    if !rustix::process::geteuid().is_root() {
        crate::skip::skip("a process of another user needs root");
        return;
    }
    let _job = Job::start(&room, &witness());
    let mut command = crate::harness::program("sleep");
    let mut theirs = command.arg("600").uid(65_534).spawn().unwrap();
    let group = room.group.as_ref().unwrap();
    std::fs::write(group.file("cgroup.procs"), theirs.id().to_string()).unwrap();
    let file = room.configure("mode: enforce", &[room.target("train", "")], "");
    let output =
        crate::harness::memwarden(&["drill", "--config.file", file.to_str().unwrap(), "--target", "train"])
            .output()
            .unwrap();
    theirs.kill().unwrap();
    theirs.wait().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("1 process, 1 left out (1 of users not in allow_users)"), "{text}{said}");
}
