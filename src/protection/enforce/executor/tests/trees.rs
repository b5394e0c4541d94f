//! Trees that fight back: those that ignore, that fork, that start anew.

use super::job::{Job, until};
use super::*;
use crate::protection::types::step::{Outcome, Skip};

fn kill(job: &Job) -> (StepDone, Machine) {
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let done = perform(&mut machine, Work::KillTree { roots: [job.key].into() }).unwrap();
    (done, machine)
}

#[test]
fn who_ignores_sigterm_is_killed() {
    let mut job =
        Job::python("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('up')\nwhile True: signal.pause()\n");
    job.line();
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    assert_eq!(signal(&mut machine, job.key, SignalNumber::TERM).unwrap().outcome, Outcome::Done);
    assert!(job.alive());
    let (done, _) = kill(&job);
    assert_eq!((done.outcome, done.processes), (Outcome::Done, 1));
    job.reap();
}

/// Every process forks as fast as it can, and all of them together 80 times at most: without the priority of the executor's threads,
/// a busy machine may not stop more of them within the time that the executor takes for it.
const STORM: &str = "
import mmap, struct
count = mmap.mmap(-1, 8)
def one():
    n = struct.unpack('q', count[:8])[0]
    if n >= 80: return False
    count[:8] = struct.pack('q', n + 1)
    return True
say('up')
while True:
    if one():
        if os.fork() == 0: continue
    else:
        time.sleep(0.001)
";

#[test]
fn who_forks_faster_than_it_is_killed_is_killed_whole() {
    let mut job = Job::python(STORM);
    job.line();
    until("the storm", || job.session().len() > 20);
    // As the threads of the executor do, where that is permitted.
    let _ = crate::host::priority::go_first();
    let (done, machine) = kill(&job);
    assert!(done.processes > 20, "{done:?}");
    let touched = machine.touched().len();
    until("the end of all of them", || job.session().is_empty());
    assert_eq!(touched, usize::try_from(done.processes).unwrap());
}

#[test]
fn a_launcher_that_restarts_its_ranks_starts_none_again() {
    let mut job = Job::python(
        "
def rank():
    pid = os.fork()
    if pid == 0:
        os.execvp('sleep', ['sleep', '60'])
    say(pid)
for _ in range(3): rank()
while True:
    os.wait()
    rank()
",
    );
    let ranks: Vec<u32> = (0..3).map(|_| job.line().parse().unwrap()).collect();
    // It does start them again.
    let first = rustix::process::Pid::from_raw(i32::try_from(ranks[0]).unwrap()).unwrap();
    rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
    job.line();
    let (done, _) = kill(&job);
    assert_eq!(done.processes, 4);
    until("the end of all of them", || job.session().is_empty());
}

#[test]
fn children_of_stopped_parents_are_not_lost() {
    // A chain of processes, each of which only waits for its child.
    let mut job = Job::python(
        "
depth = 0
while depth < 30 and os.fork() == 0: depth += 1
if depth == 30: say('deep')
signal.pause()
",
    );
    assert_eq!(job.line(), "deep");
    let (done, _) = kill(&job);
    assert_eq!(done.processes, 31);
    until("the end of all of them", || job.session().is_empty());
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let again = perform(&mut machine, Work::KillTree { roots: [job.key].into() }).unwrap();
    assert_eq!(again.outcome, Outcome::Skipped(Skip::Gone));
}
