//! Jobs that fight back: that fork as they are killed, and that start their ranks again.

use super::SOON;
use super::job::Job;
use super::room::Room;
use crate::harness::wait_for;

/// Every process forks as fast as it can, and all of them together 60 times at most.
const STORM: &str = "
import mmap, struct
count = mmap.mmap(-1, 8)
def one():
    n = struct.unpack('q', count[:8])[0]
    if n >= 60: return False
    count[:8] = struct.pack('q', n + 1)
    return True
say('up')
while True:
    if os.getpid() == os.getsid(0):
        work()
        if not held: continue
    if one(): os.fork()
    else: time.sleep(0.001)
";

#[test]
fn who_forks_faster_than_it_is_killed_is_killed_whole() {
    let Some(room) = Room::real() else { return };
    let job = Job::start(&room, STORM);
    let daemon = room.guard("cgroup_headroom: {soft: 60%, hard: 55%}");
    room.wait_members(&daemon, "train", 1.0);
    job.hold(48);
    wait_for("the end of all of them", SOON, || job.session().is_empty().then_some(()));
    room.wait_move("cooldown");
    assert_eq!(room.group.as_ref().unwrap().pids(), [0_u32; 0]);
    room.paired_audit();
}

/// Eight that each only fork and end, so that nobody is there for longer than a moment; 80,000 times at most.
const COMETS: &str = "
import mmap, struct
count = mmap.mmap(-1, 8)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
say('up')
while not held: work()
def fly():
    for _ in range(10_000):
        if os.fork(): os._exit(0)
        time.sleep(0.001)
    os._exit(0)
for _ in range(8):
    if os.fork() == 0: fly()
while True: work()
";

#[test]
fn who_is_never_there_for_longer_than_a_moment_is_killed() {
    let Some(room) = Room::real() else { return };
    let job = Job::start(&room, COMETS);
    let daemon = room.guard("cgroup_headroom: {soft: 60%, hard: 55%}");
    room.wait_members(&daemon, "train", 1.0);
    job.hold(48);
    room.wait_move("kill");
    wait_for("the end of all of them", SOON, || job.session().is_empty().then_some(()));
    room.wait_move("cooldown");
    let audit = room.audit();
    let killed = audit.when("the kill", |line| line["to"] == "kill");
    let gone = audit.when("nobody left", |line| line["to"] == "cooldown");
    println!("{} s, {:?}", gone - killed, audit.steps());
    assert!(gone - killed < 10.0, "they were killed, and did not end by themselves: {} s", gone - killed);
}

/// Starts three ranks, and each again that ends; bears SIGTERM, as its ranks do not.
const LAUNCHER: &str = "
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ranks = set()
def start():
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True: time.sleep(1)
    ranks.add(pid)
    say('rank')
for _ in range(3): start()
say('up')
while True:
    work()
    pid, _ = os.waitpid(-1, os.WNOHANG)
    if pid: start()
";

#[test]
fn a_launcher_that_restarts_its_ranks_goes_with_them() {
    let Some(room) = Room::real() else { return };
    let mut job = Job::start(&room, LAUNCHER);
    let daemon = room.guard("cgroup_headroom: {soft: 70%, hard: 3%}, term_grace: 3s");
    room.wait_members(&daemon, "train", 4.0);
    job.hold(60);
    job.wait();
    assert!(job.count("rank") > 3, "it did start them again: {:?}", job.said());
    wait_for("the end of all of them", SOON, || job.session().is_empty().then_some(()));
    room.wait_move("cooldown");
    assert_eq!(room.group.as_ref().unwrap().pids(), [0_u32; 0]);
    let audit = room.audit();
    // The cooldown may be over by now.
    let moves = ["warn", "soft", "checkpoint", "term", "kill", "verify", "cooldown"];
    assert_eq!(audit.moves("train")[..moves.len()], moves);
    assert_eq!(audit.begun("signal").filter(|step| step["step"]["signal"] == 15).count(), 4);
}
