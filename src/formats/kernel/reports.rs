//! Puts the lines of one report of the OOM killer together.
//!
//! Since Linux 5.4 a report is: `X invoked oom-killer`, the memory, the tasks, the choice (constraint, cgroups, process), the kill, and
//! with memory.oom.group the kills of the others of the cgroup, the chosen process once more among them. The kernel writes one report
//! at a time; lines of others come between. It writes only the kills where reports are frequent.

use super::lines::{Choice, Line, Victim, Warning, line};
use super::record::Record;
use crate::model::facts::OomScope;
use crate::model::health::Health;
use crate::model::units::Bytes;

/// What the kernel log tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The OOM killer killed a process.
    Kill(Kill),
    /// The NVIDIA driver reported an XID, at a PCI address without its function.
    Xid {
        pci: String,
        xid: u32,
        severity: Health,
    },
    /// A process used memory of the host that has failed.
    MemoryError {
        pid: u32,
    },
    /// A process was ended because the pool of huge pages was empty.
    HugePages {
        pid: u32,
    },
    /// A fork in this cgroup exceeded the limit of processes of it or of one above.
    ForkRejected {
        cgroup: String,
    },
    Warning(Warning),
}

/// The kill of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kill {
    /// The memory that ran out.
    pub scope: OomScope,
    /// Whether the kernel stated the scope; otherwise it is what the kill alone suggests.
    pub is_scope_stated: bool,
    /// The pid in the initial pid namespace, of the process or of its thread that still had its memory; absent where the line is cut
    /// before it.
    pub pid: Option<u32>,
    /// The pid of the process that the line before chose; absent where none is known.
    pub chosen: Option<u32>,
    /// Whether it is one of those of a cgroup, as far as the lines before tell: it can be another one, without its report.
    pub is_of_group: bool,
    /// The kernel's name of that process or thread; empty where the line is cut before its end.
    pub comm: String,
    pub uid: Option<u32>,
    /// Its resident memory of each kind of [`crate::model::facts::RESIDENT_KINDS`].
    pub resident: [Option<Bytes>; 3],
    /// Its cgroup, and the one whose limit was reached; empty where they are not known.
    pub cgroup: String,
    pub limit_cgroup: String,
}

/// A report of which more lines may come.
#[derive(Debug, Default)]
struct Report {
    /// Whether the request had an order below zero, which only an operator's (sysrq f) has.
    is_request: bool,
    /// Whether it came from a page fault that failed elsewhere.
    is_page_fault: bool,
    scope: Option<OomScope>,
    choice: Option<Choice>,
    /// Whether the line `Kill process N` came, on kernels that then may kill a child of the chosen process.
    is_selected: bool,
    /// The cgroup of which all processes are killed.
    group: Option<String>,
    /// Whether the first kill is for the limit of a cgroup, where its line says so.
    is_in_cgroup: Option<bool>,
    killed: Vec<u32>,
    /// When its last line was written, in microseconds.
    last_us: u64,
}

/// Reads the kernel log, record by record.
#[derive(Debug, Default)]
pub struct Reports {
    report: Report,
    /// The processes of lines `Kill process N` whose kill has not come, and whether each is for the limit of a cgroup.
    selected: Vec<(u32, bool)>,
    /// When the kernel wrote its last line, in microseconds.
    last_us: u64,
    /// The line that the next part of it continues.
    fragment: String,
}

/// How the lines begin that the kernel writes in parts.
const CONTINUED: [&str; 4] =
    ["oom-kill:constraint=", "Task in ", "Tasks in ", "cgroup: fork rejected by pids controller in "];
/// Microseconds between two lines of the kernel, or two kills of a report, above which they belong to two reports. Others come
/// between: the list of processes, which takes minutes on a serial console.
const LONGEST_PAUSE_US: u64 = 60_000_000;
const LONGEST_PAUSE_OF_KILLS_US: u64 = 10_000_000;
/// Most bytes of a line of several records: two paths and what is between them.
const LONGEST: usize = 3 * 4096;
/// Most lines `Kill process N` that are remembered.
const MOST_SELECTED: usize = 16;
/// Most processes of a report that are told apart.
const MOST_KILLED: usize = 4096;

impl Reports {
    /// Reads one record; what it tells, if anything. Records of processes tell nothing.
    pub fn read(&mut self, record: &Record<'_>) -> Option<Event> {
        if !record.from_kernel {
            return None;
        }
        let pause = record.kernel_us.saturating_sub(self.last_us);
        self.last_us = record.kernel_us;
        if pause > LONGEST_PAUSE_US && self.report.killed.is_empty() {
            self.report = Report::default();
        }
        // A name that a user chose can be a part of a line; what the kernel writes at once is none.
        let is_part = |line: &Line<'_>| {
            matches!(
                line,
                Line::Choice(_) | Line::Task { .. } | Line::Group { .. } | Line::ForkRejected { .. }
            )
        };
        let own = line(&record.message).filter(|line| !record.is_continuation || is_part(line));
        if record.is_continuation && own.is_none() && !self.fragment.is_empty() {
            if self.fragment.len() + record.message.len() <= LONGEST {
                self.fragment.push_str(&record.message);
            }
            let text = std::mem::take(&mut self.fragment);
            let line = line(&text);
            // What another CPU continues does not belong to it.
            let goes_on = !line.as_ref().is_some_and(is_whole);
            let event = line.and_then(|line| self.take(line, record.kernel_us));
            if goes_on {
                self.fragment = text;
            }
            return event;
        }
        if CONTINUED.iter().any(|head| record.message.starts_with(head)) {
            let part = Some(&record.message).filter(|_| !own.as_ref().is_some_and(is_whole));
            part.map_or("", |part| part.trim_end_matches('\n')).clone_into(&mut self.fragment);
        }
        self.take(own?, record.kernel_us)
    }

    fn take(&mut self, line: Line<'_>, at_us: u64) -> Option<Event> {
        let is_other = matches!(
            line,
            Line::Xid { .. }
                | Line::Warning(_)
                | Line::MemoryError { .. }
                | Line::HugePages { .. }
                | Line::ForkRejected { .. }
        );
        if !is_other {
            if !self.report.killed.is_empty()
                && at_us.saturating_sub(self.report.last_us) > LONGEST_PAUSE_OF_KILLS_US
            {
                self.report = Report::default();
            }
            self.report.last_us = at_us;
        }
        let report = &mut self.report;
        match line {
            Line::Invoked { order, has_mask } => {
                let (is_request, is_page_fault) = (order < 0, !has_mask);
                *report = Report { is_request, is_page_fault, last_us: at_us, ..Report::default() };
                None
            }
            Line::Choice(choice) => {
                report.begin_if_over();
                report.scope = Some(choice.scope);
                report.choice = Some(choice);
                None
            }
            Line::Task { cgroups } => {
                report.begin_if_over();
                // Of two at once, each kill can belong to either (before Linux 4.19).
                let is_only = report.choice.as_ref().is_none_or(|choice| choice.limit.is_empty());
                let paths = cgroups.filter(|_| is_only).map(|paths| paths.map(str::to_owned));
                let [cgroup, limit] = paths.unwrap_or_default();
                report.scope = Some(OomScope::Cgroup);
                report.choice = Some(Choice { scope: OomScope::Cgroup, process: None, cgroup, limit });
                None
            }
            Line::Selected { pid, is_in_cgroup } => {
                report.begin_if_over();
                report.scope = report.scope.or(is_in_cgroup.then_some(OomScope::Cgroup));
                report.is_selected = true;
                self.selected.retain(|(own, _)| Some(*own) != pid);
                self.selected.drain(..self.selected.len().saturating_sub(MOST_SELECTED - 1));
                self.selected.extend(pid.map(|pid| (pid, is_in_cgroup)));
                None
            }
            // One of a group does not end the report.
            Line::Skipped => {
                if report.group.is_none() {
                    *report = Report { last_us: at_us, ..Report::default() };
                }
                None
            }
            Line::Group { cgroup } => {
                report.group = Some(cgroup.to_owned());
                None
            }
            Line::Kill { is_in_cgroup, victim } => {
                self.fragment.clear();
                let place = self.selected.iter().position(|(pid, _)| Some(*pid) == victim.pid);
                let selected = place.map(|place| self.selected.remove(place).1);
                report.kill(is_in_cgroup, selected, victim).map(Event::Kill)
            }
            Line::Xid { pci, xid, severity } => {
                Some(Event::Xid { pci: pci.to_ascii_lowercase(), xid, severity })
            }
            Line::MemoryError { pid } => Some(Event::MemoryError { pid }),
            Line::HugePages { pid } => Some(Event::HugePages { pid }),
            Line::ForkRejected { cgroup: "" } => None,
            Line::ForkRejected { cgroup } => Some(Event::ForkRejected { cgroup: cgroup.to_owned() }),
            Line::Warning(warning) => {
                if warning == Warning::OomNoVictim {
                    *report = Report::default();
                }
                Some(Event::Warning(warning))
            }
        }
    }
}

/// Whether nothing can continue this line.
const fn is_whole(line: &Line<'_>) -> bool {
    match line {
        Line::Choice(choice) => choice.process.is_some(),
        Line::Task { cgroups } => cgroups.is_some(),
        Line::ForkRejected { cgroup } => !cgroup.is_empty(),
        _ => true,
    }
}

impl Report {
    /// Begins another report where this one has had its kill.
    fn begin_if_over(&mut self) {
        if !self.killed.is_empty() {
            *self = Self { last_us: self.last_us, ..Self::default() };
        }
    }

    /// The kill of a line; absent where the report has it already. Whether it is for the limit of a cgroup is in this line, or in that
    /// which `selected` the process.
    fn kill(
        &mut self,
        is_in_cgroup: Option<bool>,
        selected: Option<bool>,
        victim: Victim<'_>,
    ) -> Option<Kill> {
        let is_of_other_scope = match (is_in_cgroup.or(selected), self.scope) {
            (Some(is_in_cgroup), Some(scope)) => is_in_cgroup != (scope == OomScope::Cgroup),
            _ => !self.killed.is_empty() && is_in_cgroup != self.is_in_cgroup,
        };
        if is_of_other_scope {
            *self = Self { last_us: self.last_us, ..Self::default() };
        }
        if self.group.is_none() {
            // Of frequent reports only the kills are written.
            self.begin_if_over();
        } else if victim.pid.is_some_and(|pid| self.killed.contains(&pid)) {
            return None;
        }
        let scope = match is_in_cgroup.or(selected) {
            Some(true) => Some(OomScope::Cgroup),
            _ if self.is_request => Some(OomScope::Request),
            _ if self.is_page_fault && self.scope == Some(OomScope::Host) => Some(OomScope::PageFault),
            _ => self.scope,
        };
        // The kernel cuts lines within names, which users choose: what follows in such a line can name a process of them only.
        let is_same_user = |(_, uid)| victim.uid.is_none_or(|own| own == uid);
        let is_own = |choice: &&Choice| self.group.is_some() || choice.process.is_none_or(is_same_user);
        let choice = self.choice.as_ref().filter(is_own);
        let is_it = |(pid, _): &(u32, u32)| !self.is_selected || victim.pid.is_none_or(|own| own == *pid);
        let chosen = choice.and_then(|choice| choice.process).filter(|_| self.group.is_none()).filter(is_it);
        let cgroup = self.group.as_ref().or_else(|| choice.map(|choice| &choice.cgroup));
        let kill = Kill {
            scope: scope.unwrap_or_default(),
            is_scope_stated: scope.is_some(),
            pid: victim.pid,
            chosen: chosen.map(|(pid, _)| pid),
            is_of_group: self.group.is_some(),
            comm: victim.comm.to_owned(),
            uid: victim.uid.or(chosen.map(|(_, uid)| uid)),
            resident: victim.resident,
            cgroup: cgroup.cloned().unwrap_or_default(),
            limit_cgroup: choice.map(|choice| choice.limit.clone()).unwrap_or_default(),
        };
        self.is_in_cgroup = is_in_cgroup;
        if self.killed.len() < MOST_KILLED {
            // A kill without a number is one too.
            self.killed.push(victim.pid.unwrap_or_default());
            self.killed.extend(kill.chosen);
        }
        Some(kill)
    }
}

#[cfg(test)]
mod tests;
