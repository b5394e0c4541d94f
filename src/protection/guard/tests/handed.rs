//! Steps that another thread carries out: what the guard does meanwhile, and afterwards.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::expect;

use super::{Notes, World};
use crate::host::cgroup::{Hierarchy, Version};
use crate::model::lock::lock;
use crate::protection::enforce::levels::GroupMeter;
use crate::protection::guard::input::GuardInput;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::State;
use crate::protection::types::scope::{Refusal, Scope};
use crate::protection::types::step::{
    Executor, Finished, Group, Outcome, Place, Skip, Step, StepDone, StepError, TargetId, Ticket, Touched,
};

/// The steps that have not ended, and the results that are due.
#[derive(Clone, Debug, Default)]
struct Elsewhere(Arc<Mutex<(Vec<Ticket>, Vec<Finished>)>>);

impl Elsewhere {
    /// The oldest step ends, if there is one.
    fn end(&self, outcome: Outcome) {
        let mut state = lock(&self.0);
        if state.0.is_empty() {
            return;
        }
        let ticket = state.0.remove(0);
        state.1.push(Finished::new(ticket, Ok(StepDone { outcome, processes: 1 })));
    }
}

/// Has room for two steps elsewhere, which end when the test says so.
#[derive(Debug)]
struct Handing {
    notes: Notes,
    elsewhere: Elsewhere,
    next: u64,
}

impl Executor for Handing {
    fn bound(&mut self, _target: TargetId, _scope: Option<Scope>) -> Result<(), Refusal> {
        Ok(())
    }

    fn place(&self, step: &Step) -> Place {
        match step.work.lists() {
            false => Place::Here,
            true if lock(&self.elsewhere.0).0.len() < 2 => Place::Elsewhere,
            true => Place::Nowhere,
        }
    }

    fn hand_over(&mut self, step: &Step) -> Result<Ticket, StepError> {
        self.notes.0.lock().unwrap().push(format!("slot {}: {}", step.target.0, step.work));
        self.next += 1;
        lock(&self.elsewhere.0).0.push(Ticket(self.next));
        Ok(Ticket(self.next))
    }

    fn hurry(&mut self) {
        for _ in 0..2 {
            self.elsewhere.end(Outcome::Done);
        }
    }

    fn perform(&mut self, step: &Step) -> Result<StepDone, StepError> {
        self.notes.0.lock().unwrap().push(format!("slot {}, at once: {}", step.target.0, step.work));
        Ok(StepDone { outcome: Outcome::Done, processes: 1 })
    }

    fn rehearse(&mut self, step: &Step) -> Result<StepDone, StepError> {
        self.perform(step)
    }

    fn touched(&self) -> &[Touched] {
        &[]
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        finished.append(&mut lock(&self.elsewhere.0).1);
    }

    fn forget(&mut self, _target: TargetId) {}
}

/// Four jobs, of the users 7, 7, 8 and 9, each with a limit of its own.
fn world(more: &str, grouped: bool) -> (World, Elsewhere) {
    let elsewhere = Elsewhere::default();
    let handing = elsewhere.clone();
    let world = World::with(&format!("{more}, max_kills_per_hour: 6"), false, move |notes| {
        Box::new(Handing { notes, elsewhere: handing, next: 0 })
    });
    world.uses(100);
    for slot in [1, 2, 3] {
        copy(&world, slot);
    }
    let hierarchy = Hierarchy { version: Version::V2, root: world.folder.path().to_owned() };
    let mut facts = world.facts(&[10], true);
    for (slot, user) in [(1, 7), (2, 8), (3, 9)] {
        let mut job = world.facts(&[10 + u32::try_from(slot).unwrap()], true).slots[0].take().unwrap();
        let meter = GroupMeter::open(&hierarchy, &format!("/{slot}")).ok();
        (job.serial, job.user, job.meter) = (10 + slot as u64, Some(user), Some(meter));
        facts.slots[slot] = Some(job);
    }
    for job in facts.slots.iter_mut().flatten().filter(|_| grouped) {
        let group = Some(Group { path: "/job".into(), inode: 5 });
        job.roster = Arc::new(Roster { group, ..(*job.roster).clone() });
    }
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    (world, elsewhere)
}

/// Gives another job the files of the first.
fn copy(world: &World, slot: usize) {
    let other = world.folder.path().join(slot.to_string());
    std::fs::create_dir_all(&other).unwrap();
    for entry in std::fs::read_dir(world.folder.path().join("job")).unwrap().flatten() {
        std::fs::write(other.join(entry.file_name()), std::fs::read(entry.path()).unwrap()).unwrap();
    }
}

/// The lines of steps: which jobs are killed together is the policy's matter.
fn steps(world: &World) -> String {
    let notes = world.notes.take();
    let steps: Vec<_> = notes.iter().filter(|note| note.starts_with("slot")).map(String::as_str).collect();
    steps.join("\n")
}

/// Ends all steps, so that each has its pair.
fn finish(world: &mut World, elsewhere: &Elsewhere) {
    for _ in 0..20 {
        elsewhere.end(Outcome::Done);
        world.rounds(1);
    }
}

#[test]
fn a_kill_that_takes_long_delays_another_job_of_its_user_only() {
    let (mut world, elsewhere) = world("", false);
    world.rounds(3);
    world.uses(1020);
    copy(&world, 1);
    copy(&world, 2);
    world.rounds(5);
    expect![[r#"
        slot 0: kill 1 processes and their descendants
        slot 2: kill 1 processes and their descendants"#]]
    .assert_eq(&steps(&world));
    elsewhere.end(Outcome::Done);
    world.rounds(2);
    // The second job of the user waits until the plan of the first has ended.
    expect![[r#"
        slot 0: release the memory of 1 processes"#]]
    .assert_eq(&steps(&world));
    for _ in 0..8 {
        elsewhere.end(Outcome::Done);
        world.rounds(2);
    }
    expect![[r#"
        slot 2: release the memory of 1 processes
        slot 0: wait up to 10 s for 1 processes to end
        slot 2: wait up to 10 s for 1 processes to end
        slot 0, at once: write the incident record
        slot 1: kill 1 processes and their descendants
        slot 2, at once: write the incident record
        slot 1: release the memory of 1 processes
        slot 1: wait up to 10 s for 1 processes to end
        slot 1, at once: write the incident record"#]]
    .assert_eq(&steps(&world));
}

#[test]
fn a_user_with_many_jobs_leaves_the_next_kill_to_another_user() {
    let (mut world, elsewhere) = world("", false);
    world.rounds(3);
    world.uses(1020);
    [1, 2, 3].into_iter().for_each(|slot| copy(&world, slot));
    world.rounds(3);
    finish(&mut world, &elsewhere);
    let steps = steps(&world);
    let killed: Vec<&str> =
        steps.lines().filter(|line| line.contains(": kill ")).map(|line| &line[..6]).collect();
    assert_eq!(killed, ["slot 0", "slot 2", "slot 3", "slot 1"]);
}

#[test]
fn a_kill_that_hangs_delays_another_job_of_its_user_for_half_a_minute() {
    let (mut world, elsewhere) = world("", false);
    world.rounds(3);
    world.uses(1020);
    copy(&world, 1);
    world.rounds(250);
    let slot_0 = "slot 0: kill 1 processes and their descendants";
    assert_eq!(steps(&world), slot_0);
    world.rounds(100);
    assert_eq!(steps(&world), "slot 1: kill 1 processes and their descendants");
    finish(&mut world, &elsewhere);
}

#[test]
fn a_freeze_that_ends_after_its_job_has_left_is_undone() {
    let (mut world, elsewhere) = frozen();
    let mut facts = world.facts(&[10], false);
    facts.slots.iter_mut().for_each(|slot| *slot = None);
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    world.rounds(2);
    finish(&mut world, &elsewhere);
    assert_eq!(steps(&world), "slot 0, at once: thaw /job");
}

#[test]
fn a_job_whose_shortage_is_over_before_its_kill_can_begin_is_not_killed() {
    let (mut world, elsewhere) = world("", false);
    world.rounds(3);
    world.uses(1020);
    copy(&world, 1);
    world.rounds(3);
    world.uses(100);
    copy(&world, 1);
    for _ in 0..20 {
        elsewhere.end(Outcome::Done);
        world.rounds(1);
    }
    let steps = steps(&world);
    assert!(steps.contains("slot 0: kill") && !steps.contains("slot 1: kill"), "{steps}");
}

/// A job whose freeze is carried out elsewhere, when it crosses its hard level.
fn frozen() -> (World, Elsewhere) {
    let (mut world, elsewhere) = world(", hook: {wait: 60s}, freeze: true", true);
    world.rounds(3);
    world.uses(940);
    world.rounds(30);
    let begun = steps(&world);
    assert!(begun.ends_with("slot 0: freeze /job"), "{begun}");
    world.uses(1020);
    (world, elsewhere)
}

#[test]
fn a_freeze_that_takes_long_delays_no_kill_of_another_job_of_its_user() {
    let (mut world, elsewhere) = frozen();
    copy(&world, 1);
    world.uses(940);
    world.rounds(3);
    assert_eq!(steps(&world), "slot 1: kill all processes in /job");
    finish(&mut world, &elsewhere);
}

#[test]
fn a_freeze_that_takes_long_delays_no_kill_of_its_job_and_is_undone() {
    let (mut world, elsewhere) = frozen();
    world.rounds(3);
    assert_eq!(steps(&world), "slot 0: kill all processes in /job");
    finish(&mut world, &elsewhere);
    expect![[r#"
        slot 0: release the memory of 1 processes
        slot 0: wait up to 10 s for 1 processes to end
        slot 0, at once: write the incident record
        slot 0, at once: thaw /job
        slot 0: wait up to 600 s for 1 processes to end"#]]
    .assert_eq(&steps(&world));
}

#[test]
fn a_checkpoint_request_is_made_to_all_ranks_also_where_the_readings_become_old_meanwhile() {
    let (mut world, elsewhere) = world("", false);
    world.rounds(3);
    let now = Cell::new(world.now.get());
    let clock = || now.replace(now.get().plus(Duration::from_millis(1)));
    let mut facts = world.facts(&(100..300).step_by(2).collect::<Vec<_>>(), false);
    facts.at = now.get();
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    world.uses(940);
    let mut sum = 0;
    for _ in 0..600 {
        now.set(now.get().plus(Duration::from_millis(20)));
        world.watch.round(&clock);
        let sent = steps(&world).lines().filter(|line| line.contains("signal 10")).count();
        if sum == 0 && sent > 0 {
            // Nothing can be read any more.
            std::fs::write(world.folder.path().join("meminfo"), "").unwrap();
            std::fs::write(world.folder.path().join("job/memory.current"), "").unwrap();
            now.set(now.get().plus(Duration::from_secs(30)));
        }
        sum += sent;
    }
    assert_eq!((sum, world.state()), (100, Some(State::Blind)));
    finish(&mut world, &elsewhere);
}

#[test]
fn a_group_that_was_not_killed_elsewhere_is_killed_as_a_tree() {
    let (mut world, elsewhere) = world("", true);
    world.rounds(3);
    world.uses(1020);
    world.rounds(3);
    elsewhere.end(Outcome::Skipped(Skip::Unsupported));
    world.rounds(3);
    elsewhere.end(Outcome::Done);
    world.rounds(3);
    expect![[r#"
        slot 0: kill all processes in /job
        slot 0: kill 1 processes and their descendants
        slot 0: release the memory of 1 processes"#]]
    .assert_eq(&steps(&world));
    finish(&mut world, &elsewhere);
}

#[test]
fn a_job_that_leaves_while_it_is_killed_has_its_step_recorded_and_its_plan_ends() {
    let (mut world, elsewhere) = world("", false);
    world.rounds(3);
    world.uses(1020);
    world.rounds(3);
    let mut facts = world.facts(&[10], false);
    facts.slots.iter_mut().for_each(|slot| *slot = None);
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    world.rounds(2);
    // The journal of these tests panics at its end where a step has no result.
    finish(&mut world, &elsewhere);
    assert_eq!(steps(&world), "slot 0: kill 1 processes and their descendants");
}

#[test]
fn thousands_of_signals_are_sent_in_several_rounds() {
    let (mut world, elsewhere) = world(", checkpoint: {grace: 0s}", false);
    world.rounds(3);
    let now = Cell::new(world.now.get());
    // Each look at the clock takes a millisecond.
    let clock = || now.replace(now.get().plus(Duration::from_millis(1)));
    let mut facts = world.facts(&(100..200).collect::<Vec<_>>(), false);
    facts.at = now.get();
    world.mailbox.give(Box::new(facts), GuardInput::keep);
    world.uses(940);
    let (mut most, mut sum) = (0, 0);
    for _ in 0..600 {
        now.set(now.get().plus(Duration::from_millis(20)));
        world.watch.round(&clock);
        let sent = steps(&world).lines().filter(|line| line.contains("signal 15")).count();
        (most, sum) = (most.max(sent), sum + sent);
    }
    assert!(most < 20, "{most} in one round");
    assert_eq!(sum, 100);
    finish(&mut world, &elsewhere);
}

#[test]
fn the_steps_of_other_threads_are_hurried_and_awaited_when_the_guard_ends() {
    let (mut world, _) = world("", false);
    world.rounds(3);
    world.uses(1020);
    world.rounds(3);
    let now = Cell::new(world.now.get());
    // The journal of these tests panics at its end where a step has no result.
    world.watch.finish(&|| now.replace(now.get().plus(Duration::from_millis(1))));
    assert_eq!(steps(&world), "slot 0: kill 1 processes and their descendants");
}

#[test]
fn a_freeze_that_is_not_in_the_audit_log_is_not_handed_over() {
    let (mut world, _) = world(", hook: {wait: 60s}, freeze: true", true);
    world.notes.1.store(true, Ordering::Relaxed);
    world.rounds(3);
    world.uses(940);
    world.rounds(30);
    let begun = steps(&world);
    assert!(!begun.contains("freeze"), "{begun}");
}
