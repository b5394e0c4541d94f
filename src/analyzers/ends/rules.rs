//! The table from what was observed of a process to the cause of its end. The first rule that applies decides.
//!
//! What was not observed is evidence only where its source was complete. `docs/why.md` has this table.

use super::classify::{Case, EXHAUSTED, HALF, Level, TmpfsState};
use crate::model::ends::{ABORTED, EndCause, EndEvidence, ExitStatus, OomKill, ProcessLimit};
use crate::model::facts::OomScope;
use crate::model::fit::Medium;
use crate::model::health::Health;
use crate::model::units::Unit as _;

/// Share of a GPU that another workload must hold to be the reason that it is full.
const NOTICEABLE: f64 = 0.1;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

/// The exit code of timeout(1) where the time was over.
const TIMED_OUT: i32 = 124;

/// One line of the table.
pub(super) struct Rule {
    /// What was observed, for the document.
    #[cfg_attr(not(test), expect(dead_code, reason = "the document has it"))]
    pub(super) observed: &'static str,
    /// The cause; absent where it is that of the OOM kill in the evidence.
    pub(super) cause: Option<EndCause>,
    /// Probability of the cause: a judgement that planted deaths check.
    pub(super) probability: f64,
    /// What would make it certain; empty where nothing is needed.
    pub(super) settles: &'static str,
    /// Whether it applies, and the evidence that is named first.
    applies: fn(&Case) -> Option<Option<EndEvidence>>,
}

/// The cause, the rule that applies, and the evidence that is named first.
pub(super) fn cause(case: &Case) -> (EndCause, &'static Rule, Option<EndEvidence>) {
    let found = RULES.iter().find_map(|rule| Some((rule, (rule.applies)(case)?)));
    let (rule, first) = found.unwrap_or((&NONE, None));
    let of_kill = || match &first {
        Some(EndEvidence::KernelLog(kill) | EndEvidence::OtherKill { kill, .. }) => cause_of(kill),
        _ => EndCause::Unknown,
    };
    (rule.cause.unwrap_or_else(of_kill), rule, first)
}

fn cause_of(kill: &OomKill) -> EndCause {
    match kill.scope {
        OomScope::Cgroup => EndCause::CgroupLimit,
        OomScope::Host => EndCause::HostMemory,
        OomScope::Nodes => EndCause::NumaNodes,
        OomScope::Request => EndCause::Killed,
        OomScope::PageFault => EndCause::OomKill,
    }
}

/// Evidence that is stated whatever else is known.
fn when(is_so: bool, first: Option<EndEvidence>) -> Option<Option<EndEvidence>> {
    is_so.then_some(first)
}

fn kernel_kill(case: &Case, is_it: impl Fn(&OomKill) -> bool) -> Option<Option<EndEvidence>> {
    let kill = case.kernel_kill.as_ref().filter(|kill| is_it(kill))?;
    Some(Some(EndEvidence::KernelLog(kill.clone())))
}

fn other_kill(case: &Case, is_child: bool, is_it: impl Fn(&str) -> bool) -> Option<Option<EndEvidence>> {
    let other =
        case.other_kill.as_ref().filter(|other| other.is_child == is_child && is_it(other.comm.as_str()))?;
    let (pid, comm, kill) = (other.pid, other.comm.clone(), other.kill.clone());
    when(case.has_failed(), Some(EndEvidence::OtherKill { pid, comm, is_child, kill }))
}

/// Whether its failure is what a program says of a process that it had started and that was killed.
fn is_of_child(case: &Case) -> bool {
    /// Exceptions of PyTorch, concurrent.futures, joblib and Ray.
    const OF_WORKERS: [&str; 5] = [
        "RuntimeError",
        "BrokenProcessPool",
        "TerminatedWorkerError",
        "WorkerCrashedError",
        "ActorDiedError",
    ];
    let name = case.exception.as_str().rsplit('.').next().unwrap_or_default();
    let is_recent = case.other_kill.as_ref().is_some_and(|other| other.is_recent);
    stood_for(case) == Some(SIGKILL) || (is_recent && (name.is_empty() || OF_WORKERS.contains(&name)))
}

fn reported(case: &Case, is_it: impl Fn(&EndEvidence) -> bool) -> Option<Option<EndEvidence>> {
    case.report.as_ref().filter(|seen| is_it(seen)).cloned().map(Some)
}

fn is_full(level: Option<&Level>) -> bool {
    level.is_some_and(|level| level.share() >= EXHAUSTED)
}

/// SIGKILL that no process sent, as far as is known, or an end without a status.
fn may_be_oom(case: &Case) -> bool {
    !case.is_sent_by_process() && (case.signal() == Some(SIGKILL) || case.status.is_none())
}

/// SIGBUS or SIGKILL, or an end without a status.
fn may_be_by_kernel(case: &Case) -> bool {
    case.status.is_none() || [Some(SIGBUS), Some(SIGKILL)].contains(&case.signal())
}

fn counted(case: &Case, is_own: bool) -> Option<Option<EndEvidence>> {
    let (cgroup, own) = case.counted_kill.as_ref()?;
    (*own == is_own).then(|| Some(EndEvidence::KillCounter { cgroup: cgroup.clone() }))
}

fn by_kernel(case: &Case, signal: i32) -> bool {
    case.signal() == Some(signal) && !case.is_sent_by_process()
}

fn tmpfs(case: &Case, is_it: impl Fn(&TmpfsState) -> bool) -> Option<Option<EndEvidence>> {
    let state = case.tmpfs.as_ref().filter(|state| is_it(state)).filter(|_| case.signal() == Some(SIGBUS))?;
    let is_level = state.level.share() < HALF;
    Some(if is_level { state.evidence() } else { None })
}

/// A program that lacks memory may abort in its own exit.
fn is_own_end(case: &Case) -> bool {
    case.signal().is_none_or(|signal| signal == SIGABRT)
}

/// An allocation on a device that failed, and was the reason of its end.
fn allocation(case: &Case, is_it: impl Fn(Shortage) -> bool) -> Option<Option<EndEvidence>> {
    let failed = case.allocation.filter(|_| is_own_end(case))?;
    let is_other_exception = !case.exception.is_empty() && case.lacked != Some(Medium::Device);
    let unused = failed.reserved.zip(failed.allocated).map(|(reserved, allocated)| reserved - allocated);
    let free = failed.free.unwrap_or(0.0);
    let shortage = match failed.requested {
        None => Shortage::Unknown,
        // It would have fitted into what the allocator holds and does not use.
        Some(requested) if unused.is_some_and(|unused| unused >= requested && unused > free) => {
            Shortage::Fragments
        }
        Some(requested) => match (&case.gpu_other, failed.total) {
            (Some(other), Some(total))
                if other.bytes >= NOTICEABLE * total && other.bytes + free >= requested =>
            {
                Shortage::Neighbor
            }
            _ => Shortage::Own,
        },
    };
    when(!is_other_exception && is_it(shortage), Some(EndEvidence::Allocation(failed)))
}

/// Why an allocation failed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shortage {
    Fragments,
    Neighbor,
    Own,
    Unknown,
}

fn limit(case: &Case, limit: ProcessLimit) -> Option<EndEvidence> {
    let value = case.limit.filter(|(own, _)| *own == limit).and_then(|(_, value)| value);
    Some(EndEvidence::Limit { limit, value })
}

fn lacked(case: &Case, medium: Medium) -> Option<Option<EndEvidence>> {
    when(case.lacked == Some(medium) && is_own_end(case), None)
}

fn gpu_fault(case: &Case, is_it: impl Fn(Health) -> bool) -> Option<Option<EndEvidence>> {
    let (gpu, number, _) = case.xid.as_ref().filter(|(.., severity)| is_it(*severity))?;
    Some(Some(EndEvidence::Xid { gpu: gpu.clone(), xid: *number }))
}

fn is_request_to_end(case: &Case) -> bool {
    matches!(case.signal(), Some(SIGINT | SIGTERM | SIGHUP))
}

fn is_ended_by_others(case: &Case) -> bool {
    is_request_to_end(case) || case.signal() == Some(SIGKILL)
}

/// The signal that its exit code stands for, as shells and programs that handle signals have it.
fn stood_for(case: &Case) -> Option<i32> {
    case.status.filter(|_| case.has_failed()).and_then(ExitStatus::signal)
}

fn foreign_kill(case: &Case, has_name: bool) -> Option<Option<EndEvidence>> {
    let (kill, is_named) = case.kill_by_name.as_ref().filter(|_| by_kernel(case, SIGKILL))?;
    (*is_named == has_name).then(|| Some(EndEvidence::KernelLog(kill.clone())))
}

fn cpu_limit(case: &Case, is_it: bool) -> Option<Option<EndEvidence>> {
    let value = case.limits.cpu.filter(|_| is_it)?;
    Some(Some(EndEvidence::Limit { limit: ProcessLimit::CpuTime, value: Some(value) }))
}

/// The share of a limit from which an allocation that is refused is more probable than another reason of a failure; above the limit that is read, it was raised since.
const MOST_OF_LIMIT: f64 = 0.75;

/// A failure without another exception, after most of the address space that the process may have was taken. Programs in C and C++
/// abort then, or use the pointer that they did not get.
fn address_space(case: &Case) -> Option<Option<EndEvidence>> {
    let may_lack_memory = case.has_failed() || [Some(SIGABRT), Some(SIGSEGV)].contains(&case.signal());
    let (limit, most) = case.limits.address_space.filter(|_| may_lack_memory)?;
    let share = most.value() / limit.value().max(1.0);
    let (limit, value) = (ProcessLimit::AddressSpace, limit.get());
    when(
        (MOST_OF_LIMIT..=1.0).contains(&share) && case.exception.is_empty(),
        Some(EndEvidence::LimitUsed { limit, value, share }),
    )
}

const HOST_PIDS: &str = "the pid namespace of the host";
const READABLE: &str = "a kernel log that can be read to its end";
const TRACED: &str = "the sender of the signal (needs CAP_PERFMON)";

/// Where none of the others applies.
static NONE: Rule = Rule {
    observed: "none of these",
    cause: Some(EndCause::Unknown),
    probability: 1.0,
    settles: "its exit status, or a word of its client",
    applies: |_| None,
};

macro_rules! rules {
    ($($observed:literal => $cause:expr, $probability:literal, $settles:expr, $applies:expr;)+) => {
        /// The table.
        pub(super) static RULES: &[Rule] = &[$(Rule {
            observed: $observed, cause: $cause, probability: $probability, settles: $settles, applies: $applies,
        }),+];
    };
}

use EndCause as Cause;

rules! {
    "the kernel log has an OOM kill of it for the limit of a cgroup" => Some(Cause::CgroupLimit), 0.99, "",
        |case| kernel_kill(case, |kill| kill.scope == OomScope::Cgroup);
    "the kernel log has an OOM kill of it for a cpuset or a memory policy" => Some(Cause::NumaNodes), 0.99, "",
        |case| kernel_kill(case, |kill| kill.scope == OomScope::Nodes);
    "the kernel log has an OOM kill of it that an operator asked for (sysrq f)" => Some(Cause::Killed), 0.99, "",
        |case| kernel_kill(case, |kill| kill.scope == OomScope::Request);
    "the kernel log has an OOM kill of it for a page fault that failed without a limit" => Some(Cause::OomKill), 0.99, "",
        |case| kernel_kill(case, |kill| kill.scope == OomScope::PageFault);
    "the kernel log has an OOM kill of it, and states that no limit was reached" => Some(Cause::HostMemory), 0.99, "",
        |case| kernel_kill(case, |kill| kill.is_scope_stated);
    "the kernel log has an OOM kill of it without a reason, and 95 % of the host's memory were used" => Some(Cause::HostMemory), 0.95, "",
        |case| kernel_kill(case, |_| is_full(case.host.as_ref()));
    "the kernel log has an OOM kill of it without a reason" => Some(Cause::HostMemory), 0.75, "the report before the kill, which the kernel leaves out where kills are frequent",
        |case| kernel_kill(case, |_| true);
    "SIGKILL, and the kernel log names pids of another namespace and has an OOM kill by its name, of its cgroup or the only one" => None, 0.9, HOST_PIDS,
        |case| foreign_kill(case, true);
    "the same by another name, of its cgroup" => None, 0.7, HOST_PIDS, |case| foreign_kill(case, false);
    "the kernel log has SIGBUS or SIGKILL to it because of memory that has failed" => Some(Cause::MemoryError), 0.97, "",
        |case| reported(case, |seen| *seen == EndEvidence::MemoryError).filter(|_| may_be_by_kernel(case));
    "the kernel log has its end because the pool of huge pages was empty" => Some(Cause::HugePages), 0.97, "",
        |case| reported(case, |seen| *seen == EndEvidence::HugePages).filter(|_| may_be_by_kernel(case));
    "memory protection had sent it a signal, and it ended by that or with success" => Some(Cause::Memwarden), 0.99, "",
        |case| {
            let ends_so = case.status.and_then(ExitStatus::signal).is_none_or(|signal| [SIGTERM, SIGKILL].contains(&signal));
            let is_failure = case.has_failed() && stood_for(case).is_none();
            when(case.is_signalled && ends_so && !is_failure, Some(EndEvidence::Signalled))
        };
    "memory protection had sent it a signal, and it failed" => Some(Cause::Memwarden), 0.7, "",
        |case| when(case.is_signalled, Some(EndEvidence::Signalled));
    "exit code 0" => Some(Cause::Finished), 0.99, "", |case| when(case.status == Some(ExitStatus::Code(0)), None);
    "it reported that it ends as intended, and its exit status is not known" => Some(Cause::Finished), 0.8, "its exit status",
        |case| when(case.status.is_none() && case.said_finished, None);
    "SIGKILL or no status, the counter of OOM kills of its cgroup or of one above rose more often than the log explains, and 95 % of the host's memory were used" => Some(Cause::OomKill), 0.75, READABLE,
        |case| counted(case, true).or_else(|| counted(case, false)).filter(|_| may_be_oom(case) && is_full(case.host.as_ref()));
    "SIGKILL, and the counter of OOM kills of its cgroup rose more often than the log explains" => Some(Cause::CgroupLimit), 0.95, READABLE,
        |case| counted(case, true).filter(|_| may_be_oom(case) && case.signal() == Some(SIGKILL));
    "the same without a status, or of a cgroup above it" => Some(Cause::CgroupLimit), 0.7, READABLE,
        |case| counted(case, true).or_else(|| counted(case, false)).filter(|_| may_be_oom(case));
    "SIGXCPU that the kernel sent" => Some(Cause::TimeLimit), 0.95, "",
        |case| when(by_kernel(case, SIGXCPU) && case.sender.is_some(), None);
    "SIGXCPU" => Some(Cause::TimeLimit), 0.75, TRACED, |case| when(by_kernel(case, SIGXCPU), None);
    "SIGKILL that the kernel sent, and the limit of its CPU time can have been reached" => Some(Cause::TimeLimit), 0.9, "",
        |case| cpu_limit(case, case.signal() == Some(SIGKILL) && case.sender == Some(None));
    "the same where the sender is not known" => Some(Cause::TimeLimit), 0.75, TRACED,
        |case| cpu_limit(case, by_kernel(case, SIGKILL));
    "the same without a status" => Some(Cause::TimeLimit), 0.7, "its exit status",
        |case| cpu_limit(case, case.status.is_none() && !case.said_finished);
    "SIGXFSZ that no process sent" => Some(Cause::ProcessLimit), 0.9, "",
        |case| when(by_kernel(case, SIGXFSZ), limit(case, ProcessLimit::FileSize));
    "`timeout` exited with 124, or sent it the signal that ended it" => Some(Cause::TimeLimit), 0.95, "",
        |case| {
            let is_it = case.comm.as_str() == "timeout" && case.status == Some(ExitStatus::Code(TIMED_OUT));
            let by_it = case.sender.iter().flatten().any(|sender| sender.comm.as_str() == "timeout");
            when(is_it || (by_it && is_ended_by_others(case)), None)
        };
    "SIGBUS, and a tmpfs that it sees was full, and was not before" => Some(Cause::SharedMemory), 0.95, "",
        |case| tmpfs(case, |own| own.level.share() >= EXHAUSTED && !own.was_full_before);
    "SIGBUS, its workload mapped huge pages, and a pool of them had none left that was not promised" => Some(Cause::HugePages), 0.75, "whether it took another one",
        |case| when(by_kernel(case, SIGBUS) && case.huge_pages == Some(true), None);
    "SIGBUS, and its workload mapped huge pages" => Some(Cause::HugePages), 0.6, "how many were left at the end",
        |case| when(by_kernel(case, SIGBUS) && case.huge_pages.is_some(), None);
    "SIGBUS, and a tmpfs that it sees was full before already, or half full" => Some(Cause::SharedMemory), 0.6, "how full it was at the end",
        |case| tmpfs(case, |own| own.level.share() >= HALF);
    "SIGBUS, and no tmpfs that it sees can have been filled" => Some(Cause::Failed), 0.9, "",
        |case| tmpfs(case, |own| !own.may_be_missed);
    "SIGBUS, and no tmpfs that it sees is half full now: it can have been filled meanwhile" => Some(Cause::Failed), 0.5, "how full they were at the end",
        |case| tmpfs(case, |own| own.is_read_after);
    "SIGBUS, and how full its tmpfs were is not known" => Some(Cause::SharedMemory), 0.6, "the source `tmpfs`",
        |case| when(case.signal() == Some(SIGBUS), None);
    "exit code 80, and its client, or the last verdict, said that a phase will not fit" => Some(Cause::WillNotFit), 0.99, "",
        |case| when(case.will_not_fit && case.status == Some(ExitStatus::Code(ABORTED)), None);
    "it reported an allocation that failed and would have fitted into what its allocator held unused" => Some(Cause::GpuFragmentation), 0.8, "",
        |case| allocation(case, |why| why == Shortage::Fragments);
    "it reported an allocation that failed, and would have fitted without another workload on the GPU" => Some(Cause::GpuNeighbor), 0.8, "",
        |case| allocation(case, |why| why == Shortage::Neighbor);
    "it reported an allocation on a GPU that failed" => Some(Cause::GpuMemory), 0.95, "",
        |case| allocation(case, |why| why == Shortage::Own);
    "the same without the size" => Some(Cause::GpuMemory), 0.7, "the size of the allocation", |case| allocation(case, |_| true);
    "it reported that a limit of the process was reached" => Some(Cause::ProcessLimit), 0.8, "",
        |case| {
            let (limit, value) = case.limit.filter(|_| is_own_end(case))?;
            Some(Some(EndEvidence::Limit { limit, value }))
        };
    "it reported an exception for lack of memory of a GPU" => Some(Cause::GpuMemory), 0.8, "", |case| lacked(case, Medium::Device);
    "it reported an exception for lack of memory of the host" => Some(Cause::ProcessLimit), 0.8, "", |case| lacked(case, Medium::Host);
    "it reported an exception for lack of space on a disk" => Some(Cause::DiskFull), 0.95, "", |case| lacked(case, Medium::Disk);
    "it reported an exception for lack of space in `/dev/shm`" => Some(Cause::SharedMemory), 0.95, "", |case| lacked(case, Medium::Shm);
    "it failed, and the kernel log has an OOM kill, in the seconds before, of a process that it had started" => None, 0.97, "",
        |case| other_kill(case, true, |_| true).filter(|_| is_of_child(case));
    "it failed, and the kernel log has a fork that was rejected in its cgroup" => Some(Cause::ProcessLimit), 0.7, "",
        |case| reported(case, |seen| matches!(seen, EndEvidence::ForkRejected { .. })).filter(|_| case.has_failed() && case.exception.is_empty());
    "its GPU reported a critical XID within 30 s before" => Some(Cause::GpuFault), 0.9, "",
        |case| gpu_fault(case, |health| health == Health::Critical).filter(|_| !is_ended_by_others(case));
    "the same, and a signal ended it; or an XID that is a warning, and none did" => Some(Cause::GpuFault), 0.6, TRACED,
        |case| gpu_fault(case, |health| match health {
            Health::Critical => !case.is_sent_by_process(),
            Health::Warning => !is_ended_by_others(case),
            _ => false,
        });
    "it failed, and the kernel log has an OOM kill, by the same name, of a process of its cgroup that no sample saw" => None, 0.9, "",
        |case| other_kill(case, false, |comm| comm == case.comm.as_str());
    "the same by another name, or of a process that it had started, a minute before or beside another exception" => None, 0.6, "a sample of that process", |case| other_kill(case, false, |_| true).or_else(|| other_kill(case, true, |_| true));
    "it failed, and the counter of OOM kills of its cgroup rose" => Some(Cause::CgroupLimit), 0.6, READABLE,
        |case| counted(case, true).filter(|_| case.has_failed());
    "it failed, or ended by SIGABRT or SIGSEGV, without reporting an exception, and three quarters of the limit of its address space were used" => Some(Cause::ProcessLimit), 0.6, "the exception, by its client or its log",
        address_space;
    "it reported an allocation that failed, and another exception later" => Some(Cause::Failed), 0.7, "",
        |case| {
            let failed = case.allocation.filter(|_| is_own_end(case))?;
            Some(Some(EndEvidence::Allocation(failed)))
        };
    "a process sent it SIGKILL, SIGTERM, SIGINT or SIGHUP" => Some(Cause::Killed), 0.99, "",
        |case| {
            let signal = case.signal().or_else(|| stood_for(case));
            let is_it = signal.is_some_and(|signal| [SIGKILL, SIGTERM, SIGINT, SIGHUP].contains(&signal));
            when(is_it && case.is_sent_by_process(), None)
        };
    "SIGKILL, its cgroup was full, and the kernel's kills in it are not counted" => Some(Cause::CgroupLimit), 0.7, READABLE,
        |case| when(!case.sees_log() && case.signal() == Some(SIGKILL) && is_full(case.cgroup.as_ref()) && !case.counts_kills, None);
    "SIGKILL, and 95 % of the host's memory were used" => Some(Cause::HostMemory), 0.7, READABLE,
        |case| when(!case.sees_log() && case.signal() == Some(SIGKILL) && is_full(case.host.as_ref()), None);
    "SIGKILL of which the sender is not known, and `timeout`, which had started it, ended by SIGKILL or with 137" => Some(Cause::TimeLimit), 0.7, TRACED,
        |case| {
            let sees_kills = case.sees_log() || case.counts_kills;
            when(case.is_timed_out && sees_kills && case.signal() == Some(SIGKILL) && case.sender.is_none(), None)
        };
    "SIGKILL that the kernel sent, and the complete kernel log names no reason: a limit of CPU time, or the end of its pid namespace" => Some(Cause::Unknown), 1.0, "",
        |case| when(case.signal() == Some(SIGKILL) && case.sender == Some(None), None);
    "SIGKILL, and the complete kernel log has no OOM kill of it" => Some(Cause::Killed), 0.9, TRACED,
        |case| when(case.signal() == Some(SIGKILL) && case.sees_log(), None);
    "SIGKILL, and the counters of OOM kills of its cgroup did not rise" => Some(Cause::Killed), 0.7, READABLE,
        |case| when(case.signal() == Some(SIGKILL) && case.counts_kills, None);
    "SIGKILL" => Some(Cause::Unknown), 1.0, READABLE, |case| when(case.signal() == Some(SIGKILL), None);
    "SIGTERM, SIGINT or SIGHUP" => Some(Cause::Killed), 0.9, TRACED, |case| when(is_request_to_end(case), None);
    "an exit code of 128 and the number of one of these signals, or of SIGKILL, that a process which it had started ended by" => Some(Cause::Killed), 0.9, TRACED,
        |case| {
            let signal = stood_for(case)?;
            let is_of_child = case.child_signal.as_ref().is_some_and(|(.., own)| *own == signal);
            let is_known = signal != SIGKILL || (case.sees_log() && case.sender.is_none());
            when(is_of_child && is_known && [SIGINT, SIGTERM, SIGHUP, SIGKILL].contains(&signal), None)
        };
    "an exit code of 128 and the number of SIGTERM, SIGINT or SIGHUP, as of programs that handle the signal" => Some(Cause::Killed), 0.8, TRACED,
        |case| when(stood_for(case).is_some_and(|signal| [SIGINT, SIGTERM, SIGHUP].contains(&signal)), None);
    "SIGPIPE: the program that read its output had ended" => Some(Cause::Failed), 0.9, "", |case| when(by_kernel(case, SIGPIPE), None);
    "another exit code, or another signal; or an exception" => Some(Cause::Failed), 0.9, "",
        |case| when(case.status.is_some() || !case.exception.is_empty(), None);
    "no status, its cgroup was full, and the kernel's kills in it are not counted" => Some(Cause::CgroupLimit), 0.5, READABLE,
        |case| when(!case.sees_log() && is_full(case.cgroup.as_ref()) && !case.counts_kills, None);
    "no status, and 95 % of the host's memory were used" => Some(Cause::HostMemory), 0.5, READABLE,
        |case| when(!case.sees_log() && is_full(case.host.as_ref()), None);
}
