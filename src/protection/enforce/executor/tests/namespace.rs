//! A pid that is another's between the decision and the signal, in a pid namespace where the number can be chosen.

use super::job::{Job, stat};
use super::*;
use crate::protection::enforce::executor::process_status::Proc;
use crate::protection::enforce::executor::reach::{self, NotSignalled};
use crate::protection::types::step::{Outcome, Skip};

const INSIDE: &str = "MEMWARDEN_TEST_PID_NAMESPACE";
const NAME: &str =
    "protection::enforce::executor::tests::namespace::a_pid_that_is_anothers_by_now_is_not_signalled";

#[test]
#[expect(clippy::disallowed_methods, reason = "the test starts itself in a namespace of its own")]
fn a_pid_that_is_anothers_by_now_is_not_signalled() {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    let unshare = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let may = std::process::Command::new("unshare").args(unshare).arg("true").output();
    if !may.is_ok_and(|output| output.status.success()) {
        crate::skip::skip("a pid namespace cannot be had here");
        return;
    }
    let output = std::process::Command::new("unshare")
        .args(unshare)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn inside() {
    let mut first = Job::start(&["sleep", "60"]);
    let meant = first.key;
    let mut machine = armed(Mode::Enforce, vec![Member::Process(meant), Member::Tree(meant)]);
    // What was opened before the number went to somebody else.
    let mut proc = Proc::open(Path::new("/proc"), crate::host::cgroup::Version::V2).unwrap();
    let found = reach::open(&mut proc, meant, false).unwrap();
    signal(&mut machine, meant, SignalNumber::KILL).unwrap();
    first.reap();
    let mut stranger = None;
    for _ in 0..200 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (meant.pid - 1).to_string()).unwrap();
        let job = Job::start(&["sleep", "60"]);
        // Start times count in hundredths of a second: the same one would be the same identity.
        if job.key.pid == meant.pid && job.key.start != meant.start {
            stranger = Some(job);
            break;
        }
    }
    let stranger = stranger.expect("the number can be had again");
    assert_eq!(stat(meant.pid).unwrap().0, stranger.key);
    for work in [
        Work::Signal { process: meant, signal: SignalNumber::KILL, only_if_caught: false },
        Work::KillTree { roots: [meant].into() },
    ] {
        assert_eq!(perform(&mut machine, work).unwrap().outcome, Outcome::Skipped(Skip::Gone));
    }
    let late = reach::send(Mode::Enforce, &found, SignalNumber::KILL);
    assert!(matches!(late, Err(NotSignalled::Skip(Skip::Gone))), "{late:?}");
    assert!(stranger.alive());
}
