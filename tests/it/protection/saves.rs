//! What saving a checkpoint takes, against what is left: a request that would kill the job, and ours.

use std::os::unix::process::ExitStatusExt as _;

use super::SOON;
use super::job::Job;
use super::room::Room;
use crate::harness::{Daemon, wait_for};

/// What a save takes in these tests, in MiB of a limit of 96.
const SAVE: u64 = 48;

/// A job that holds [`SAVE`] more while it saves, and predicts that where `predicts` is set.
fn job(room: &Room, daemon: &Daemon, predicts: bool, more: &str) -> Job {
    wait_for("the job socket", SOON, || std::os::unix::net::UnixStream::connect(daemon.job_socket()).ok());
    let socket = daemon.job_socket();
    let script = format!(
        "
speaker = socket.socket(socket.AF_UNIX)
speaker.connect({socket:?})
def tell(what): speaker.sendall((what + '\\n').encode())
tell('{{\"type\":\"hello\",\"v\":1}}')
resident = int(open('/proc/self/statm').read().split()[1]) * 4096
if {predicts}: tell('{{\"type\":\"prediction\",\"phase\":\"save\",\"resource\":\"host\",\"certainty\":\"estimated\",\"peak\":%d,\"held\":%d}}' % (resident + ({SAVE} << 20), resident))
def save(*_):
    say('asked')
    tell('{{\"type\":\"checkpoint\",\"state\":\"saving\"}}')
    copy = [bytearray(b'x') * (1 << 20) for _ in range({SAVE})]
    time.sleep(0.2)
    del copy
    say('saved')
    tell('{{\"type\":\"checkpoint\",\"state\":\"saved\"}}')
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
say('up')
{more}
while True: work()
",
        predicts = if predicts { "True" } else { "False" },
    );
    Job::start(room, &script)
}

/// Waits until the guard has seen what the job predicts.
fn wait_predicted(daemon: &Daemon) {
    wait_for("the prediction", SOON, || {
        let metrics = daemon.metrics();
        metrics.lines().any(|line| line.starts_with("memwarden_fit_predicted_peak_bytes{")).then_some(())
    });
}

/// 64 MiB are held: 32 are left, of which a save takes 48.
const LEVELS: &str = "cgroup_headroom: {soft: 40%, hard: 3%}, checkpoint: {grace: 30s, longest_grace: 60s}";

#[test]
fn a_request_whose_save_does_not_fit_kills_a_job_that_predicts_nothing() {
    let Some(room) = Room::real() else { return };
    let daemon = room.guard(LEVELS);
    let mut job = job(&room, &daemon, false, "");
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    assert_eq!(job.wait().signal(), Some(9), "the kernel's OOM killer");
    assert_eq!(job.said(), ["up", "asked"]);
}

#[test]
fn no_request_is_made_whose_save_does_not_fit() {
    let Some(room) = Room::real() else { return };
    let daemon = room.guard(LEVELS);
    let mut job = job(&room, &daemon, true, "");
    room.wait_members(&daemon, "train", 1.0);
    wait_predicted(&daemon);
    job.hold(64);
    wait_for("the refusal", SOON, || {
        let audit = room.audit();
        let refuses = |line: &serde_json::Value| line["to"] == "soft" && line["reason"] == "save_too_large";
        audit.0.iter().any(refuses).then_some(())
    });
    assert_eq!((job.ended(), job.said()), (None, vec!["up".to_owned()]));
    job.hold(24);
    room.wait_move("ok");
    assert_eq!((job.ended(), job.count("asked")), (None, 0));
}

#[test]
fn the_limit_is_raised_by_what_a_save_lacks_before_it_is_requested() {
    let Some(room) = Room::real() else { return };
    let levels = LEVELS.replace("40%", "60%");
    let daemon = room.guard(&format!("{levels}, raise: {{to: 400MiB, by: 1MiB, keep_free: 1MiB}}"));
    let mut job = job(&room, &daemon, true, "");
    room.wait_members(&daemon, "train", 1.0);
    wait_predicted(&daemon);
    job.hold(64);
    job.wait_said("saved");
    assert_eq!((job.ended(), job.said()), (None, ["up", "asked", "saved"].map(str::to_owned).to_vec()));
    let steps = room.audit_with("signal").steps();
    let place = |what: &str| steps.iter().position(|step| step == what);
    assert!(place("raise").unwrap() < place("signal 10").unwrap(), "{steps:?}");
}

#[test]
fn a_job_that_grows_is_asked_while_its_save_fits() {
    let Some(room) = Room::real() else { return };
    let early = "forecast: {max_state: checkpoint, warn_within: 20s, soft_within: 10s}";
    let daemon = room.guard(&format!("cgroup_headroom: {{soft: 10%, hard: 3%}}, {early}"));
    // 2 MiB per second.
    let grows = "
while True:
    hold(taken() + 1)
    time.sleep(0.5)
";
    let mut job = job(&room, &daemon, true, grows);
    room.wait_members(&daemon, "train", 1.0);
    job.wait_said("saved");
    assert_eq!((job.ended(), job.count("asked")), (None, 1));
    room.wait_move("checkpoint");
    let audit = room.audit();
    let request = audit.0.iter().find(|line| line["to"] == "checkpoint").unwrap();
    assert_eq!(request["reason"], "no_save_soon");
}
