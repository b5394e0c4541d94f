//! Steps that go on: ends, memory, a job's word.

use std::sync::Arc;
use std::time::Duration;

use super::job::{Job, until};
use super::*;
use crate::model::time::Timestamp;
use crate::protection::types::step::{Acknowledgement, Finished, Outcome, Skip, Ticket};

const LONG: Duration = Duration::from_secs(60);

fn ticket(done: Result<StepDone, StepError>) -> Ticket {
    match done.unwrap().outcome {
        Outcome::Started(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

fn next(machine: &mut Machine) -> Finished {
    let mut finished = Vec::new();
    until("the step's end", || {
        machine.poll(&mut finished);
        !finished.is_empty()
    });
    assert_eq!(finished.len(), 1);
    finished.remove(0)
}

#[test]
fn an_end_is_reported_once_it_has_come() {
    let mut job = Job::start(&["sleep", "60"]);
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let end = || Work::AwaitEnd { processes: [job.key].into(), group: None, within: LONG };
    let waiting = ticket(perform(&mut machine, end()));
    let mut finished = Vec::new();
    machine.poll(&mut finished);
    assert!(finished.is_empty());
    signal(&mut machine, job.key, SignalNumber::KILL).unwrap();
    let result = next(&mut machine);
    assert_eq!((result.ticket, result.result.unwrap().outcome), (waiting, Outcome::Done));
    // Who is dead and not reaped, and who was never there, is waited for by nobody.
    ticket(perform(&mut machine, end()));
    assert_eq!(next(&mut machine).result.unwrap().outcome, Outcome::Done);
    job.reap();
}

#[test]
fn a_cgroup_that_takes_long_to_read_is_not_read_in_each_round() {
    use crate::host::cgroup::{Hierarchy, Version};
    use crate::protection::enforce::executor::group::Groups;
    use crate::protection::enforce::executor::wait::{Goal, Progress};
    let root = tempfile::tempdir().unwrap();
    let procs = root.path().join("job/cgroup.procs");
    std::fs::create_dir(root.path().join("job")).unwrap();
    std::fs::write(&procs, "1\n").unwrap();
    let hierarchy = Hierarchy { version: Version::V1, root: root.path().to_owned() };
    let group = Groups::new(hierarchy, root.path()).at("/job").unwrap();
    let mut goal = Goal::End { processes: Vec::new(), group: Some(group), read: None };
    let waits = Progress::Waiting { left: 1 };
    assert_eq!(goal.check(false), waits);
    let Goal::End { read, .. } = &mut goal else { panic!() };
    read.as_mut().unwrap().1 = Duration::from_secs(60);
    std::fs::write(&procs, "").unwrap();
    assert_eq!(goal.check(false), waits, "it is not read");
    assert_eq!(goal.check(true), Progress::Reached, "at the end of its time it is");
}

#[test]
fn a_process_that_does_not_exit_in_time_is_reported_as_left() {
    // What an uninterruptible sleep looks like from outside: the signal is sent, and the end does not come.
    let job = Job::start(&["sleep", "60"]);
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let work = Work::AwaitEnd { processes: [job.key].into(), group: None, within: Duration::ZERO };
    ticket(perform(&mut machine, work));
    assert_eq!(next(&mut machine).result, Err(StepError::TimedOut { within: Duration::ZERO, left: 1 }));
}

#[test]
fn forgotten_subjects_are_not_exposed() {
    let job = Job::start(&["sleep", "60"]);
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let work = Work::AwaitEnd { processes: [job.key].into(), group: None, within: Duration::ZERO };
    ticket(perform(&mut machine, work));
    machine.forget(TARGET);
    let mut finished = Vec::new();
    machine.poll(&mut finished);
    assert!(finished.is_empty());
}

#[test]
fn memory_of_who_is_killed_is_taken_back() {
    let mut job = Job::python("held = bytearray(64 << 20)\nsay('up')\nsignal.pause()\n");
    job.line();
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let release = || Work::Release { processes: [job.key].into() };
    // Nobody is killed by this: without a signal on its way the kernel refuses.
    ticket(perform(&mut machine, release()));
    let outcome = next(&mut machine).result.unwrap().outcome;
    assert!(matches!(outcome, Outcome::Skipped(_)), "{outcome:?}");
    assert!(job.alive());
    signal(&mut machine, job.key, SignalNumber::KILL).unwrap();
    let done = perform(&mut machine, release()).unwrap();
    if let Outcome::Started(_) = done.outcome {
        let outcome = next(&mut machine).result.unwrap().outcome;
        assert!(matches!(outcome, Outcome::Done | Outcome::Skipped(_)), "{outcome:?}");
    }
    job.reap();
}

#[test]
fn a_slow_handler_reports_saving_and_then_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ack");
    std::fs::write(&path, "saved, long ago").unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    let mut job = Job::python(&format!(
        "
path = {path:?}
def save(*_):
    open(path + '.new', 'w').write('saving')
    os.rename(path + '.new', path)
    say('saving')
    sys.stdin.read()
signal.signal(signal.SIGUSR1, save)
say('up')
while True: signal.pause()
"
    ));
    job.line();
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    signal(&mut machine, job.key, SignalNumber::USR1).unwrap();
    // It answers before anybody waits for it.
    assert_eq!(job.line(), "saving");
    let by = Arc::new(Acknowledgement::File(path.clone()));
    let waiting = ticket(perform(&mut machine, Work::Await { by, within: LONG }));
    assert_eq!(next(&mut machine).result.unwrap().outcome, Outcome::Saving(waiting));
    std::fs::write(&path, "saved step 42").unwrap();
    let result = next(&mut machine);
    assert_eq!((result.ticket, result.result.unwrap().outcome), (waiting, Outcome::Done));
}

#[test]
fn an_acknowledgement_of_another_request_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ack");
    std::fs::write(&path, "saved").unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    let job = Job::start(&["sleep", "60"]);
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let within = Duration::from_millis(400);
    let by = Arc::new(Acknowledgement::File(path));
    ticket(perform(&mut machine, Work::Await { by, within }));
    assert_eq!(next(&mut machine).result, Err(StepError::TimedOut { within, left: 0 }));
}

/// Waits for the file's word, which does not come while `wrong` is there, and comes from the job's own file.
fn not_taken(folder: &std::path::Path, wrong: impl FnOnce(&std::path::Path)) {
    let path = folder.join("ack");
    let mut machine = armed(Mode::Enforce, Vec::new());
    wrong(&path);
    let by = Arc::new(Acknowledgement::File(path.clone()));
    let waiting = ticket(perform(&mut machine, Work::Await { by, within: LONG }));
    let mut finished: Vec<Finished> = Vec::new();
    let begun = crate::host::clock::now();
    until("several looks", || {
        machine.poll(&mut finished);
        assert!(finished.is_empty(), "nothing was said: {finished:?}");
        crate::host::clock::now().since(begun) > Duration::from_millis(1500)
    });
    std::fs::write(folder.join("next"), "saved").unwrap();
    // Whatever the mask of new files is: in a folder that others can write, a private file of ours is not read.
    std::fs::set_permissions(folder.join("next"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    std::fs::rename(folder.join("next"), &path).unwrap();
    let result = next(&mut machine);
    assert_eq!((result.ticket, result.result.unwrap().outcome), (waiting, Outcome::Done));
}

#[test]
fn a_link_of_a_user_reveals_nothing_and_is_not_followed() {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let folder = tempfile::tempdir().unwrap();
    // Of a user's, where we can make it so.
    let _ = std::os::unix::fs::chown(folder.path(), Some(61_001), None);
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let Ok(terminal) = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY) else {
        return crate::skip::skip("there are no pseudo-terminals");
    };
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let name = std::path::PathBuf::from(name.to_str().unwrap());
    not_taken(folder.path(), |path| std::os::unix::fs::symlink(&name, path).unwrap());
    // The other end hangs up once it was opened and closed: it never was, and cannot have become ours.
    let mut asked = [rustix::event::PollFd::new(&terminal, rustix::event::PollFlags::IN)];
    let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut asked, Some(&at_once)).unwrap();
    assert!(!asked[0].revents().contains(rustix::event::PollFlags::HUP), "the terminal was opened");
    let elsewhere = folder.path().join("elsewhere");
    std::fs::write(&elsewhere, "saved").unwrap();
    std::fs::remove_file(folder.path().join("ack")).unwrap();
    not_taken(folder.path(), |path| std::os::unix::fs::symlink(&elsewhere, path).unwrap());
}

#[test]
fn an_unreadable_acknowledgement_file_is_no_acknowledgement() {
    use rustix::fs::{CWD, FileType, mknodat};
    let folder = tempfile::tempdir().unwrap();
    not_taken(folder.path(), |path| mknodat(CWD, path, FileType::Fifo, 0o600.into(), 0).unwrap());
    std::fs::remove_file(folder.path().join("ack")).unwrap();
    if !rustix::process::geteuid().is_root() {
        return crate::skip::skip("files of other users need root");
    }
    not_taken(folder.path(), |path| {
        std::fs::write(path, "saved").unwrap();
        std::os::unix::fs::chown(path, Some(61_002), None).unwrap();
    });
}

/// A process file system in which a process has these ids in `status`.
fn staged(folder: &Path, name: &str, pid: u32, id: u32) -> std::path::PathBuf {
    let proc = folder.join(name);
    let own = proc.join(pid.to_string());
    std::fs::create_dir_all(&own).unwrap();
    for name in ["stat", "cgroup", "root", "task"] {
        std::os::unix::fs::symlink(format!("/proc/{pid}/{name}"), own.join(name)).unwrap();
    }
    let ids = format!("Uid:\t{id}\t{id}\t{id}\t{id}\nGid:\t{id}\t{id}\t{id}\t{id}\nGroups:\t\nSigCgt:\t0\n");
    std::fs::write(own.join("status"), ids).unwrap();
    proc
}

#[test]
fn no_file_that_a_process_can_make_large_is_read_before_a_signal() {
    let mut job = Job::start(&["sleep", "60"]);
    let pidfd = rustix::process::Pid::from_raw(i32::try_from(job.key.pid).unwrap()).unwrap();
    let pidfd = rustix::process::pidfd_open(pidfd, rustix::process::PidfdFlags::empty()).unwrap();
    if crate::host::pidfd::users(std::os::fd::AsFd::as_fd(&pidfd)).is_none() {
        return crate::skip::skip("this kernel does not tell the users of a process (before 6.13)");
    }
    let folder = tempfile::tempdir().unwrap();
    let proc = staged(folder.path(), "proc", job.key.pid, own_uid());
    std::fs::remove_file(proc.join(job.key.pid.to_string()).join("status")).unwrap();
    let cgroup = Path::new("/sys/fs/cgroup");
    let executors = BackgroundExecutors::default();
    let mut machine = Machine::arm(Mode::Enforce, &proc, cgroup, Exempt::default(), executors).unwrap();
    let members = vec![Member::Process(job.key)].into();
    machine
        .bound(TARGET, Some(Scope { name: "test".into(), users: vec![own_uid()], owner: None, members }))
        .unwrap();
    assert_eq!(signal(&mut machine, job.key, SignalNumber::KILL).unwrap().outcome, Outcome::Done);
    job.reap();
}

#[test]
fn a_wait_for_a_file_takes_the_share_of_the_user_of_the_job_also_before_a_signal() {
    const ALICE: u32 = 61_001;
    let job = Job::start(&["sleep", "60"]);
    let mut machine = machine(Mode::Enforce);
    let members = || vec![Member::Process(job.key)].into();
    let scope =
        |owner| Scope { name: "test".into(), users: vec![ALICE, 7], owner: Some(owner), members: members() };
    let awaiting = || {
        let by = Arc::new(Acknowledgement::File("/nowhere/done".into()));
        Work::Await { by, within: LONG }
    };
    // Two helpers of this user hang.
    let hung =
        [1, 2].map(|second| machine.helpers.admit(Some(ALICE), Timestamp::from_secs(second)).unwrap().thread);
    machine.helpers.look(Timestamp::from_secs(2));
    machine.bound(TARGET, Some(scope(ALICE))).unwrap();
    let busy = perform(&mut machine, awaiting()).unwrap().outcome;
    machine.bound(TARGET, Some(scope(7))).unwrap();
    let other = perform(&mut machine, awaiting()).unwrap().outcome;
    assert_eq!(busy, Outcome::Skipped(Skip::Busy));
    assert!(matches!(other, Outcome::Started(_)), "{other:?}");
    drop(hung);
}

#[test]
fn a_process_that_becomes_root_after_the_check_has_nothing_touched() {
    const ALICE: u32 = 61_001;
    if !rustix::process::geteuid().is_root() {
        return crate::skip::skip("a process of another user needs root");
    }
    let job = Job::start_as(&["sleep", "60"], Some(ALICE));
    let secret = tempfile::tempdir().unwrap();
    let path = secret.path().join("touched");
    // What the guard checks, and what the thread that touches finds.
    let (before, after) =
        (staged(secret.path(), "before", job.key.pid, ALICE), staged(secret.path(), "after", job.key.pid, 0));
    let proc = secret.path().join("proc");
    std::os::unix::fs::symlink(before, &proc).unwrap();
    let cgroup = Path::new("/sys/fs/cgroup");
    let executors = BackgroundExecutors::default();
    let mut machine = Machine::arm(Mode::Enforce, &proc, cgroup, Exempt::default(), executors).unwrap();
    std::fs::remove_file(&proc).unwrap();
    std::os::unix::fs::symlink(after, &proc).unwrap();
    let scope = Scope {
        name: "test".into(),
        users: vec![ALICE],
        owner: None,
        members: vec![Member::Process(job.key)].into(),
    };
    machine.bound(TARGET, Some(scope)).unwrap();
    let done = perform(&mut machine, Work::Touch { process: job.key, path: path.as_path().into() });
    ticket(done);
    let result = next(&mut machine).result;
    assert!(matches!(result, Err(StepError::Outside { .. })), "{result:?}");
    assert!(!path.exists());
}
