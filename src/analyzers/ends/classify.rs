//! From what was observed of a process that ended to the cause. Pure: no state, no clock.

use crate::model::ends::{
    ABORTED, EndCause, EndEvidence, ExitStatus, FailedAllocation, OtherHolder, PROBABLE, ProcessLimit, Retry,
    Sender,
};
use crate::model::facts::OomVictim;
use crate::model::finding::Subject;
use crate::model::fit::Medium;
use crate::model::health::Health;
use crate::model::label::Label;
use crate::model::xid;

/// Share of a resource above which its exhaustion explains a SIGKILL whose sender cannot be known.
pub(super) const EXHAUSTED: f64 = 0.95;
/// Share of a tmpfs below which it was far from full. A process that is ended because it is full may have held much of it.
const HALF: f64 = 0.5;
/// Share of a GPU that another workload must hold to be the reason that it is full.
const NOTICEABLE: f64 = 0.1;

const SIGINT: i32 = 2;
const SIGHUP: i32 = 1;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;

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
    /// The limit that the kernel's OOM killer killed it for, by the kernel log: a cgroup, whose name may be empty, or the host.
    pub(super) kernel_kill: Option<KillScope>,
    /// The limit that the kernel's OOM killer killed a process of its cgroup for that no sample has seen, by the kernel log.
    pub(super) unseen_kill: Option<KillScope>,
    /// The cgroup whose counter of OOM kills rose, and whether it is that of the process and not one above it.
    pub(super) counted_kill: Option<(Label, bool)>,
    /// Whether the OOM kills of its own cgroup are counted.
    pub(super) counts_kills: bool,
    /// Who sent the signal of its status: absent if that is not known, and for the kernel `Some(None)`.
    pub(super) sender: Option<Option<Sender>>,
    /// Whether OOM kills would be known from the kernel log.
    pub(super) sees_kernel_log: bool,
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
    pub(super) cgroup: Option<Level>,
    pub(super) host: Option<Level>,
    pub(super) gpu: Option<Level>,
    /// Absent where none was read.
    pub(super) tmpfs: Option<TmpfsState>,
    /// The other workload with the most memory on its GPU, and on the host.
    pub(super) gpu_other: Option<OtherHolder>,
    pub(super) host_other: Option<OtherHolder>,
    /// The GPU and the number of the worst XID.
    pub(super) xid: Option<(Label, u32)>,
}

/// What the kernel's OOM killer kills for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KillScope {
    Cgroup(Label),
    Host,
}

impl KillScope {
    pub(super) fn of(victim: &OomVictim) -> Self {
        if victim.in_cgroup { Self::Cgroup(victim.limit_cgroup.clone()) } else { Self::Host }
    }

    /// The cause, and the cgroup whose limit was reached.
    fn cause(&self) -> (EndCause, Label) {
        match self {
            Self::Cgroup(path) => (EndCause::CgroupLimit, path.clone()),
            Self::Host => (EndCause::HostMemory, Label::default()),
        }
    }
}

/// The cause with all that follows from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Classified {
    pub(super) cause: EndCause,
    pub(super) probability: f64,
    pub(super) level: Option<Level>,
    pub(super) other: Option<OtherHolder>,
    pub(super) evidence: Vec<EndEvidence>,
}

impl Classified {
    /// A guess is no reason to give up.
    pub(super) fn retry(&self) -> Retry {
        if self.probability >= PROBABLE { self.cause.retry() } else { Retry::Unknown }
    }
}

/// The cause of an end.
pub(super) fn classify(case: &Case) -> Classified {
    let (cause, probability, first) = cause(case);
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
    let is_evidence =
        |level: &Level| case.kernel_kill.is_none() && (case.counted_kill.is_none() || level.share() >= HALF);
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
    if let Some((cgroup, true)) = &case.counted_kill
        && case.kernel_kill.is_none()
        && cause != EndCause::Finished
    {
        add(EndEvidence::KillCounter { cgroup: cgroup.clone() });
    }
    if let Some((gpu, xid)) = &case.xid
        && cause != EndCause::Finished
    {
        // Of two causes, this one came first.
        add(EndEvidence::Xid { gpu: gpu.clone(), xid: *xid });
    }
    let is_sent_by_process = matches!(case.sender, Some(Some(_)));
    let may_be_oom = matches!(cause, EndCause::Killed | EndCause::Unknown) && !is_sent_by_process;
    if !case.sees_kernel_log && may_be_oom {
        add(EndEvidence::NoKernelLog);
    }
    Classified { cause, probability, level, other, evidence }
}

/// The cause, its probability, and what it follows from first. The probabilities are judgements, not measurements: 0.99 for
/// what the kernel or the process states, 0.9 for what leaves little room for another cause, less where levels of memory are
/// all that is known.
fn cause(case: &Case) -> (EndCause, f64, Option<EndEvidence>) {
    if let Some(scope) = &case.kernel_kill {
        let (cause, limit_cgroup) = scope.cause();
        return (cause, 0.99, Some(EndEvidence::KernelLog { limit_cgroup }));
    }
    let signal = case.status.and_then(ExitStatus::signal);
    if case.is_signalled {
        // It may have gone on, and failed by something else.
        let ends_so = signal.is_none_or(|signal| [SIGTERM, SIGKILL].contains(&signal));
        let is_failure = matches!(case.status, Some(ExitStatus::Code(code)) if code != 0 && signal.is_none());
        let probability = if ends_so && !is_failure { 0.99 } else { 0.7 };
        return (EndCause::Memwarden, probability, Some(EndEvidence::Signalled));
    }
    let is_success =
        case.status == Some(ExitStatus::Code(0)) || (case.status.is_none() && case.said_finished);
    if is_success {
        let probability = if case.status.is_some() { 0.99 } else { 0.8 };
        return (EndCause::Finished, probability, None);
    }
    let is_sent_by_process = matches!(case.sender, Some(Some(_)));
    // With the kernel log, a process that it does not name was not killed for memory.
    if let Some((cgroup, is_own)) = &case.counted_kill
        && !case.sees_kernel_log
        && !is_sent_by_process
        && (signal == Some(SIGKILL) || case.status.is_none())
    {
        let probability = if *is_own { 0.95 } else { 0.7 };
        return (
            EndCause::CgroupLimit,
            probability,
            Some(EndEvidence::KillCounter { cgroup: cgroup.clone() }),
        );
    }
    if signal == Some(SIGBUS) {
        return by_sigbus(case.tmpfs.as_ref());
    }
    if signal.is_none() && case.will_not_fit && case.status == Some(ExitStatus::Code(ABORTED)) {
        return (EndCause::WillNotFit, 0.99, None);
    }
    // A program that lacks memory may abort in its own exit.
    let is_own_end = signal.is_none_or(|signal| signal == SIGABRT);
    let is_other_exception = !case.exception.is_empty() && case.lacked != Some(Medium::Device);
    if is_own_end
        && !is_other_exception
        && let Some(allocation) = &case.allocation
    {
        let (cause, probability) = on_device(allocation, case.gpu_other.as_ref());
        return (cause, probability, Some(EndEvidence::Allocation(*allocation)));
    }
    if let Some((limit, value)) = case.limit.filter(|_| is_own_end) {
        return (EndCause::ProcessLimit, 0.8, Some(EndEvidence::Limit { limit, value }));
    }
    match case.lacked.filter(|_| is_own_end) {
        Some(Medium::Device) => return (EndCause::GpuMemory, 0.8, None),
        Some(Medium::Host) => return (EndCause::ProcessLimit, 0.8, None),
        _ => {}
    }
    let is_sent = matches!(signal, Some(SIGKILL | SIGINT | SIGTERM | SIGHUP));
    if let Some((gpu, number)) = &case.xid {
        let probability = match (xid::severity(*number), is_sent) {
            (Health::Critical, false) => 0.9,
            (Health::Critical, true) | (Health::Warning, false) => 0.6,
            // Errors of a program, its end, and information.
            _ => 0.0,
        };
        if probability > 0.0 {
            let seen = EndEvidence::Xid { gpu: gpu.clone(), xid: *number };
            return (EndCause::GpuFault, probability, Some(seen));
        }
    }
    if signal == Some(SIGKILL) {
        return by_sigkill(case);
    }
    // A process that nobody has seen was killed, perhaps one of its own.
    if let Some(scope) = &case.unseen_kill
        && matches!(case.status, Some(ExitStatus::Code(_)))
        && signal.is_none()
    {
        let (cause, limit_cgroup) = scope.cause();
        return (cause, 0.6, Some(EndEvidence::UnseenKill { limit_cgroup }));
    }
    if let Some((cgroup, true)) = &case.counted_kill
        && matches!(case.status, Some(ExitStatus::Code(_)))
        && signal.is_none()
    {
        return (EndCause::CgroupLimit, 0.6, Some(EndEvidence::KillCounter { cgroup: cgroup.clone() }));
    }
    if let Some(allocation) = case.allocation.filter(|_| signal.is_none()) {
        // It went on after the failed allocation, as far as it says.
        return (EndCause::Failed, 0.7, Some(EndEvidence::Allocation(allocation)));
    }
    match (signal, case.status) {
        (Some(SIGINT | SIGTERM | SIGHUP), _) if is_sent_by_process => (EndCause::Killed, 0.99, None),
        (Some(SIGINT | SIGTERM | SIGHUP | SIGPIPE), _) => (EndCause::Killed, 0.9, None),
        (_, Some(_)) => (EndCause::Failed, 0.9, None),
        (_, None) if !case.exception.is_empty() => (EndCause::Failed, 0.9, None),
        (_, None) => without_status(case),
    }
}

/// SIGBUS: a page of a file in a full tmpfs, or of a mapped file that was truncated.
fn by_sigbus(tmpfs: Option<&TmpfsState>) -> (EndCause, f64, Option<EndEvidence>) {
    let Some(tmpfs) = tmpfs else { return (EndCause::SharedMemory, 0.6, None) };
    let share = tmpfs.level.share();
    match tmpfs {
        _ if share >= EXHAUSTED && !tmpfs.was_full_before => (EndCause::SharedMemory, 0.95, None),
        _ if share >= HALF => (EndCause::SharedMemory, 0.6, None),
        TmpfsState { may_be_missed: false, .. } => (EndCause::Failed, 0.9, tmpfs.evidence()),
        // It would be as empty after its files were deleted.
        TmpfsState { is_read_after: true, .. } => (EndCause::Failed, 0.5, tmpfs.evidence()),
        _ => (EndCause::SharedMemory, 0.6, None),
    }
}

impl TmpfsState {
    fn evidence(&self) -> Option<EndEvidence> {
        Some(EndEvidence::Used { resource: self.level.resource.clone(), share: self.level.share() })
    }
}

/// SIGKILL that neither the kernel log nor a counter explains.
fn by_sigkill(case: &Case) -> (EndCause, f64, Option<EndEvidence>) {
    match &case.sender {
        Some(Some(_)) => (EndCause::Killed, 0.99, None),
        _ if case.sees_kernel_log => (EndCause::Killed, 0.9, None),
        // The kernel also kills for a limit of CPU time, and what is left of a pid namespace that ends.
        _ => exhausted(case, 0.7).unwrap_or((EndCause::Killed, 0.5, None)),
    }
}

/// Neither a status nor a word of the process.
fn without_status(case: &Case) -> (EndCause, f64, Option<EndEvidence>) {
    let known = if case.sees_kernel_log { None } else { exhausted(case, 0.5) };
    known.unwrap_or((EndCause::Unknown, 1.0, None))
}

/// What the levels of memory before the end suggest.
fn exhausted(case: &Case, probability: f64) -> Option<(EndCause, f64, Option<EndEvidence>)> {
    let is_full = |level: &Option<Level>| level.as_ref().is_some_and(|level| level.share() >= EXHAUSTED);
    // A kill for the limit would have been counted.
    if is_full(&case.cgroup) && !case.counts_kills {
        return Some((EndCause::CgroupLimit, probability, None));
    }
    is_full(&case.host).then_some((EndCause::HostMemory, probability, None))
}

/// An allocation that failed on a device: by fragmentation, by a neighbour, or by its own growth.
fn on_device(failed: &FailedAllocation, other: Option<&OtherHolder>) -> (EndCause, f64) {
    let Some(requested) = failed.requested else { return (EndCause::GpuMemory, 0.7) };
    let unused = failed.reserved.zip(failed.allocated).map(|(reserved, allocated)| reserved - allocated);
    let free = failed.free.unwrap_or(0.0);
    // It would have fitted into what the allocator holds and does not use, and what is free.
    if unused.is_some_and(|unused| unused >= requested && unused > free) {
        return (EndCause::GpuFragmentation, 0.8);
    }
    if let (Some(other), Some(total)) = (other, failed.total)
        && other.bytes >= NOTICEABLE * total
        && other.bytes + free >= requested
    {
        return (EndCause::GpuNeighbor, 0.8);
    }
    (EndCause::GpuMemory, 0.95)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(resource: Subject, used: f64) -> Option<Level> {
        Some(Level { resource, used, limit: 100.0 })
    }

    fn check(case: &Case, cause: EndCause, least: f64) {
        let found = classify(case);
        assert!((found.cause, found.probability >= least) == (cause, true), "{case:?}: {found:?}");
    }

    fn signal(signal: i32) -> Case {
        Case { status: Some(ExitStatus::Signal(signal)), sees_kernel_log: true, ..Case::default() }
    }

    fn code(code: i32) -> Case {
        Case { status: Some(ExitStatus::Code(code)), sees_kernel_log: true, ..Case::default() }
    }

    #[test]
    fn what_the_kernel_says_comes_first() {
        let group = Some(KillScope::Cgroup("/jobs/a".into()));
        check(&Case { kernel_kill: group.clone(), ..signal(SIGKILL) }, EndCause::CgroupLimit, 0.99);
        check(
            &Case { kernel_kill: group, is_signalled: true, ..Case::default() },
            EndCause::CgroupLimit,
            0.99,
        );
        check(&Case { kernel_kill: Some(KillScope::Host), ..signal(SIGKILL) }, EndCause::HostMemory, 0.99);
        check(&Case { is_signalled: true, ..signal(SIGTERM) }, EndCause::Memwarden, 0.99);
        let later = classify(&Case { is_signalled: true, ..signal(11) });
        assert!((later.cause, later.probability < 0.9) == (EndCause::Memwarden, true), "{later:?}");
        let counted = Some(("/jobs".into(), true));
        let blind = Case { sees_kernel_log: false, counted_kill: counted.clone(), ..signal(SIGKILL) };
        check(&blind, EndCause::CgroupLimit, 0.95);
        // The kernel log would name it.
        check(&Case { counted_kill: counted.clone(), ..signal(SIGKILL) }, EndCause::Killed, 0.9);
        // A cgroup above has the kills of others too.
        let above = Some(("/".into(), false));
        let found = classify(&Case { counted_kill: above.clone(), ..blind });
        assert!((found.cause, found.probability < 0.8) == (EndCause::CgroupLimit, true), "{found:?}");
        check(&Case { counted_kill: above, ..code(1) }, EndCause::Failed, 0.9);
        // A child of it that no sample has seen may have been killed.
        let found = classify(&Case { counted_kill: counted.clone(), ..code(1) });
        assert!((found.cause, found.probability < 0.8) == (EndCause::CgroupLimit, true), "{found:?}");
        let unseen = Case { unseen_kill: Some(KillScope::Cgroup("/jobs".into())), ..Case::default() };
        let found = classify(&Case { status: code(1).status, ..unseen.clone() });
        assert_eq!((found.cause, found.probability), (EndCause::CgroupLimit, 0.6), "{found:?}");
        let on_host = Case { unseen_kill: Some(KillScope::Host), ..code(1) };
        check(&on_host, EndCause::HostMemory, 0.6);
        check(&Case { status: code(0).status, ..unseen.clone() }, EndCause::Finished, 0.9);
        check(&Case { status: signal(11).status, ..unseen }, EndCause::Failed, 0.9);
        // Another process of the cgroup was killed.
        check(&Case { counted_kill: counted.clone(), ..signal(11) }, EndCause::Failed, 0.9);
        check(&Case { counted_kill: counted, ..code(0) }, EndCause::Finished, 0.9);
    }

    #[test]
    fn sigkill_without_an_oom_kill_was_sent_by_somebody() {
        check(&signal(SIGKILL), EndCause::Killed, 0.9);
        check(&code(137), EndCause::Killed, 0.9);
        let full = Case { cgroup: level(Subject::cgroup(&"/a".into()), 98.0), ..signal(SIGKILL) };
        check(&full, EndCause::Killed, 0.9);
        // Without the kernel log, a full cgroup is the likely reason, and a guess is stated as one.
        let blind = Case { sees_kernel_log: false, ..full };
        let found = classify(&blind);
        assert!((found.cause, found.probability < 0.8) == (EndCause::CgroupLimit, true), "{found:?}");
        let blind = classify(&Case { sees_kernel_log: false, ..signal(SIGKILL) });
        assert!((blind.cause, blind.probability <= 0.5) == (EndCause::Killed, true), "{blind:?}");
        assert!(blind.evidence.contains(&EndEvidence::NoKernelLog));
    }

    #[test]
    fn the_sender_of_a_signal_is_known_where_the_kernel_says_it() {
        let sender = Sender { pid: 812, comm: "earlyoom".into(), user_id: Some(0) };
        let sent = |case| Case { sender: Some(Some(sender.clone())), ..case };
        check(&sent(signal(SIGKILL)), EndCause::Killed, 0.99);
        check(&sent(code(143)), EndCause::Killed, 0.99);
        // Neither a full cgroup nor its counter says otherwise.
        let full = Case {
            cgroup: level(Subject::cgroup(&"/a".into()), 98.0),
            counted_kill: Some(("/a".into(), true)),
            sees_kernel_log: false,
            ..signal(SIGKILL)
        };
        let found = classify(&sent(full.clone()));
        assert_eq!((found.cause, found.probability), (EndCause::Killed, 0.99));
        assert!(found.evidence.contains(&EndEvidence::SentBy(sender)), "{found:?}");
        assert!(!found.evidence.contains(&EndEvidence::NoKernelLog), "{found:?}");
        let by_kernel = Case { sender: Some(None), counted_kill: None, ..full };
        check(&by_kernel, EndCause::CgroupLimit, 0.7);
        check(&Case { counts_kills: true, ..by_kernel.clone() }, EndCause::Killed, 0.5);
        check(&Case { cgroup: None, ..by_kernel }, EndCause::Killed, 0.5);
    }

    #[test]
    fn a_failed_allocation_is_own_growth_a_neighbour_or_fragmentation() {
        let failed = |requested, allocated, reserved, free| FailedAllocation {
            requested: Some(requested),
            allocated: Some(allocated),
            reserved: Some(reserved),
            free: Some(free),
            total: Some(80.0),
            has_expandable_segments: None,
        };
        let with = |allocation, other: Option<f64>| Case {
            allocation: Some(allocation),
            gpu_other: other.map(|bytes| OtherHolder { workload: "other".into(), bytes }),
            ..code(1)
        };
        check(&with(failed(4.0, 75.0, 77.0, 1.0), None), EndCause::GpuMemory, 0.9);
        check(&with(failed(4.0, 60.0, 77.0, 1.0), None), EndCause::GpuFragmentation, 0.8);
        check(&with(failed(4.0, 38.0, 39.0, 1.0), Some(40.0)), EndCause::GpuNeighbor, 0.8);
        check(&with(failed(4.0, 75.0, 77.0, 1.0), Some(1.0)), EndCause::GpuMemory, 0.9);
        check(&with(FailedAllocation::default(), None), EndCause::GpuMemory, 0.5);
        // It went on, and failed by another exception.
        let failed_later =
            Case { exception: "ValueError".into(), ..with(failed(4.0, 75.0, 77.0, 1.0), None) };
        check(&failed_later, EndCause::Failed, 0.6);
        // The program went on, and was killed later.
        let later =
            Case { status: Some(ExitStatus::Signal(SIGKILL)), ..with(failed(4.0, 75.0, 77.0, 1.0), None) };
        check(&later, EndCause::Killed, 0.9);
    }

    #[test]
    fn signals_and_codes() {
        check(&code(0), EndCause::Finished, 0.9);
        check(&code(1), EndCause::Failed, 0.9);
        check(&signal(11), EndCause::Failed, 0.9);
        check(&signal(SIGTERM), EndCause::Killed, 0.9);
        check(&signal(SIGBUS), EndCause::SharedMemory, 0.6);
        let of = |used, was_full_before, may_be_missed, is_read_after| {
            let level =
                Level { resource: Subject::tmpfs(&"a".into(), &"/dev/shm".into()), used, limit: 100.0 };
            let tmpfs = Some(TmpfsState { level, was_full_before, may_be_missed, is_read_after });
            let found = classify(&Case { tmpfs, ..signal(SIGBUS) });
            let seen = |seen: &EndEvidence| matches!(seen, EndEvidence::Used { share, .. } if *share == used / 100.0);
            (found.cause, found.probability, found.level.is_some(), found.evidence.iter().any(seen))
        };
        assert_eq!(of(98.0, false, true, true), (EndCause::SharedMemory, 0.95, true, true));
        assert_eq!(of(98.0, true, false, true), (EndCause::SharedMemory, 0.6, true, true), "others fill it");
        assert_eq!(
            of(70.0, false, true, true),
            (EndCause::SharedMemory, 0.6, true, true),
            "its share is free again"
        );
        assert_eq!(of(10.0, false, false, false), (EndCause::Failed, 0.9, false, true));
        assert_eq!(of(10.0, false, true, true), (EndCause::Failed, 0.5, false, true));
        assert_eq!(of(10.0, false, true, false), (EndCause::SharedMemory, 0.6, false, false));
        let lacked =
            |resource, name: &str| Case { lacked: Some(resource), exception: name.into(), ..code(1) };
        check(&lacked(Medium::Host, "MemoryError"), EndCause::ProcessLimit, 0.8);
        let aborted =
            Case { status: Some(ExitStatus::Signal(SIGABRT)), ..lacked(Medium::Host, "MemoryError") };
        check(&aborted, EndCause::ProcessLimit, 0.8);
        check(&signal(SIGABRT), EndCause::Failed, 0.9);
        let limited = Case {
            limit: Some((ProcessLimit::OpenFiles, Some(1024))),
            exception: "OSError".into(),
            ..code(1)
        };
        check(&limited, EndCause::ProcessLimit, 0.8);
        check(&Case { status: Some(ExitStatus::Signal(SIGKILL)), ..limited }, EndCause::Killed, 0.9);
        check(&lacked(Medium::Device, "torch.OutOfMemoryError"), EndCause::GpuMemory, 0.8);
        let xid = |number, case| Case { xid: Some(("0".into(), number)), ..case };
        check(&xid(79, code(1)), EndCause::GpuFault, 0.9);
        check(&xid(79, signal(SIGTERM)), EndCause::GpuFault, 0.6);
        // An error of the program, and the cleanup after a process that was killed.
        check(&xid(31, code(1)), EndCause::Failed, 0.9);
        check(&xid(45, signal(SIGKILL)), EndCause::Killed, 0.9);
        assert!(
            classify(&xid(31, code(1))).evidence.contains(&EndEvidence::Xid { gpu: "0".into(), xid: 31 })
        );
        // Of two causes, the other one is evidence.
        let both = classify(&xid(79, Case { kernel_kill: Some(KillScope::Host), ..signal(SIGKILL) }));
        let seen = EndEvidence::Xid { gpu: "0".into(), xid: 79 };
        assert!(both.cause == EndCause::HostMemory && both.evidence.contains(&seen), "{both:?}");
        check(&Case { will_not_fit: true, ..code(ABORTED) }, EndCause::WillNotFit, 0.9);
        check(&code(ABORTED), EndCause::Failed, 0.9);
    }

    #[test]
    fn what_is_not_known_is_unknown() {
        let found = classify(&Case { sees_kernel_log: true, ..Case::default() });
        assert_eq!((found.cause, found.evidence), (EndCause::Unknown, vec![EndEvidence::NoStatus]));
        let bye = classify(&Case { said_finished: true, ..Case::default() });
        assert_eq!(bye.cause, EndCause::Finished);
        let raised = classify(&Case { exception: "ValueError".into(), ..Case::default() });
        assert_eq!(raised.cause, EndCause::Failed);
    }
}
