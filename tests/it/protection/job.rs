//! A training job of the tests: a Python program that takes as much memory as it is told to.

use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};

use super::SOON;
use super::room::Room;
use crate::harness::{program, wait_for};

/// What every job begins with: a session of its own, its group, a diary, and hands for memory.
const BEGIN: &str = "
import os, signal, socket, sys, time
os.setsid()
group, diary, steer = sys.argv[1:4]
if group != '-': open(group, 'w').write('0')
diary = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def say(what): os.write(diary, (str(what) + '\\n').encode())
held = []
def taken(): return sum(map(len, held)) >> 20
def hold(mib):
    # In one call: a handler that runs between two of them would leave a part.
    if mib < taken(): held.clear()
    if mib > taken(): held.append(bytearray(b'x') * ((mib - taken()) << 20))
def told():
    try: return int(open(steer).read())
    except (OSError, ValueError): return taken()
def work():
    hold(told())
    time.sleep(0.01)
";

/// One job; all that is left of its session is killed when it is dropped.
pub(crate) struct Job {
    child: Child,
    diary: PathBuf,
    steer: PathBuf,
}

impl Job {
    /// Starts one in the group of the room, if that has one, and waits until it has said `up`.
    pub(crate) fn start(room: &Room, script: &str) -> Self {
        Self::named(room, "train", script)
    }

    /// The same for another workload than `train`.
    pub(crate) fn named(room: &Room, workload: &str, script: &str) -> Self {
        let number = room.next();
        let (diary, steer) = (room.path(&format!("diary-{number}")), room.path(&format!("steer-{number}")));
        std::fs::write(&diary, "").unwrap();
        let group = room.group.as_ref().map(|group| group.file("cgroup.procs"));
        let child = program("python3")
            .args(["-S", "-c", &format!("{BEGIN}{script}")])
            .arg(group.unwrap_or_else(|| "-".into()))
            .args([&diary, &steer])
            .arg(room.mark(workload))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let mut job = Self { child, diary, steer };
        wait_for("the job", SOON, || {
            assert_eq!(job.child.try_wait().unwrap(), None, "the job ended at once");
            job.said().contains(&"up".to_owned()).then_some(())
        });
        room.show(job.pid());
        job
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Every line of its diary.
    pub(crate) fn said(&self) -> Vec<String> {
        std::fs::read_to_string(&self.diary).unwrap().lines().map(str::to_owned).collect()
    }

    /// How often it said something.
    pub(crate) fn count(&self, what: &str) -> usize {
        self.said().iter().filter(|line| *line == what).count()
    }

    /// Waits until it has said something.
    #[track_caller]
    pub(crate) fn wait_said(&self, what: &str) {
        wait_for(&format!("the job's {what}"), SOON, || (self.count(what) > 0).then_some(()));
    }

    /// Has it take that many MiB, or give back what is more.
    pub(crate) fn hold(&self, mib: u64) {
        // Whole at once: it looks all the time.
        let next = self.steer.with_extension("next");
        std::fs::write(&next, mib.to_string()).unwrap();
        std::fs::rename(next, &self.steer).unwrap();
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the job's end", SOON, || self.ended())
    }

    /// Who of its session has not ended.
    pub(crate) fn session(&self) -> Vec<u32> {
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = |pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            let rest: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            Some(rest[3] == self.pid().to_string() && !matches!(rest[0], "Z" | "X"))
        };
        pids.filter(|pid| ours(pid) == Some(true)).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        for _ in 0..50 {
            let left = self.session();
            for pid in &left {
                let _ = program("kill").args(["-s", "KILL", &pid.to_string()]).status();
            }
            if left.is_empty() {
                break;
            }
        }
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("the job's diary: {:?}", self.said());
        }
    }
}

/// A job that says in the file `saved` that it saves, for so many seconds, and that it has; and ends when it is told to.
pub(crate) fn saving(saved: &std::path::Path, seconds: f64) -> String {
    format!(
        "
def save(*_):
    say('asked')
    open({saved:?}, 'w').write('saving')
    time.sleep({seconds})
    say('saved')
    open({saved:?}, 'w').write('saved')
def end(*_):
    say('told to end')
    os._exit(0)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, end)
say('up')
while True: work()
"
    )
}

/// A job that goes on whatever comes, and writes down every signal that it can.
pub(crate) fn witness() -> String {
    "
def heard(number, _): say('signal %d' % number)
for number in range(1, 32):
    if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD): signal.signal(number, heard)
say('up')
while True: work()
"
    .to_owned()
}
