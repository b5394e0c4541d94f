//! What many and costly processes of one user do to the sampler, to the guard, and to the protection of another user.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::people::{ALICE, MALLORY, as_user};
use crate::harness::{Page, now, program, wait_for};
use crate::protection::SOON;
use crate::protection::group::Group;
use crate::protection::room::Room;

/// Becomes the user, with these many supplementary groups, and starts as many processes: children of one, or a chain. The last
/// one says "up".
const MANY: &str = "
import os, signal, sys
user, groups, count, mark, *chain = sys.argv[1:]
os.setsid()
os.setgroups([4_000_000_000 + number for number in range(int(groups))])
os.setresgid(*[int(user)] * 3)
os.setresuid(*[int(user)] * 3)
if chain: os.execv('/bin/sh', ['sh', '-c', chain[0], chain[0], mark, count])
for _ in range(int(count) - 1):
    if os.fork() == 0: break
else: print('up', flush=True)
while True: signal.pause()
";

/// A process of a chain: each executes its program anew. The kernel keeps a record for each mapping of a process and each living
/// ancestor that it was copied from (`anon_vma_chain`): memory and time of a chain of copies grow with the square of its length.
/// Each holds more than what the kernel's estimate of its memory may lack.
const CHAIN: &str = r#"
held=$(head -c 500000 /dev/zero | tr '\0' x)
if [ "$2" -gt 1 ]; then sh -c "$0" "$0" "$1" $(($2 - 1)) & else echo up; fi
wait
exec sleep 1000
"#;

/// The processes of Mallory; killed when dropped.
struct Many(Child);

impl Many {
    fn start(room: &Room, groups: u32, count: usize, chain: bool) -> Self {
        let mut command = program("python3");
        let numbers = [MALLORY.to_string(), groups.to_string(), count.to_string()];
        command.args(["-S", "-c", MANY]).args(numbers).arg(room.mark("train")).args(chain.then_some(CHAIN));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut many = Self(command.spawn().unwrap());
        let mut line = String::new();
        BufReader::new(many.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "up\n");
        let pids = many.pids();
        assert_eq!(pids.len(), count);
        pids.into_iter().for_each(|pid| room.show(pid));
        many
    }

    /// Those that have not ended.
    fn pids(&self) -> Vec<u32> {
        let session = self.0.id().to_string();
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let own = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let words: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
            words.get(3) == Some(&session.as_str()) && !matches!(words[0], "Z" | "X")
        };
        pids.filter(own).collect()
    }
}

impl Drop for Many {
    fn drop(&mut self) {
        for pid in self.pids() {
            let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// The number of processes: `few` in the suite, `many` with `MEMWARDEN_ATTACK_FULL`.
fn size(few: usize, many: usize) -> usize {
    if std::env::var_os("MEMWARDEN_ATTACK_FULL").is_some() { many } else { few }
}

/// Mallory's job and Alice's, which has a cgroup with a limit where this machine has any, reach their hard levels together: both
/// end, Alice's kill begins before Mallory's ends, and the daemon is ready all the time. Returns the number of status files that
/// were not read.
fn both_end(groups: u32, count: usize, chain: bool) -> Option<f64> {
    let room = Room::staged();
    let mut other = as_user(ALICE, "sh")?;
    // It holds what its end gives back, once it is in its cgroup.
    let hold = "read line; held=$(head -c 20000000 /dev/zero | tr '\\0' x); read line; :";
    let other = other.args(["-c", hold, &room.mark("other")]).stdin(Stdio::piped());
    let mut other = Other(other.spawn().unwrap());
    room.show(other.0.id());
    let many = Many::start(&room, groups, count, chain);
    let group = Group::make();
    let more = |of_host: bool| match &group {
        Some(group) if !of_host => {
            std::fs::write(group.file("cgroup.procs"), other.0.id().to_string()).unwrap();
            format!(
                "cgroup: \"{}\", host: {{soft: \"\"}}, cgroup_headroom: {{soft: 40MiB, hard: 38MiB}}",
                group.path
            )
        }
        _ => "host: {soft: 20%, hard: 10%}".to_owned(),
    };
    let target = |name: &str, user: u32| {
        let mut target = room.target(name, &more(user == MALLORY));
        if target.contains("cgroup: ") {
            target = target.replace("workload: other, cgroup_headroom: {soft: \"\"}, ", "");
        }
        target.replace("allow_users: [\"0\"]", &format!("allow_users: [\"{user}\"]"))
    };
    let file = room.configure("mode: enforce", &[target("train", MALLORY), target("other", ALICE)], "");
    // The usual interval, which decides from when on the daemon is not ready.
    let text = std::fs::read_to_string(&file).unwrap().replace("interval: 200ms", "interval: 1s");
    std::fs::write(&file, text).unwrap();
    let mut input = other.0.stdin.take().unwrap();
    input.write_all(b"go\n").unwrap();
    let daemon = room.start();
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    room.wait_members(&daemon, "train", count as f64);
    room.wait_members(&daemon, "other", 1.0);
    let user = MALLORY.to_string();
    let left_out =
        |page: &Page| page.sum("memwarden_limit_left_out", &[("limit", "status_reads"), ("user", &user)]);
    let page = daemon.wait_page("reads that are left out", SOON, |page| groups == 0 || left_out(page) > 0.0);
    let left_out = left_out(&page);
    let begun = now();
    if let Some(group) = &group {
        let limit = if group.version1() { "memory.limit_in_bytes" } else { "memory.max" };
        std::fs::write(group.file(limit), (48 << 20).to_string()).unwrap();
    }
    // A host of 64 MiB, so that the limit of the cgroup is below it.
    room.write_meminfo("MemTotal: 65536 kB\nMemFree: 6144 kB\nMemAvailable: 6144 kB\n");
    let wait = Duration::from_millis(1);
    while other.0.try_wait().unwrap().is_none() && begun.elapsed() < SOON {
        std::thread::sleep(wait);
    }
    let delay = begun.elapsed();
    wait_for("the end of both", SOON, || {
        assert_eq!(daemon.get("/-/ready").code, 200, "{}", daemon.log());
        let ended = other.0.try_wait().unwrap().is_some();
        (ended && many.pids().is_empty()).then_some(())
    });
    // The processes that a step reached are written after its end.
    let audit = wait_for("a record of all of them", SOON, || {
        Some(room.paired_audit()).filter(|audit| audit.reached().len() > count.min(4096))
    });
    let line = |entry: &str, target: &str| {
        let of_kill = |line: &&Value| {
            let work = line["step"]["do"].as_str();
            line["target"] == target && work.is_some_and(|work| work.starts_with("kill"))
        };
        let kill = audit.0.iter().find(of_kill).unwrap();
        audit.0.iter().position(|line| line["entry"] == entry && line["number"] == kill["number"]).unwrap()
    };
    // Of two jobs below one limit, the second is killed only if the first did not suffice.
    assert!(group.is_none() || line("before", "other") < line("after", "train"), "Alice's kill waited");
    let page = daemon.wait_page("whose steps took how long", SOON, |page| {
        page.sum("memwarden_protection_job_steps_seconds_total", &[("workload", "train")]) > 0.0
    });
    let longest = page.get("memwarden_guard_round_max_seconds", &[]);
    println!("{count} processes: longest round {longest:?} s, the other job ended after {delay:?}");
    Some(left_out)
}

#[test]
fn processes_with_tens_of_thousands_of_groups_delay_neither_samples_nor_another_users_job() {
    let Some(left_out) = both_end(65_536, size(60, 400), false) else { return };
    assert!(left_out > 0.0);
}

#[test]
fn a_chain_of_many_processes_is_killed_while_another_users_job_is() {
    both_end(0, size(400, 3600), true);
}

/// Alice's process; killed when dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
