//! The actions of each state: each adds the steps that are due, and has no effect by itself.
//!
//! An action names only processes of the roster, and adds at most one step for each of them.

use std::sync::Arc;
use std::time::Duration;

use super::{Plan, PlanInput};
use crate::model::units::Bytes;
use crate::policy::{Reason, Resource, State};
use crate::types::step::{SignalNumber, Work};

type Action = fn(&PlanInput<'_>, &mut Plan);

/// The actions of a state, in order. A kill comes before its record, which could block on a disk.
pub(super) fn on(input: &PlanInput<'_>) -> &'static [Action] {
    match input.stage {
        State::Soft if input.transition.reason == Reason::SaveTooLarge => &[raise],
        State::Warn | State::Cooldown => &[thaw, webhook],
        State::Soft => &[record, raise, freeze, hook, webhook],
        State::Checkpoint => &[record, thaw, ask, touch, await_acknowledgement, webhook],
        State::Term => &[record, thaw, term, await_end, webhook],
        State::Kill => &[kill, release, await_end, record, webhook],
        State::Verify => &[hook, webhook],
        State::Disarmed | State::Blind | State::Ok => &[],
    }
}

/// Writes the incident record before processes are acted on.
fn record(input: &PlanInput<'_>, out: &mut Plan) {
    out.push(input, Work::Record);
}

/// Raises the cgroup limit that leaves the least memory, where its cgroup is the target's and the host has memory left; by as much
/// at least as saving a checkpoint lacks, and at most to twice the limit, because the prediction is the job's own.
fn raise(input: &PlanInput<'_>, out: &mut Plan) {
    let too_large = input.transition.reason == Reason::SaveTooLarge;
    if !too_large && input.transition.reason != Reason::Level(Resource::Cgroup) {
        return;
    }
    let observed = input.observed;
    if let (Some(raise), Some(group), Some(limited), Some(limit), Some(host)) = (
        input.target.raise,
        input.roster.group.clone(),
        observed.groups.least(),
        observed.reading(Resource::Cgroup),
        observed.reading(Resource::Host),
    ) {
        let from = limit.value.room.limit;
        // What is left below the limit now can be used too.
        let available = host.value.room.memory.saturating_sub(limit.value.room.memory);
        let lacking = lacking(input, limit.value.headroom(), from).min(from);
        if too_large && lacking == Bytes::ZERO {
            return;
        }
        if let Some(to) = raise.limit(from, lacking, available, host.value.room.limit) {
            out.push(input, Work::Raise { group, limited, from, to });
        }
    }
}

/// What a checkpoint lacks below the limit `from`, of which `left` is left, until its save leaves more than the hard level.
fn lacking(input: &PlanInput<'_>, left: Bytes, from: Bytes) -> Bytes {
    /// The kernel rounds limits to pages, and the job may grow meanwhile.
    const SPARE: Bytes = Bytes::new(1 << 20);
    let Some(save) = input.observed.save[Resource::Cgroup.place()] else { return Bytes::ZERO };
    let hard = input.target.limits.hard(Resource::Cgroup);
    let lacks = |raised: Bytes| {
        let hard = hard.map_or(Bytes::ZERO, |hard| hard.of(from.saturating_add(raised)));
        save.saturating_add(hard).saturating_sub(left)
    };
    // A hard level that is a share of the limit rises with it.
    let lacks = (0..16).fold(Bytes::ZERO, |raised, _| lacks(raised));
    if lacks == Bytes::ZERO { lacks } else { lacks.saturating_add(SPARE) }
}

/// Freezes the target's cgroup while the hook runs, where it holds only the target's processes.
fn freeze(input: &PlanInput<'_>, out: &mut Plan) {
    if let Some(group) = input.roster.group.clone().filter(|_| input.target.freeze) {
        out.push(input, Work::Freeze { group });
    }
}

/// Thaws it; this has no effect on a cgroup that is not frozen.
fn thaw(input: &PlanInput<'_>, out: &mut Plan) {
    if let Some(group) = input.roster.group.clone().filter(|_| input.target.freeze) {
        out.push(input, Work::Thaw { group });
    }
}

/// Starts the hook, a program of the operator's.
fn hook(input: &PlanInput<'_>, out: &mut Plan) {
    if let (Some(hook), Some(notification)) = (&input.target.hook, input.notification) {
        out.push(input, Work::Hook { hook: Arc::clone(hook), input: Arc::clone(notification) });
    }
}

/// Posts the transition to a service of the operator.
fn webhook(input: &PlanInput<'_>, out: &mut Plan) {
    if let (Some(url), Some(notification)) = (&input.target.webhook, input.notification) {
        out.push(input, Work::Webhook { url: Arc::clone(url), body: Arc::clone(notification) });
    }
}

/// Sends the checkpoint signal to each rank with a handler, once per incident.
fn ask(input: &PlanInput<'_>, out: &mut Plan) {
    let Some(signal) = input.target.ask.signal.filter(|_| input.transition.ask) else { return };
    let first = u16::try_from(out.steps().len()).unwrap_or(0);
    for asked in &input.roster.ask {
        let unless = asked.above.and_then(|above| above.checked_add(first));
        out.push_unless(input, Work::Signal { process: asked.key, signal, only_if_caught: true }, unless);
    }
}

/// Touches the file that the job watches.
fn touch(input: &PlanInput<'_>, out: &mut Plan) {
    let Some(path) = input.target.ask.touch.as_ref().filter(|_| input.transition.ask) else { return };
    // A rank sees the path as the job does; a launcher may be outside the container.
    let process = input.roster.ask.first().map(|asked| asked.key);
    if let Some(process) = process.or_else(|| input.roster.largest.first().copied()) {
        out.push(input, Work::Touch { process, path: Arc::clone(path) });
    }
}

/// Waits for the acknowledgement file; the guard itself reads acknowledgements from the job socket.
fn await_acknowledgement(input: &PlanInput<'_>, out: &mut Plan) {
    if let Some(by) = input.target.ask.file.as_ref().filter(|_| input.transition.ask) {
        out.push(input, Work::Await { by: Arc::clone(by), within: input.target.limits.longest_grace });
    }
}

/// Sends SIGTERM to every victim: leaves first, launchers last.
fn term(input: &PlanInput<'_>, out: &mut Plan) {
    for process in &input.roster.end {
        let signal = SignalNumber::TERM;
        out.push(input, Work::Signal { process: *process, signal, only_if_caught: false });
    }
}

/// Kills every victim: the whole cgroup at once where it holds only the victims, otherwise their process trees.
fn kill(input: &PlanInput<'_>, out: &mut Plan) {
    // Where the cgroup cannot be killed at once, its processes are killed one by one.
    let unless = input.roster.group.is_some().then(|| u16::try_from(out.steps().len()).ok()).flatten();
    if let Some(group) = input.roster.group.clone() {
        out.push(input, Work::KillGroup { group });
    }
    out.push_unless(input, Work::KillTree { roots: Arc::clone(&input.roster.largest) }, unless);
}

/// Releases the victims' memory (process_mrelease(2)), largest first, which frees it twice as fast.
fn release(input: &PlanInput<'_>, out: &mut Plan) {
    out.push(input, Work::Release { processes: Arc::clone(&input.roster.largest) });
}

/// Waits for the end of every victim.
fn await_end(input: &PlanInput<'_>, out: &mut Plan) {
    let limits = &input.target.limits;
    let within = match input.stage {
        State::Term => limits.term_grace,
        _ => limits.verify_timeout + Duration::from_secs(input.roster.resident.get() >> 30),
    };
    let processes = Arc::clone(&input.roster.largest);
    out.push(input, Work::AwaitEnd { processes, group: input.roster.group.clone(), within });
}
