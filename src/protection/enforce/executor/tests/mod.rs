//! The executor on real processes, all started here, bounded, and ended with the test.

mod groups;
mod job;
mod namespace;
mod one;
mod pool;
mod trees;
mod waiting;

use std::path::Path;

use super::{BackgroundExecutors, Machine, Mode, exempt};
use crate::model::ids::ProcessKey;
use crate::protection::types::rung::State;
use crate::protection::types::scope::{Exempt, Member, Scope};
use crate::protection::types::step::{
    Executor as _, SignalNumber, Step, StepDone, StepError, TargetId, Work,
};

const TARGET: TargetId = TargetId(0);

fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn machine(mode: Mode) -> Machine {
    // The tests' jobs are children of ours, as only helpers of the daemon are.
    let exempt = Exempt { own: 0, ..exempt(Path::new("/proc"), &[]).unwrap() };
    Machine::arm(
        mode,
        Path::new("/proc"),
        Path::new("/sys/fs/cgroup"),
        exempt,
        BackgroundExecutors::default(),
    )
    .unwrap()
}

fn scope(members: Vec<Member>) -> Scope {
    Scope { name: "test".into(), users: vec![own_uid()], owner: None, members: members.into() }
}

/// One that may reach these members of our own user.
fn armed(mode: Mode, members: Vec<Member>) -> Machine {
    let mut machine = machine(mode);
    machine.bound(TARGET, Some(scope(members))).unwrap();
    machine
}

fn step(work: Work) -> Step {
    Step { target: TARGET, stage: State::Kill, work }
}

fn perform(machine: &mut Machine, work: Work) -> Result<StepDone, StepError> {
    machine.perform(&step(work))
}

fn signal(machine: &mut Machine, process: ProcessKey, signal: SignalNumber) -> Result<StepDone, StepError> {
    perform(machine, Work::Signal { process, signal, only_if_caught: false })
}
