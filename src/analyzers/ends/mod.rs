//! Says how processes of workloads ended, and why.
//!
//! # What it says
//! One [`End`] for each workload that ends, for each rank, and for each other process that a signal ended or that held much
//! memory; processes of a workload that end together are one end, explained by the one whose cause is the strongest. Where the main
//! process of a workload fails and others live on, its end is that of the workload, and not theirs. Also one for
//! each process of no workload that the kernel's OOM killer killed.
//!
//! # Method
//! A process of the previous tick that is missing, or a zombie, has ended. What is known of it is collected for `SETTLE`:
//! the kernel log, its exit status, who sent it a signal, what it reported last, XIDs, and the memory of the last frame before its end. The cause
//! follows from these in the order of `classify`.
//!
//! # When it stays silent
//! About processes that no tick has seen, and about those without a workload that the OOM killer did not kill. An end that
//! nothing explains is unknown.

mod case;
mod classify;
mod episode;
pub mod metrics;
mod observed;
mod others;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use self::classify::{Case, Classified};
use self::episode::{Episode, Explained, Member, is_supervisor, is_wrapper};
use self::observed::{Observed, Recent};
use super::Registration;
use crate::model::analyzer::{Analysis, Analyzer, SavedState, View};
use crate::model::ends::{End, EndCause, EndEvidence, ExitStatus, Retry};
use crate::model::facts::{ExitedProcess, Facts, OwnLimits, ProcessRow, ProcessTable, Workload, member_of};
use crate::model::ids::{Anchor, ProcessKey, WorkloadKey};
use crate::model::label::Label;
use crate::model::subordinate::payer;
use crate::model::time::Timestamp;
use crate::model::units::{Count, TICKS, real};

/// Registration of the `ends` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "ends",
    about: "Says how workloads, ranks, large processes and those that the OOM killer killed ended, and why.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_| Box::new(Ends::default()))
};

/// Seconds of CPU time that the ticks of a process, which are rounded down, and those after its last read may lack.
const CPU_SLACK: f64 = 0.25;
/// Most ends that are kept.
const MOST: usize = 256;
/// How long a launcher may wait for its other processes after the end that it fails for: torchrun gives them 30 s.
const LAUNCHER_END: Duration = Duration::from_secs(60);
/// The strength of the end of a process that failed by itself.
const OF_ITSELF: u32 = 2;
/// Most of them in a workload.
const MOST_LAUNCHERS: usize = 16;
/// Most users with counters of their own.
const MOST_USERS: usize = 64;

#[derive(Default)]
struct Ends {
    workloads: HashMap<WorkloadKey, Observed>,
    recent: Recent,
    episodes: BTreeMap<WorkloadKey, Episode>,
    /// The processes of each workload of which a child ended, with the number of that end and when it was stated.
    launchers: HashMap<WorkloadKey, Vec<(ProcessKey, u64, Timestamp)>>,
    ends: Arc<[Arc<End>]>,
    /// The number of the last end.
    last: u64,
    /// The number of ends of each user, in the order of the causes.
    counts: BTreeMap<Label, [u64; EndCause::ALL.len()]>,
    /// The users' names, by id.
    users: BTreeMap<u32, Label>,
}

impl Analyzer for Ends {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        if let Some((facts, table)) = view.facts().and_then(|facts| Some((facts, facts.processes.as_ref()?)))
        {
            self.recent.record(view, facts, now);
            self.collect(facts, table, now);
            self.close(view, facts, table, now);
            observed::record(&mut self.workloads, view, facts, (now, self.recent.oldest()));
            self.count_from_zero(facts);
        }
        for (user, counts) in &self.counts {
            for (cause, count) in EndCause::ALL.iter().zip(counts) {
                out.batch.put(&metrics::ENDS, &[user.clone(), cause.label().into()], Count(*count));
            }
        }
        for (end, count) in repeated(&self.ends, now.unix().as_secs_f64()) {
            let user = self.users.get(&end.user_id).cloned().unwrap_or_else(|| end.user_id.into());
            let labels = [end.workload.clone(), end.run.clone(), user, end.cause.label().into()];
            out.batch.put(&metrics::REPEATED, &labels, Count(count));
        }
        out.outlook.ends = Arc::clone(&self.ends);
        let has_kill =
            |episode: &&Episode| episode.members.iter().any(|member| self.recent.is_killed(member.key));
        let awaited = self.episodes.values().filter(has_kill);
        out.outlook.awaits_kills = awaited.map(|episode| episode.workload.name.clone()).collect();
    }

    fn save(&self) -> Option<SavedState> {
        let ends = Arc::clone(&self.ends);
        Some(Box::new(move |out| {
            serde_json::to_writer(out, &ends.iter().map(|end| &**end).collect::<Vec<_>>())
        }))
    }

    fn restore(&mut self, saved: &str) -> Result<(), serde_json::Error> {
        let saved: Vec<&RawValue> = serde_json::from_str(saved)?;
        let read: Vec<_> = saved.iter().map(|end| serde_json::from_str::<End>(end.get())).collect();
        let (mut ends, mut invalid) = (Vec::new(), None);
        for end in read {
            match end {
                Ok(end) => ends.push(end),
                Err(error) => invalid = Some(error),
            }
        }
        let before = ends.iter().map(|end| end.number).max().unwrap_or(0);
        self.last = self.last.saturating_add(before);
        for (_, number, _) in self.launchers.values_mut().flatten() {
            *number = number.saturating_add(before);
        }
        ends.extend(
            self.ends.iter().map(|end| End { number: end.number.saturating_add(before), ..End::clone(end) }),
        );
        let excess = ends.len().saturating_sub(MOST);
        self.ends = ends.into_iter().skip(excess).map(Arc::new).collect();
        // The others are kept.
        invalid.map_or(Ok(()), Err)
    }
}

/// The end of a command that no sample has seen, by its exit status alone; `unix` is the time in seconds since 1970.
pub fn unobserved(workload: Label, comm: Label, (exited, user_id): (ExitedProcess, u32), unix: f64) -> End {
    let status = ExitStatus::of_wait(exited.status);
    let found = classify::classify(&Case { status: Some(status), ..Case::default() });
    End {
        number: 1,
        unix_seconds: unix,
        workload,
        run: Label::default(),
        rank: Label::default(),
        user_id,
        pid: exited.process.pid,
        comm,
        processes: 1,
        is_whole: true,
        retry: found.retry(),
        cause: found.cause,
        probability: found.probability,
        settles: found.settles.into(),
        resource: None,
        used_bytes: None,
        limit_bytes: None,
        other: None,
        // Nobody has looked at the log.
        evidence: found.evidence.into_iter().filter(|seen| !matches!(seen, EndEvidence::Log(_))).collect(),
        phase: Label::default(),
        step: None,
        checkpoint_step: None,
        checkpoint_age_seconds: None,
        lost_gpu_seconds: None,
        curve: Vec::new(),
    }
}

impl Ends {
    /// Adds the processes that ended since the last tick to the episodes of their workloads.
    fn collect(&mut self, facts: &Facts, table: &ProcessTable, now: Timestamp) {
        let Some(before) = &facts.before.processes else { return };
        let mut rows = table.rows.iter().peekable();
        // Both are sorted by pid.
        for member in &facts.before.workload_of {
            let key = member.process;
            while rows.next_if(|row| row.key.pid < key.pid).is_some() {}
            if rows.peek().is_some_and(|row| row.key == key && !has_ended(row)) {
                continue;
            }
            // It may have been a zombie already.
            let Some(row) = before.get(key.pid).filter(|row| row.key == key && !has_ended(row)) else {
                continue;
            };
            self.add(facts, &member.workload, row, now);
        }
        for key in self.recent.killed() {
            let is_member = |members| member_of(members, key.pid).is_some_and(|own| own.process == key);
            let is_of_some = is_member(&facts.before.workload_of) || is_member(&facts.workload_of);
            let has_gone = table.get(key.pid).is_none_or(|row| row.key != key || has_ended(row));
            let row = before.get(key.pid).filter(|row| row.key == key && !has_ended(row));
            let Some(row) = row.filter(|_| has_gone && !is_of_some) else { continue };
            let user = row.uid;
            let own = WorkloadKey { anchor: Anchor::Tree(key), user: Some(user) };
            let none = Workload { key: own, name: Label::default(), plain: Label::default(), user };
            self.add(facts, &Arc::new(none), row, now);
        }
    }

    /// Adds a process that has ended to the episode of its workload, which has no name where the process is of none.
    fn add(&mut self, facts: &Facts, workload: &Arc<Workload>, row: &ProcessRow, now: Timestamp) {
        let (rank, run) = self.recent.rank_of(row.key).map(|[rank, run]| (rank, run)).unzip();
        let limits = self.recent.own_limits(row.key);
        let ended = Member {
            key: row.key,
            comm: row.comm.clone(),
            is_supervisor: is_supervisor(row),
            is_wrapper: is_wrapper(row),
            limits: OwnLimits {
                cpu: limits.cpu.filter(|limit| {
                    let seen = facts.before.frame.as_ref().map_or(now, |frame| frame.at);
                    let at_once = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
                    let since = now.since(seen).as_secs_f64() * real(row.threads.min(at_once));
                    let most = real(row.cpu_ticks) / TICKS + since;
                    most + CPU_SLACK >= real(*limit)
                }),
                ..limits
            },
            parent: row.parent,
            is_parent_own: member_of(&facts.before.workload_of, row.parent)
                .is_some_and(|parent| parent.workload.key == workload.key),
            rss: row.rss,
            cgroup: row.cgroup.clone(),
            rank,
            run: run.unwrap_or_default(),
        };
        let episode = self
            .episodes
            .entry(workload.key.clone())
            .or_insert_with(|| Episode::new(workload, facts.before.frame.clone(), now));
        episode.add(ended, now);
    }

    /// Gives each user with a workload its counters, so that the first end is an increase. The empty user has those of processes
    /// without a workload, of further users, and of subordinate ids whose user has no workload.
    fn count_from_zero(&mut self, facts: &Facts) {
        self.counts.entry(Label::default()).or_default();
        for (workload, names) in facts.workloads.iter().zip(&facts.workload_names) {
            if payer(workload.user) != workload.user {
                continue;
            }
            if self.counts.len() <= MOST_USERS && !self.counts.contains_key(&names.user) {
                self.counts.insert(names.user.clone(), Default::default());
                self.users.insert(workload.user, names.user.clone());
            }
        }
    }

    /// Publishes the ends about which all is known that will be.
    fn close(&mut self, view: &View<'_>, facts: &Facts, table: &ProcessTable, now: Timestamp) {
        let due: Vec<WorkloadKey> = self
            .episodes
            .iter()
            .filter(|(_, episode)| episode.is_due(now, self.recent.is_behind()))
            .map(|(key, _)| key.clone())
            .collect();
        self.launchers.retain(|_, own| {
            own.retain(|(_, _, at)| now.since(*at) <= LAUNCHER_END);
            !own.is_empty()
        });
        for key in due {
            let Some(episode) = self.episodes.remove(&key) else { continue };
            let is_alive = |row: &ProcessRow| !has_ended(row) && !is_supervisor(row);
            let is_named = !episode.workload.name.is_empty();
            let is_whole = is_named
                && !facts.workload_of.iter().any(|member| {
                    member.workload.key == key && table.get(member.process.pid).is_some_and(is_alive)
                });
            let observed = self.workloads.get(&key);
            let explained: Vec<_> = episode
                .members
                .iter()
                .map(|member| {
                    let mut case = case::case(view, &self.recent, &episode, member, &self.workloads);
                    let place = case::add_said(&mut case, facts, (&episode.workload.name, member), now);
                    (member, classify::classify(&case), place)
                })
                .filter(|(member, found, _)| !member.is_supervisor || found.cause != EndCause::Finished)
                .filter(|(member, found, _)| !episode.is_left_over(member, found, &self.recent))
                .collect();
            let finished: HashSet<u32> = explained
                .iter()
                .filter(|(member, found, _)| found.cause == EndCause::Finished && !member.is_wrapper)
                .map(|(member, ..)| member.key.pid)
                .collect();
            // A helper that failed, or was ended, does not explain the end of a program that succeeded nevertheless.
            let main = observed.and_then(|known| known.main);
            let is_failed_main = |(member, found, _): &Explained<'_>| {
                !is_whole && Some(member.key) == main && found.cause != EndCause::Finished
            };
            let has_main_failed = explained.iter().any(is_failed_main);
            let is_notable = |own: &Explained<'_>| {
                let (member, found, _) = own;
                let is_whole = is_whole && !finished.contains(&member.parent);
                episode.is_notable(member, found, is_whole || is_failed_main(own))
            };
            // A launcher fails because a process of it did.
            let launchers: HashSet<u32> = explained
                .iter()
                .filter(|(member, found, _)| episode.is_first(member, found))
                .map(|(member, ..)| member.parent)
                .collect();
            let later = explained.iter().find_map(|(member, found, _)| {
                let mut own = self.launchers.get(&key).into_iter().flatten();
                let (_, number, _) = own.find(|(launcher, ..)| *launcher == member.key)?;
                let is_kept = self.ends.iter().any(|end| end.number == *number);
                let is_of_child = is_of_other_kill(found);
                (is_kept && is_consequence(found) && (member.rank.is_none() || is_of_child))
                    .then_some((*number, *member))
            });
            let strongest = explained.into_iter().filter(is_notable).max_by(|one, other| {
                let order = |(member, found, _): &Explained<'_>| {
                    let is_launcher =
                        is_consequence(found) && launchers.contains(&member.key.pid) && member.rank.is_none();
                    let strength = if is_launcher { 0 } else { strength(found) };
                    let is_first = episode.is_first(member, found);
                    (strength, is_first, member.rank.is_some(), !member.is_wrapper, member.rss)
                };
                order(one).cmp(&order(other))
            });
            if let Some((number, launcher)) = later
                && strongest.as_ref().is_none_or(|(member, ..)| member.key == launcher.key)
            {
                let (above, count) = (episode.parent_of(launcher), episode.count());
                self.extend(number, count, (is_whole, &launcher.rank.clone().unwrap_or_default()));
                self.remember_main(&key, has_main_failed.then_some(number), now);
                self.remember_launcher(key, table.get(above), number, now);
                continue;
            }
            // How the main process ended decides, and not what it left.
            let left = observed.and_then(|known| known.main_end).filter(|(number, at)| {
                let is_left = |(member, found, _): &Explained<'_>| {
                    strength(found) <= OF_ITSELF && real(member.key.start) / TICKS <= *at
                };
                let is_kept = self.ends.iter().any(|end| end.number == *number);
                is_whole && is_kept && strongest.as_ref().is_none_or(is_left)
            });
            if let Some((number, _)) = left {
                self.extend(number, episode.count(), (true, &Label::default()));
                continue;
            }
            let Some((member, found, at)) = strongest else { continue };
            self.last = self.last.saturating_add(1);
            // A launcher ends its other processes by SIGTERM after the first one failed: its own end belongs to that one.
            let is_first = episode.is_first(member, &found);
            let is_remembered = is_named && (is_first || found.cause == EndCause::Killed);
            let parent = is_remembered.then(|| episode.parent_of(member));
            let began = table.boot.map(|boot| episode.began(member, &facts.ranks, boot));
            let end = episode.end(self.last, (member, found, at), (observed, began), is_whole);
            let user = match payer(episode.workload.user) {
                own if own == episode.workload.user => observed.map(|known| known.user.clone()),
                payer => self.users.get(&payer).cloned(),
            };
            let user = user.unwrap_or_default();
            let user = if self.counts.contains_key(&user) { user } else { Label::default() };
            self.counts.entry(user).or_default()[end.cause as usize] += 1;
            self.remember_main(&key, has_main_failed.then_some(end.number), now);
            if let Some(parent) = parent.and_then(|parent| table.get(parent)) {
                let is_known = |own: &Vec<(ProcessKey, u64, Timestamp)>| {
                    own.iter().any(|(launcher, ..)| *launcher == parent.key)
                };
                if is_first || !self.launchers.get(&key).is_some_and(is_known) {
                    self.remember_launcher(key, Some(parent), end.number, now);
                }
            }
            self.keep(end);
        }
    }

    /// Remembers the end of the main process of a workload whose others live on.
    fn remember_main(&mut self, workload: &WorkloadKey, number: Option<u64>, now: Timestamp) {
        if let (Some(known), Some(number)) = (self.workloads.get_mut(workload), number) {
            known.main_end = Some((number, now.monotonic().as_secs_f64()));
        }
    }

    fn remember_launcher(
        &mut self,
        workload: WorkloadKey,
        launcher: Option<&ProcessRow>,
        number: u64,
        now: Timestamp,
    ) {
        let Some(launcher) = launcher else { return };
        let own = self.launchers.entry(workload).or_default();
        own.retain(|(key, ..)| *key != launcher.key);
        if own.len() < MOST_LAUNCHERS {
            own.push((launcher.key, number, now));
        }
    }

    /// Adds the launcher that failed because of an end, with what ended with it.
    fn extend(&mut self, number: u64, processes: u64, (is_whole, rank): (bool, &Label)) {
        let extended = |end: &Arc<End>| match end {
            end if end.number == number => End {
                processes: end.processes.saturating_add(processes),
                is_whole: end.is_whole || is_whole,
                rank: if end.rank.is_empty() { rank.clone() } else { end.rank.clone() },
                ..End::clone(end)
            }
            .into(),
            end => Arc::clone(end),
        };
        self.ends = self.ends.iter().map(extended).collect();
    }

    /// Keeps an end in place of the oldest of the user with the most: at first one that finished, or of no workload.
    fn keep(&mut self, end: End) {
        let mut all: Vec<Arc<End>> = self.ends.to_vec();
        all.push(Arc::new(end));
        if all.len() > MOST {
            let mut users = BTreeMap::<u32, usize>::new();
            all.iter().for_each(|end| *users.entry(payer(end.user_id)).or_default() += 1);
            let largest = users.into_iter().max_by_key(|(_, count)| *count).map(|(user, _)| user);
            let of_user = |end: &Arc<End>| Some(payer(end.user_id)) == largest;
            let is_lesser = |end: &Arc<End>| !end.is_abnormal() || end.workload.is_empty();
            let lesser = all.iter().position(|end| of_user(end) && is_lesser(end));
            if let Some(place) = lesser.or_else(|| all.iter().position(of_user)) {
                all.remove(place);
            }
        }
        self.ends = all.into();
    }
}

/// The newest end of each run that ended at least twice in a row for the same cause that a retry cannot remove, with the number of
/// these ends; `unix` is the time in seconds since 1970. A run that nobody starts again is left out after a while.
fn repeated(ends: &[Arc<End>], unix: f64) -> Vec<(&End, u64)> {
    /// Seconds; launchers and controllers start a run again within minutes.
    const ABANDONED: f64 = 3600.0;
    let mut runs: BTreeMap<(u32, &Label), (&End, u64, bool)> = BTreeMap::new();
    let is_of_run = |end: &&Arc<End>| end.is_whole || (!end.rank.is_empty() && !end.workload.is_empty());
    for end in ends.iter().rev().filter(is_of_run) {
        let name = if end.run.is_empty() { &end.workload } else { &end.run };
        let (newest, count, goes_on) = runs.entry((end.user_id, name)).or_insert((end, 0, true));
        *goes_on &= end.cause == newest.cause && end.retry == Retry::CannotHelp;
        *count += u64::from(*goes_on);
    }
    let lately = runs.into_values().filter(|(newest, ..)| unix - newest.unix_seconds <= ABANDONED);
    lately.filter(|(_, count, _)| *count >= 2).map(|(end, count, _)| (end, count)).collect()
}

/// Whether it ended by an exit code that is no success, which may be the consequence of the end of another process.
fn is_consequence(found: &Classified) -> bool {
    let is_failure =
        |seen: &EndEvidence| matches!(seen, EndEvidence::Status(ExitStatus::Code(code)) if *code != 0);
    let is_own = matches!(found.cause, EndCause::Failed | EndCause::Killed);
    (is_own || is_of_other_kill(found)) && found.evidence.iter().any(is_failure)
}

/// Whether it failed because the kernel killed another process.
fn is_of_other_kill(found: &Classified) -> bool {
    found.evidence.iter().any(|seen| matches!(seen, EndEvidence::OtherKill { .. }))
}

/// Whether only the zombie of a process is left.
const fn has_ended(row: &ProcessRow) -> bool {
    matches!(row.state, b'Z' | b'X' | b'x') && row.threads <= 1
}

/// What a process explains of the others that ended with it: the killed rank of a run explains those that its launcher ended
/// then.
fn strength(found: &Classified) -> u32 {
    match found.cause {
        EndCause::CgroupLimit | EndCause::HostMemory | EndCause::NumaNodes | EndCause::OomKill => 6,
        EndCause::WillNotFit | EndCause::GpuMemory | EndCause::GpuNeighbor | EndCause::GpuFragmentation => 5,
        EndCause::GpuFault
        | EndCause::SharedMemory
        | EndCause::ProcessLimit
        | EndCause::HugePages
        | EndCause::MemoryError
        | EndCause::DiskFull
        | EndCause::TimeLimit => 4,
        EndCause::Memwarden => 3,
        EndCause::Failed => OF_ITSELF,
        EndCause::Killed | EndCause::Unknown => 1,
        EndCause::Finished => 0,
    }
}
