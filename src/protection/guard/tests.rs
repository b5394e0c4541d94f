//! The guard on files of its own, with a clock of its own and somebody who only notes what is asked of it.

pub(super) mod cluster;
mod handed;
mod histories;
mod outlook;
mod stuck;
mod thrift;

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::{Expect, expect};

use super::guard_loop::{CONFIRMED_AFTER, Executors, GuardLoop};
use super::input::{GuardInput, JobInput, SLOTS, SampledGives, SamplerReadings};
use super::job_state::JobState;
use super::journal::{CompletedStep, JobTransition, Journal};
use super::mailbox::Mailbox;
use crate::host::cgroup::{Hierarchy, Version};
use crate::model::checkpoint::{CheckpointState, Checkpoints};
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::levels::{GroupMeter, HostMeter};
use crate::protection::options::Protection;
use crate::protection::options::target::Target;
use crate::protection::plan::victim::{ProcessInfo, Roster};
use crate::protection::policy::{Conditions, Escalation, Members, Mode, Observed, Reason, State, Transition};
use crate::protection::types::scope::{Member, Refusal, Scope};
use crate::protection::types::step::{
    Executor, Finished, Group, Outcome, Skip, Step, StepDone, StepError, TargetId, Ticket, Touched, Work,
};

const MIB: u64 = 1 << 20;

/// What was asked, in words, and whether the audit log cannot be written.
#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<Vec<String>>>, Arc<AtomicBool>);

impl Notes {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Carries nothing out; the processes of even pids catch everything.
#[derive(Debug)]
struct Noting {
    notes: Notes,
    name: &'static str,
    next: u64,
    finished: Vec<Finished>,
    late: Option<Ticket>,
    silent: bool,
}

impl Executor for Noting {
    fn bound(&mut self, target: TargetId, scope: Option<Scope>) -> Result<(), Refusal> {
        let who = scope.map_or(0, |scope| scope.members.len());
        if !self.silent {
            self.notes.0.lock().unwrap().push(format!("{}: {} has {who} members", self.name, target.0));
        }
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<StepDone, StepError> {
        if !self.silent {
            self.notes.0.lock().unwrap().push(format!("{}: {}", self.name, step.work));
            if let Work::KillTree { roots } = &step.work
                && let [root] = **roots
            {
                self.notes.0.lock().unwrap().push(format!("which is pid {}", root.pid));
            }
        }
        let outcome = match &step.work {
            Work::Signal { process, only_if_caught: true, .. } if process.pid % 2 == 1 => {
                Outcome::Skipped(Skip::NotCaught)
            }
            Work::AwaitEnd { .. } | Work::Await { .. } => {
                self.next += 1;
                Outcome::Started(Ticket(self.next))
            }
            _ => Outcome::Done,
        };
        // Nobody ends within less than 5 s; that wait is over when there is a kill.
        match (outcome, &step.work) {
            (Outcome::Started(ticket), Work::AwaitEnd { within, .. }) if *within < Duration::from_secs(5) => {
                self.late = Some(ticket);
            }
            (Outcome::Started(ticket), Work::AwaitEnd { .. }) => {
                let done = StepDone { outcome: Outcome::Done, processes: 1 };
                self.finished.push(Finished::new(ticket, Ok(done)));
            }
            (_, Work::KillTree { .. }) => {
                let error = StepError::TimedOut { within: Duration::ZERO, left: 1 };
                let late = self.late.take().map(|ticket| Finished::new(ticket, Err(error)));
                self.finished.extend(late);
            }
            _ => {}
        }
        Ok(StepDone { outcome, processes: 1 })
    }

    fn rehearse(&mut self, step: &Step) -> Result<StepDone, StepError> {
        self.perform(step)
    }

    fn touched(&self) -> &[Touched] {
        &[]
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        finished.append(&mut self.finished);
    }

    fn forget(&mut self, _target: TargetId) {}
}

impl Drop for Diary {
    fn drop(&mut self) {
        assert!(self.open.is_empty() || std::thread::panicking(), "every step has its pair");
    }
}

#[derive(Debug)]
struct Diary {
    notes: Notes,
    begun: u64,
    open: Vec<u64>,
    silent: bool,
}

impl Diary {
    fn note(&self, what: impl FnOnce() -> String) {
        if !self.silent {
            self.notes.0.lock().unwrap().push(what());
        }
    }
}

impl Journal for Diary {
    fn moved(&mut self, moved: &JobTransition, _workload: &crate::model::label::Label) {
        if !self.silent {
            let transition = &moved.transition;
            let line =
                format!("{} → {}: {}", transition.from.label(), transition.to.label(), transition.reason);
            self.notes.0.lock().unwrap().push(line);
        }
    }

    fn requests_checkpoint(&mut self, _at: Timestamp, roster: &Arc<Roster>) {
        self.note(|| format!("remember that {} are asked", roster.ask.len()));
    }

    fn terminates(&mut self, _at: Timestamp, target: usize, user: Option<u32>) {
        self.note(|| format!("remember that a job of target {target} and user {user:?} is ended"));
    }

    fn before(&mut self, _at: Timestamp, _step: &Step) -> u64 {
        self.begun += 1;
        self.open.push(self.begun);
        self.begun
    }

    fn is_written(&mut self) -> bool {
        !self.notes.1.load(Ordering::Relaxed)
    }

    fn after(&mut self, _at: Timestamp, _moved: &JobTransition, completed: &CompletedStep<'_>) {
        let place = self.open.iter().position(|number| *number == completed.number);
        self.open.swap_remove(place.expect("every step has its pair"));
    }

    fn ended(&mut self, _at: Timestamp, _seat: usize, _step: (&'static str, Duration), _finished: &Finished) {
    }
}

/// A host with a group of 1 GiB.
struct World {
    folder: tempfile::TempDir,
    watch: GuardLoop,
    mailbox: Arc<Mailbox<GuardInput>>,
    now: Cell<Timestamp>,
    notes: Notes,
    targets: Arc<[Target]>,
}

fn targets(more: &str) -> Arc<[Target]> {
    let text = format!(
        "protection: {{mode: enforce, targets: [{{name: train, workload: train, allow_users: [ada]{more}}}]}}"
    );
    let config = crate::config::parse_str(&text, Path::new("f"), &crate::app::schema(), &[]).unwrap();
    Protection::new(&config.modules["protection"], config.sampling.interval).targets.into()
}

impl World {
    /// The job has a cgroup for itself.
    fn has_own_group(&mut self) {
        let mut facts = self.facts(&[10, 11], true);
        let slot = facts.slots[0].as_mut().unwrap();
        let group = Some(Group { path: "/job".into(), inode: 5 });
        slot.roster = Arc::new(Roster { group, ..(*slot.roster).clone() });
        self.mailbox.give(Box::new(facts), GuardInput::keep);
        self.rounds(3);
    }

    fn new(more: &str, silent: bool) -> Self {
        let enforce = |notes: Notes| -> Box<dyn Executor> {
            let finished = Vec::with_capacity(8);
            Box::new(Noting { notes, name: "enforce", next: 0, finished, late: None, silent })
        };
        Self::with(more, silent, enforce)
    }

    fn with(more: &str, silent: bool, enforce: impl FnOnce(Notes) -> Box<dyn Executor>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let targets = targets(more);
        let notes = Notes::default();
        let mailbox = Arc::new(Mailbox::default());
        let finished = Vec::with_capacity(8);
        let observe =
            Box::new(Noting { notes: notes.clone(), name: "observe", next: 0, finished, late: None, silent });
        std::fs::write(folder.path().join("meminfo"), "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n")
            .unwrap();
        let hands = Executors { enforce: Some(enforce(notes.clone())), observe };
        let meter = HostMeter::open(folder.path(), &[]).ok();
        let diary = Box::new(Diary { notes: notes.clone(), begun: 0, open: Vec::with_capacity(64), silent });
        let watch = GuardLoop::new(
            Arc::clone(&targets),
            64,
            Arc::clone(&mailbox),
            meter,
            hands,
            Arc::default(),
            diary,
        );
        let world =
            Self { folder, watch, mailbox, now: Cell::new(Timestamp::from_secs(100)), notes, targets };
        world.uses(100);
        world
    }

    fn uses(&self, mib: u64) {
        let folder = self.folder.path().join("job");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("memory.max"), format!("{}\n", 1024 * MIB)).unwrap();
        std::fs::write(folder.join("memory.current"), format!("{}\n", mib * MIB)).unwrap();
        std::fs::write(folder.join("memory.stat"), format!("anon {}\ninactive_file 0\n", mib * MIB)).unwrap();
    }

    fn facts(&self, pids: &[u32], first: bool) -> GuardInput {
        let process = |pid: u32| ProcessInfo {
            key: ProcessKey { pid, start: 1 },
            parent: pid - 1,
            resident: Bytes::new(300 * MIB),
            group: None,
            rank: false,
        };
        let processes: Vec<ProcessInfo> = pids.iter().map(|pid| process(*pid)).collect();
        let hierarchy = Hierarchy { version: Version::V2, root: self.folder.path().to_owned() };
        let meter = || GroupMeter::open(&hierarchy, "/job").ok();
        let scope = || Scope {
            name: "train".into(),
            users: vec![7],
            owner: None,
            members: processes.iter().map(|process| Member::Process(process.key)).collect::<Vec<_>>().into(),
        };
        let count = u32::try_from(pids.len()).unwrap();
        let mut slots: Vec<Option<JobInput>> = (0..SLOTS).map(|_| None).collect();
        slots[0] = Some(JobInput {
            serial: 1,
            target: 0,
            user: Some(7),
            names: Arc::default(),
            escalation: first.then(|| Escalation::new(self.targets[0].limits.clone(), self.now.get())),
            roster: Roster::new(&processes, self.targets[0].victims, None).into(),
            scope: first.then(scope),
            meter: first.then(meter),
            nodes: None,
            processes: None,
            sampled: SamplerReadings {
                members: Some(Members { count, catching: None }),
                gives: Some(SampledGives { resident: Bytes::new(8 << 30), ..SampledGives::default() }),
                ..SamplerReadings::default()
            },
        });
        GuardInput { at: self.now.get(), host: None, is_pool: false, slots }
    }

    fn tell(&self, pids: &[u32], first: bool) {
        self.mailbox.give(Box::new(self.facts(pids, first)), GuardInput::keep);
    }

    /// So many rounds, 100 ms apart.
    fn rounds(&mut self, count: u32) -> Duration {
        let mut pause = Duration::ZERO;
        for _ in 0..count {
            let now = &self.now;
            let step = self.now.get().plus(Duration::from_millis(100));
            now.set(step);
            pause = self.watch.round(&|| now.get());
            if pause == CONFIRMED_AFTER {
                // Read again before it kills.
                now.set(now.get().plus(pause));
                pause = self.watch.round(&|| now.get());
            }
        }
        pause
    }

    fn state(&mut self) -> Option<State> {
        self.watch.report().slots[0].map(|slot| slot.state)
    }

    #[track_caller]
    fn check(&self, expected: Expect) {
        expected.assert_eq(&self.notes.take().join("\n"));
    }
}

#[test]
fn a_look_takes_the_place_of_a_round_only_where_a_round_would_find_the_same() {
    let mut world = World::new(", checkpoint: {grace: 3s}", false);
    let still_after = |world: &mut World, milliseconds: u64| {
        let now = world.now.get().plus(Duration::from_millis(milliseconds));
        world.watch.is_still(now)
    };
    world.tell(&[10], true);
    assert!(!still_after(&mut world, 0), "nothing was read");
    world.rounds(1);
    assert!(still_after(&mut world, 40) && !still_after(&mut world, 1_000), "the memory of the host is due");
    world.uses(104);
    assert!(still_after(&mut world, 40), "a 256th of the limit more");
    world.uses(106);
    assert!(!still_after(&mut world, 40));
    world.rounds(11);
    assert!(still_after(&mut world, 40));
    world.tell(&[10], false);
    assert!(!still_after(&mut world, 40), "there is new input");
    world.rounds(1);
    assert!(still_after(&mut world, 40));
    world.uses(950);
    world.rounds(1);
    assert!(!still_after(&mut world, 40), "a step is taken");
}

#[test]
fn a_job_is_asked_for_a_checkpoint_and_then_terminated() {
    let mut world = World::new(", checkpoint: {grace: 3s}", false);
    world.tell(&[10, 11, 12], true);
    assert_eq!(world.rounds(3).as_millis(), 66, "the way to the soft level at 12 GiB/s");
    world.check(expect!["enforce: 0 has 3 members"]);
    world.uses(962);
    world.rounds(25);
    world.check(expect![[r#"
        ok → warn: cgroup memory is near its soft level
        warn → soft: the soft level of cgroup memory is crossed
        enforce: write the incident record
        soft → checkpoint: the soft level of cgroup memory is crossed
        remember that 3 are asked
        enforce: write the incident record
        enforce: send signal 10 to pid 10, if it has a handler"#]]);
    world.rounds(40);
    world.tell(&[], false);
    world.uses(10);
    world.rounds(200);
    world.check(expect![[r#"
        checkpoint → term: the time limit of the checkpoint is over
        remember that a job of target 0 and user Some(7) is ended
        enforce: write the incident record
        enforce: send signal 15 to pid 12
        enforce: send signal 15 to pid 11
        enforce: send signal 15 to pid 10
        enforce: wait up to 10 s for 3 processes to end
        term → verify: all victims have ended
        verify → cooldown: the shortage is over
        cooldown → ok: the cooldown is over"#]]);
    let report = world.watch.report();
    assert_eq!(report.targets[0].trips, 1);
    assert!(report.targets[0].latency.is_some());
}

#[test]
fn the_hard_level_kills_at_its_second_reading() {
    let mut world = World::new("", false);
    world.tell(&[10, 11], true);
    world.rounds(3);
    world.notes.take();
    world.uses(1020);
    let now = world.now.get();
    assert_eq!(world.watch.round(&|| now), CONFIRMED_AFTER);
    world.uses(100);
    world.rounds(3);
    assert_eq!(world.state(), Some(State::Ok), "one reading is no fact");
    world.notes.take();
    world.uses(1020);
    world.rounds(1);
    world.check(expect![[r#"
        ok → kill: the hard level of cgroup memory is crossed
        remember that a job of target 0 and user Some(7) is ended
        enforce: kill 2 processes and their descendants
        enforce: release the memory of 2 processes
        enforce: wait up to 10 s for 2 processes to end
        enforce: write the incident record"#]]);
    assert_eq!(world.state(), Some(State::Kill));
}

#[test]
fn two_jobs_below_one_limit_are_not_both_killed_for_it() {
    let mut world = World::new("", true);
    let mut facts = world.facts(&[10], true);
    let mut second = world.facts(&[12], true).slots[0].take().unwrap();
    second.serial = 2;
    facts.slots[1] = Some(second);
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    world.rounds(3);
    world.uses(1020);
    world.rounds(20);
    let states = |world: &mut World| [0, 1].map(|slot| world.watch.report().slots[slot].unwrap().state);
    assert_eq!(states(&mut world)[0], State::Verify);
    let held_up = states(&mut world)[1];
    assert!(held_up < State::Term, "{held_up:?}");
}

#[test]
fn a_job_at_its_hard_level_is_decided_on_before_the_steps_for_another() {
    let mut world = World::new("", false);
    world.uses(100);
    let other = world.folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for entry in std::fs::read_dir(world.folder.path().join("job")).unwrap().flatten() {
        std::fs::copy(entry.path(), other.join(entry.file_name())).unwrap();
    }
    let hierarchy = Hierarchy { version: Version::V2, root: world.folder.path().to_owned() };
    let mut facts = world.facts(&[10], true);
    let mut second = world.facts(&[12], true).slots[0].take().unwrap();
    (second.serial, second.meter) = (2, Some(GroupMeter::open(&hierarchy, "/other").ok()));
    facts.slots[1] = Some(second);
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    world.rounds(3);
    let now = Cell::new(world.now.get().plus(Duration::from_secs(1)));
    assert_eq!(world.watch.hard_levels_first(&|| now.get())[..3], [0, 1, 2]);
    std::fs::copy(other.join("memory.max"), other.join("memory.current")).unwrap();
    now.set(now.get().plus(Duration::from_secs(1)));
    assert_eq!(world.watch.hard_levels_first(&|| now.get())[..3], [1, 0, 2]);
}

#[test]
fn observing_asks_nothing_of_who_can_act() {
    let mut world = World::new(", mode: observe", false);
    world.tell(&[10, 11], true);
    world.rounds(3);
    for mib in [940, 1020, 1020, 100, 1020] {
        world.uses(mib);
        world.rounds(60);
    }
    let notes = world.notes.take();
    assert!(notes.iter().any(|note| note.contains("observe: kill 2 processes")), "{notes:#?}");
    assert!(notes.iter().all(|note| !note.starts_with("enforce")), "{notes:#?}");
    assert!(world.watch.report().targets[0].would.iter().sum::<u64>() > 0);
}

#[test]
fn a_sampler_that_is_stuck_does_not_stop_it() {
    let mut world = World::new("", false);
    world.tell(&[10, 11], true);
    world.rounds(5);
    world.notes.take();
    world.now.set(world.now.get().plus(Duration::from_secs(3600)));
    world.uses(1020);
    world.rounds(1);
    let notes = world.notes.take();
    assert!(notes.iter().any(|note| note.contains("kill 2 processes")), "{notes:#?}");
}

#[test]
fn missing_files_make_protection_blind_and_end_no_job() {
    let mut world = World::new(", host: {soft: \"\"}", false);
    world.tell(&[10, 11], true);
    world.uses(900);
    world.rounds(3);
    std::fs::write(world.folder.path().join("job/memory.current"), "garbage\n").unwrap();
    world.rounds(40);
    assert_eq!(world.state(), Some(State::Blind));
    world.uses(100);
    world.rounds(400);
    assert_eq!(world.state(), Some(State::Ok));
}

#[test]
fn who_leaves_takes_its_ladder_along() {
    let mut world = World::new("", false);
    world.tell(&[10], true);
    world.rounds(1);
    assert_eq!(world.state(), Some(State::Ok));
    let mut facts = world.facts(&[10], false);
    facts.slots[0] = None;
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    world.rounds(1);
    assert_eq!(world.state(), None);
    world.check(expect![[r#"
        enforce: 0 has 1 members
        enforce: 0 has 0 members"#]]);
}

#[test]
fn nothing_is_allocated_from_arming_to_the_kill() {
    let mut world = World::new("", true);
    world.tell(&[10, 11, 12], true);
    world.rounds(3);
    let facts = Box::new(world.facts(&[10, 11, 12], false));
    world.mailbox.give(facts, GuardInput::keep);
    let quiet = allocation_counter::measure(|| {
        world.rounds(50);
    });
    assert_eq!((quiet.count_total, world.state()), (0, Some(State::Ok)));
    world.uses(940);
    let asked = allocation_counter::measure(|| {
        world.rounds(30);
    });
    assert_eq!((asked.count_total, world.state()), (0, Some(State::Checkpoint)));
    world.uses(1020);
    let killed = allocation_counter::measure(|| {
        world.rounds(1);
    });
    assert_eq!((killed.count_total, world.state()), (0, Some(State::Kill)));
    assert!(world.watch.report().rounds > 80, "the same world that was measured");
}

#[test]
fn who_was_asked_to_end_is_who_is_killed() {
    let mut world = World::new(", victims: newest, checkpoint: {grace: 0s}, term_grace: 3s", false);
    world.tell(&[10, 11], true);
    world.rounds(3);
    world.uses(962);
    world.rounds(25);
    let notes = world.notes.take();
    assert!(notes.iter().any(|note| note == "enforce: send signal 15 to pid 11"), "{notes:#?}");
    // Another one is the newest by now.
    world.tell(&[10, 11, 12], false);
    world.rounds(40);
    world.check(expect![[r#"
        term → kill: the time limit after SIGTERM is over
        enforce: kill 1 processes and their descendants
        which is pid 11
        enforce: release the memory of 1 processes
        enforce: wait up to 10 s for 1 processes to end
        enforce: write the incident record
        kill → verify: the kill was carried out"#]]);
}

#[test]
fn a_frozen_job_is_thawed_though_its_group_is_shared_by_now() {
    let mut world = World::new(", freeze: true, hook: {wait: 10s}", false);
    let group = Group { path: "/job".into(), inode: 5 };
    let mut facts = world.facts(&[10, 11], true);
    let grouped = |facts: &mut GuardInput, group: Option<Group>| {
        let slot = facts.slots[0].as_mut().unwrap();
        slot.roster = Arc::new(Roster { group, ..(*slot.roster).clone() });
    };
    grouped(&mut facts, Some(group));
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    world.rounds(3);
    world.uses(940);
    world.rounds(25);
    let notes = world.notes.take();
    assert_eq!(notes.last().unwrap(), "enforce: freeze /job", "{notes:#?}");
    world.tell(&[10, 11], false);
    world.uses(10);
    world.rounds(40);
    world.check(expect![[r#"
        soft → warn: the shortage is over
        enforce: thaw /job"#]]);
}

#[test]
fn a_frozen_job_is_thawed_after_the_hooks_time_though_memory_stays_short() {
    let mut world = World::new(", freeze: true, max_state: soft, hook: {wait: 3s}", false);
    world.has_own_group();
    world.uses(940);
    world.rounds(25);
    let notes = world.notes.take();
    assert_eq!(notes.last().unwrap(), "enforce: freeze /job", "{notes:#?}");
    world.rounds(60);
    world.check(expect![[r#"enforce: thaw /job"#]]);
}

#[test]
fn a_kill_comes_before_its_reports() {
    let mut world = World::new(", webhook: \"http://chat/s3cret\"", false);
    world.tell(&[10, 11], true);
    world.rounds(3);
    world.notes.take();
    world.uses(1020);
    world.rounds(1);
    world.check(expect![[r#"
        ok → kill: the hard level of cgroup memory is crossed
        remember that a job of target 0 and user Some(7) is ended
        enforce: kill 2 processes and their descendants
        enforce: release the memory of 2 processes
        enforce: wait up to 10 s for 2 processes to end
        enforce: write the incident record
        enforce: call webhook http://chat"#]]);
}

#[test]
fn a_rank_that_is_still_saving_delays_the_acknowledgement_of_the_job() {
    let world = World::new("", true);
    let facts = world.facts(&[10, 11], true);
    let mut job = JobState::new(facts.slots[0].as_ref().unwrap(), world.now.get());
    let at = Timestamp::from_secs;
    let heard = Checkpoints::new();
    let note = |pid, state, second: u64| {
        assert!(heard.note(ProcessKey { pid, start: 1 }, state, second * 1_000_000_000));
    };
    let mut listen = |second| {
        job.read_acknowledgements(&heard, at(second));
        job.checkpoint.ack.map(|ack| (ack.kind, ack.at))
    };
    // Before it was asked, and another's.
    note(10, CheckpointState::Saved, 99);
    note(77, CheckpointState::Saving, 102);
    assert_eq!(listen(101), None, "it was asked for nothing yet");
    let (from, to, reason) = (State::Soft, State::Checkpoint, Reason::Leak);
    let transition = Transition { at: at(100), from, to, reason, incident: 1, ask: true, counts: false };
    job.moved = Some(JobTransition {
        slot: 0,
        serial: 1,
        target: 0,
        user: None,
        mode: Mode::Enforce,
        transition,
        under_way: true,
        observed: Observed::default(),
        conditions: Conditions::default(),
    });
    let mut listen = |second| {
        job.read_acknowledgements(&heard, at(second));
        job.checkpoint.ack.map(|ack| (ack.kind, ack.at))
    };
    assert_eq!(listen(101), None);
    note(10, CheckpointState::Saving, 102);
    note(11, CheckpointState::Saving, 102);
    assert_eq!(listen(102), Some((CheckpointState::Saving, at(102))));
    note(10, CheckpointState::Saved, 103);
    assert_eq!(listen(103), Some((CheckpointState::Saving, at(102))), "the other is still at it");
    note(11, CheckpointState::Failed, 104);
    assert_eq!(listen(104), Some((CheckpointState::Saved, at(104))));
}

#[test]
fn nothing_is_frozen_that_a_later_daemon_would_not_thaw() {
    let mut world =
        World::new(", freeze: true, max_state: soft, hook: {program: /bin/true, wait: 3s}", false);
    world.has_own_group();
    world.notes.1.store(true, Ordering::Relaxed);
    world.uses(940);
    world.rounds(120);
    let notes = world.notes.take();
    assert!(!notes.iter().any(|note| note.contains("freeze")), "{notes:#?}");
    assert!(notes.iter().any(|note| note.contains("run /bin/true")), "{notes:#?}");
}
