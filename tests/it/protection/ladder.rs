//! The ladder from its first rung to its last, on a job that holds too much of its group's memory.

use std::os::unix::process::ExitStatusExt as _;

use super::SOON;
use super::job::{Job, saving, witness};
use super::room::Room;
use crate::harness::wait_for;

#[test]
fn a_job_that_saves_is_asked_once_and_ends_by_itself() {
    let Some(room) = Room::real() else { return };
    let saved = room.path("saved");
    let mut job = Job::start(&room, &saving(&saved, 0.3));
    let daemon = room.guard(&format!(
        "cgroup_headroom: {{soft: 70%, hard: 3%}}, checkpoint: {{file: {saved:?}, grace: 10s, longest_grace: 20s}}"
    ));
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    assert!(job.wait().success(), "it ended by itself");
    room.wait_move("ok");
    assert_eq!(job.said(), ["up", "asked", "saved", "told to end"]);
    let audit = room.paired_audit();
    assert_eq!(audit.moves("train"), ["warn", "soft", "checkpoint", "term", "verify", "cooldown", "ok"]);
    assert_eq!(
        audit.steps(),
        ["record", "record", "signal 10", "await", "record", "signal 15", "await_end"],
        "one request, then one end"
    );
    assert_eq!(audit.reached(), [u64::from(job.pid())]);
    let folder = room.wait_incidents(1).remove(0);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let incident: serde_json::Value = serde_json::from_str(&read("incident.json")).unwrap();
    assert_eq!((&incident["target"], &incident["mode"]), (&"train".into(), &"enforce".into()));
    let (used, limit) = (incident["used_bytes"].as_f64().unwrap(), incident["limit_bytes"].as_f64().unwrap());
    assert!(incident["resource"] == "cgroup" && used > 0.0 && used <= limit, "{used} of {limit}");
    assert_eq!(incident["workload"], "train");
    assert_eq!(incident.get("step"), None, "it reports none");
    assert_eq!(
        incident["summary"],
        "Memory of train ran low; it received a checkpoint request, saved its checkpoint, received SIGTERM and ended."
    );
    assert!(incident["ended_unix_seconds"].as_f64() > incident["began_unix_seconds"].as_f64());
    let moves: Vec<&str> =
        incident["moves"].as_array().unwrap().iter().map(|step| step["to"].as_str().unwrap()).collect();
    assert_eq!(moves, ["soft", "checkpoint", "term", "verify", "cooldown"]);
    assert_eq!(incident["steps"].as_array().unwrap().len(), audit.steps().len());
    for step in incident["steps"].as_array().unwrap() {
        assert_eq!(step["result"], "ok", "{step}");
        assert!(step["took_us"].as_u64().is_some(), "{step}");
    }
    let pid = job.pid().to_string();
    assert!(read("processes.csv").lines().any(|line| line.split(',').any(|field| field == pid)));
    assert!(room.report(&folder, None).contains("received SIGTERM"));
    assert!(read("memory-train.csv").lines().count() > 5, "the last minutes at full rate");
    assert_eq!(daemon.value("memwarden_protection_incidents_started_total"), Some(1.0));
    assert!(daemon.value("memwarden_protection_signal_latency_seconds") < Some(0.5));
}

#[test]
fn a_job_whose_limit_can_be_raised_is_asked_for_nothing() {
    let Some(room) = Room::real() else { return };
    let job = Job::start(&room, &witness());
    let raise = "raise: {to: 400MiB, by: 200MiB, keep_free: 1MiB}";
    let daemon = room.guard(&format!("cgroup_headroom: {{soft: 40%, hard: 3%}}, {raise}"));
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    room.wait_move("soft");
    room.wait_move("ok");
    let audit = room.paired_audit();
    let steps = audit.steps();
    assert!(steps.contains(&"raise".to_owned()), "{steps:?}");
    assert!(steps.iter().all(|step| ["record", "raise"].contains(&step.as_str())), "{steps:?}");
    assert!(audit.reached().is_empty());
    let group = room.group.as_ref().unwrap();
    let limit = if group.version1() { "memory.limit_in_bytes" } else { "memory.max" };
    let limit = std::fs::read_to_string(group.file(limit)).unwrap();
    assert_eq!(limit.trim(), (296_u64 << 20).to_string());
    assert_eq!(job.said(), ["up"]);
}

#[test]
fn an_acknowledgement_over_the_job_socket_counts() {
    let Some(room) = Room::real() else { return };
    let daemon =
        room.guard("cgroup_headroom: {soft: 70%, hard: 3%}, checkpoint: {grace: 500ms, longest_grace: 30s}");
    // It is bound in the first sample.
    wait_for("the job socket", SOON, || std::os::unix::net::UnixStream::connect(daemon.job_socket()).ok());
    let mut job = Job::start(
        &room,
        &format!(
            "
speaker = socket.socket(socket.AF_UNIX)
speaker.connect({:?})
def tell(what): speaker.sendall((what + '\\n').encode())
tell('{{\"type\":\"hello\",\"v\":1}}')
def save(*_):
    say('asked')
    tell('{{\"type\":\"checkpoint\",\"state\":\"saving\"}}')
    time.sleep(1.5)
    say('saved')
    tell('{{\"type\":\"checkpoint\",\"state\":\"saved\"}}')
def end(*_):
    say('told to end')
    os._exit(0)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, end)
say('up')
while True: work()
",
            daemon.job_socket()
        ),
    );
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    assert!(job.wait().success());
    assert_eq!(job.said(), ["up", "asked", "saved", "told to end"]);
    room.wait_move("ok");
    let reasons: Vec<serde_json::Value> = room
        .audit()
        .0
        .iter()
        .filter(|line| line["to"] == "term")
        .map(|line| line["reason"].clone())
        .collect();
    assert_eq!(reasons, ["saved"]);
}

#[test]
fn a_handler_that_takes_long_is_waited_for() {
    let Some(room) = Room::real() else { return };
    let saved = room.path("saved");
    let mut job = Job::start(&room, &saving(&saved, 2.0));
    let daemon = room.guard(&format!(
        "cgroup_headroom: {{soft: 70%, hard: 3%}}, checkpoint: {{file: {saved:?}, grace: 500ms, longest_grace: 30s}}"
    ));
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    assert!(job.wait().success());
    assert_eq!(job.said(), ["up", "asked", "saved", "told to end"]);
}

#[test]
fn a_checkpoint_that_stays_halfway_has_the_longest_time_and_no_more() {
    let Some(room) = Room::real() else { return };
    let saved = room.path("saved");
    let mut job = Job::start(&room, &saving(&saved, 60.0));
    let daemon = room.guard(&format!(
        "cgroup_headroom: {{soft: 70%, hard: 3%}}, \
         checkpoint: {{file: {saved:?}, grace: 1s, longest_grace: 3s}}"
    ));
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    assert!(job.wait().success());
    // The lines are written after the signals are sent.
    room.wait_move("cooldown");
    let audit = room.audit();
    let asked = audit.when("the request", |line| line["step"]["signal"] == 10);
    let told = audit.when("the end", |line| line["step"]["signal"] == 15);
    // Beside load, the guard and the job are late; never early.
    assert!((2.9..30.0).contains(&(told - asked)), "{}", told - asked);
    assert_eq!(job.said(), ["up", "asked", "told to end"]);
}

#[test]
fn a_process_that_ignores_sigterm_is_killed_after_its_grace() {
    let Some(room) = Room::real() else { return };
    let mut job =
        Job::start(&room, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('up')\nwhile True: work()\n");
    let daemon = room.guard("cgroup_headroom: {soft: 70%, hard: 3%}, term_grace: 1s");
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    assert_eq!(job.wait().signal(), Some(9));
    room.wait_move("cooldown");
    let audit = room.paired_audit();
    let told = audit.when("the end", |line| line["step"]["signal"] == 15);
    let gone = audit.when("nobody left", |line| line["to"] == "verify");
    assert!((1.0..10.0).contains(&(gone - told)), "{}", gone - told);
    let request = audit.begun("signal").next().unwrap();
    assert_eq!(audit.end(request)["outcome"]["skipped"], "not_caught", "it would have ended at once");
}

#[test]
fn the_hard_level_kills_before_anything_else_is_done() {
    let Some(room) = Room::real() else { return };
    let mut job = Job::start(&room, &witness());
    let daemon = room.guard("cgroup_headroom: {soft: 41%, hard: 40%}");
    room.wait_members(&daemon, "train", 1.0);
    job.hold(70);
    assert_eq!(job.wait().signal(), Some(9));
    room.wait_move("cooldown");
    assert_eq!(job.said(), ["up"], "no other signal");
    let audit = room.audit();
    assert_eq!(audit.steps()[0], "kill_group", "{:?}", audit.steps());
    assert!(audit.steps().contains(&"release".to_owned()) && audit.steps().contains(&"record".to_owned()));
    assert_eq!(audit.reached(), [u64::from(job.pid())]);
}

#[test]
fn memory_that_comes_back_by_itself_ends_it_without_an_end() {
    let Some(room) = Room::real() else { return };
    let mut job = Job::start(
        &room,
        "
def let_go(*_):
    open(steer, 'w').write('4')
    say('asked')
signal.signal(signal.SIGUSR1, let_go)
signal.signal(signal.SIGTERM, lambda *_: say('told to end'))
say('up')
while True: work()
",
    );
    let daemon = room.guard("cgroup_headroom: {soft: 70%, hard: 3%}, checkpoint: {grace: 20s}");
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    wait_for("the end of the incident", SOON, || room.audit().went("train", "cooldown").then_some(()));
    room.wait_move("ok");
    assert_eq!(room.audit().steps().iter().filter(|step| step.starts_with("signal")).count(), 1);
    assert_eq!((job.said(), job.ended()), (vec!["up".to_owned(), "asked".to_owned()], None));
}
