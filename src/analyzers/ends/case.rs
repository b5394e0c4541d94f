//! What was observed of a process that ended, from outside and as it said itself.

use std::collections::HashMap;

use serde::Deserialize as _;
use serde_json::Value;

use super::classify::Case;
use super::episode::{Episode, Member};
use super::observed::{Child, Observed, Recent, SIGKILL};
use super::others;
use crate::model::analyzer::View;
use crate::model::ends::{ExitStatus, FailedAllocation, ProcessLimit};
use crate::model::facts::Facts;
use crate::model::fit::{ByeEnd, Medium};
use crate::model::ids::WorkloadKey;
use crate::model::label::Label;
use crate::model::printable::escaped;
use crate::model::time::Timestamp;
use crate::model::timeline::{Entry, EntryKind};

/// Adds what a process reported over the job socket before its end; returns its last step and its phase.
pub(super) fn add_said(
    case: &mut Case,
    facts: &Facts,
    (workload, member): (&Label, &Member),
    now: Timestamp,
) -> (Option<u64>, Label) {
    /// Seconds before its message `bye`, or its end where it sent none, in which a failed allocation is the reason of it.
    const LATELY: f64 = 60.0;
    /// Seconds that a process may take to end after its message `bye`.
    const ENDING: f64 = 600.0;
    let mut unix = now.unix().as_secs_f64();
    let oldest = unix - ENDING;
    let (mut step, mut phase, mut has_ended) = (None, Label::default(), false);
    if member.rank.is_none() {
        return (step, phase);
    }
    let own = facts.timeline.entries.iter().rev();
    // The times are those of the senders, and in no order.
    let own = own.filter(|entry| entry.unix_seconds >= oldest);
    let detail = |entry: &Entry| -> Value {
        entry.detail.as_ref().and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
    };
    for entry in own.filter(|entry| entry.pid == member.key.pid && entry.workload == *workload) {
        match entry.kind {
            // What is older was said by another program of this process.
            EntryKind::Start => break,
            // The newest counts: the connection of a monitor that another one has replaced ends too.
            EntryKind::End if !has_ended => {
                (has_ended, unix) = (true, entry.unix_seconds);
                let detail = detail(entry);
                let end = ByeEnd::deserialize(&detail["end"]).ok();
                case.said_finished =
                    entry.name.as_str() == "bye" && matches!(end, None | Some(ByeEnd::Finished));
                // It ends itself where a phase would not fit.
                case.will_not_fit |= end == Some(ByeEnd::Aborted);
                step = entry.step;
                phase = Label::printable(detail["phase"].as_str().unwrap_or_default());
                let is_raised = matches!(
                    end,
                    Some(ByeEnd::Exception | ByeEnd::OutOfMemory | ByeEnd::OutOfSpace | ByeEnd::Interrupted)
                );
                if let Some(name) = detail["reason"].as_str().filter(|_| is_raised) {
                    case.exception = escaped(name).into_owned().into();
                }
                let resource = Medium::deserialize(&detail["resource"]).ok();
                case.lacked =
                    resource.filter(|_| matches!(end, Some(ByeEnd::OutOfMemory | ByeEnd::OutOfSpace)));
                let limit = ProcessLimit::deserialize(&detail["limit"]).ok();
                case.limit = limit.filter(|_| is_raised).map(|limit| (limit, detail["limit_value"].as_u64()));
            }
            EntryKind::Oom if case.allocation.is_none() && unix - entry.unix_seconds <= LATELY => {
                let detail = detail(entry);
                let bytes = |key: &str| detail[key].as_f64();
                case.allocation = Some(FailedAllocation {
                    requested: bytes("requested"),
                    allocated: bytes("allocated"),
                    reserved: bytes("reserved"),
                    free: bytes("free"),
                    total: bytes("total"),
                    has_expandable_segments: detail["expandable_segments"].as_bool(),
                });
                step = step.or(entry.step);
            }
            _ => {}
        }
    }
    (step, phase)
}

/// Whether `timeout` has sent SIGKILL to a process, as far as the ends of both tell. It sends it to its own process group too, in which
/// the program that started it is not.
fn is_timed_out(recent: &Recent, episode: &Episode, member: &Member) -> bool {
    let is_ended_by_other = |own: &Member| recent.is_signalled(own.key) || recent.kill_of(own.key).is_some();
    let is_killed = |own: &&Member| recent.status_of(own.key).and_then(ExitStatus::signal) == Some(SIGKILL);
    let mut own = [member].into_iter().chain(episode.above(member));
    own.find(|own| own.comm.as_str() == "timeout").filter(is_killed).is_some_and(|timeout| {
        !episode.above(timeout).any(|own| recent.status_of(own.key) == Some(ExitStatus::Signal(SIGKILL)))
    }) && !episode.members.iter().any(is_ended_by_other)
}

/// What was observed of a process from outside.
pub(super) fn case(
    view: &View<'_>,
    recent: &Recent,
    episode: &Episode,
    member: &Member,
    known: &HashMap<WorkloadKey, Observed>,
) -> Case {
    let observed = known.get(&episode.workload.key);
    let kernel_kill = recent.kill_of(member.key);
    let group = member.cgroup.clone().or_else(|| Some(observed?.cgroup.clone())).unwrap_or_default();
    let other_kill = recent.other_kill(member.key, (&group, episode.workload.user));
    let gpus = observed.map_or(&[][..], |known| &known.gpus);
    let status = recent.status_of(member.key);
    let (child_signal, sender_to_child) = recent.child_signal(member.key, status).unzip();
    let stands_for = |(.., signal): &Child| status.and_then(ExitStatus::signal) == Some(*signal);
    let sender_to_child = sender_to_child.flatten().filter(|_| child_signal.as_ref().is_some_and(stands_for));
    let hit = kernel_kill.as_ref().or(other_kill.as_ref().map(|other| &other.kill));
    Case {
        status,
        sender: status.and_then(|status| recent.sender_of(member.key, status)).or(sender_to_child),
        counted_kill: recent.counted_kill(&group),
        counts_kills: recent.counts_kills_of(&group),
        log: recent.log_since(episode.between().0, episode.workload.user),
        child_signal,
        limits: member.limits,
        is_timed_out: is_timed_out(recent, episode, member),
        report: recent.report_of(member.key, &group),
        comm: member.comm.clone(),
        kill_by_name: recent.kill_by_name(&member.comm, &group),
        is_signalled: recent.is_signalled(member.key),
        leak: episode.leak(),
        will_not_fit: episode.will_not_fit(member.key.pid),
        cgroup: episode.cgroup_level(view, &group, hit),
        host: episode.host_level(),
        gpu: episode.gpu_level(gpus, &group),
        huge_pages: episode.huge_pages(),
        tmpfs: recent.tmpfs_of(member.key, &episode.workload.key, episode.between()),
        group_other: hit
            .filter(|hit| hit.limit_cgroup != group)
            .and_then(|hit| others::in_group(known, observed, &hit.limit_cgroup)),
        gpu_other: others::on_gpu(view, &episode.workload.name, gpus),
        host_other: others::on_host(view, &episode.workload.name),
        xid: recent.xid_of(gpus),
        kernel_kill,
        other_kill,
        ..Case::default()
    }
}
