//! Recognizes messages of the kernel log, since Linux 5.4 (mm/oom_kill.c) and NVIDIA's open kernel modules.

use crate::model::names::named;
use crate::model::units::Bytes;

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The OOM killer selected a process; the next line reports the kill.
    Choice(Choice<'a>),
    /// The OOM killer killed a process.
    Kill(Kill<'a>),
    /// The NVIDIA driver reported an XID.
    Xid {
        /// The PCI address without its function.
        pci: &'a str,
        xid: u32,
    },
    Warning(Warning),
}

named! {
    /// The memory that ran out.
    pub enum Scope {
        /// The memory of the host, or of the NUMA nodes that a task may use.
        Host = "host",
        /// The limit of a cgroup.
        Cgroup = "cgroup",
    }

    /// A warning that is only counted.
    pub enum Warning {
        /// No free block of the requested order.
        AllocationFailure = "allocation_failure",
        /// A task was blocked for minutes, waiting for a disk, a network file system or a driver.
        HungTask = "hung_task",
        /// A CPU ran kernel code for too long without scheduling.
        SoftLockup = "soft_lockup",
        /// A page was taken out of use because of a memory error.
        MemoryFailure = "memory_failure",
        /// The hardware reported an error.
        MachineCheck = "machine_check",
    }
}

/// The selected process, its cgroup, and the cgroup whose limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice<'a> {
    pub pid: u32,
    /// The user id of the process.
    pub uid: u32,
    /// Path of its cgroup in the memory controller's hierarchy.
    pub cgroup: &'a str,
    /// The cgroup whose limit was reached, the same one or an ancestor; empty if the host's memory ran out.
    pub limit: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill<'a> {
    /// The memory that ran out.
    pub scope: Scope,
    /// The killed process; absent if the line is truncated.
    pub victim: Option<Victim<'a>>,
}

/// The process that was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim<'a> {
    /// The pid in the initial pid namespace.
    pub pid: u32,
    /// The kernel's name of the process.
    pub comm: &'a str,
    /// Resident anonymous memory.
    pub anon: Option<Bytes>,
    /// Resident file mappings.
    pub file: Option<Bytes>,
    /// Resident shared memory.
    pub shmem: Option<Bytes>,
    /// The user id of the process.
    pub uid: Option<u32>,
}

/// Recognizes a message of the kernel; nothing for all others.
pub fn recognize(message: &str) -> Option<Event<'_>> {
    kill(message)
        .map(Event::Kill)
        .or_else(|| choice(message).map(Event::Choice))
        .or_else(|| xid(message))
        .or_else(|| warning(message).map(Event::Warning))
}

fn kill(message: &str) -> Option<Kill<'_>> {
    let (scope, rest) = match message.strip_prefix("Memory cgroup out of memory") {
        Some(rest) => (Scope::Cgroup, rest),
        None => (Scope::Host, message.strip_prefix("Out of memory")?),
    };
    let rest = rest.strip_prefix(" (oom_kill_allocating_task)").unwrap_or(rest);
    let victim = victim(rest.strip_prefix(": Killed process ")?);
    Some(Kill { scope, victim })
}

/// `1234 (python3) total-vm:98304kB, anon-rss:91234kB, file-rss:0kB, shmem-rss:64kB, UID:1000 …`.
fn victim(text: &str) -> Option<Victim<'_>> {
    let (pid, rest) = text.split_once(" (")?;
    // The process chose its name, which may contain anything; the text after the last match is the kernel's.
    let (comm, rest) = rest.rsplit_once(") total-vm:")?;
    let kib = |name: &str| {
        let (_, rest) = rest.split_once(name)?;
        Bytes::from_kib(rest.split_once("kB")?.0.parse().ok()?)
    };
    Some(Victim {
        pid: pid.parse().ok()?,
        comm,
        anon: kib(", anon-rss:"),
        file: kib(", file-rss:"),
        shmem: kib(", shmem-rss:"),
        uid: rest.split_once(", UID:").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok()),
    })
}

/// `oom-kill:constraint=…,oom_memcg=/a,task_memcg=/a/b,task=python3,pid=1234,uid=1000`, with `global_oom` instead of
/// `oom_memcg=…` if the host's memory ran out.
///
/// Users choose names of cgroups, cpusets and processes, which can imitate the fields. The kernel begins another record
/// when a path does not fit, so that the line can also end within a name. Therefore nothing is recognized unless each field
/// occurs once, and the cgroup of the process is the one whose limit was reached or below it.
fn choice(message: &str) -> Option<Choice<'_>> {
    let (rest, uid) = message.strip_prefix("oom-kill:constraint=")?.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let (rest, _) = only(rest, ",task=")?;
    let (before, cgroup) = only(rest, ",task_memcg=")?;
    let of_cgroup = before.starts_with("CONSTRAINT_MEMCG,");
    let limit = if of_cgroup { only(before, ",oom_memcg=")?.1 } else { "" };
    let named = if of_cgroup { limit.starts_with('/') } else { before.ends_with(",global_oom") };
    let below = cgroup.strip_prefix(limit.trim_end_matches('/'))?;
    let inside = cgroup.starts_with('/') && (below.is_empty() || below.starts_with('/'));
    let (pid, uid) = (pid.parse().ok()?, uid.parse().ok()?);
    (named && inside).then_some(Choice { pid, uid, cgroup, limit })
}

/// The text before and after a separator that occurs once.
fn only<'a>(text: &'a str, separator: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(separator).filter(|(_, rest)| !rest.contains(separator))
}

/// `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`; whether `PCI:` and the function `.0` are present depends on the
/// driver version.
///
/// A MIG instance is named after the address: `(PCI:0000:3b:00 GPU-I:07)`, a compute instance by `GPU-CI:`.
fn xid(message: &str) -> Option<Event<'_>> {
    /// A domain of eight digits, bus and device: `00000000:3b:00`.
    const LONGEST: usize = 14;
    let (address, rest) = message.strip_prefix("NVRM: Xid (")?.split_once("): ")?;
    let address = address.strip_prefix("PCI:").unwrap_or(address);
    let pci = address.split(['.', ' ']).next()?;
    let hexadecimal = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    // Domain, bus, device.
    let is_address = pci.split(':').count() == 3 && pci.split(':').all(hexadecimal);
    let digits = rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
    let xid = rest[..digits].parse().ok()?;
    (is_address && pci.len() <= LONGEST).then_some(Event::Xid { pci, xid })
}

/// How the report of a soft lockup begins, by version and kind of the watchdog.
const SOFT_LOCKUP: [&str; 3] =
    ["watchdog: BUG: soft lockup - CPU#", "NMI watchdog: BUG: soft lockup - CPU#", "BUG: soft lockup - CPU#"];

/// Each part of the kernel's text is at the place where the kernel writes it: other messages, such as that of a segmentation
/// fault, contain names of processes and files, which users choose.
fn warning(message: &str) -> Option<Warning> {
    if allocation_failure(message) {
        Some(Warning::AllocationFailure)
    } else if hung_task(message).is_some() {
        Some(Warning::HungTask)
    } else if SOFT_LOCKUP.iter().any(|beginning| message.starts_with(beginning)) {
        Some(Warning::SoftLockup)
    } else if message.starts_with("Memory failure: ") && message.contains(": recovery action for ") {
        Some(Warning::MemoryFailure)
    } else if message.starts_with("mce: [Hardware Error]: Machine check events logged") {
        Some(Warning::MachineCheck)
    } else {
        None
    }
}

/// Whether this can be the kernel's name of a process, which has at most 15 bytes (TASK_COMM_LEN). Invalid UTF-8 has been
/// replaced, with at most one character for a byte.
fn is_comm(text: &str) -> bool {
    text.chars().nth(15).is_none()
}

/// `python3: page allocation failure: order:4, mode:…`.
fn allocation_failure(message: &str) -> bool {
    message.split_once(": page allocation failure: order:").is_some_and(|(comm, _)| is_comm(comm))
}

/// `INFO: task python3:48213 blocked for more than 120 seconds.`
fn hung_task(message: &str) -> Option<()> {
    let (task, _) = message.strip_prefix("INFO: task ")?.split_once(" blocked for more than ")?;
    let (comm, pid) = task.rsplit_once(':')?;
    pid.parse::<u32>().ok().filter(|_| is_comm(comm)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn check(message: &str, expected: Expect) {
        expected.assert_eq(&recognize(message).map_or("none".to_owned(), |event| format!("{event:?}")));
    }

    #[test]
    fn kills_of_the_host() {
        check(
            "Out of memory: Killed process 48213 (python3) total-vm:523112848kB, anon-rss:401234568kB, file-rss:8192kB, shmem-rss:67108864kB, UID:1000 pgtables:812344kB oom_score_adj:0",
            expect![[
                r#"Kill(Kill { scope: Host, victim: Some(Victim { pid: 48213, comm: "python3", anon: Some(Bytes(410864197632)), file: Some(Bytes(8388608)), shmem: Some(Bytes(68719476736)), uid: Some(1000) }) })"#
            ]],
        );
        check(
            "Out of memory (oom_kill_allocating_task): Killed process 7 (sh) total-vm:4kB, anon-rss:1kB, file-rss:2kB, shmem-rss:0kB, UID:0 pgtables:44kB oom_score_adj:500",
            expect![[
                r#"Kill(Kill { scope: Host, victim: Some(Victim { pid: 7, comm: "sh", anon: Some(Bytes(1024)), file: Some(Bytes(2048)), shmem: Some(Bytes(0)), uid: Some(0) }) })"#
            ]],
        );
    }

    #[test]
    fn kills_of_a_cgroup() {
        check(
            "Memory cgroup out of memory: Killed process 991 (pt_data_worker) total-vm:33554432kB, anon-rss:16777216kB, file-rss:65536kB, shmem-rss:1024kB, UID:1000 pgtables:33024kB oom_score_adj:-997",
            expect![[
                r#"Kill(Kill { scope: Cgroup, victim: Some(Victim { pid: 991, comm: "pt_data_worker", anon: Some(Bytes(17179869184)), file: Some(Bytes(67108864)), shmem: Some(Bytes(1048576)), uid: Some(1000) }) })"#
            ]],
        );
        check(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_42,mems_allowed=0-1,oom_memcg=/slurm/uid_1000/job_42,task_memcg=/slurm/uid_1000/job_42/step_0,task=pt_data_worker,pid=991,uid=1000",
            expect![[
                r#"Choice(Choice { pid: 991, uid: 1000, cgroup: "/slurm/uid_1000/job_42/step_0", limit: "/slurm/uid_1000/job_42" })"#
            ]],
        );
        check(
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/user.slice,task=a,pid=1,b,pid=48213,uid=0",
            expect![[r#"Choice(Choice { pid: 48213, uid: 0, cgroup: "/user.slice", limit: "" })"#]],
        );
    }

    #[test]
    fn a_process_name_cannot_imitate_the_rest_of_the_line() {
        check(
            "Out of memory: Killed process 5 (a) total-vm:9kB) total-vm:4kB, anon-rss:1kB, file-rss:2kB, shmem-rss:0kB, UID:0",
            expect![[
                r#"Kill(Kill { scope: Host, victim: Some(Victim { pid: 5, comm: "a) total-vm:9kB", anon: Some(Bytes(1024)), file: Some(Bytes(2048)), shmem: Some(Bytes(0)), uid: Some(0) }) })"#
            ]],
        );
    }

    #[test]
    fn the_cgroup_of_a_victim_is_none_where_names_imitate_fields() {
        let memcg = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=";
        let none = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=";
        for text in [
            "a,mems_allowed=0,oom_memcg=/user/u,task_memcg=/user/u/x,task_memcg=/slurm/uid_1004/job_7,task=y,task=a,pid=5,uid=9",
            "a,mems_allowed=0,oom_memcg=/u/x,task_memcg=/job_7,task=y,task_memcg=/u/x,task_memcg=/job_7,task=y,task=a,pid=5,uid=9",
            // The kernel began another record within the path.
            "a,mems_allowed=0,oom_memcg=/user/x,task_memcg=/slurm/uid_1004/job_7,task=y,pid=5,uid=9",
            "a,mems_allowed=0,oom_memcg=/user/x,task_memcg=/user/xy,task=y,pid=5,uid=9",
            "a,oom_memcg=,task_memcg=,mems_allowed=0,oom_memcg=/u,task_memcg=/u/x,task=a,pid=5,uid=9",
            "a,mems_allowed=0,task_memcg=/slurm/job_7,task=a,pid=5,uid=9",
            "a,mems_allowed=0,oom_memcg=/u,task_memcg=/u/x,task=a,pid=5,uid=9 or more",
        ] {
            assert_eq!(recognize(&format!("{memcg}{text}")), None, "{text}");
        }
        for text in [
            "a,global_oom,task_memcg=,mems_allowed=0,global_oom,task_memcg=/u/x,task=a,pid=5,uid=9",
            "a,mems_allowed=0,global_oom,task_memcg=/u/x,task_memcg=/slurm/job_7,task=a,pid=5,uid=9",
            "a,mems_allowed=0,task_memcg=/slurm/job_7,task=a,pid=5,uid=9",
        ] {
            assert_eq!(recognize(&format!("{none}{text}")), None, "{text}");
        }
        check(
            &format!("{memcg}a,mems_allowed=0,oom_memcg=/,task_memcg=/u/x,task=a,pid=5,uid=9"),
            expect![[r#"Choice(Choice { pid: 5, uid: 9, cgroup: "/u/x", limit: "/" })"#]],
        );
    }

    #[test]
    fn a_segmentation_fault_of_a_program_with_a_chosen_name_is_no_warning() {
        for (comm, file) in [
            ("a", "b: page allocation failure: order:4, mode:0x40dc0"),
            (": page allocati", "on failure: order:4"),
            ("a", "watchdog: BUG: soft lockup - CPU#3 stuck for 22s!"),
            ("watchdog: ", "BUG: soft lockup - CPU#3 stuck for 22s!"),
            ("INFO: task a", "a:5 blocked for more than 120 seconds."),
            ("INFO: task a:5 ", " blocked for more than 120 seconds."),
            ("Memory failure:", " 0x1: recovery action for "),
        ] {
            let fault =
                format!("{comm}[48213]: segfault at 0 ip 0000561a sp 00007ffd error 4 in {file}[561a+1000]");
            assert_eq!(recognize(&fault), None, "{fault}");
        }
    }

    #[test]
    fn a_truncated_kill_counts() {
        check(
            "Memory cgroup out of memory: Killed process 991 (pt_da",
            expect!["Kill(Kill { scope: Cgroup, victim: None })"],
        );
        check(
            "Out of memory: Killed process 5 (a) total-vm:4kB, anon-rss:1kB, file-rss:2",
            expect![[
                r#"Kill(Kill { scope: Host, victim: Some(Victim { pid: 5, comm: "a", anon: Some(Bytes(1024)), file: None, shmem: None, uid: None }) })"#
            ]],
        );
    }

    #[test]
    fn xids_in_every_form() {
        check(
            "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
            expect![[r#"Xid { pci: "0000:3b:00", xid: 79 }"#]],
        );
        check(
            "NVRM: Xid (PCI:0000:3b:00.0): 48, pid='<unknown>', name=<unknown>, DBE",
            expect![[r#"Xid { pci: "0000:3b:00", xid: 48 }"#]],
        );
        check(
            "NVRM: Xid (0000:03:00): 13, 0001 00000000 0000a097",
            expect![[r#"Xid { pci: "0000:03:00", xid: 13 }"#]],
        );
        check(
            "NVRM: Xid (PCI:00000001:81:00): 119 timeout",
            expect![[r#"Xid { pci: "00000001:81:00", xid: 119 }"#]],
        );
        check(
            "NVRM: Xid (PCI:0000:01:00 GPU-I:07): 31, pid=4242, name=python3, Ch 00000012, intr 00000000.",
            expect![[r#"Xid { pci: "0000:01:00", xid: 31 }"#]],
        );
        check(
            "NVRM: Xid (PCI:00000000:01:00.0 GPU-I:07 GPU-CI:00): 43, pid=4242, name=python3",
            expect![[r#"Xid { pci: "00000000:01:00", xid: 43 }"#]],
        );
        check("NVRM: Xid (PCI:0000:c1:00 GPU-CI:03): 45", expect![[r#"Xid { pci: "0000:c1:00", xid: 45 }"#]]);
    }

    #[test]
    fn similar_lines_are_ignored() {
        for message in [
            "NVRM: Xid (PCI:0000:3b:00): , pid=1",
            "NVRM: Xid (PCI:0000:3b:00): 99999999999",
            "NVRM: Xid (PCI:somewhere): 79",
            "NVRM: Xid (PCI:000000000000000000:3b:00): 79",
            "NVRM: Xid (): 79",
            "NVRM: Xid (PCI: GPU-I:07): 79",
            "NVRM: Xid (GPU-I:07 0000:3b:00): 79",
            "NVRM: Xid (3b:00): 79",
            "NVRM: Xid (::): 79",
            "NVRM: GPU at PCI:0000:3b:00: GPU-00000000-0000-0000-0000-000000000000",
            "python3 said: Out of memory: Killed process 5 (a) total-vm:4kB",
            "Out of memory: Kill process 5 (a) score 900 or sacrifice child",
            "oom_reaper: reaped process 5 (a), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null)",
            "INFO: task kworker/0:1:33 blocked on a mutex likely owned by task a:1.",
        ] {
            assert_eq!(recognize(message), None, "{message:?}");
        }
    }

    #[test]
    fn warnings_by_kind() {
        for (message, label) in [
            (
                "python3: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO), nodemask=(null),cpuset=/,mems_allowed=0",
                "allocation_failure",
            ),
            ("INFO: task python3:48213 blocked for more than 120 seconds.", "hung_task"),
            ("INFO: task nfsd:77 blocked for more than 122 seconds.", "hung_task"),
            ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:48213]", "soft_lockup"),
            ("NMI watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:48213]", "soft_lockup"),
            ("Memory failure: 0x1234567: recovery action for dirty LRU page: Recovered", "memory_failure"),
            ("mce: [Hardware Error]: Machine check events logged", "machine_check"),
        ] {
            let found = recognize(message);
            assert!(
                matches!(found, Some(Event::Warning(kind)) if kind.label() == label),
                "{message}: {found:?}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics(any: String, tail in "\\PC{0,40}", pid in "[0-9]{0,12}") {
            recognize(&any);
            recognize(&format!("Out of memory: Killed process {pid} ({tail}) total-vm:{tail}"));
            recognize(&format!("oom-kill:constraint=,task_memcg={tail},task={tail},pid={pid}"));
            recognize(&format!("NVRM: Xid ({tail}): {pid}{tail}"));
        }
    }
}
