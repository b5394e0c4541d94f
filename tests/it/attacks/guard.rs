//! What a user's processes can do to protection.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Child, Stdio};

use super::people::{ALICE, MALLORY, as_user};
use crate::harness::{Daemon, Page, wait_for};
use crate::protection::SOON;
use crate::protection::group::{Freezer, Group};
use crate::protection::job::{Job, witness};
use crate::protection::room::Room;

/// A process of another user; ended when dropped.
struct ChildProcess(Child);

impl ChildProcess {
    /// A shell that waits, with a text on its command line; nothing where nobody else can be.
    fn start(room: &Room, user: u32, mark: &str) -> Option<Self> {
        let mut shell = as_user(user, "sh")?;
        let child = shell.args(["-c", "read line; :", mark]).stdin(Stdio::piped()).stdout(Stdio::null());
        let person = Self(child.spawn().unwrap());
        room.show(person.0.id());
        Some(person)
    }

    fn ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// So many jobs that Mallory began, each a workload of its own.
const FAKES: usize = 70;

/// The job of another user.
const REAL: &str = "job-real";

fn fake(number: usize) -> String {
    format!("job-{number:02}")
}

/// A daemon that protects every workload of these users on the host.
fn everybody(room: &Room, users: &[u32]) -> Daemon {
    let mut names: Vec<String> = (0..FAKES).map(fake).collect();
    names.push(REAL.to_owned());
    let mut matchers = String::new();
    for name in &names {
        let _ = write!(matchers, "{{name: {name}, command_line: \"{}\"}}, ", room.mark(name));
    }
    let users: Vec<String> = users.iter().map(|user| format!("\"{user}\"")).collect();
    let text = format!(
        "sampling: {{interval: 200ms}}\nstate: {{file: {}}}\npaths: {{proc: {}}}\n\
         sources: {{workload: {{max_workloads: 128, matchers: [{matchers}]}}}}\n\
         protection: {{mode: enforce, targets: [{{name: all, workload: \"job-*\", allow_users: [{}], \
         cgroup_headroom: {{soft: \"\"}}, host: {{soft: 20%, hard: 10%}}, forecast: {{max_state: ignore}}, \
         leak: {{max_state: ignore}}, verify_timeout: 300s}}]}}\n",
        room.state().join("state.json").display(),
        room.staged_file("").display(),
        users.join(", ")
    );
    std::fs::write(room.path("memwarden.yaml"), text).unwrap();
    room.start()
}

fn fakes(room: &Room) -> Option<Vec<ChildProcess>> {
    (0..FAKES).map(|number| ChildProcess::start(room, MALLORY, &room.mark(&fake(number)))).collect()
}

fn members(page: &Page, workload: &str) -> f64 {
    page.sum("memwarden_protection_members", &[("workload", workload)])
}

#[test]
fn seventy_jobs_of_a_user_who_is_not_allowed_take_no_slot() {
    let room = Room::staged();
    let Some(fakes) = fakes(&room) else { return };
    let daemon = everybody(&room, &[ALICE]);
    daemon.wait_page("everybody else's jobs", SOON, |page| {
        page.sum("memwarden_workload_processes", &[("workload", "job-69")]) == 1.0
    });
    let mut real = ChildProcess::start(&room, ALICE, &room.mark(REAL)).unwrap();
    let page = daemon.wait_page("the real job's seat", SOON, |page| members(page, REAL) == 1.0);
    assert_eq!(page.get("memwarden_protection_unprotected_jobs", &[]), Some(0.0));
    assert_eq!(members(&page, "job-00"), 0.0);
    // It is protected: with no memory left for anybody, it is the one that ends.
    room.available(20);
    wait_for("the end of the real job", SOON, || real.ended().then_some(()));
    drop(fakes);
}

#[test]
fn seventy_jobs_of_an_allowed_user_leave_a_slot_for_another() {
    let room = Room::staged();
    let Some(fakes) = fakes(&room) else { return };
    let daemon = everybody(&room, &[ALICE, MALLORY]);
    let left_out = |page: &Page| {
        let user = MALLORY.to_string();
        page.sum("memwarden_limit_left_out", &[("limit", "protection_slots"), ("user", &user)])
    };
    daemon.wait_page("jobs without a seat", SOON, |page| left_out(page) == 6.0);
    let _real = ChildProcess::start(&room, ALICE, &room.mark(REAL)).unwrap();
    let page = daemon.wait_page("the real job's seat", SOON, |page| members(page, REAL) == 1.0);
    assert_eq!(left_out(&page), 7.0);
    wait_for("the word on it", SOON, || {
        let said = daemon.logged(&["protection_slots", &format!("user {MALLORY}")]);
        (!said.is_empty()).then_some(())
    });
    drop(fakes);
}

/// Asked for at the soft level of the staged host, and for nothing else, once in five minutes.
const ASK: &str = "host: {soft: 30%}, checkpoint: {grace: 1h, longest_grace: 1h, request_interval: 5m}";

/// Waits until the daemon's ladder is where it asks.
fn wait_checkpoint(daemon: &Daemon) {
    daemon.wait_page("the checkpoint", SOON, |page| {
        page.sum("memwarden_protection_state", &[("target", "train"), ("state", "checkpoint")]) == 1.0
    });
}

#[test]
fn a_restart_soon_after_a_request_does_not_repeat_it() {
    let room = Room::staged();
    let mut job = Job::start(&room, &witness());
    let mut first = room.guard(ASK);
    room.wait_members(&first, "train", 1.0);
    room.available(100);
    job.wait_said("signal 10");
    // A thread that gets no turn may write it a moment later.
    wait_for("what is remembered", SOON, || {
        let kept = std::fs::read_to_string(room.state().join("protection.jsonl")).ok()?;
        kept.contains("asked").then_some(())
    });
    first.signal("KILL");
    assert!(!first.wait(SOON).success());
    let second = room.start();
    wait_checkpoint(&second);
    second.wait_frames(3.0);
    assert_eq!((job.count("signal 10"), job.ended()), (1, None));
}

#[test]
fn two_daemons_with_one_folder_of_state_ask_once() {
    let room = Room::staged();
    let mut job = Job::start(&room, &witness());
    let first = room.guard(ASK);
    room.wait_members(&first, "train", 1.0);
    let second = room.start();
    room.wait_members(&second, "train", 1.0);
    second.logs_once(&["Another memwarden uses this state directory"]);
    let barred = [("target", "train"), ("reason", "other_daemon")];
    second.wait_page("the reason", SOON, |page| {
        page.sum("memwarden_protection_disarmed_reason", &barred) == 1.0
    });
    room.available(100);
    wait_checkpoint(&first);
    job.wait_said("signal 10");
    second.wait_frames(5.0);
    let acting = second.page().sum("memwarden_protection_state", &[("state", "disarmed")]);
    assert_eq!((acting, job.count("signal 10"), job.ended()), (1.0, 1, None));
    assert!(
        room.audit().0.iter().all(|line| line["to"] != "disarmed"),
        "it writes into no file of the first"
    );
}

#[test]
fn the_second_daemon_protects_once_the_first_has_ended() {
    let room = Room::staged();
    let job = Job::start(&room, &witness());
    let mut first = room.guard(ASK);
    room.wait_members(&first, "train", 1.0);
    let second = room.start();
    let barred = [("target", "train"), ("reason", "other_daemon")];
    second.wait_page("the reason", SOON, |page| {
        page.sum("memwarden_protection_disarmed_reason", &barred) == 1.0
    });
    let on_disk = |page: &Page| page.all("memwarden_records_writable", &[]).count() > 0;
    assert!(!on_disk(&second.page()));
    first.signal("KILL");
    assert!(!first.wait(SOON).success());
    second.wait_page("a target that is protected", SOON, |page| {
        page.sum("memwarden_protection_disarmed_reason", &barred) == 0.0
            && page.sum("memwarden_protection_state", &[("target", "train"), ("state", "ok")]) == 1.0
            && on_disk(page)
    });
    second.logs_once(&["The other memwarden has ended"]);
    room.available(100);
    wait_checkpoint(&second);
    job.wait_said("signal 10");
    room.wait_move("checkpoint");
    // And it has the folder of state for itself.
    let third = room.start();
    third.wait_page("the reason", SOON, |page| {
        page.sum("memwarden_protection_disarmed_reason", &barred) == 1.0
    });
}

#[test]
fn of_two_daemons_with_one_refused_folder_of_state_one_protects() {
    use std::os::unix::fs::PermissionsExt as _;
    let room = Room::staged();
    std::fs::create_dir(room.state()).unwrap();
    std::fs::set_permissions(room.state(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut job = Job::start(&room, &witness());
    room.configure("mode: enforce", &[room.target("train", ASK)], "");
    // Of one folder, as by default.
    let start = |name: &str| {
        let socket = format!("web.socket={}", room.path("run").join(name).display());
        room.start_with(|command| {
            command.args(["--set", &socket]);
        })
    };
    let mut first = start("first.sock");
    room.wait_members(&first, "train", 1.0);
    first.logs_once(&["The state directory is not used"]);
    let second = start("second.sock");
    let barred = [("target", "train"), ("reason", "other_daemon")];
    second.wait_page("the reason", SOON, |page| {
        page.sum("memwarden_protection_disarmed_reason", &barred) == 1.0
    });
    room.available(100);
    wait_checkpoint(&first);
    job.wait_said("signal 10");
    second.wait_frames(5.0);
    assert_eq!((job.count("signal 10"), job.ended()), (1, None));
    first.signal("KILL");
    assert!(!first.wait(SOON).success());
    second.wait_page("a target that is protected", SOON, |page| {
        page.sum("memwarden_protection_disarmed_reason", &barred) == 0.0
    });
}

/// Connects to the job socket and says of its GPU that nothing is left, again and again.
const LIAR: &str = "
import json, socket, sys, time
sys.stdin.readline()
job = socket.socket(socket.AF_UNIX)
job.connect(sys.argv[1])
def say(**what): job.sendall((json.dumps(what) + '\\n').encode())
say(type='hello', v=1, client='liar', rank=0, local_rank=0, world=1, devices={'0': {}})
while True:
    say(type='mem', devices={'0': {'allocated': 1 << 33, 'reserved': 1 << 33, 'free': 0, 'total': 1 << 33}})
    time.sleep(0.2)
";

#[test]
fn messages_of_another_user_end_no_job() {
    let room = Room::staged();
    let user = ALICE.to_string();
    let target = room.target("train", "allocator: {soft: 20%, hard: 10%}, host: {soft: 10%}");
    let own = format!("allow_users: [\"{}\"]", rustix::process::getuid().as_raw());
    room.configure("mode: enforce", &[target.replace(&own, &format!("allow_users: [\"{user}\"]"))], "");
    let Some(mut train) = ChildProcess::start(&room, ALICE, &room.mark("train")) else { return };
    let daemon = room.start();
    room.wait_members(&daemon, "train", 1.0);
    // Whoever may speak, may; the attack begins behind that.
    let socket = daemon.job_socket();
    open_to_all(&socket);
    let mut liar = as_user(MALLORY, "python3").unwrap();
    let liar = liar.args(["-S", "-c", LIAR]).arg(&socket).arg(room.mark("train")).stdin(Stdio::piped());
    let mut liar = ChildProcess(liar.spawn().unwrap());
    room.show(liar.0.id());
    liar.0.stdin.as_mut().unwrap().write_all(b"now\n").unwrap();
    daemon.wait_page("the forged figure", SOON, |page| {
        page.all("memwarden_training_device_free_bytes", &[]).any(|series| series.value == 0.0)
    });
    daemon.wait_frames(5.0);
    assert!(!train.ended(), "{}", daemon.log());
    let page = daemon.page();
    let quiet = page.sum("memwarden_protection_state", &[("target", "train"), ("state", "ok")]);
    assert_eq!(quiet, 1.0, "{}", daemon.log());
    assert_eq!(page.sum("memwarden_protection_incidents_started_total", &[]), 0.0);
}

/// Lets everybody reach a socket of the tests.
fn open_to_all(socket: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    for (path, mode) in [(socket, 0o666), (socket.parent().unwrap(), 0o755)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// A job whose first thread ends, as by pthread_exit(3), once another one has begun.
const WITHOUT_FIRST_THREAD: &str = "
import ctypes, platform, threading
def stay():
    while ') Z ' not in open('/proc/%d/stat' % os.getpid()).read(): time.sleep(0.01)
    say('up')
    while True: work()
threading.Thread(target=stay).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)
";

#[test]
fn a_job_without_its_first_thread_is_seen_and_ended() {
    let room = Room::staged();
    let mut job = Job::start(&room, WITHOUT_FIRST_THREAD);
    job.hold(64);
    let daemon = room.guard("host: {soft: 20%, hard: 10%}");
    room.wait_members(&daemon, "train", 1.0);
    let memory = f64::from(64 << 20);
    daemon.wait_page("its memory", SOON, |page| {
        page.sum("memwarden_workload_rss_bytes", &[("workload", "train")]) > memory
            && page.sum("memwarden_workload_rss_anon_bytes", &[("workload", "train")]) > memory
    });
    room.available(20);
    job.wait();
    wait_for("its line", SOON, || room.audit().reached().contains(&u64::from(job.pid())).then_some(()));
    room.paired_audit();
}

#[test]
fn a_job_without_its_first_thread_is_ended_below_the_limit_of_its_cgroup() {
    for room in [Room::real(), Room::of_slurm_job(4_000_000 + std::process::id())].into_iter().flatten() {
        let mut job = Job::start(&room, WITHOUT_FIRST_THREAD);
        let daemon = room.guard("cgroup_headroom: {soft: 40MiB, hard: 30MiB}");
        room.wait_members(&daemon, "train", 1.0);
        job.hold(64);
        job.wait();
        wait_for("its line", SOON, || room.audit().reached().contains(&u64::from(job.pid())).then_some(()));
        drop(daemon);
    }
}

#[test]
fn a_victim_that_hangs_leaves_others_protected() {
    let room = Room::staged();
    // Only its name is used: the freezer has groups of its own.
    let Some(group) = Group::make() else { return };
    let mut stuck = Job::start(&room, &witness());
    let mut other = Job::named(&room, "other", &witness());
    // It thaws before the jobs are waited for, whatever happens here.
    let Some(freezer) = Freezer::elsewhere(&group) else { return };
    let keys = "host: {soft: 20%, hard: 10%}, verify_timeout: 2s";
    room.configure("mode: enforce", &[room.target("train", keys), room.target("other", keys)], "");
    let daemon = room.start();
    room.wait_members(&daemon, "train", 1.0);
    room.wait_members(&daemon, "other", 1.0);
    // Who is frozen there does not die before it thaws, as one that waits for a device.
    freezer.put(stuck.pid());
    freezer.set("FROZEN");
    room.available(50);
    other.wait();
    assert_eq!(stuck.ended(), None);
    // Nobody waits for a line before the kill that it is about.
    wait_for("the lines about it", SOON, || room.audit().went("other", "verify").then_some(()));
    let audit = room.audit();
    let late = audit
        .when("the first one overdue", |line| line["target"] == "train" && line["reason"] == "unkillable");
    let second = audit.when("the second victim", |line| line["target"] == "other" && line["to"] == "kill");
    assert!(second >= late, "two victims for one shortage");
    freezer.set("THAWED");
    stuck.wait();
}
