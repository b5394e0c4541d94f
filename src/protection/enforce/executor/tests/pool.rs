//! Steps that are handed over to threads.

use super::job::{Job, until};
use super::*;
use crate::host::clock;
use crate::protection::enforce::executor::pool::Reply;
use crate::protection::enforce::executor::reach::NotSignalled;
use crate::protection::enforce::executor::worker::Reached;
use crate::protection::types::scope::Refusal;
use crate::protection::types::step::{Finished, HANG_TIMEOUT, Outcome, Place, Skip, Ticket};

/// Waits for the results of steps.
fn results<const N: usize>(machine: &mut Machine, tickets: [Ticket; N]) -> [Result<StepDone, StepError>; N] {
    let mut finished: Vec<Finished> = Vec::new();
    let of = |finished: &[Finished], ticket| {
        finished.iter().find(|finished| finished.ticket == ticket).map(|finished| finished.result.clone())
    };
    until("the results", || {
        machine.poll(&mut finished);
        tickets.iter().all(|ticket| of(&finished, *ticket).is_some())
    });
    tickets.map(|ticket| of(&finished, ticket).unwrap())
}

#[test]
fn a_tree_is_killed_by_a_thread_within_its_scope_and_awaited() {
    let mut job = Job::python("for _ in range(3): os.fork()\nsay('up')\nsignal.pause()\n");
    job.line();
    until("all of them", || job.session().len() == 8);
    let mut machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let killing = step(Work::KillTree { roots: [job.key].into() });
    assert_eq!(machine.place(&killing), Place::Here, "without threads");
    machine = machine.with_threads(Path::new("/sys/fs/cgroup")).unwrap();
    assert_eq!(machine.place(&killing), Place::Elsewhere);
    let kill = machine.hand_over(&killing).unwrap();
    let [done] = results(&mut machine, [kill]);
    let done = done.unwrap();
    assert_eq!((done.outcome, done.processes), (Outcome::Done, 8));
    assert_eq!(machine.touched_by(kill).len(), 8);
    until("the end of all of them", || job.session().is_empty());
}

#[test]
fn an_end_is_reported_after_the_step_that_awaits_it() {
    let mut job = Job::start(&["sleep", "60"]);
    let machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let mut machine = machine.with_threads(Path::new("/sys/fs/cgroup")).unwrap();
    let within = std::time::Duration::from_secs(20);
    let awaiting = step(Work::AwaitEnd { processes: [job.key].into(), group: None, within });
    let ticket = machine.hand_over(&awaiting).unwrap();
    let [begun] = results(&mut machine, [ticket]);
    let begun = begun.unwrap();
    let Outcome::Started(later) = begun.outcome else { panic!("{begun:?}") };
    signal(&mut machine, job.key, SignalNumber::KILL).unwrap();
    job.reap();
    let [ended] = results(&mut machine, [later]);
    assert_eq!(ended.unwrap().outcome, Outcome::Done);
}

#[test]
fn a_thread_kills_no_process_outside_the_scope() {
    let other = Job::start(&["sleep", "60"]);
    let job = Job::start(&["sleep", "60"]);
    let machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let mut machine = machine.with_threads(Path::new("/sys/fs/cgroup")).unwrap();
    let ticket = machine.hand_over(&step(Work::KillTree { roots: [other.key].into() })).unwrap();
    let [refused] = results(&mut machine, [ticket]);
    assert_eq!(refused.unwrap_err(), StepError::Refused { pid: other.key.pid, refusal: Refusal::NoMember });
    assert!(other.alive() && job.alive());
    machine.bound(TARGET, None).unwrap();
    let nobody = machine.hand_over(&step(Work::KillTree { roots: [job.key].into() }));
    assert_eq!(nobody, Err(StepError::NoScope(TARGET)));
}

#[test]
fn as_many_steps_as_there_are_threads_are_carried_out_at_once() {
    let job = Job::start(&["sleep", "60"]);
    let machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let mut machine = machine.with_threads(Path::new("/sys/fs/cgroup")).unwrap();
    let killing = step(Work::KillTree { roots: [job.key].into() });
    // Their results are not taken, so that each thread keeps its place.
    let tickets = [(); 4].map(|()| {
        assert_eq!(machine.place(&killing), Place::Elsewhere);
        machine.hand_over(&killing).unwrap()
    });
    assert_eq!(machine.place(&killing), Place::Nowhere);
    let results = results(&mut machine, tickets);
    let done = |outcome| results.iter().flatten().filter(|done| done.outcome == outcome).count();
    assert!(done(Outcome::Done) >= 1, "{results:?}");
    assert_eq!(done(Outcome::Done) + done(Outcome::Skipped(Skip::Gone)), 4, "{results:?}");
    assert_eq!(machine.place(&killing), Place::Elsewhere);
}

#[test]
fn a_thread_that_has_panicked_is_replaced() {
    let job = Job::start(&["sleep", "60"]);
    let machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let mut machine = machine.with_threads(Path::new("/sys/fs/cgroup")).unwrap();
    let killing = step(Work::KillTree { roots: [job.key].into() });
    // During a step, and then between two.
    let thread = machine.pool.replace_first(true);
    let ticket = machine.hand_over(&killing).unwrap();
    drop(thread);
    let [failed] = results(&mut machine, [ticket]);
    assert!(matches!(failed, Err(StepError::Outside { .. })), "{failed:?}");
    drop(machine.pool.replace_first(true));
    assert!(machine.hand_over(&killing).is_err());
    machine.poll(&mut Vec::new());
    let tickets = [(); 4].map(|()| machine.hand_over(&killing).unwrap());
    results(&mut machine, tickets).into_iter().for_each(|result| assert!(result.is_ok(), "{result:?}"));
}

#[test]
fn threads_that_hang_are_replaced_up_to_a_limit() {
    let job = Job::start(&["sleep", "60"]);
    let machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let mut machine = machine.with_threads(Path::new("/sys/fs/cgroup")).unwrap();
    let killing = step(Work::KillTree { roots: [job.key].into() });
    let (mut hung, mut first) = (Vec::new(), None);
    for _ in 0..4 {
        for _ in 0..4 {
            hung.push(machine.pool.replace_first(true));
            let ticket = machine.hand_over(&killing).unwrap();
            first.get_or_insert(ticket);
        }
        assert_eq!(machine.place(&killing), Place::Nowhere);
        let soon = clock::now().plus(HANG_TIMEOUT / 2);
        machine.pool.poll(soon, |_| panic!("none has ended"));
        assert_eq!(machine.place(&killing), Place::Nowhere);
        machine.pool.poll(clock::now().plus(HANG_TIMEOUT), |_| panic!("none has ended"));
    }
    assert_eq!(machine.place(&killing), Place::Nowhere, "16 threads hang");
    // One that goes on has its place again.
    let (inbox, report) = hung.swap_remove(0);
    let (worker, order, _) = inbox.recv().unwrap();
    assert_eq!(Some(order.ticket), first);
    report.send((worker, Reply { order, result: Err(NotSignalled::Skip(Skip::Gone)) })).unwrap();
    let [gone] = results(&mut machine, [first.unwrap()]);
    assert_eq!(gone.unwrap().outcome, Outcome::Skipped(Skip::Gone));
    assert_eq!(machine.place(&killing), Place::Elsewhere);
}

#[test]
fn other_steps_leave_the_threads_for_kills_free() {
    let job = Job::start(&["sleep", "60"]);
    let machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let mut machine = machine.with_threads(Path::new("/sys/fs/cgroup")).unwrap();
    let releasing = step(Work::Release { processes: [job.key].into() });
    let tickets = [(); 4].map(|()| machine.hand_over(&releasing).unwrap());
    assert_eq!(machine.place(&releasing), Place::Nowhere);
    assert_eq!(machine.place(&step(Work::KillTree { roots: [job.key].into() })), Place::Elsewhere);
    results(&mut machine, tickets).into_iter().for_each(|result| assert!(result.is_ok(), "{result:?}"));
}

#[test]
fn a_release_that_ends_before_its_step_is_reported_after_it() {
    let job = Job::start(&["sleep", "60"]);
    let machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let mut machine = machine.with_threads(Path::new("/sys/fs/cgroup")).unwrap();
    let (inbox, report) = machine.pool.replace_first(false);
    let ticket = machine.hand_over(&step(Work::Release { processes: [job.key].into() })).unwrap();
    let (mut worker, order, _) = inbox.recv().unwrap();
    let result = worker.carry_out(&order.scope, &order.work, order.later);
    assert!(matches!(result, Ok(Reached::Processes(Outcome::Started(_), 1))), "{result:?}");
    let (later, mut finished) = (order.later, Vec::new());
    until("the end of the release", || {
        machine.poll(&mut finished);
        !machine.ends.is_empty()
    });
    assert!(finished.is_empty());
    report.send((worker, Reply { order, result })).unwrap();
    machine.poll(&mut finished);
    assert_eq!(finished.iter().map(|finished| finished.ticket).collect::<Vec<_>>(), [ticket, later]);
}

#[test]
fn no_process_is_stopped_once_the_daemon_ends() {
    let job = Job::start(&["sleep", "60"]);
    let machine = armed(Mode::Enforce, vec![Member::Tree(job.key)]);
    let mut machine = machine.with_threads(Path::new("/sys/fs/cgroup")).unwrap();
    let (inbox, _report) = machine.pool.replace_first(true);
    let roots = [job.key];
    machine.hand_over(&step(Work::KillTree { roots: roots.into() })).unwrap();
    let (mut worker, order, _) = inbox.recv().unwrap();
    machine.hurry();
    worker.pids = vec![job.key.pid];
    assert_eq!(worker.strike(&order.scope, SignalNumber::STOP, &mut None).new, 0);
    assert!(worker.stop_tree(&order.scope, &roots, &mut None).is_ok() && worker.held.is_empty());
    // It is killed nevertheless.
    let killed = worker.kill_tree(&order.scope, &roots);
    assert!(matches!(killed, Ok((Outcome::Done, 1))), "{killed:?}");
}
