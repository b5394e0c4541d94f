//! From what was observed of a process that ended to the cause. Pure: no state, no clock.

use super::rules;
use crate::model::ends::{
    EndCause, EndEvidence, ExitStatus, FailedAllocation, OomKill, OtherHolder, PROBABLE, ProcessLimit, Retry,
    Sender,
};
use crate::model::facts::{KernelLog, OomVictim, OwnLimits};
use crate::model::finding::Subject;
use crate::model::fit::Medium;
use crate::model::health::Health;
use crate::model::label::Label;

/// Share of a resource above which its exhaustion explains a SIGKILL whose sender cannot be known.
pub(super) const EXHAUSTED: f64 = 0.95;
/// Share of a tmpfs below which it was far from full. A process that is ended because it is full may have held much of it.
pub(super) const HALF: f64 = 0.5;
/// A resource in the last sample before the end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Level {
    pub(super) resource: Subject,
    pub(super) used: f64,
    pub(super) limit: f64,
}

impl Level {
    pub(super) fn share(&self) -> f64 {
        self.used / self.limit
    }
}

/// The tmpfs that the process saw which was the fullest around its end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TmpfsState {
    pub(super) level: Level,
    /// Whether it was full already when it was last read before the end.
    pub(super) was_full_before: bool,
    /// Whether a tmpfs that the process saw could be filled after that read.
    pub(super) may_be_missed: bool,
    /// Whether all that the process saw were read after the end: their namespace can end with it.
    pub(super) is_read_after: bool,
}

/// What was observed of one process that ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Case {
    /// Absent where no source reports it.
    pub(super) status: Option<ExitStatus>,
    /// Its name.
    pub(super) comm: Label,
    /// The kill of it by the kernel's OOM killer, by the kernel log.
    pub(super) kernel_kill: Option<OomKill>,
    /// The kill of a process of its cgroup, or by its name, where the log names pids of another namespace; and whether it has its
    /// name.
    pub(super) kill_by_name: Option<(OomKill, bool)>,
    /// The kill of a child of it, or of a process of its cgroup that no sample has seen, by the kernel log.
    pub(super) other_kill: Option<OtherKill>,
    /// A child of it that ended by a signal.
    pub(super) child_signal: Option<super::observed::Child>,
    /// Its own limits; that of CPU time only where it can have reached it.
    pub(super) limits: OwnLimits,
    /// Whether `timeout` had started it, or is it, and ended so as it does after it has sent SIGKILL.
    pub(super) is_timed_out: bool,
    /// What else the kernel logged of it.
    pub(super) report: Option<EndEvidence>,
    /// The cgroup whose counter of OOM kills rose more often than the log explains by other processes, and whether it is that of the
    /// process and not one above it.
    pub(super) counted_kill: Option<(Label, bool)>,
    /// Whether the OOM kills of its own cgroup are counted.
    pub(super) counts_kills: bool,
    /// Who sent the signal of its status: absent if that is not known, and for the kernel `Some(None)`.
    pub(super) sender: Option<Option<Sender>>,
    /// Whether an OOM kill of it would be known from the kernel log, and otherwise why not.
    pub(super) log: KernelLog,
    /// Whether protection sent it a signal.
    pub(super) is_signalled: bool,
    /// Whether the daemon said that a phase of it will not fit, or the process that it ends itself for that. A rank that has said
    /// how it ends has no predictions any more, and its interpreter needs longer than a sample to exit.
    pub(super) will_not_fit: bool,
    pub(super) allocation: Option<FailedAllocation>,
    /// The type of the exception that it reported; empty where it reported none.
    pub(super) exception: Label,
    /// The memory that ran out, as it reported with the exception.
    pub(super) lacked: Option<Medium>,
    /// The limit of the process that was reached, as it reported with the exception, and its value.
    pub(super) limit: Option<(ProcessLimit, Option<u64>)>,
    /// Whether it reported that it ends as intended.
    pub(super) said_finished: bool,
    /// That its workload leaked.
    pub(super) leak: Option<EndEvidence>,
    pub(super) cgroup: Option<Level>,
    pub(super) host: Option<Level>,
    pub(super) gpu: Option<Level>,
    /// Whether no huge page was left that was not promised; absent where its workload mapped none.
    pub(super) huge_pages: Option<bool>,
    /// Absent where none was read.
    pub(super) tmpfs: Option<TmpfsState>,
    /// The other workload that grew the most below the limit that was reached, where it grew more than its own.
    pub(super) group_other: Option<OtherHolder>,
    /// The other workload with the most memory on its GPU, and on the host.
    pub(super) gpu_other: Option<OtherHolder>,
    pub(super) host_other: Option<OtherHolder>,
    /// The GPU, the number and the severity of the worst XID.
    pub(super) xid: Option<(Label, u32, Health)>,
}

/// A kill of another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OtherKill {
    pub(super) pid: Option<u32>,
    pub(super) comm: Label,
    pub(super) is_child: bool,
    /// Whether it was in the last seconds before the end.
    pub(super) is_recent: bool,
    pub(super) kill: OomKill,
}

impl OtherKill {
    pub(super) fn of(victim: &OomVictim, is_child: bool) -> Self {
        Self { pid: victim.pid, comm: victim.comm.clone(), is_child, is_recent: true, kill: kill_of(victim) }
    }
}

/// What the kernel's OOM killer killed a process for.
pub(super) fn kill_of(victim: &OomVictim) -> OomKill {
    let OomVictim { scope, is_scope_stated, limit_cgroup, .. } = victim;
    OomKill { scope: *scope, is_scope_stated: *is_scope_stated, limit_cgroup: limit_cgroup.clone() }
}

impl Case {
    /// Whether the kernel log names each OOM kill of the time of the end.
    pub(super) fn sees_log(&self) -> bool {
        self.log == KernelLog::Complete
    }

    /// Whether it is known that a process sent the signal of its status.
    pub(super) const fn is_sent_by_process(&self) -> bool {
        matches!(self.sender, Some(Some(_)))
    }

    /// The signal that ended it.
    pub(super) fn signal(&self) -> Option<i32> {
        match self.status? {
            ExitStatus::Signal(signal) => Some(signal),
            ExitStatus::Code(_) => None,
        }
    }

    /// Whether it ended by an exit code that is no success.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.status, Some(ExitStatus::Code(code)) if code != 0)
    }
}

/// The cause with all that follows from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Classified {
    pub(super) cause: EndCause,
    pub(super) probability: f64,
    /// What would make it certain; empty where nothing is needed.
    pub(super) settles: &'static str,
    pub(super) level: Option<Level>,
    pub(super) other: Option<OtherHolder>,
    pub(super) evidence: Vec<EndEvidence>,
}

impl Classified {
    /// A guess is no reason to give up.
    pub(super) fn retry(&self) -> Retry {
        match self.cause {
            _ if self.probability < PROBABLE => Retry::Unknown,
            EndCause::CgroupLimit if self.other.is_some() => Retry::MayHelp,
            cause => cause.retry(),
        }
    }
}

/// The cause of an end.
pub(super) fn classify(case: &Case) -> Classified {
    let (cause, rule, first) = rules::cause(case);
    let level = match cause {
        EndCause::CgroupLimit => case.cgroup.clone(),
        EndCause::HostMemory => case.host.clone(),
        EndCause::GpuMemory | EndCause::GpuNeighbor | EndCause::GpuFragmentation => case.gpu.clone(),
        EndCause::SharedMemory => {
            case.tmpfs.as_ref().map(|tmpfs| tmpfs.level.clone()).filter(|level| level.share() >= HALF)
        }
        _ => None,
    };
    let other = match cause {
        EndCause::CgroupLimit => case.group_other.clone(),
        EndCause::HostMemory => case.host_other.clone(),
        EndCause::GpuNeighbor => case.gpu_other.clone(),
        _ => None,
    };
    let mut evidence: Vec<EndEvidence> = first.into_iter().collect();
    let mut add = |more: EndEvidence| {
        if !evidence.contains(&more) {
            evidence.push(more);
        }
    };
    // The level of the cgroup that the kernel names is its limit, and no sample; of a cgroup whose kills the kernel counts, a low
    // level was that before the memory was taken.
    let is_named = case.kernel_kill.is_some() || case.other_kill.is_some();
    let is_evidence = |level: &Level| !is_named && (case.counted_kill.is_none() || level.share() >= HALF);
    if let Some(level) = level.as_ref().filter(|level| is_evidence(level)) {
        add(EndEvidence::Used { resource: level.resource.clone(), share: level.share() });
    }
    if !case.exception.is_empty() {
        add(EndEvidence::Exception { name: case.exception.clone() });
    }
    match case.status {
        Some(status) => add(EndEvidence::Status(status)),
        None => add(EndEvidence::NoStatus),
    }
    match &case.sender {
        Some(Some(sender)) => add(EndEvidence::SentBy(sender.clone())),
        Some(None) => add(EndEvidence::SentByKernel),
        None => {}
    }
    if let Some((pid, comm, signal)) = &case.child_signal
        && case.has_failed()
    {
        add(EndEvidence::ChildSignal { pid: *pid, comm: comm.clone(), signal: *signal });
    }
    if let Some((cgroup, true)) = &case.counted_kill
        && case.kernel_kill.is_none()
        && cause != EndCause::Finished
    {
        add(EndEvidence::KillCounter { cgroup: cgroup.clone() });
    }
    if let Some((gpu, xid, _)) = &case.xid
        && cause != EndCause::Finished
    {
        // Of two causes, this one came first.
        add(EndEvidence::Xid { gpu: gpu.clone(), xid: *xid });
    }
    if cause.is_memory() {
        case.leak.clone().into_iter().for_each(&mut add);
    }
    let may_be_oom = matches!(cause, EndCause::Killed | EndCause::Unknown) && !case.is_sent_by_process();
    if !case.sees_log() && may_be_oom {
        add(EndEvidence::Log(case.log));
    }
    Classified { cause, probability: rule.probability, settles: rule.settles, level, other, evidence }
}

impl TmpfsState {
    pub(super) fn evidence(&self) -> Option<EndEvidence> {
        Some(EndEvidence::Used { resource: self.level.resource.clone(), share: self.level.share() })
    }
}

#[cfg(test)]
mod tests;
