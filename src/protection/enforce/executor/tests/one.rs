//! One process, one signal.

use super::super::Observer;
use super::job::{Job, stat};
use super::*;
use crate::protection::types::scope::Refusal;
use crate::protection::types::step::{Outcome, Skip};

#[test]
fn a_signal_arrives_and_is_reported() {
    let mut job = Job::python("say('up')\nsignal.pause()\n");
    assert_eq!(job.line(), "up");
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let done = signal(&mut machine, job.key, SignalNumber::TERM).unwrap();
    assert_eq!((done.outcome, done.processes), (Outcome::Done, 1));
    let touched = machine.touched()[0];
    assert_eq!((touched.key, touched.uid, touched.errno), (job.key, own_uid(), 0));
    assert!(touched.comm.starts_with(b"python3") && touched.resident > 0);
    job.reap();
    let done = signal(&mut machine, job.key, SignalNumber::TERM).unwrap();
    assert_eq!(done.outcome, Outcome::Skipped(Skip::Gone), "the victim is gone in between");
}

#[test]
fn a_zombie_has_exited() {
    let job = Job::start(&["true"]);
    super::job::until("the end", || !job.alive());
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let done = signal(&mut machine, job.key, SignalNumber::KILL).unwrap();
    assert_eq!(done.outcome, Outcome::Skipped(Skip::Gone));
}

#[test]
fn a_process_ends_with_its_last_thread() {
    let mut job = Job::python(
        "import ctypes, platform, threading
held = bytearray(64 << 20)
def stay():
    while ') Z ' not in open('/proc/%d/stat' % os.getpid()).read(): time.sleep(0.01)
    say('up')
    signal.pause()
threading.Thread(target=stay).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[platform.machine()], 0)
",
    );
    assert_eq!(job.line(), "up");
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let done = signal(&mut machine, job.key, SignalNumber::KILL).unwrap();
    assert_eq!((done.outcome, done.processes), (Outcome::Done, 1));
    assert!(machine.touched()[0].resident > 64 << 20, "{:?}", machine.touched()[0]);
    job.reap();
}

#[test]
fn only_a_handler_is_asked() {
    let ask = |job: &Job| {
        let mut machine = armed(Mode::Enforce, vec![Member::Process(job.key)]);
        let work = Work::Signal { process: job.key, signal: SignalNumber::USR1, only_if_caught: true };
        // Mode observe states the same, and sends nothing.
        let mut observer = Observer::new(Exempt { own: 0, ..Exempt::default() }, Path::new("/proc"));
        observer.bound(TARGET, Some(scope(vec![Member::Process(job.key)]))).unwrap();
        let observed = observer.perform(&step(work.clone())).unwrap().outcome;
        (perform(&mut machine, work).unwrap().outcome, observed)
    };
    let mut without = Job::python("say('up')\nsignal.pause()\n");
    without.line();
    let skipped = Outcome::Skipped(Skip::NotCaught);
    assert_eq!(ask(&without), (skipped, skipped));
    assert!(without.alive());
    let mut with = Job::python(
        "signal.signal(signal.SIGUSR1, lambda *_: say('saved'))\nsay('up')\nwhile True: signal.pause()\n",
    );
    with.line();
    assert_eq!(ask(&with), (Outcome::Done, Outcome::WouldHave));
    assert_eq!(with.line(), "saved");
}

#[test]
fn another_start_time_is_another_process() {
    let job = Job::start(&["sleep", "60"]);
    let other = ProcessKey { start: job.key.start + 1, ..job.key };
    let mut machine = armed(Mode::Enforce, vec![Member::Process(other)]);
    let done = signal(&mut machine, other, SignalNumber::KILL).unwrap();
    assert_eq!(done.outcome, Outcome::Skipped(Skip::Gone));
    assert!(job.alive());
}

#[test]
fn no_process_outside_the_target_is_signalled_whatever_the_plan() {
    let (inside, outside) = (Job::start(&["sleep", "60"]), Job::start(&["sleep", "60"]));
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(inside.key)]);
    let refusal = |machine: &mut Machine, key| match signal(machine, key, SignalNumber::KILL) {
        Err(StepError::Refused { refusal, .. }) => Some(refusal),
        _ => None,
    };
    assert_eq!(refusal(&mut machine, outside.key), Some(Refusal::NoMember));
    assert_eq!(refusal(&mut machine, stat(1).unwrap().0), Some(Refusal::Init));
    let parent = stat(std::os::unix::process::parent_id()).unwrap().0;
    assert_eq!(refusal(&mut machine, parent), Some(Refusal::Ourselves));
    let own = stat(std::process::id()).unwrap().0;
    assert_eq!(refusal(&mut machine, own), Some(Refusal::Ourselves));
    let strange = Step { target: TargetId(9), ..step(Work::KillTree { roots: [inside.key].into() }) };
    assert_eq!(machine.perform(&strange), Err(StepError::NoScope(TargetId(9))));
    assert!(inside.alive() && outside.alive());
}

#[test]
fn bounds_around_ourselves_leave_the_target_without_any() {
    let job = Job::start(&["sleep", "60"]);
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let parent = stat(std::os::unix::process::parent_id()).unwrap().0;
    let wide = Scope {
        name: "all".into(),
        users: vec![own_uid()],
        owner: None,
        members: vec![Member::Tree(parent)].into(),
    };
    assert_eq!(machine.bound(TARGET, Some(wide)), Err(Refusal::Ourselves));
    assert_eq!(signal(&mut machine, job.key, SignalNumber::KILL), Err(StepError::NoScope(TARGET)));
    assert!(job.alive());
}

#[test]
fn a_process_of_another_user_is_refused() {
    if own_uid() != 0 {
        crate::skip::skip("a process of another user takes root to start");
        return;
    }
    let job = Job::start_as(&["sleep", "60"], Some(65_534));
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let refused = StepError::Refused { pid: job.key.pid, refusal: Refusal::User };
    assert_eq!(signal(&mut machine, job.key, SignalNumber::KILL), Err(refused.clone()));
    let roots = [job.key].into();
    assert_eq!(perform(&mut machine, Work::KillTree { roots }), Err(refused));
    assert!(job.alive());
}

#[test]
fn a_drill_signals_no_process() {
    let mut job = Job::python("say('up')\nsignal.pause()\n");
    job.line();
    let mut machine = armed(Mode::Drill, vec![Member::Tree(job.key)]);
    for work in [
        Work::Signal { process: job.key, signal: SignalNumber::KILL, only_if_caught: false },
        Work::KillTree { roots: [job.key].into() },
    ] {
        let done = perform(&mut machine, work).unwrap();
        assert_eq!((done.outcome, done.processes), (Outcome::WouldHave, 1));
        assert_eq!(machine.touched()[0].key, job.key);
    }
    assert!(job.alive());
}
