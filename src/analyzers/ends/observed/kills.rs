//! OOM kills that may explain an end: by the kernel log, and by the counters of cgroups.

use super::super::classify::{OtherKill, kill_of};
use super::{KEPT, Recent, SIGKILL};
use crate::model::ends::{ExitStatus, OomKill};
use crate::model::facts::{Facts, KernelLog, OomVictim, ProcessRow};
use crate::model::ids::{ProcessKey, within};
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::{TICKS, real};

/// Most kills that are remembered.
const MOST_KILLS: usize = 4_096;
/// Seconds for which a kill can be the reason that the parent of the process fails: a loader is asked for its next batch.
const PARENT: f64 = 60.0;

/// An OOM kill, with the parent and the cgroup of its process where a tick has seen it.
#[derive(Debug)]
pub(super) struct OomKilled {
    victim: OomVictim,
    parent: u32,
    group: Option<Label>,
    at: f64,
}

/// Whether it can be a kill of a process of this user that no tick has seen.
fn is_unseen_of(killed: &OomKilled, user: u32) -> bool {
    killed.victim.process.is_none() && killed.victim.uid.is_none_or(|uid| uid == user)
}

impl Recent {
    pub(super) fn record_kills(&mut self, facts: &Facts) {
        let now = self.now;
        self.log = facts.kernel_log;
        // What is left of it is read later.
        if !matches!(self.log, KernelLog::Complete | KernelLog::Behind) {
            self.incomplete = now;
        }
        self.reports.retain(|(_, at)| *at >= self.oldest);
        let room = MOST_KILLS.saturating_sub(self.reports.len());
        self.reports.extend(facts.kernel_reports.iter().take(room).map(|report| (report.clone(), now)));
        // One with much memory takes long to end.
        let is_there =
            |process: ProcessKey| facts.row(process).is_some() || facts.before.row(process.pid).is_some();
        self.kills.retain(|killed| {
            now - killed.at <= PARENT
                || killed.at >= self.oldest
                || killed.victim.process.is_some_and(is_there)
        });
        for victim in &facts.oom_victims {
            let is_known = |killed: &OomKilled| killed.victim.process == victim.process;
            if victim.process.is_some() && self.kills.iter().any(is_known) {
                continue;
            }
            if self.kills.len() >= MOST_KILLS {
                self.kills.pop_front();
            }
            let row = victim.process.and_then(|process| facts.before.row(process.pid));
            let ended = || {
                let (parent, ..) = self.child_signals.get(&victim.process?)?;
                Some((*parent, None))
            };
            let seen = row.map(|row| (row.parent, row.cgroup.clone()));
            let (parent, group) = seen.or_else(ended).unwrap_or_default();
            self.kills.push_back(OomKilled { victim: victim.clone(), parent, group, at: now });
        }
        for killed in self.kills.iter_mut().filter(|killed| killed.victim.process.is_none()) {
            let pid = killed.victim.pid.filter(|_| self.log != KernelLog::Foreign);
            let row = pid.zip(facts.processes.as_ref()).and_then(|(pid, table)| table.get(pid));
            let of_thread = || {
                let process = facts.exited.iter().find(|thread| Some(thread.tid) == pid)?.process;
                facts.before.row(process.pid).filter(|row| row.key == process)
            };
            let is_victim = |row: &&ProcessRow| {
                let is_older = real(row.key.start) / TICKS <= killed.at;
                killed.victim.uid.is_some_and(|uid| row.is_of(uid)) && is_older
            };
            if let Some(row) = row.filter(is_victim).or_else(|| of_thread().filter(is_victim)) {
                killed.victim.process = Some(row.key);
                (killed.parent, killed.group) = (row.parent, row.cgroup.clone());
            }
        }
    }

    fn latest(&self) -> impl Iterator<Item = &OomKilled> {
        self.kills.iter().rev().take_while(|killed| killed.at >= self.oldest)
    }

    pub(in crate::analyzers::ends) fn kill_of(&self, process: ProcessKey) -> Option<OomKill> {
        let killed = self.kills.iter().rev().find(|killed| killed.victim.process == Some(process))?;
        Some(kill_of(&killed.victim))
    }

    /// Whether SIGKILL ended it, or the kernel's OOM killer.
    pub(in crate::analyzers::ends) fn is_killed(&self, process: ProcessKey) -> bool {
        self.status_of(process) == Some(ExitStatus::Signal(SIGKILL)) || self.kill_of(process).is_some()
    }

    /// The processes that the kernel's OOM killer killed lately.
    pub(in crate::analyzers::ends) fn killed(&self) -> Vec<ProcessKey> {
        self.kills.iter().filter_map(|killed| killed.victim.process).collect()
    }

    /// The kill of a process in this cgroup, and otherwise the only one of a process of this name, where the kernel log names pids
    /// of another namespace; and whether it has this name. Absent where several kills differ.
    pub(in crate::analyzers::ends) fn kill_by_name(
        &self,
        comm: &Label,
        group: &Label,
    ) -> Option<(OomKill, bool)> {
        if self.log != KernelLog::Foreign {
            return None;
        }
        let is_named = |killed: &&OomKilled| killed.victim.comm == *comm;
        let has_group = !["", "/"].contains(&group.as_str());
        // The log has the paths of the host, those here may be of a cgroup namespace.
        let in_group =
            || self.latest().filter(|own| has_group && own.victim.cgroup.as_str().ends_with(group.as_str()));
        let has_name = in_group().any(|killed| is_named(&killed));
        let mut kills =
            in_group().filter(|killed| !has_name || is_named(killed)).map(|own| kill_of(&own.victim));
        if let Some(kill) = kills.next() {
            // Another container has a cgroup of the same end.
            let is_own = in_group().all(|killed| killed.victim.cgroup == *group);
            return kills.all(|other| other == kill).then_some((kill, has_name && is_own));
        }
        let mut named = self.latest().filter(is_named);
        let only = named.next().filter(|only| !has_group || only.victim.cgroup.is_empty())?;
        named.next().is_none().then(|| (kill_of(&only.victim), true))
    }

    /// The kill of a process that this one had started, or of a process of its cgroup that no tick has seen.
    pub(in crate::analyzers::ends) fn other_kill(
        &self,
        process: ProcessKey,
        (group, user): (&Label, u32),
    ) -> Option<OtherKill> {
        let of_child = self.kills.iter().rev().find(|killed| {
            let is_younger = killed.victim.process.is_some_and(|own| own.start >= process.start);
            killed.parent == process.pid && is_younger
        });
        if let Some(killed) = of_child {
            return Some(OtherKill {
                is_recent: killed.at >= self.oldest,
                ..OtherKill::of(&killed.victim, true)
            });
        }
        // The root cgroup has the processes of everybody.
        let group = Some(group).filter(|group| !["", "/"].contains(&group.as_str()))?;
        let is_it = |killed: &&OomKilled| is_unseen_of(killed, user) && killed.victim.cgroup == *group;
        self.latest().find(is_it).map(|killed| OtherKill::of(&killed.victim, false))
    }

    /// Whether what the kernel logged since a process was last seen `alive` is known, and otherwise why not.
    pub(in crate::analyzers::ends) fn log_since(&self, alive: Timestamp, user: u32) -> KernelLog {
        match self.log {
            // One of these may have been it.
            KernelLog::Complete if self.latest().any(|killed| is_unseen_of(killed, user)) => KernelLog::Lost,
            KernelLog::Complete if self.incomplete > alive.monotonic().as_secs_f64() => KernelLog::Lost,
            log => log,
        }
    }

    /// The cgroup of `group`, or the nearest one above with a counter of OOM kills, if that rose in the last seconds by more than the
    /// log explains; and whether it is `group` itself.
    pub(in crate::analyzers::ends) fn counted_kill(&self, group: &Label) -> Option<(Label, bool)> {
        let is_in = |group: &Label, path: &Label| within(group.as_str(), path.as_str());
        // A kill in a cgroup is counted in it, and on version 2 in those above too.
        let on_path = self.counters.iter().filter(|(path, _)| is_in(group, path));
        let (nearest, (_, rises)) = on_path.max_by_key(|(path, _)| path.as_str().len())?;
        let is_elsewhere = nearest != group
            && self
                .counters
                .iter()
                .any(|(path, (_, rises))| path != nearest && is_in(path, nearest) && !rises.is_empty());
        // The log is read before the counters. It does not place each kill: one that it does not may be counted here.
        let is_named_in = |killed: &&OomKilled| {
            let own = killed.group.as_ref().unwrap_or(&killed.victim.cgroup);
            killed.at >= self.oldest - KEPT && !own.is_empty() && is_in(own, nearest)
        };
        let named = self.kills.iter().filter(is_named_in).count();
        let rise: f64 = rises.iter().map(|(_, rise)| rise).sum();
        (rise > real(named as u64) && !is_elsewhere).then(|| (nearest.clone(), nearest == group))
    }
}
