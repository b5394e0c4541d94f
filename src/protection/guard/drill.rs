//! A drill: all steps of the escalation for a running target, with signal 0 instead of every signal.

use std::sync::Arc;
use std::time::Duration;

use super::alerts::Alerts;
use super::input::JobInput;
use super::input_builder::{InputBuilder, RefusalCounts};
use crate::config::Config;
use crate::engine::{Engine, Registries};
use crate::events::Events;
use crate::host::{clock, numa};
use crate::model::facts::Facts;
use crate::model::frame::Frame;
use crate::model::frame::SourceReport;
use crate::model::room::{GroupSwap, Room};
use crate::model::source::Status;
use crate::protection::enforce::executor::{self, ArmError, BackgroundExecutors, Machine};
use crate::protection::enforce::hooks;
use crate::protection::enforce::levels::{GroupRooms, HostMeter};
use crate::protection::options::target::{Selector, Target};
use crate::protection::options::{Protection, signals};
use crate::protection::plan::{self, Plan, PlanInput};
use crate::protection::policy::{Aged, Observed, Reading, Reason, Resource, Rung, State, Transition};
use crate::protection::status::{Name, Report};
use crate::protection::types::step::{Executor, Outcome, Skip, StepDone, StepError, TargetId, Work};
use crate::sources::{Context, Registration, process, workload};

/// The result of a drill.
#[derive(Debug, Default)]
pub struct Drill {
    /// The jobs of the target.
    pub jobs: Vec<Job>,
}

/// One job that the target names.
#[derive(Debug)]
pub struct Job {
    /// The workload or cgroup; empty where the target names no process now.
    pub name: String,
    /// Number of processes that may be signalled.
    pub members: u32,
    /// Number of processes that may not be signalled: of other users, the kernel and memwarden.
    pub left_out: u32,
    /// Their number, by reason.
    pub whys: RefusalCounts,
    /// Why no action is allowed.
    pub unfit: Option<&'static str>,
    /// The steps, in order.
    pub steps: Vec<DrilledStep>,
}

#[derive(Debug)]
pub struct DrilledStep {
    /// The state that it belongs to.
    pub state: State,
    /// The step, as text.
    pub what: String,
    /// Its result, as text.
    pub outcome: String,
    /// Whether it would fail.
    pub fails: bool,
    /// Duration of the check in microseconds.
    pub micros: u64,
}

/// Why no drill was made.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// Protection has no such target.
    #[error("protection.targets has no target `{name}` in mode observe or enforce; it has {known}")]
    Target {
        /// The name that was asked for.
        name: String,
        /// The names of the targets, separated by commas.
        known: String,
    },
    /// memwarden's own processes, which no step may reach, are not known.
    #[error("cannot read memwarden's own processes and cgroup")]
    Own(#[source] std::io::Error),
    /// The processes of the host cannot be read.
    #[error("cannot read the processes")]
    Processes,
    /// The executor cannot be set up.
    #[error("cannot set up the executor")]
    Executor(#[source] ArmError),
}

/// Checks all steps of the escalation of the target `name`.
///
/// # Errors
/// If there is no such target, or its processes cannot be read.
pub fn walk(
    config: &Config,
    protection: &Protection,
    context: Context,
    name: &str,
) -> Result<(Target, Drill), DrillError> {
    let known: Vec<&str> = protection.targets.iter().map(|target| target.name.as_str()).collect();
    let target = protection.targets.iter().find(|target| target.name.as_str() == name);
    let target = target.cloned().ok_or_else(|| {
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        DrillError::Target { name: name.to_owned(), known }
    })?;
    let roots = Arc::clone(&context.roots);
    let exempt = executor::exempt(&roots.proc, &[]).map_err(DrillError::Own)?;
    let registries = Registries { sources: SOURCES, analyzers: &[] };
    let mut engine = Engine::new(registries, config, context, Arc::new(Events::new()));
    let frame = sample(&mut engine, &target);
    let targets: Arc<[Target]> = Arc::from([target.clone()]);
    let mut input_builder = InputBuilder::new(targets, &roots, Some(exempt.clone()));
    let facts = input_builder
        .look(clock::now(), &frame.outlook, engine.facts(), &Alerts::default(), &Report::default())
        .ok_or(DrillError::Processes)?;
    let mut machine = Machine::arm(
        executor::Mode::Drill,
        &roots.proc,
        &roots.cgroup,
        exempt,
        BackgroundExecutors::default(),
    )
    .map_err(DrillError::Executor)?;
    let host = HostMeter::open(&roots.proc, &numa::gpu_nodes(&roots)).and_then(|meter| meter.read()).ok();
    let mut drill = Drill::default();
    let named = input_builder.names.slots.iter().zip(facts.slots);
    for (slot, (names, facts)) in named.enumerate() {
        let (Some(Name { workload: name, members, left_out, .. }), Some(mut facts)) = (names, facts) else {
            continue;
        };
        let id = TargetId(u16::try_from(slot).unwrap_or(u16::MAX));
        let mut unfit = facts.sampled.unfit.map(crate::protection::status::Unfit::label);
        if let Some(scope) = facts.scope.clone()
            && machine.bound(id, Some(scope)).is_err()
        {
            unfit = Some("bounds");
        }
        let steps = if unfit.is_none() && *members > 0 {
            let observed = observe(host, &mut facts);
            climb(&target, id, &facts, &observed, &mut machine)
        } else {
            Vec::new()
        };
        let whys = input_builder.whys.remove(&slot).unwrap_or_default();
        drill.jobs.push(Job {
            name: name.to_string(),
            members: *members,
            left_out: *left_out,
            whys,
            unfit,
            steps,
        });
    }
    Ok((target, drill))
}

/// The sources that assign processes to workloads.
const SOURCES: &[&Registration] =
    &[&process::REGISTRATION, &crate::sources::gpu::REGISTRATION, &workload::REGISTRATION];

/// A sample in which the target names a process, or the last one within 3 s: the GPU source takes a moment to start.
/// Workloads that only the job socket identifies are known to the running daemon, and not here.
fn sample(engine: &mut Engine, target: &Target) -> Arc<Frame> {
    const SAMPLE_TIMEOUT: Duration = Duration::from_secs(3);
    const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);
    let begun = clock::now();
    loop {
        let frame = engine.tick(clock::now());
        let by_workload = matches!(target.selector, Selector::Workload(_));
        let workloads = &engine.facts().workload_of;
        let named = workloads.iter().any(|member| target.selector.names_workload(&member.workload));
        let over = clock::now().since(begun) >= SAMPLE_TIMEOUT;
        if !by_workload || named || over || !gpu_processes_known(&frame, engine.facts()) {
            return frame;
        }
        std::thread::sleep(SAMPLE_INTERVAL);
    }
}

/// Whether GPU processes may still be reported: without a driver there is nothing to wait for.
fn gpu_processes_known(frame: &Frame, facts: &Facts) -> bool {
    use crate::sources::gpu::REGISTRATION;
    let answers = |report: &SourceReport| report.source == REGISTRATION.name && report.status == Status::Ok;
    facts.gpus_starting || frame.sources.iter().any(answers)
}

/// What is left of the host and below the limits of the job's cgroup now, by which a limit is raised.
fn observe(host: Option<Room>, facts: &mut JobInput) -> Observed {
    let reading = |room: Room| Aged::now(Reading::of(room));
    let mut observed = Observed::default();
    observed.readings[Resource::Host.place()] = host.map(reading);
    if let (Some(host), Some(Some(meter))) = (host, &mut facts.meter)
        && let Ok(GroupRooms { max: Some((left, groups)), .. }) =
            meter.read(clock::now(), host.limit, GroupSwap { v1: host.swap(), v2: host.swap() })
    {
        observed.readings[Resource::Cgroup.place()] = Some(reading(left));
        observed.groups = groups;
    }
    observed
}

fn climb(
    target: &Target,
    id: TargetId,
    facts: &JobInput,
    observed: &Observed,
    machine: &mut Machine,
) -> Vec<DrilledStep> {
    let notification: Arc<str> = Arc::from("{}");
    let (mut plan, mut steps, mut from) = (Plan::default(), Vec::new(), State::Ok);
    for to in Rung::ALL.into_iter().filter(|rung| Some(*rung) <= target.limits.max_state).map(State::from) {
        let at = clock::now();
        let ask = to == State::Checkpoint;
        // Only a shortage in the cgroup raises its limit.
        let short = to == State::Soft && observed.reading(Resource::Cgroup).is_some();
        let reason = if short { Reason::Level(Resource::Cgroup) } else { Reason::Alert };
        let transition = Transition { at, from, to, reason, incident: 1, ask, counts: false };
        from = to;
        let Some(stage) = plan::stage_of(&transition) else { continue };
        plan.make(&PlanInput {
            id,
            target,
            transition: &transition,
            observed,
            stage,
            roster: &facts.roster,
            notification: Some(&notification),
        });
        let mut carried = Vec::new();
        for planned in plan.steps() {
            let above = planned.unless.and_then(|place| carried.get(usize::from(place)).copied());
            if above == Some(true) {
                carried.push(true);
                continue;
            }
            let begun = clock::now();
            let result = machine.perform(&planned.step);
            let micros = u64::try_from(clock::now().since(begun).as_micros()).unwrap_or(u64::MAX);
            carried.push(matches!(&result, Ok(StepDone { outcome: Outcome::WouldHave | Outcome::Done, .. })));
            let (outcome, fails) = told_of(&planned.step.work, &result);
            steps.push(DrilledStep { state: to, what: output(&planned.step.work), outcome, fails, micros });
        }
        let mut asked =
            plan.steps().iter().zip(&carried).filter(|(planned, _)| requests(&planned.step.work)).peekable();
        if asked.peek().is_some() && asked.all(|(_, carried)| !carried) {
            let what = "request a checkpoint".to_owned();
            let outcome = "no process handles the signal".to_owned();
            steps.push(DrilledStep { state: to, what, outcome, fails: true, micros: 0 });
        }
    }
    if let Some(hook) = &target.hook
        && let Err(outcome) = hooks::check::program(&hook.program)
    {
        let what = format!("check {}", hook.program.display());
        steps.push(DrilledStep { state: State::Soft, what, outcome, fails: true, micros: 0 });
    }
    steps
}

/// A step as text, with the name of its signal.
fn output(work: &Work) -> String {
    let Work::Signal { process, signal, only_if_caught } = work else { return work.to_string() };
    let condition = if *only_if_caught { ", if it has a handler" } else { "" };
    format!("send SIG{} to pid {}{condition}", signals::name(*signal), process.pid)
}

/// Whether a step requests a checkpoint by a signal, which only processes with a handler receive.
const fn requests(work: &Work) -> bool {
    matches!(work, Work::Signal { only_if_caught: true, .. })
}

/// The result of a step as text, and whether it is a failure.
fn told_of(work: &Work, result: &Result<StepDone, StepError>) -> (String, bool) {
    let counted = |processes: u32| match processes {
        1 => "1 process".to_owned(),
        _ => format!("{processes} processes"),
    };
    match result {
        Ok(StepDone { outcome: Outcome::Skipped(why), .. }) => {
            (format!("skipped: {why}"), matches!(work, Work::Freeze { .. }) && *why == Skip::Unsupported)
        }
        Ok(StepDone { outcome: Outcome::Started(_), processes, .. }) => {
            (format!("found: {}", counted(*processes)), false)
        }
        Ok(StepDone { processes: 0, .. }) => ("would be done".to_owned(), false),
        Ok(StepDone { processes, .. }) => (format!("would affect {}", counted(*processes)), false),
        Err(error) => (error.to_string(), true),
    }
}
