//! How a process ended, in words.

use crate::model::ends::{
    End, EndCause, EndEvidence, ExitStatus, FailedAllocation, OomKill, PROBABLE, ProcessLimit, Retry, Sender,
};
use crate::model::facts::{KernelLog, OomScope};
use crate::model::finding::Subject;
use crate::model::format;
use crate::model::printable::escaped;
use crate::model::units::real;

/// Probability from which a cause is stated without a word of doubt.
const CERTAIN: f64 = 0.9;

/// How it ended, and why, in one sentence.
pub fn sentence(end: &End) -> String {
    format!("{} {}.", who(end), how(end))
}

/// The same for everybody: only the user of the process may know its exception, its limits, and who sent it a signal.
pub fn public_sentence(end: &End) -> String {
    let mut end = End { curve: Vec::new(), ..end.clone() };
    end.evidence.retain(|seen| matches!(seen, EndEvidence::Status(_) | EndEvidence::Xid { .. }));
    sentence(&end)
}

/// Whether starting it again can help, what was lost, and what to do: the sentences after the first.
pub fn remarks(end: &End) -> Vec<String> {
    let retry = match end.retry {
        Retry::CannotHelp => Some("Starting it again without a change cannot help.".to_owned()),
        Retry::MayHelp => Some("Starting it again may help.".to_owned()),
        Retry::Unknown => None,
    };
    [retry, lost(end), advice(end)].into_iter().flatten().collect()
}

fn who(end: &End) -> String {
    let rank = if end.rank.is_empty() { String::new() } else { format!("rank {}, ", end.rank) };
    let workload = escaped(end.workload.as_str());
    let of = if workload.is_empty() { String::new() } else { format!(" of {workload}") };
    let who = format!("{} ({rank}pid {}){of}", escaped(end.comm.as_str()), end.pid);
    match end.processes {
        0 | 1 => who,
        2 => format!("{who} (and 1 process with it)"),
        more => format!("{who} (and {} processes with it)", more - 1),
    }
}

fn how(end: &End) -> String {
    let certainty = match end.probability {
        p if p >= CERTAIN => "",
        p if p >= PROBABLE => "probably ",
        _ => "possibly ",
    };
    let resource = end.resource.as_ref().map(Subject::to_string).unwrap_or_default();
    let limit = end.limit_bytes.map_or_else(String::new, |limit| format!(" ({})", format::bytes(limit)));
    let held = end.other.as_ref().map_or_else(String::new, |other| {
        format!("; {} held {}", escaped(other.workload.as_str()), format::bytes(other.bytes))
    });
    match end.cause {
        cause
            if (cause.is_memory() || cause == EndCause::Killed)
                && let Some(other) = other_kill(end) =>
        {
            format!("failed{}, {certainty}because the kernel killed {other}{limit}{held}", status(end))
        }
        EndCause::CgroupLimit if resource.is_empty() => {
            format!("was {certainty}killed by the kernel, because the limit of a cgroup was reached")
        }
        EndCause::CgroupLimit => {
            let grew = end.other.as_ref().map_or_else(String::new, |other| {
                format!(
                    ", by the growth of {} to {}",
                    escaped(other.workload.as_str()),
                    format::bytes(other.bytes)
                )
            });
            format!(
                "was {certainty}killed by the kernel, because the limit of {resource}{limit} was reached{grew}"
            )
        }
        EndCause::HostMemory => format!(
            "was {certainty}killed by the kernel, because the memory of the host{limit} was exhausted{held}"
        ),
        EndCause::NumaNodes => format!(
            "was {certainty}killed by the kernel, because the memory of the NUMA nodes that it may use was exhausted"
        ),
        EndCause::OomKill => {
            "was killed by the OOM killer of the kernel; which memory ran out is not known".to_owned()
        }
        EndCause::SharedMemory => {
            let mount = end.resource.as_ref().map(|own| escaped(own.mount.as_str())).unwrap_or_default();
            let mount = or(&mount, "/dev/shm or another tmpfs");
            let how = match exit_status(end) {
                Some(ExitStatus::Code(_)) => format!("failed{}", status(end)),
                _ => ended(end),
            };
            format!("{how}, {certainty}because {mount}{limit} was full")
        }
        EndCause::HugePages => {
            format!("was ended by the kernel, {certainty}because its pool of huge pages was empty")
        }
        EndCause::DiskFull => {
            format!("failed{}, {certainty}because a disk, or its user's share of it, was full", status(end))
        }
        EndCause::TimeLimit => {
            // SIGXCPU.
            let is_cpu = exit_status(end).and_then(ExitStatus::signal) == Some(24) || reached(end).is_some();
            let limit = if is_cpu { "its limit of CPU time" } else { "the time that timeout(1) gave it" };
            format!("{}, {certainty}because {limit} was over", ended(end))
        }
        EndCause::MemoryError => {
            format!("{}, because memory of the host that it used has failed", ended(end))
        }
        EndCause::GpuMemory => {
            format!("ended, {certainty}because its own memory filled {}{limit}", or(&resource, "the GPU"))
        }
        EndCause::GpuNeighbor => {
            format!("ended, {certainty}because other memory filled {}{limit}{held}", or(&resource, "the GPU"))
        }
        EndCause::GpuFragmentation => format!(
            "ended, {certainty}because its allocator had enough memory of {} only in blocks that were too small",
            or(&resource, "the GPU")
        ),
        EndCause::ProcessLimit => match reached(end) {
            Some(limit) => format!("ended, {certainty}because its limit of {limit} was reached"),
            None => format!(
                "ended, {certainty}because one of its limits was reached, or the host refused it memory"
            ),
        },
        EndCause::WillNotFit => "ended itself, because its memory would not have fitted".to_owned(),
        EndCause::GpuFault => format!("ended, {certainty}because of an error of its GPU{}", xid(end)),
        EndCause::Memwarden => "was ended by memory protection".to_owned(),
        EndCause::Killed if is_requested(end) => {
            "was killed by the kernel, because an operator asked for an OOM kill (sysrq f)".to_owned()
        }
        EndCause::Killed if let Some(child) = child_signal(end) => {
            format!("failed{}, {certainty}because {child}, sent {}", status(end), sender(end))
        }
        EndCause::Killed if let Some(ExitStatus::Code(_)) = exit_status(end) => {
            let signal = exit_status(end).and_then(ExitStatus::signal).unwrap_or_default();
            let signal = format::signal(u64::from(signal.unsigned_abs()));
            format!("{}, {certainty}because {signal} was sent {}", ended(end), sender(end))
        }
        EndCause::Killed => format!("{}, {certainty}sent {}", ended(end), sender(end)),
        EndCause::Failed => format!("failed{}", status(end)),
        EndCause::Finished => "finished".to_owned(),
        EndCause::Unknown => format!("{}; why is not known", ended(end)),
    }
}

fn ended(end: &End) -> String {
    match exit_status(end) {
        Some(status @ ExitStatus::Signal(_)) => format!("was ended by {}", status_words(status)),
        Some(status) => format!("ended with {}", status_words(status)),
        None => "ended".to_owned(),
    }
}

/// Whether an operator asked for the OOM kill.
fn is_requested(end: &End) -> bool {
    let is_it =
        |seen: &EndEvidence| matches!(seen, EndEvidence::KernelLog(kill) if kill.scope == OomScope::Request);
    end.evidence.iter().any(is_it)
}

/// The child whose signal its exit code stands for.
fn child_signal(end: &End) -> Option<String> {
    let status = exit_status(end).filter(|status| matches!(status, ExitStatus::Code(_)))?;
    end.evidence.iter().find_map(|seen| match seen {
        EndEvidence::ChildSignal { pid, comm, signal } if status.signal() == Some(*signal) => {
            let signal = format::signal(u64::from(signal.unsigned_abs()));
            Some(format!(
                "{} (pid {pid}), which it had started, was ended by {signal}",
                escaped(comm.as_str())
            ))
        }
        _ => None,
    })
}

/// The process that the kernel killed in its place, and for what.
fn other_kill(end: &End) -> Option<String> {
    let is_named = end.evidence.iter().any(|seen| matches!(seen, EndEvidence::KernelLog(_)));
    let named = end.evidence.iter().find_map(|seen| match seen {
        EndEvidence::OtherKill { pid, comm, is_child, kill } => {
            let who = process_words(*pid, comm.as_str());
            let whose = if *is_child { "which it had started" } else { "a process of its cgroup" };
            Some(format!("{who}, {whose}, {}", reason(kill)))
        }
        _ => None,
    });
    let is_code = matches!(exit_status(end), Some(ExitStatus::Code(_)));
    let unnamed = match end.cause {
        EndCause::CgroupLimit => Some("another process of its cgroup for its memory limit"),
        EndCause::HostMemory | EndCause::NumaNodes | EndCause::OomKill => {
            Some("another process for lack of memory")
        }
        _ => None,
    };
    named.or_else(|| unnamed.filter(|_| is_code && !is_named).map(str::to_owned))
}

fn process_words(pid: Option<u32>, comm: &str) -> String {
    let comm = if comm.is_empty() { "a process".into() } else { escaped(comm) };
    pid.map_or_else(|| comm.to_string(), |pid| format!("{comm} (pid {pid})"))
}

/// What the OOM killer of the kernel killed a process for.
fn reason(kill: &OomKill) -> String {
    match (kill.scope, kill.limit_cgroup.as_str()) {
        (OomScope::Cgroup, "") => "for the limit of a cgroup".to_owned(),
        (OomScope::Cgroup, path) => format!("for the limit of {}", escaped(path)),
        (OomScope::Nodes, _) => {
            "because the memory of the NUMA nodes that it may use was exhausted".to_owned()
        }
        (OomScope::Request, _) => "because an operator asked for it (sysrq f)".to_owned(),
        (OomScope::PageFault, _) => "after a page fault that failed without a limit".to_owned(),
        (OomScope::Host, _) if kill.is_scope_stated => {
            "because the memory of the host was exhausted".to_owned()
        }
        (OomScope::Host, _) => "without a reason in its log".to_owned(),
    }
}

/// The limit of the process that was reached.
fn reached(end: &End) -> Option<String> {
    end.evidence.iter().find_map(|seen| match seen {
        EndEvidence::Limit { limit, value } => Some(limit_words(*limit, *value)),
        EndEvidence::LimitUsed { limit, value, .. } => Some(limit_words(*limit, Some(*value))),
        EndEvidence::ForkRejected { cgroup } => {
            Some(format!("processes and threads in {} (pids.max)", escaped(cgroup.as_str())))
        }
        _ => None,
    })
}

fn limit_words(limit: ProcessLimit, value: Option<u64>) -> String {
    let (name, option, is_bytes) = match limit {
        ProcessLimit::CpuTime => ("CPU time in seconds", "-t", false),
        ProcessLimit::AddressSpace => ("virtual memory", "-v", true),
        ProcessLimit::Data => ("private memory", "-d", true),
        ProcessLimit::LockedMemory => ("locked memory", "-l", true),
        ProcessLimit::OpenFiles => ("open files", "-n", false),
        ProcessLimit::FileSize => ("the size of a file", "-f", true),
        ProcessLimit::Processes => ("processes and threads", "-u, or pids.max of its cgroup", false),
    };
    let value = value.map_or_else(String::new, |value| {
        format!(", {}", if is_bytes { format::bytes(real(value)) } else { format::whole(real(value)) })
    });
    format!("{name} (ulimit {option}{value})")
}

fn or<'t>(text: &'t str, otherwise: &'t str) -> &'t str {
    if text.is_empty() { otherwise } else { text }
}

fn xid(end: &End) -> String {
    let found = end.evidence.iter().find_map(|seen| match seen {
        EndEvidence::Xid { gpu, xid } => Some(format!(" (XID {xid} of GPU {gpu})")),
        _ => None,
    });
    found.unwrap_or_default()
}

fn sender(end: &End) -> String {
    // SIGHUP and SIGINT.
    let is_of_terminal = exit_status(end).and_then(ExitStatus::signal).is_some_and(|signal| signal <= 2);
    let known = end.evidence.iter().find_map(|seen| match seen {
        EndEvidence::SentBy(sender) if sender.pid == end.pid => Some("by itself".to_owned()),
        EndEvidence::SentBy(sender) => Some(format!("by {}", sender_words(sender))),
        EndEvidence::SentByKernel if is_of_terminal => Some("from its terminal".to_owned()),
        EndEvidence::SentByKernel => Some("by the kernel".to_owned()),
        _ => None,
    });
    known.unwrap_or_else(|| "by another program or a person".to_owned())
}

fn sender_words(sender: &Sender) -> String {
    match sender.user_id {
        Some(0) => format!("{} (pid {}) of root", escaped(sender.comm.as_str()), sender.pid),
        Some(user) => format!("{} (pid {}) of user {user}", escaped(sender.comm.as_str()), sender.pid),
        None => format!("a process that was not seen running (pid {})", sender.pid),
    }
}

/// The exception, or the exit status.
fn status(end: &End) -> String {
    let exception = end.evidence.iter().find_map(|seen| match seen {
        EndEvidence::Exception { name } => Some(format!(" by the exception {name}")),
        _ => None,
    });
    let status = exit_status(end).map(status_words);
    exception.or_else(|| status.map(|status| format!(" with {status}"))).unwrap_or_default()
}

fn exit_status(end: &End) -> Option<ExitStatus> {
    end.evidence.iter().find_map(|seen| match seen {
        EndEvidence::Status(status) => Some(*status),
        _ => None,
    })
}

fn status_words(status: ExitStatus) -> String {
    let name = status.signal().map(|signal| format::signal(u64::from(signal.unsigned_abs())));
    match (status, name) {
        (ExitStatus::Code(code), Some(name)) => format!("exit code {code} (128 + {name})"),
        (ExitStatus::Code(code), None) => format!("exit code {code}"),
        (ExitStatus::Signal(_), name) => name.unwrap_or_default(),
    }
}

fn lost(end: &End) -> Option<String> {
    if end.cause == EndCause::Finished {
        return None;
    }
    let in_phase = match end.phase.as_str() {
        "" => String::new(),
        phase => format!(" and was in the phase {}", escaped(phase)),
    };
    let step = end.step.map(|step| format!("It had completed step {step}{in_phase}"));
    let saved = end.checkpoint_age_seconds.map(|age| {
        let step = end.checkpoint_step.map_or_else(String::new, |step| format!(" of step {step}"));
        format!("its last checkpoint{step} was {} old", format::duration(age))
    });
    let gpus = end.lost_gpu_seconds.map(|seconds| format!("{:.1} GPU hours are lost", seconds / 3600.0));
    let parts: Vec<String> = [step, saved, gpus].into_iter().flatten().collect();
    let mut text = parts.join("; ");
    let first = text.chars().next()?.to_uppercase().to_string();
    text.replace_range(..1, &first);
    Some(format!("{text}."))
}

fn advice(end: &End) -> Option<String> {
    let allocation = end.evidence.iter().find_map(|seen| match seen {
        EndEvidence::Allocation(failed) => Some(failed),
        _ => None,
    });
    Some(match end.cause {
        EndCause::CgroupLimit if let Some(other) = &end.other => {
            format!("Give {} a limit of its own.", escaped(other.workload.as_str()))
        }
        EndCause::CgroupLimit => {
            "Raise the limit, or lower what it uses (memwarden oom and leak say what grows).".to_owned()
        }
        EndCause::HostMemory => "Give each workload of the host a limit, or move one of them.".to_owned(),
        EndCause::NumaNodes => "Allow it further NUMA nodes (numactl, cpuset.mems), or lower what it uses.".to_owned(),
        EndCause::HugePages => "Enlarge the pool (vm.nr_hugepages), or use fewer huge pages.".to_owned(),
        EndCause::DiskFull => "Free space (df -h, df -i, quota), or write to another disk.".to_owned(),
        EndCause::TimeLimit => "Raise the limit, or save checkpoints and resume.".to_owned(),
        EndCause::MemoryError => "Drain the node and test its memory: see EDAC and mce in the kernel log.".to_owned(),
        EndCause::SharedMemory => {
            "Enlarge it (docker --shm-size, --ipc=host, an emptyDir of medium Memory), or use fewer loader workers."
                .to_owned()
        }
        EndCause::GpuMemory => missing(allocation)?,
        EndCause::GpuNeighbor => "Let the other workload end, or use another GPU.".to_owned(),
        EndCause::GpuFragmentation => match allocation.and_then(|failed| failed.has_expandable_segments) {
            // What is left are free parts of segments that are in use.
            Some(true) => "Use smaller or fewer sizes of tensors: its allocator has expandable segments already.",
            Some(false) => "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
            None => "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True unless it is set.",
        }
        .to_owned(),
        EndCause::ProcessLimit if reached(end).is_some() => "Raise this limit, or lower what it uses.".to_owned(),
        EndCause::ProcessLimit => "Check ulimit -v and vm.overcommit_memory.".to_owned(),
        EndCause::GpuFault => "See the XID on the page of the node, and whether the GPU needs a reset.".to_owned(),
        _ => return None,
    })
}

/// By how much the allocation did not fit.
fn missing(failed: Option<&FailedAllocation>) -> Option<String> {
    let failed = failed?;
    let (requested, free) = failed.requested.zip(failed.free)?;
    let missing = requested - free;
    (missing > 0.0).then(|| {
        format!(
            "It requested {} and {} were free: a smaller micro-batch must save {}.",
            format::bytes(requested),
            format::bytes(free),
            format::bytes(missing)
        )
    })
}

/// One observation in words.
pub fn evidence(seen: &EndEvidence) -> String {
    match seen {
        EndEvidence::KernelLog(kill) => {
            format!("the kernel logged an OOM kill of this process {}", reason(kill))
        }
        EndEvidence::OtherKill { pid, comm, is_child, kill } => {
            let who = process_words(*pid, comm.as_str());
            let whose = if *is_child {
                "which it had started"
            } else {
                "a process of its cgroup that was not seen running"
            };
            format!("the kernel logged an OOM kill of {who}, {whose}, {}", reason(kill))
        }
        EndEvidence::ChildSignal { pid, comm, signal } => {
            let signal = format::signal(u64::from(signal.unsigned_abs()));
            format!("{}, which it had started, ended by {signal}", process_words(Some(*pid), comm.as_str()))
        }
        EndEvidence::MemoryError => {
            "the kernel logged that memory of the host which it used has failed".to_owned()
        }
        EndEvidence::HugePages => "the kernel logged that the pool of huge pages was empty".to_owned(),
        EndEvidence::ForkRejected { cgroup } => {
            format!("the kernel logged that a fork in {} was rejected (pids.max)", escaped(cgroup.as_str()))
        }
        EndEvidence::KillCounter { cgroup } => {
            format!("the kernel counted an OOM kill in {}", escaped(cgroup.as_str()))
        }
        EndEvidence::Status(status) => status_words(*status),
        EndEvidence::SentBy(sender) => format!("the signal came from {}", sender_words(sender)),
        EndEvidence::SentByKernel => "the signal came from the kernel".to_owned(),
        EndEvidence::Exception { name } => format!("it reported the exception {name}"),
        EndEvidence::Allocation(failed) => {
            let part = |name: &str, value: Option<f64>| {
                value.map(|value| format!("{name} {}", format::bytes(value)))
            };
            let known = [
                part("requested", failed.requested),
                part("allocated", failed.allocated),
                part("reserved", failed.reserved),
                part("free", failed.free),
                part("of", failed.total),
            ];
            let known: Vec<String> = known.into_iter().flatten().collect();
            format!("it reported that an allocation failed ({})", known.join(", "))
        }
        EndEvidence::Used { resource, share } => {
            format!("{resource} was {} full in the last sample", format::percent(*share))
        }
        EndEvidence::Limit { limit: limit @ ProcessLimit::CpuTime, value } => {
            format!("it had used its {}", limit_words(*limit, *value))
        }
        EndEvidence::Limit { limit, value } => {
            format!("it reported that its limit of {} was reached", limit_words(*limit, *value))
        }
        EndEvidence::LimitUsed { limit, value, share } => {
            format!(
                "it had used {} of its limit of {}",
                format::percent(*share),
                limit_words(*limit, Some(*value))
            )
        }
        EndEvidence::Xid { gpu, xid } => format!("GPU {gpu} reported XID {xid}"),
        EndEvidence::Leak { bytes_per_second } => {
            let rate =
                bytes_per_second.map_or_else(String::new, |rate| format!(", by {}", format::rate(rate)));
            format!("its memory grew without an end before (leak{rate})")
        }
        EndEvidence::Signalled => "memory protection sent it a signal".to_owned(),
        EndEvidence::Log(log) => match log {
            KernelLog::Unread => "the kernel log cannot be read, so that OOM kills are not seen",
            KernelLog::Behind => "the kernel log is not read to its end yet",
            KernelLog::Lost => "records of the kernel log are lost, so that an OOM kill may be missing",
            KernelLog::Foreign => "the kernel log names processes by the pids of another pid namespace",
            KernelLog::Complete => "the kernel log has no OOM kill of it",
        }
        .to_owned(),
        EndEvidence::NoStatus => "its exit status is not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::label::Label;

    fn told(cause: EndCause, probability: f64, evidence: Vec<EndEvidence>) -> String {
        let end = End { comm: "sh".into(), workload: "a".into(), pid: 7, processes: 3, ..End::default() };
        sentence(&End { cause, probability, evidence, ..end })
    }

    #[test]
    fn the_words_are_those_of_the_exit_status() {
        let code = |code| EndEvidence::Status(ExitStatus::Code(code));
        let who = "sh (pid 7) of a (and 2 processes with it)";
        assert_eq!(
            told(EndCause::Killed, 0.9, vec![code(137)]),
            format!(
                "{who} ended with exit code 137 (128 + SIGKILL), because SIGKILL was sent by another program or a person."
            )
        );
        let used = EndEvidence::Limit { limit: ProcessLimit::CpuTime, value: Some(60) };
        assert_eq!(
            told(EndCause::TimeLimit, 0.9, vec![used, EndEvidence::Status(ExitStatus::Signal(9))]),
            format!("{who} was ended by SIGKILL, because its limit of CPU time was over.")
        );
        let of_none =
            End { workload: Label::default(), processes: 1, probability: 0.95, pid: 7, ..End::default() };
        assert_eq!(
            sentence(&End { comm: "sh".into(), cause: EndCause::HostMemory, ..of_none }),
            "sh (pid 7) was killed by the kernel, because the memory of the host was exhausted."
        );
        let interrupted = EndEvidence::Exception { name: "KeyboardInterrupt".into() };
        let failed = End {
            cause: EndCause::Failed,
            evidence: vec![EndEvidence::Exception { name: "SecretError".into() }, code(1)],
            ..End::default()
        };
        assert!(sentence(&failed).ends_with("failed by the exception SecretError."));
        let fragmented = |has_expandable_segments| End {
            cause: EndCause::GpuFragmentation,
            evidence: vec![EndEvidence::Allocation(FailedAllocation {
                has_expandable_segments,
                ..FailedAllocation::default()
            })],
            step: Some(6),
            phase: "backward".into(),
            ..End::default()
        };
        for (known, advice) in [
            (
                Some(true),
                "Use smaller or fewer sizes of tensors: its allocator has expandable segments already.",
            ),
            (Some(false), "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."),
            (None, "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True unless it is set."),
        ] {
            let step = "It had completed step 6 and was in the phase backward.";
            assert_eq!(remarks(&fragmented(known)), [step, advice]);
        }
        assert!(public_sentence(&failed).ends_with("failed with exit code 1."));
        let by_signal = EndEvidence::Status(ExitStatus::Signal(2));
        assert_eq!(
            told(EndCause::Killed, 0.9, vec![interrupted, by_signal]),
            format!("{who} was ended by SIGINT, sent by another program or a person.")
        );
        let by_earlyoom = EndEvidence::SentBy(Sender { pid: 812, comm: "earlyoom".into(), user_id: Some(0) });
        let by_nobody = EndEvidence::SentBy(Sender { pid: 9, comm: Label::default(), user_id: None });
        let by_itself = EndEvidence::SentBy(Sender { pid: 7, comm: "sh".into(), user_id: Some(1000) });
        for (sender, words) in [
            (by_earlyoom, "earlyoom (pid 812) of root"),
            (by_nobody, "a process that was not seen running (pid 9)"),
            (by_itself, "itself"),
            (EndEvidence::SentByKernel, "the kernel"),
        ] {
            assert_eq!(
                told(EndCause::Killed, 0.99, vec![EndEvidence::Status(ExitStatus::Signal(9)), sender]),
                format!("{who} was ended by SIGKILL, sent by {words}.")
            );
        }
        assert_eq!(
            told(
                EndCause::Killed,
                0.9,
                vec![EndEvidence::Status(ExitStatus::Signal(2)), EndEvidence::SentByKernel]
            ),
            format!("{who} was ended by SIGINT, sent from its terminal.")
        );
        let limit = EndEvidence::Limit { limit: ProcessLimit::OpenFiles, value: Some(173) };
        let limited =
            End { cause: EndCause::ProcessLimit, probability: 0.9, evidence: vec![limit], ..End::default() };
        assert!(
            sentence(&limited).ends_with("because its limit of open files (ulimit -n, 173) was reached.")
        );
        let unnamed = "because one of its limits was reached, or the host refused it memory.";
        assert!(public_sentence(&limited).ends_with(unnamed));
        let rejected = EndEvidence::ForkRejected { cgroup: "/jobs".into() };
        let limited = End { evidence: vec![rejected, code(1)], ..limited };
        let words = "because its limit of processes and threads in /jobs (pids.max) was reached.";
        assert!(sentence(&limited).ends_with(words), "{}", sentence(&limited));
        assert_eq!(remarks(&limited), ["Raise this limit, or lower what it uses."]);
        for (status, words) in
            [(ExitStatus::Code(1), "failed with exit code 1"), (ExitStatus::Signal(7), "was ended by SIGBUS")]
        {
            assert_eq!(
                told(EndCause::SharedMemory, 0.95, vec![EndEvidence::Status(status)]),
                format!("{who} {words}, because /dev/shm or another tmpfs was full.")
            );
        }
        let secret = End {
            cause: EndCause::Killed,
            evidence: vec![EndEvidence::SentBy(Sender { pid: 9, comm: "mine".into(), user_id: Some(1) })],
            ..End::default()
        };
        assert!(public_sentence(&secret).ends_with("sent by another program or a person."));
        assert_eq!(
            told(EndCause::CgroupLimit, 0.6, vec![code(1)]),
            format!(
                "{who} failed with exit code 1, probably because the kernel killed another process of its cgroup for \
                 its memory limit."
            )
        );
    }
}
