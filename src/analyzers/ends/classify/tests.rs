//! Causes of single cases.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::*;
use crate::analyzers::ends::rules::{self, RULES};
use crate::model::ends::{ABORTED, EndCause};
use crate::model::facts::{OomScope, OwnLimits};
use crate::model::units::Bytes;
use crate::model::xid;

const SIGHUP: i32 = 1;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGKILL: i32 = 9;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;
const SIGXCPU: i32 = 24;
const SIGXFSZ: i32 = 25;

thread_local! {
    /// What was observed by the rules that decided a case of this thread.
    static REACHED: RefCell<BTreeSet<&'static str>> = RefCell::default();
}

fn classify(case: &Case) -> Classified {
    REACHED.with_borrow_mut(|reached| reached.insert(rules::cause(case).1.observed));
    super::classify(case)
}

fn kill(scope: OomScope, limit: &str) -> OomKill {
    OomKill { scope, is_scope_stated: true, limit_cgroup: limit.into() }
}

fn other(comm: &str, is_child: bool, kill: OomKill) -> Option<OtherKill> {
    Some(OtherKill { pid: Some(5), comm: comm.into(), is_child, is_recent: true, kill })
}

fn level(resource: Subject, used: f64) -> Option<Level> {
    Some(Level { resource, used, limit: 100.0 })
}

fn check(case: &Case, cause: EndCause, least: f64) {
    let found = classify(case);
    assert!((found.cause, found.probability >= least) == (cause, true), "{case:?}: {found:?}");
}

fn check_exactly(case: &Case, cause: EndCause, probability: f64) {
    let found = classify(case);
    assert_eq!((found.cause, found.probability), (cause, probability), "{case:?}: {found:?}");
}

fn signal(signal: i32) -> Case {
    Case { status: Some(ExitStatus::Signal(signal)), log: KernelLog::Complete, ..Case::default() }
}

fn code(code: i32) -> Case {
    Case { status: Some(ExitStatus::Code(code)), log: KernelLog::Complete, ..Case::default() }
}

#[test]
fn what_the_kernel_says_comes_first() {
    let group = Some(kill(OomScope::Cgroup, "/jobs/a"));
    check(&Case { kernel_kill: group.clone(), ..signal(SIGKILL) }, EndCause::CgroupLimit, 0.99);
    check(&Case { kernel_kill: group, is_signalled: true, ..Case::default() }, EndCause::CgroupLimit, 0.99);
    check(
        &Case { kernel_kill: Some(kill(OomScope::Host, "")), ..signal(SIGKILL) },
        EndCause::HostMemory,
        0.99,
    );
    check(&Case { is_signalled: true, ..signal(SIGTERM) }, EndCause::Memwarden, 0.99);
    let later = classify(&Case { is_signalled: true, ..signal(11) });
    assert!((later.cause, later.probability < 0.9) == (EndCause::Memwarden, true), "{later:?}");
    let counted = Some(("/jobs".into(), true));
    let blind = Case { log: KernelLog::Unread, counted_kill: counted.clone(), ..signal(SIGKILL) };
    check(&blind, EndCause::CgroupLimit, 0.95);
    // It is counted only where the log does not explain it.
    check(&Case { counted_kill: counted.clone(), ..signal(SIGKILL) }, EndCause::CgroupLimit, 0.9);
    // A cgroup above has the kills of others too.
    let above = Some(("/".into(), false));
    let found = classify(&Case { counted_kill: above.clone(), ..blind });
    assert!((found.cause, found.probability < 0.8) == (EndCause::CgroupLimit, true), "{found:?}");
    check(&Case { counted_kill: above, ..code(1) }, EndCause::Failed, 0.9);
    // A child of it that no sample has seen may have been killed.
    let found = classify(&Case { counted_kill: counted.clone(), ..code(1) });
    assert!((found.cause, found.probability < 0.8) == (EndCause::CgroupLimit, true), "{found:?}");
    let group = || kill(OomScope::Cgroup, "/jobs");
    let unseen = Case { other_kill: other("sh", false, group()), comm: "python3".into(), ..code(1) };
    check_exactly(&unseen, EndCause::CgroupLimit, 0.6);
    check_exactly(&Case { comm: "sh".into(), ..unseen.clone() }, EndCause::CgroupLimit, 0.9);
    check_exactly(
        &Case { other_kill: other("sh", true, group()), ..unseen.clone() },
        EndCause::CgroupLimit,
        0.97,
    );
    check_exactly(
        &Case { other_kill: other("sh", false, kill(OomScope::Host, "")), ..code(1) },
        EndCause::HostMemory,
        0.6,
    );
    check(&Case { status: code(0).status, ..unseen.clone() }, EndCause::Finished, 0.9);
    check(&Case { status: signal(11).status, ..unseen }, EndCause::Failed, 0.9);
    // Another process of the cgroup was killed.
    check(&Case { counted_kill: counted.clone(), ..signal(11) }, EndCause::Failed, 0.9);
    check(&Case { counted_kill: counted, ..code(0) }, EndCause::Finished, 0.9);
}

#[test]
fn where_memory_ran_out_is_what_the_kernel_states() {
    let killed = |kill| Case { kernel_kill: Some(kill), ..signal(SIGKILL) };
    check_exactly(&killed(kill(OomScope::Nodes, "")), EndCause::NumaNodes, 0.99);
    check_exactly(&killed(kill(OomScope::Request, "")), EndCause::Killed, 0.99);
    check_exactly(&killed(kill(OomScope::PageFault, "")), EndCause::OomKill, 0.99);
    let foreign = Case {
        log: KernelLog::Foreign,
        kill_by_name: Some((kill(OomScope::Cgroup, "/a"), true)),
        ..signal(SIGKILL)
    };
    check_exactly(&foreign, EndCause::CgroupLimit, 0.9);
    let by_group = Case { kill_by_name: Some((kill(OomScope::Cgroup, "/a"), false)), ..foreign.clone() };
    check_exactly(&by_group, EndCause::CgroupLimit, 0.7);
    check_exactly(&Case { status: code(1).status, ..foreign }, EndCause::Failed, 0.9);
    let bare = killed(OomKill::default());
    check_exactly(&bare, EndCause::HostMemory, 0.75);
    check_exactly(&Case { host: level(Subject::host(), 97.0), ..bare }, EndCause::HostMemory, 0.95);
    check_exactly(
        &Case { report: Some(EndEvidence::MemoryError), ..signal(SIGBUS) },
        EndCause::MemoryError,
        0.97,
    );
    check_exactly(
        &Case { report: Some(EndEvidence::HugePages), ..signal(SIGKILL) },
        EndCause::HugePages,
        0.97,
    );
    let leak = EndEvidence::Leak { bytes_per_second: Some(1e6) };
    let leaked = Case { leak: Some(leak.clone()), ..killed(kill(OomScope::Cgroup, "/a")) };
    assert!(classify(&leaked).evidence.contains(&leak));
    assert!(!classify(&Case { kernel_kill: None, ..leaked }).evidence.contains(&leak), "a person ended it");
    let rejected = Some(EndEvidence::ForkRejected { cgroup: "/jobs".into() });
    check_exactly(&Case { report: rejected.clone(), ..code(1) }, EndCause::ProcessLimit, 0.7);
    check_exactly(&Case { report: rejected, ..code(0) }, EndCause::Finished, 0.99);
}

#[test]
fn silence_is_evidence_only_where_the_log_is_complete() {
    check_exactly(&signal(SIGKILL), EndCause::Killed, 0.9);
    let full = Case { cgroup: level(Subject::cgroup(&"/a".into()), 98.0), ..signal(SIGKILL) };
    check_exactly(&full, EndCause::Killed, 0.9);
    for log in [KernelLog::Unread, KernelLog::Behind, KernelLog::Lost, KernelLog::Foreign] {
        let blind = Case { log, ..signal(SIGKILL) };
        let found = classify(&blind);
        assert!((found.cause, found.settles.is_empty()) == (EndCause::Unknown, false), "{found:?}");
        assert!(found.evidence.contains(&EndEvidence::Log(log)));
        check_exactly(&Case { counts_kills: true, ..blind.clone() }, EndCause::Killed, 0.7);
        let is_full = Case { host: level(Subject::host(), 97.0), ..blind.clone() };
        check_exactly(
            &Case { counted_kill: Some(("/a".into(), true)), ..is_full.clone() },
            EndCause::OomKill,
            0.75,
        );
        check_exactly(&Case { status: None, ..is_full }, EndCause::HostMemory, 0.5);
        check_exactly(&Case { status: None, log, ..full.clone() }, EndCause::CgroupLimit, 0.5);
        // A full cgroup is the likely reason, and a guess is stated as one.
        check_exactly(&Case { log, ..full.clone() }, EndCause::CgroupLimit, 0.7);
        check_exactly(&Case { host: level(Subject::host(), 97.0), ..blind }, EndCause::HostMemory, 0.7);
    }
    // No child of it ended so.
    check_exactly(&code(137), EndCause::Failed, 0.9);
    check_exactly(
        &Case { child_signal: Some((5, "sh".into(), SIGKILL)), ..code(137) },
        EndCause::Killed,
        0.9,
    );
    check_exactly(&Case { child_signal: Some((5, "sh".into(), 11)), ..code(139) }, EndCause::Failed, 0.9);
    check_exactly(&code(143), EndCause::Killed, 0.8);
}

#[test]
fn signals_of_the_kernel_are_not_those_of_a_person() {
    check_exactly(&signal(SIGXCPU), EndCause::TimeLimit, 0.75);
    check_exactly(&Case { sender: Some(None), ..signal(SIGXCPU) }, EndCause::TimeLimit, 0.95);
    check_exactly(&signal(SIGXFSZ), EndCause::ProcessLimit, 0.9);
    let used = |case| Case { limits: OwnLimits { cpu: Some(2), ..OwnLimits::default() }, ..case };
    let near = |mib: u64, case| {
        let address_space = Some([600, mib].map(|mib| Bytes::new(mib << 20)).into());
        Case { limits: OwnLimits { address_space, ..OwnLimits::default() }, ..case }
    };
    check_exactly(&near(500, code(1)), EndCause::ProcessLimit, 0.6);
    check_exactly(&near(400, code(1)), EndCause::Failed, 0.9);
    check_exactly(&near(700, code(1)), EndCause::Failed, 0.9);
    let counted_kill = Some(("/a".into(), true));
    check_exactly(&Case { counted_kill, ..near(500, code(1)) }, EndCause::CgroupLimit, 0.6);
    check_exactly(&near(590, code(0)), EndCause::Finished, 0.99);
    for own in [SIGABRT, 11] {
        check_exactly(&near(590, signal(own)), EndCause::ProcessLimit, 0.6);
        check_exactly(&near(400, signal(own)), EndCause::Failed, 0.9);
    }
    check_exactly(&near(590, signal(SIGKILL)), EndCause::Killed, 0.9);
    check_exactly(&near(590, Case { exception: "ValueError".into(), ..code(1) }), EndCause::Failed, 0.9);
    check_exactly(&used(signal(SIGKILL)), EndCause::TimeLimit, 0.75);
    check_exactly(&Case { sender: Some(None), ..used(signal(SIGKILL)) }, EndCause::TimeLimit, 0.9);
    check_exactly(&used(Case::default()), EndCause::TimeLimit, 0.7);
    let by = |comm: &str| Some(Some(Sender { pid: 8, comm: comm.into(), user_id: Some(0) }));
    check_exactly(&Case { sender: by("bash"), ..used(signal(SIGKILL)) }, EndCause::Killed, 0.99);
    let child = |sender| Case { child_signal: Some((7, "python3".into(), SIGKILL)), sender, ..code(137) };
    check_exactly(&child(None), EndCause::Killed, 0.9);
    check_exactly(&child(by("bash")), EndCause::Killed, 0.99);
    check_exactly(&child(Some(None)), EndCause::Failed, 0.9);
    check_exactly(&signal(SIGPIPE), EndCause::Failed, 0.9);
    check_exactly(&signal(SIGHUP), EndCause::Killed, 0.9);
    check_exactly(&Case { comm: "timeout".into(), ..code(124) }, EndCause::TimeLimit, 0.95);
    check_exactly(&code(124), EndCause::Failed, 0.9);
    let timed_out = Case { is_timed_out: true, ..signal(SIGKILL) };
    check_exactly(&timed_out, EndCause::TimeLimit, 0.7);
    check_exactly(&Case { sender: by("bash"), ..timed_out.clone() }, EndCause::Killed, 0.99);
    check_exactly(&Case { log: KernelLog::Unread, ..timed_out.clone() }, EndCause::Unknown, 1.0);
    let group = Some(kill(OomScope::Cgroup, "/jobs/a"));
    check_exactly(&Case { kernel_kill: group, ..timed_out }, EndCause::CgroupLimit, 0.99);
    check_exactly(&Case { sender: by("timeout"), ..signal(SIGTERM) }, EndCause::TimeLimit, 0.95);
    check_exactly(&Case { sender: by("bash"), ..signal(SIGXCPU) }, EndCause::Failed, 0.9);
}

#[test]
fn every_rule_decides_a_case() {
    for cases in [
        what_the_kernel_says_comes_first,
        where_memory_ran_out_is_what_the_kernel_states,
        silence_is_evidence_only_where_the_log_is_complete,
        signals_of_the_kernel_are_not_those_of_a_person,
        the_sender_of_a_signal_is_known_where_the_kernel_says_it,
        a_failed_allocation_is_own_growth_a_neighbour_or_fragmentation,
        signals_and_codes,
        what_is_not_known_is_unknown,
    ] {
        cases();
    }
    let reached = REACHED.take();
    let never: Vec<_> =
        RULES.iter().map(|rule| rule.observed).filter(|rule| !reached.contains(rule)).collect();
    assert!(never.is_empty(), "{never:#?}");
}

#[test]
fn every_rule_is_documented() {
    let mut table = String::from(
        "| observed | cause | probability | can starting it again help? | certain with |\n| --- | --- | --- | --- | --- |\n",
    );
    for rule in RULES {
        let cause =
            rule.cause.map_or_else(|| "that of the kill".to_owned(), |cause| format!("`{}`", cause.label()));
        let retry = match rule.cause.map(EndCause::retry).filter(|_| rule.probability >= PROBABLE) {
            Some(Retry::CannotHelp) => "no",
            Some(Retry::MayHelp) => "perhaps",
            _ => "not known",
        };
        let probability = if rule.cause == Some(EndCause::Unknown) {
            String::new()
        } else {
            format!("{:.0} %", 100.0 * rule.probability)
        };
        table.push_str(&format!(
            "| {} | {cause} | {probability} | {retry} | {} |\n",
            rule.observed, rule.settles
        ));
    }
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/why.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once("<!-- rules -->\n").expect("docs/why.md has the mark");
    let (shown, after) =
        rest.split_once("<!-- end of rules -->").expect("docs/why.md has the mark of the end");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, format!("{before}<!-- rules -->\n{table}<!-- end of rules -->{after}"))
            .unwrap();
    } else {
        assert_eq!(shown, table, "UPDATE_EXPECT=1 writes it");
    }
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
        log: KernelLog::Unread,
        ..signal(SIGKILL)
    };
    let found = classify(&sent(full.clone()));
    assert_eq!((found.cause, found.probability), (EndCause::Killed, 0.99));
    assert!(found.evidence.contains(&EndEvidence::SentBy(sender)), "{found:?}");
    assert!(!found.evidence.contains(&EndEvidence::Log(KernelLog::Unread)), "{found:?}");
    let by_kernel = Case { sender: Some(None), counted_kill: None, ..full };
    check(&by_kernel, EndCause::CgroupLimit, 0.7);
    check(&Case { counts_kills: true, ..by_kernel.clone() }, EndCause::Unknown, 1.0);
    check(&Case { cgroup: None, ..by_kernel }, EndCause::Unknown, 1.0);
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
    let failed_later = Case { exception: "ValueError".into(), ..with(failed(4.0, 75.0, 77.0, 1.0), None) };
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
    check_exactly(&Case { huge_pages: Some(true), ..signal(SIGBUS) }, EndCause::HugePages, 0.75);
    check_exactly(&Case { huge_pages: Some(false), ..signal(SIGBUS) }, EndCause::HugePages, 0.6);
    check(&signal(SIGBUS), EndCause::SharedMemory, 0.6);
    let of = |used, was_full_before, may_be_missed, is_read_after| {
        let level = Level { resource: Subject::tmpfs(&"a".into(), &"/dev/shm".into()), used, limit: 100.0 };
        let tmpfs = Some(TmpfsState { level, was_full_before, may_be_missed, is_read_after });
        let found = classify(&Case { tmpfs, ..signal(SIGBUS) });
        let seen =
            |seen: &EndEvidence| matches!(seen, EndEvidence::Used { share, .. } if *share == used / 100.0);
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
    let lacked = |resource, name: &str| Case { lacked: Some(resource), exception: name.into(), ..code(1) };
    check(&lacked(Medium::Host, "MemoryError"), EndCause::ProcessLimit, 0.8);
    check(&lacked(Medium::Disk, "OSError"), EndCause::DiskFull, 0.95);
    check(&lacked(Medium::Shm, "RuntimeError"), EndCause::SharedMemory, 0.95);
    let aborted = Case { status: Some(ExitStatus::Signal(SIGABRT)), ..lacked(Medium::Host, "MemoryError") };
    check(&aborted, EndCause::ProcessLimit, 0.8);
    check(&signal(SIGABRT), EndCause::Failed, 0.9);
    let limited =
        Case { limit: Some((ProcessLimit::OpenFiles, Some(1024))), exception: "OSError".into(), ..code(1) };
    check(&limited, EndCause::ProcessLimit, 0.8);
    check(&Case { status: Some(ExitStatus::Signal(SIGKILL)), ..limited }, EndCause::Killed, 0.9);
    check(&lacked(Medium::Device, "torch.OutOfMemoryError"), EndCause::GpuMemory, 0.8);
    let xid = |number, case| Case { xid: Some(("0".into(), number, xid::severity(number))), ..case };
    check(&xid(79, code(1)), EndCause::GpuFault, 0.9);
    check(&xid(79, signal(SIGTERM)), EndCause::GpuFault, 0.6);
    // The line of the kernel log says more than the table.
    let link = |severity, case| Case { xid: Some(("0".into(), 149, severity)), ..case };
    check(&link(Health::Critical, code(1)), EndCause::GpuFault, 0.9);
    check(&link(Health::Critical, signal(SIGTERM)), EndCause::GpuFault, 0.6);
    check(&link(Health::Warning, code(1)), EndCause::GpuFault, 0.6);
    check(&link(Health::Ok, code(1)), EndCause::Failed, 0.9);
    // An error of the program, and the cleanup after a process that was killed.
    check(&xid(31, code(1)), EndCause::Failed, 0.9);
    check(&xid(45, signal(SIGKILL)), EndCause::Killed, 0.9);
    assert!(classify(&xid(31, code(1))).evidence.contains(&EndEvidence::Xid { gpu: "0".into(), xid: 31 }));
    // Of two causes, the other one is evidence.
    let both = classify(&xid(79, Case { kernel_kill: Some(kill(OomScope::Host, "")), ..signal(SIGKILL) }));
    let seen = EndEvidence::Xid { gpu: "0".into(), xid: 79 };
    assert!(both.cause == EndCause::HostMemory && both.evidence.contains(&seen), "{both:?}");
    check(&Case { will_not_fit: true, ..code(ABORTED) }, EndCause::WillNotFit, 0.9);
    check(&code(ABORTED), EndCause::Failed, 0.9);
}

#[test]
fn what_is_not_known_is_unknown() {
    let found = classify(&Case { log: KernelLog::Complete, ..Case::default() });
    assert_eq!((found.cause, found.evidence), (EndCause::Unknown, vec![EndEvidence::NoStatus]));
    let bye = classify(&Case { said_finished: true, ..Case::default() });
    assert_eq!(bye.cause, EndCause::Finished);
    let raised = classify(&Case { exception: "ValueError".into(), ..Case::default() });
    assert_eq!(raised.cause, EndCause::Failed);
}
