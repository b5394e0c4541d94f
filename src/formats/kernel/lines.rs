//! One line of the kernel log: those of the OOM killer since Linux 3.10 (mm/oom_kill.c, mm/memcontrol.c), of NVIDIA's open kernel
//! modules, and warnings.
//!
//! Processes, files and cgroups have names that users choose, which can imitate any text. Therefore each part is looked for only
//! where the kernel writes it.

use crate::model::facts::OomScope;
use crate::model::health::Health;
use crate::model::names::named;
use crate::model::units::Bytes;
use crate::model::xid;

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// `X invoked oom-killer`: the OOM killer was asked for memory of this order, with flags other than 0 or without.
    Invoked {
        order: i32,
        has_mask: bool,
    },
    /// `oom-kill:constraint=…`: the process that it chose.
    Choice(Choice),
    /// `Task in A killed as a result of limit of B` (before Linux 4.20), with both cgroups where they can be told apart.
    Task {
        cgroups: Option<[&'a str; 2]>,
    },
    /// `Out of memory: Kill process N (X) score S or sacrifice child` (before Linux 5.1); the kill follows.
    Selected {
        pid: Option<u32>,
        is_in_cgroup: bool,
    },
    /// `OOM victim N (X) is already exiting. Skip killing the task`.
    Skipped,
    /// `Tasks in A are going to be killed due to memory.oom.group set`.
    Group {
        cgroup: &'a str,
    },
    /// A kill, for the limit of a cgroup or not; absent in the form without it (before Linux 5.1).
    Kill {
        is_in_cgroup: Option<bool>,
        victim: Victim<'a>,
    },
    /// The NVIDIA driver reported an XID.
    Xid {
        /// The PCI address without its function.
        pci: &'a str,
        xid: u32,
        severity: Health,
    },
    /// A process was sent SIGBUS or SIGKILL because memory that it used has failed.
    MemoryError {
        pid: u32,
    },
    /// A process was ended because the pool of huge pages was empty.
    HugePages {
        pid: u32,
    },
    /// A fork was rejected for the limit of processes of a cgroup.
    ForkRejected {
        cgroup: &'a str,
    },
    Warning(Warning),
}

named! {
    /// A warning that is only counted.
    pub enum Warning {
        /// No free block of the requested order.
        AllocationFailure = "allocation_failure",
        /// A task was blocked for minutes, waiting for a disk, a network file system or a driver.
        HungTask = "hung_task",
        /// A CPU ran kernel code for too long without scheduling.
        SoftLockup = "soft_lockup",
        /// A CPU did not even handle interrupts for too long.
        HardLockup = "hard_lockup",
        /// A CPU did not pass through a quiescent state of RCU for too long.
        RcuStall = "rcu_stall",
        /// A page was taken out of use because of a memory error.
        MemoryFailure = "memory_failure",
        /// The hardware reported an error: a machine check, or one by the firmware (APEI).
        MachineCheck = "machine_check",
        /// The memory controller corrected errors (EDAC).
        MemoryCorrected = "memory_corrected",
        /// The memory controller could not correct errors (EDAC).
        MemoryUncorrected = "memory_uncorrected",
        /// An NVSwitch reported an error (SXid) that ends the jobs which use it.
        NvswitchFatal = "nvswitch_fatal",
        /// An NVSwitch reported another error (SXid).
        NvswitchNonfatal = "nvswitch_nonfatal",
        /// The NVIDIA driver lost a GPU.
        GpuLost = "gpu_lost",
        /// The NVIDIA driver lacked memory (NV_ERR_NO_MEMORY).
        GpuDriverMemory = "gpu_driver_memory",
        /// The OOM killer found no process that it may kill.
        OomNoVictim = "oom_no_victim",
        /// The memory of a killed process could not be freed.
        OomUnreaped = "oom_unreaped",
    }
}

/// The choice of the OOM killer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The memory that ran out, by the constraint of the request.
    pub scope: OomScope,
    /// The process and its user id; absent where the line is cut before them.
    pub process: Option<(u32, u32)>,
    /// Path of its cgroup in the memory controller's hierarchy, and of the cgroup whose limit was reached, the same or one above;
    /// empty where they cannot be told apart, the latter also where no limit was.
    pub cgroup: String,
    pub limit: String,
}

/// The process that a line of a kill names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Victim<'a> {
    /// Absent where the line is cut before its end.
    pub pid: Option<u32>,
    /// Empty where the line is cut before its end.
    pub comm: &'a str,
    pub uid: Option<u32>,
    /// Resident anonymous memory, file mappings, and shared memory.
    pub resident: [Option<Bytes>; 3],
}

/// Recognizes a line of the kernel; nothing for all others.
pub fn line(message: &str) -> Option<Line<'_>> {
    let message = without_console(message);
    if is_of_fault(message) {
        return None;
    }
    invoked(message)
        .or_else(|| requested(message))
        .or_else(|| choice(message).map(Line::Choice))
        .or_else(|| task(message))
        .or_else(|| kill(message))
        .or_else(|| xid(message))
        .or_else(|| of_process(message))
        .or_else(|| warning(message).map(Line::Warning))
}

/// The message without what a console or `printk.caller` puts before it: `<6>`, `[   12.345678]`, `[T1234]`.
fn without_console(mut text: &str) -> &str {
    loop {
        let close = match text.as_bytes().first() {
            Some(b'<') => '>',
            Some(b'[') => ']',
            _ => return text,
        };
        let Some((inner, rest)) = text[1..].split_once(close) else { return text };
        let inner = inner.trim().trim_start_matches(['T', 'C']);
        let is_number = !inner.is_empty() && inner.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if !is_number {
            return text;
        }
        text = rest.trim_start();
    }
}

/// Whether it begins as the report of a fault of a process: `NAME[PID]: segfault at …`. Its name and that of the file are those of users.
fn is_of_fault(message: &str) -> bool {
    let after = |(place, _): (usize, &str)| {
        let rest = message[place + 1..].trim_start_matches(|digit: char| digit.is_ascii_digit());
        is_comm(&message[..place]) && rest.len() < message.len() - place - 1 && rest.starts_with("]: ")
    };
    message.match_indices('[').take_while(|(place, _)| *place <= 60).any(after)
}

/// Whether this can be the kernel's name of a process, which has at most 15 bytes (TASK_COMM_LEN). Invalid UTF-8 has been
/// replaced, with at most one character for a byte.
fn is_comm(text: &str) -> bool {
    text.chars().nth(15).is_none()
}

/// `python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0`.
fn invoked(message: &str) -> Option<Line<'_>> {
    let (comm, rest) = message.split_once(" invoked oom-killer: gfp_mask=0x")?;
    let (mask, rest) = rest.split_once("order=")?;
    let order = rest.split([',', ' ']).next()?.parse().ok()?;
    let digits = mask.split(|c: char| !c.is_ascii_hexdigit()).next()?;
    is_comm(comm).then_some(Line::Invoked { order, has_mask: digits.bytes().any(|digit| digit != b'0') })
}

/// `sysrq: Manual OOM execution`, on older kernels `SysRq : Manual OOM execution`: all that comes before the kill where reports are
/// frequent.
fn requested(message: &str) -> Option<Line<'_>> {
    let (head, action) = message.rsplit_once(": ")?;
    let is_it = action == "Manual OOM execution" && ["sysrq", "SysRq ", "sysrq: SysRq "].contains(&head);
    is_it.then_some(Line::Invoked { order: -1, has_mask: true })
}

/// `oom-kill:constraint=…,oom_memcg=/a,task_memcg=/a/b,task=python3,pid=1234,uid=1000`, with `global_oom` instead of
/// `oom_memcg=…` where no limit of a cgroup was reached.
///
/// The constraint stands before every name. The kernel begins another record when a path does not fit, so that the line can also end
/// within a name: the cgroups are taken only where each field occurs once, and that of the process is the one whose limit was
/// reached or below it.
fn choice(message: &str) -> Option<Choice> {
    let rest = message.strip_prefix("oom-kill:constraint=CONSTRAINT_")?;
    let (constraint, rest) = rest.split_once(',')?;
    let scope = match constraint {
        "NONE" => OomScope::Host,
        "MEMCG" => OomScope::Cgroup,
        "CPUSET" | "MEMORY_POLICY" => OomScope::Nodes,
        _ => return None,
    };
    let process = || {
        let (rest, uid) = rest.rsplit_once(",uid=")?;
        let (rest, pid) = rest.rsplit_once(",pid=")?;
        Some((rest, (pid.parse().ok()?, uid.trim_end().parse().ok()?)))
    };
    let Some((rest, process)) = process() else {
        return Some(Choice { scope, process: None, cgroup: String::new(), limit: String::new() });
    };
    let cgroups = || {
        let (rest, _) = only(rest, ",task=")?;
        let (before, cgroup) = only(rest, ",task_memcg=")?;
        match scope {
            OomScope::Cgroup => Some([cgroup, only(before, ",oom_memcg=")?.1]).filter(are_nested),
            _ => before.ends_with(",global_oom").then_some([cgroup, ""]).filter(|_| cgroup.starts_with('/')),
        }
    };
    let [cgroup, limit] = cgroups().unwrap_or_default().map(str::to_owned);
    Some(Choice { scope, process: Some(process), cgroup, limit })
}

/// Whether the first cgroup is the second one or below it.
fn are_nested([cgroup, limit]: &[&str; 2]) -> bool {
    let below = cgroup.strip_prefix(limit.trim_end_matches('/'));
    limit.starts_with('/')
        && cgroup.starts_with('/')
        && below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// The text before and after a separator that occurs once.
fn only<'a>(text: &'a str, separator: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(separator).filter(|(_, rest)| !rest.contains(separator))
}

/// `Task in /a/b killed as a result of limit of /a`.
fn task(message: &str) -> Option<Line<'_>> {
    let rest = message.strip_prefix("Task in ")?;
    let cgroups = only(rest.trim_end(), " killed as a result of limit of ");
    let cgroups = cgroups.map(|(cgroup, limit)| [cgroup, limit]).filter(are_nested);
    (rest.is_empty() || rest.starts_with('/')).then_some(Line::Task { cgroups })
}

/// The lines of a kill, and those that stand in its place.
fn kill(message: &str) -> Option<Line<'_>> {
    if let Some(rest) = message.strip_prefix("Tasks in ") {
        let cgroup = rest.strip_suffix(" are going to be killed due to memory.oom.group set")?;
        return Some(Line::Group { cgroup });
    }
    if message.starts_with("Out of memory and no killable processes...") {
        return Some(Line::Warning(Warning::OomNoVictim));
    }
    if message.starts_with("oom_reaper: unable to reap pid:") {
        return Some(Line::Warning(Warning::OomUnreaped));
    }
    if let Some(rest) = message.strip_prefix("Killed process ") {
        return Some(Line::Kill { is_in_cgroup: None, victim: victim(rest) });
    }
    let (is_in_cgroup, rest) = match message.strip_prefix("Memory cgroup out of memory") {
        Some(rest) => (true, rest),
        None => (false, message.strip_prefix("Out of memory")?),
    };
    let rest = rest.strip_prefix(" (oom_kill_allocating_task)").unwrap_or(rest).strip_prefix(": ")?;
    if let Some(rest) = rest.strip_prefix("Killed process ") {
        return Some(Line::Kill { is_in_cgroup: Some(is_in_cgroup), victim: victim(rest) });
    }
    if rest.starts_with("OOM victim ") {
        return Some(Line::Skipped);
    }
    let pid = rest.strip_prefix("Kill process ")?.split(' ').next()?.parse().ok();
    Some(Line::Selected { pid, is_in_cgroup })
}

/// `1234 (python3) total-vm:98304kB, anon-rss:91234kB, file-rss:0kB, shmem-rss:64kB, UID:1000 …`; on RHEL 7
/// `1234 (python3), UID 1000, total-vm:…`.
fn victim(text: &str) -> Victim<'_> {
    let Some((pid, rest)) = text.split_once(" (") else { return Victim::default() };
    let pid = pid.parse().ok();
    // The process chose its name, which may contain anything; the text after the last match is the kernel's.
    let Some((before, amounts)) = rest.rsplit_once(" total-vm:") else {
        return Victim { pid, ..Victim::default() };
    };
    let of_rhel = || {
        let (comm, uid) = before.strip_suffix(',')?.rsplit_once("), UID ")?;
        Some((comm, uid.parse().ok()))
    };
    let uid = || amounts.split_once(", UID:").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    let named = of_rhel().or_else(|| Some((before.strip_suffix(')')?, uid())));
    let Some((comm, uid)) = named else { return Victim { pid, ..Victim::default() } };
    let kib = |name: &str| {
        let (_, rest) = amounts.split_once(name)?;
        Bytes::from_kib(rest.split_once("kB")?.0.parse().ok()?)
    };
    Victim { pid, comm, uid, resident: [", anon-rss:", ", file-rss:", ", shmem-rss:"].map(kib) }
}

/// `NVRM: Xid (PCI:0000:3b:00): 79, pid=…`; whether `PCI:` and the function `.0` are present depends on the
/// driver version.
///
/// A MIG instance is named after the address: `(PCI:0000:3b:00 GPU-I:07)`, a compute instance by `GPU-CI:`.
fn xid(message: &str) -> Option<Line<'_>> {
    /// A domain of eight digits, bus and device: `00000000:3b:00`.
    const LONGEST: usize = 14;
    let (address, rest) = message.strip_prefix("NVRM: Xid (")?.split_once("): ")?;
    let address = address.strip_prefix("PCI:").unwrap_or(address);
    let pci = address.split(['.', ' ']).next()?;
    let hexadecimal = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    // Domain, bus, device.
    let is_address = pci.split(':').count() == 3 && pci.split(':').all(hexadecimal);
    let digits = rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
    let number = rest[..digits].parse().ok()?;
    let severity = xid::severity_of_line(number, &rest[digits..]);
    (is_address && pci.len() <= LONGEST).then_some(Line::Xid { pci, xid: number, severity })
}

/// Lines that name a process, or its cgroup, to which something happened that no exit status tells.
fn of_process(message: &str) -> Option<Line<'_>> {
    // `Memory failure: 0x1: Sending SIGBUS to X:N due to …`; on Linux 3.10 `MCE 0x1: Killing X:N …`, and `MCE: Killing X:N …`.
    let failed =
        ["Memory failure: 0x", "MCE 0x", "MCE"].into_iter().find_map(|head| message.strip_prefix(head));
    if let Some((_, rest)) = failed.and_then(|rest| rest.split_once(": ")) {
        let signals = ["Sending SIGBUS to ", "Killing ", "forcibly killing "];
        let named = signals.into_iter().find_map(|signal| rest.strip_prefix(signal))?;
        let causes = [
            " due to hardware memory corruption",
            " early due to hardware memory corruption",
            " because of failure to unmap",
        ];
        let (named, _) = causes.into_iter().rev().find_map(|cause| named.split_once(cause))?;
        let (comm, pid) = named.rsplit_once(':')?;
        let pid = pid.parse().ok()?;
        return is_comm(comm).then_some(Line::MemoryError { pid });
    }
    if let Some(cgroup) = message.strip_prefix("cgroup: fork rejected by pids controller in ") {
        return Some(Line::ForkRejected { cgroup: cgroup.trim_end() });
    }
    let pid = message.strip_prefix("PID ")?.strip_suffix(" killed due to inadequate hugepage pool")?;
    Some(Line::HugePages { pid: pid.parse().ok()? })
}

/// How warnings begin whose first words are enough.
const BEGINNINGS: [(&str, Warning); 12] = [
    ("watchdog: BUG: soft lockup - CPU#", Warning::SoftLockup),
    ("NMI watchdog: BUG: soft lockup - CPU#", Warning::SoftLockup),
    ("BUG: soft lockup - CPU#", Warning::SoftLockup),
    ("watchdog: Watchdog detected hard LOCKUP on cpu", Warning::HardLockup),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu", Warning::HardLockup),
    ("Watchdog detected hard LOCKUP on cpu", Warning::HardLockup),
    ("watchdog: CPU", Warning::HardLockup),
    ("mce: [Hardware Error]: Machine check events logged", Warning::MachineCheck),
    ("Hardware error from APEI Generic Hardware Error Source:", Warning::MachineCheck),
    ("Hardware Error from APEI Generic Hardware Error Source:", Warning::MachineCheck),
    ("NVRM: ", Warning::GpuLost),
    ("NVRM: ", Warning::GpuDriverMemory),
];

/// What stands further on in these lines.
fn warning(message: &str) -> Option<Warning> {
    if allocation_failure(message) {
        return Some(Warning::AllocationFailure);
    }
    if hung_task(message).is_some() {
        return Some(Warning::HungTask);
    }
    if rcu_stall(message).is_some() {
        return Some(Warning::RcuStall);
    }
    if let Some(found) = edac(message).or_else(|| sxid(message)) {
        return Some(found);
    }
    let is_recovery = message.starts_with("Memory failure: ") && message.contains(": recovery action for ");
    if is_recovery || (message.starts_with("MCE 0x") && message.contains(" page recovery: ")) {
        return Some(Warning::MemoryFailure);
    }
    // `{4}[Hardware Error]: ` before each line of a report of the firmware.
    let of_firmware = message.strip_prefix('{').and_then(|rest| rest.split_once("}[Hardware Error]: "));
    let message =
        of_firmware.filter(|(number, _)| number.parse::<u32>().is_ok()).map_or(message, |(_, rest)| rest);
    let mut known = BEGINNINGS.iter().filter(|(beginning, _)| message.starts_with(beginning));
    let is_stated = |warning: Warning| match warning {
        Warning::HardLockup if message.starts_with("watchdog: CPU") => {
            message.contains(": Watchdog detected hard LOCKUP on cpu")
        }
        Warning::GpuLost => {
            message.trim_end_matches('.').ends_with("GPU has fallen off the bus")
                || message.ends_with("fallen off the bus and is not responding to commands.")
        }
        Warning::GpuDriverMemory => message.contains("[NV_ERR_NO_MEMORY]"),
        _ => true,
    };
    known.find(|(_, warning)| is_stated(*warning)).map(|(_, warning)| *warning)
}

/// `python3: page allocation failure: order:4, mode:…`.
fn allocation_failure(message: &str) -> bool {
    message.split_once(": page allocation failure: order:").is_some_and(|(comm, _)| is_comm(comm))
}

/// `INFO: task python3:48213 blocked for more than 120 seconds.`, since Linux 7 also `blocked in I/O wait for`.
fn hung_task(message: &str) -> Option<()> {
    let (task, rest) = message.strip_prefix("INFO: task ")?.rsplit_once(" blocked ")?;
    let rest = rest.strip_prefix("in I/O wait ").unwrap_or(rest).strip_prefix("for more than ")?;
    let (seconds, _) = rest.split_once(" seconds")?;
    let (comm, pid) = task.rsplit_once(':')?;
    (pid.parse::<u32>().is_ok() && seconds.parse::<u64>().is_ok() && is_comm(comm)).then_some(())
}

/// `rcu: INFO: rcu_sched self-detected stall on CPU`, `INFO: rcu_preempt detected stalls on CPUs/tasks:`.
fn rcu_stall(message: &str) -> Option<()> {
    const STALLS: [&str; 4] = [
        "self-detected stall on CPU",
        "detected stalls on CPUs/tasks",
        "detected expedited stalls on CPUs/tasks",
        "detected stalls on tasks",
    ];
    let rest = message.strip_prefix("rcu: ").unwrap_or(message).strip_prefix("INFO: rcu_")?;
    let (flavor, rest) = rest.split_once(' ')?;
    let is_flavor = flavor.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    (is_flavor && STALLS.iter().any(|stall| rest.starts_with(stall))).then_some(())
}

/// `EDAC MC0: 1 CE memory read error on …`.
fn edac(message: &str) -> Option<Warning> {
    let (controller, rest) = message.strip_prefix("EDAC MC")?.split_once(": ")?;
    let (count, rest) = rest.split_once(' ')?;
    let are_numbers = [controller, count].iter().all(|number| number.parse::<u32>().is_ok());
    match rest.get(..3) {
        Some("CE ") if are_numbers => Some(Warning::MemoryCorrected),
        Some("UE ") if are_numbers => Some(Warning::MemoryUncorrected),
        _ => None,
    }
}

/// `nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 …`.
fn sxid(message: &str) -> Option<Warning> {
    let (switch, rest) = message.strip_prefix("nvidia-nvswitch")?.split_once(": SXid (PCI:")?;
    switch.parse::<u32>().ok()?;
    let (_, rest) = rest.split_once("): ")?;
    let (number, rest) = rest.split_once(", ")?;
    number.parse::<u32>().ok()?;
    // Further lines have its data.
    match rest.split(',').next()? {
        "Fatal" => Some(Warning::NvswitchFatal),
        "Non-fatal" => Some(Warning::NvswitchNonfatal),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
