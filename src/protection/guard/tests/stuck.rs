//! Victims that do not die, and waits for them that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::{Notes, World};
use crate::model::ids::ProcessKey;
use crate::model::units::Bytes;
use crate::protection::guard::input::{GuardInput, JobInput, SamplerReadings};
use crate::protection::plan::victim::{ProcessInfo, Roster};
use crate::protection::policy::{Escalation, State};
use crate::protection::types::scope::{Refusal, Scope};
use crate::protection::types::step::{
    Executor, Finished, Outcome, Skip, Step, StepDone, StepError, TargetId, Ticket, Touched, Work,
};

/// Kills nobody, though it says so; whoever waits is told nothing before `gone`.
#[derive(Debug, Default)]
struct Stuck {
    notes: Notes,
    gone: Arc<AtomicBool>,
    /// So many waits fail for want of descriptors.
    failing: Arc<AtomicU32>,
    /// Only the cgroup is not empty when a wait is over.
    newcomers: bool,
    /// Whether a kill finds that its victims have ended.
    late: bool,
    waits: Vec<Ticket>,
    next: u64,
}

impl Executor for Stuck {
    fn bound(&mut self, _target: TargetId, _scope: Option<Scope>) -> Result<(), Refusal> {
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<StepDone, StepError> {
        if matches!(step.work, Work::KillTree { .. } | Work::AwaitEnd { .. }) {
            self.notes.0.lock().unwrap().push(format!("seat {}: {}", step.target.0, step.work.label()));
        }
        let mut outcome = Outcome::Done;
        if matches!(step.work, Work::AwaitEnd { .. }) {
            if self.failing.load(Ordering::Relaxed) > 0 {
                self.failing.fetch_sub(1, Ordering::Relaxed);
                return Err(StepError::System { call: "pidfd_open", pid: 10, errno: 24 });
            }
            self.next += 1;
            self.waits.push(Ticket(self.next));
            outcome = Outcome::Started(Ticket(self.next));
        }
        if self.late && matches!(step.work, Work::KillTree { .. }) {
            outcome = Outcome::Skipped(Skip::Gone);
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
        if self.gone.load(Ordering::Relaxed) {
            let done = StepDone { outcome: Outcome::Done, processes: 1 };
            let late = StepError::TimedOut { within: Duration::ZERO, left: 0 };
            let result = if self.newcomers { Err(late) } else { Ok(done) };
            finished.extend(self.waits.drain(..).map(|ticket| Finished::new(ticket, result.clone())));
        }
    }

    fn forget(&mut self, _target: TargetId) {}
}

/// Says how much of the 16 GiB of the host is available, in MiB. With 12 GiB the guard reads it again after 0.6 s at the latest.
fn available(world: &World, mib: u64) {
    use std::os::unix::fs::FileExt as _;
    let text = format!("MemTotal: 16777216 kB\nMemAvailable: {:>8} kB\n", mib << 10);
    let file = std::fs::File::options().write(true).open(world.folder.path().join("meminfo")).unwrap();
    file.write_all_at(text.as_bytes(), 0).unwrap();
}

/// A world whose job holds 8 GiB, for the levels of the host.
fn world_of_host(stuck: impl Fn(Notes) -> Stuck) -> World {
    let world = World::with(HOST, true, |notes| Box::new(stuck(notes)));
    world.uses(8 << 10);
    world
}

/// What the guard is told of a second job, of another user.
fn another(world: &World, first: bool) -> GuardInput {
    let mut facts = world.facts(&[10], first);
    let process = ProcessInfo {
        key: ProcessKey { pid: 20, start: 1 },
        parent: 1,
        resident: Bytes::new(1 << 20),
        group: None,
        rank: false,
    };
    let of = facts.slots[0].as_ref().unwrap();
    let scope = of.scope.clone();
    facts.slots[1] = Some(JobInput {
        serial: 2,
        user: Some(8),
        names: Arc::default(),
        escalation: first.then(|| Escalation::new(world.targets[0].limits.clone(), world.now.get())),
        roster: Roster::new(&[process], world.targets[0].victims, None).into(),
        scope,
        meter: None,
        nodes: None,
        processes: None,
        sampled: SamplerReadings { forecast: None, leak: None, alert: None, unfit: None, ..of.sampled },
        ..*of
    });
    facts
}

const HOST: &str = ", cgroup_headroom: {soft: \"\"}, host: {soft: 30%, hard: 10%}, verify_timeout: 5s";

#[test]
fn a_victim_that_does_not_exit_does_not_stop_protection_of_others() {
    let mut world = world_of_host(|notes| Stuck { notes, ..Stuck::default() });
    let facts = another(&world, true);
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    world.rounds(3);
    available(&world, 1000);
    world.rounds(7);
    assert_eq!(world.notes.take(), ["seat 0: kill_tree", "seat 0: await_end"], "one victim for one shortage");
    world.rounds(40);
    assert_eq!(world.notes.take(), [""; 0], "its memory may still come back");
    world.rounds(30);
    assert_eq!(world.notes.take(), ["seat 1: kill_tree", "seat 1: await_end"]);
    let report = world.watch.report();
    let slots = [0, 1].map(|slot| report.slots[slot].map(|slot| (slot.state, slot.overdue)));
    assert_eq!(slots, [Some((State::Verify, true)), Some((State::Verify, false))]);
}

#[test]
fn a_wait_that_fails_is_tried_again_and_ends() {
    let (gone, failing) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(3)));
    let mut world = world_of_host(|notes| Stuck {
        notes,
        gone: Arc::clone(&gone),
        failing: Arc::clone(&failing),
        ..Stuck::default()
    });
    world.tell(&[10], true);
    world.rounds(3);
    available(&world, 1000);
    world.rounds(7);
    assert_eq!(world.notes.take(), ["seat 0: kill_tree", "seat 0: await_end"]);
    world.rounds(5);
    assert_eq!(world.notes.take(), [""; 0], "not at once");
    let before = world.now.get();
    world.rounds(31);
    assert_eq!(
        world.notes.take(),
        ["seat 0: await_end"; 3],
        "about once a second, and not again once it waits"
    );
    assert!(world.now.get().since(before) < Duration::from_secs(4));
    assert_eq!(world.state(), Some(State::Verify), "it is not known to be gone");
    gone.store(true, Ordering::Relaxed);
    available(&world, 12_000);
    world.rounds(3);
    assert_eq!(world.state(), Some(State::Cooldown));
}

#[test]
fn processes_that_come_into_the_cgroup_after_a_kill_are_no_victims() {
    // Also where the kernel has killed before.
    for late in [false, true] {
        let gone = Arc::new(AtomicBool::new(true));
        let mut world = world_of_host(|notes| Stuck {
            notes,
            gone: Arc::clone(&gone),
            newcomers: true,
            late,
            ..Stuck::default()
        });
        world.tell(&[10], true);
        world.rounds(3);
        available(&world, 1000);
        world.rounds(7);
        available(&world, 12_000);
        world.rounds(3);
        assert_eq!(world.notes.take(), ["seat 0: kill_tree", "seat 0: await_end"], "no second wait");
        assert_eq!(world.state(), Some(State::Cooldown), "late: {late}");
    }
}
