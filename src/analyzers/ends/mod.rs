//! Says how processes of workloads ended, and why.
//!
//! # What it says
//! One [`End`] for each workload that ends, for each rank, and for each other process that a signal ended or that held much
//! memory; processes of a workload that end together are one end, explained by the one whose cause is the strongest.
//!
//! # Method
//! A process of the previous tick that is missing, or a zombie, has ended. What is known of it is collected for `SETTLE`:
//! the kernel log, its exit status, who sent it a signal, what it reported last, XIDs, and the memory of the last frame before its end. The cause
//! follows from these in the order of `classify`.
//!
//! # When it stays silent
//! About processes that no tick has seen, and about those without a workload. An end that nothing explains is unknown.

mod classify;
mod episode;
pub mod metrics;
mod observed;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::Value;
use serde_json::value::RawValue;

use self::classify::{Case, Classified};
use self::episode::{Episode, Explained, Member};
use self::observed::{Observed, Recent};
use super::Registration;
use crate::model::analyzer::{Analysis, Analyzer, SavedState, View};
use crate::model::ends::{End, EndCause, EndEvidence, ExitStatus, FailedAllocation, ProcessLimit, Retry};
use crate::model::facts::{ExitedProcess, Facts, ProcessRow, ProcessTable};
use crate::model::fit::{ByeEnd, Medium};
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::label::Label;
use crate::model::printable::escaped;
use crate::model::time::Timestamp;
use crate::model::timeline::{Entry, EntryKind};
use crate::model::units::Count;

/// Registration of the `ends` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "ends",
    about: "Says how workloads, ranks and large processes ended, and why.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_| Box::new(Ends::default()))
};

/// Most ends that are kept.
const MOST: usize = 256;
/// How long a launcher may wait for its other processes after the end that it fails for: torchrun gives them 30 s.
const LAUNCHER_END: Duration = Duration::from_secs(60);
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
        resource: None,
        used_bytes: None,
        limit_bytes: None,
        other: None,
        evidence: found.evidence,
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
            let ended = Member {
                key,
                comm: row.comm.clone(),
                parent: row.parent,
                rss: row.rss,
                cgroup: row.cgroup.clone(),
                rank: self.recent.rank_of(key),
            };
            let workload = &member.workload;
            let episode = self
                .episodes
                .entry(workload.key.clone())
                .or_insert_with(|| Episode::new(workload, facts.before.frame.clone(), now));
            episode.add(ended, now);
        }
    }

    /// Gives each user with a workload its counters, so that the first end is an increase.
    fn count_from_zero(&mut self, facts: &Facts) {
        for (workload, names) in facts.workloads.iter().zip(&facts.workload_names) {
            if self.counts.contains_key(&names.user) {
                continue;
            }
            // Further users have one counter for each cause together.
            let is_full = self.counts.len() >= MOST_USERS;
            let user = if is_full { Label::default() } else { names.user.clone() };
            self.counts.entry(user).or_default();
            if !is_full {
                self.users.insert(workload.user, names.user.clone());
            }
        }
    }

    /// Publishes the ends about which all is known that will be.
    fn close(&mut self, view: &View<'_>, facts: &Facts, table: &ProcessTable, now: Timestamp) {
        let due: Vec<WorkloadKey> = self
            .episodes
            .iter()
            .filter(|(_, episode)| episode.is_due(now))
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            let Some(episode) = self.episodes.remove(&key) else { continue };
            let is_alive = |row: &ProcessRow| !has_ended(row);
            let is_whole = !facts.workload_of.iter().any(|member| {
                member.workload.key == key && table.get(member.process.pid).is_some_and(is_alive)
            });
            let observed = self.workloads.get(&key);
            let explained: Vec<_> = episode
                .members
                .iter()
                .map(|member| {
                    let mut case = case(view, &self.recent, &episode, (member, observed));
                    let place = add_said(&mut case, facts, (&episode.workload.name, member), now);
                    (member, classify::classify(&case), place)
                })
                .collect();
            let finished: HashSet<u32> = explained
                .iter()
                .filter(|(_, found, _)| found.cause == EndCause::Finished)
                .map(|(member, ..)| member.key.pid)
                .collect();
            // A helper that failed, or was ended, does not explain the end of a program that succeeded nevertheless.
            let is_notable = |(member, found, _): &Explained<'_>| {
                let is_whole = is_whole && !finished.contains(&member.parent);
                episode.is_notable(member, found, is_whole)
            };
            // A launcher fails because a process of it did.
            let launchers: HashSet<u32> = explained
                .iter()
                .filter(|(member, found, _)| episode.is_first(member, found))
                .map(|(member, ..)| member.parent)
                .collect();
            self.launchers.retain(|_, own| {
                own.retain(|(_, _, at)| now.since(*at) <= LAUNCHER_END);
                !own.is_empty()
            });
            let later = explained.iter().find_map(|(member, found, _)| {
                let mut own = self.launchers.get(&key).into_iter().flatten();
                let (_, number, _) = own.find(|(launcher, ..)| *launcher == member.key)?;
                let is_kept = self.ends.iter().any(|end| end.number == *number);
                (is_kept && has_exited_with_failure(found) && member.rank.is_none())
                    .then_some((*number, *member))
            });
            let strongest = explained.into_iter().filter(is_notable).max_by(|one, other| {
                let order = |(member, found, _): &Explained<'_>| {
                    let is_launcher = found.cause == EndCause::Failed
                        && launchers.contains(&member.key.pid)
                        && member.rank.is_none();
                    let strength = if is_launcher { 0 } else { strength(found) };
                    (strength, episode.is_first(member, found), member.rank.is_some(), member.rss)
                };
                order(one).cmp(&order(other))
            });
            if let Some((number, launcher)) = later
                && strongest.as_ref().is_none_or(|(member, ..)| member.key == launcher.key)
            {
                let (above, count) = (episode.parent_of(launcher), episode.count());
                self.extend(number, count, is_whole);
                self.remember_launcher(key, table.get(above), number, now);
                continue;
            }
            let Some((member, found, at)) = strongest else { continue };
            self.last = self.last.saturating_add(1);
            // A launcher ends its other processes by SIGTERM after the first one failed: its own end belongs to that one.
            let is_first = episode.is_first(member, &found);
            let parent = (is_first || found.cause == EndCause::Killed).then(|| episode.parent_of(member));
            let began = table.boot.map(|boot| episode.began(member, &facts.ranks, boot));
            let end = episode.end(self.last, (member, found, at), (observed, began), is_whole);
            let user = observed.map(|known| known.user.clone()).unwrap_or_default();
            let user = if self.counts.contains_key(&user) { user } else { Label::default() };
            self.counts.entry(user).or_default()[end.cause as usize] += 1;
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
    fn extend(&mut self, number: u64, processes: u64, is_whole: bool) {
        let extended = |end: &Arc<End>| match end {
            end if end.number == number => End {
                processes: end.processes.saturating_add(processes),
                is_whole: end.is_whole || is_whole,
                ..End::clone(end)
            }
            .into(),
            end => Arc::clone(end),
        };
        self.ends = self.ends.iter().map(extended).collect();
    }

    /// Keeps an end in place of the oldest of the user with the most: at first one that finished.
    fn keep(&mut self, end: End) {
        let mut all: Vec<Arc<End>> = self.ends.to_vec();
        all.push(Arc::new(end));
        if all.len() > MOST {
            let mut users = BTreeMap::<u32, usize>::new();
            all.iter().for_each(|end| *users.entry(end.user_id).or_default() += 1);
            let largest = users.into_iter().max_by_key(|(_, count)| *count).map(|(user, _)| user);
            let of_user = |end: &Arc<End>| Some(end.user_id) == largest;
            let finished = all.iter().position(|end| of_user(end) && !end.is_abnormal());
            if let Some(place) = finished.or_else(|| all.iter().position(of_user)) {
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
    for end in ends.iter().rev().filter(|end| end.is_whole || !end.rank.is_empty()) {
        let name = if end.run.is_empty() { &end.workload } else { &end.run };
        let (newest, count, goes_on) = runs.entry((end.user_id, name)).or_insert((end, 0, true));
        *goes_on &= end.cause == newest.cause && end.retry == Retry::CannotHelp;
        *count += u64::from(*goes_on);
    }
    let lately = runs.into_values().filter(|(newest, ..)| unix - newest.unix_seconds <= ABANDONED);
    lately.filter(|(_, count, _)| *count >= 2).map(|(end, count, _)| (end, count)).collect()
}

/// Whether it ended by an exit code that is no success.
fn has_exited_with_failure(found: &Classified) -> bool {
    let is_failure =
        |seen: &EndEvidence| matches!(seen, EndEvidence::Status(ExitStatus::Code(code)) if *code != 0);
    matches!(found.cause, EndCause::Failed | EndCause::Killed) && found.evidence.iter().any(is_failure)
}

/// Whether only the zombie of a process is left.
const fn has_ended(row: &ProcessRow) -> bool {
    matches!(row.state, b'Z' | b'X' | b'x') && row.threads <= 1
}

/// What a process explains of the others that ended with it: the killed rank of a run explains those that its launcher ended
/// then.
fn strength(found: &Classified) -> u32 {
    match found.cause {
        EndCause::CgroupLimit | EndCause::HostMemory => 6,
        EndCause::WillNotFit | EndCause::GpuMemory | EndCause::GpuNeighbor | EndCause::GpuFragmentation => 5,
        EndCause::GpuFault | EndCause::SharedMemory | EndCause::ProcessLimit => 4,
        EndCause::Memwarden => 3,
        EndCause::Failed => 2,
        EndCause::Killed | EndCause::Unknown => 1,
        EndCause::Finished => 0,
    }
}

/// Adds what a process reported over the job socket before its end; returns its last step and its phase.
fn add_said(
    case: &mut Case,
    facts: &Facts,
    (workload, member): (&Label, &Member),
    now: Timestamp,
) -> (Option<u64>, Label) {
    /// Seconds before its message `bye`, or its end where it sent none, in which a failed allocation is the reason of it.
    const LATELY: f64 = 60.0;
    /// Seconds that a process may take to end after its message `bye`.
    const ENDING: f64 = 600.0;
    let mut unix = now.unix().as_secs_f64();
    let oldest = unix - ENDING;
    let (mut step, mut phase, mut has_ended) = (None, Label::default(), false);
    if member.rank.is_none() {
        return (step, phase);
    }
    let own = facts.timeline.entries.iter().rev();
    // The times are those of the senders, and in no order.
    let own = own.filter(|entry| entry.unix_seconds >= oldest);
    let detail = |entry: &Entry| -> Value {
        entry.detail.as_ref().and_then(|text| serde_json::from_str(text.get()).ok()).unwrap_or_default()
    };
    for entry in own.filter(|entry| entry.pid == member.key.pid && entry.workload == *workload) {
        match entry.kind {
            // What is older was said by another program of this process.
            EntryKind::Start => break,
            // The newest counts: the connection of a monitor that another one has replaced ends too.
            EntryKind::End if !has_ended => {
                (has_ended, unix) = (true, entry.unix_seconds);
                let detail = detail(entry);
                let end = ByeEnd::deserialize(&detail["end"]).ok();
                case.said_finished =
                    entry.name.as_str() == "bye" && matches!(end, None | Some(ByeEnd::Finished));
                // It ends itself where a phase would not fit.
                case.will_not_fit |= end == Some(ByeEnd::Aborted);
                step = entry.step;
                phase = Label::printable(detail["phase"].as_str().unwrap_or_default());
                let is_raised =
                    matches!(end, Some(ByeEnd::Exception | ByeEnd::OutOfMemory | ByeEnd::Interrupted));
                if let Some(name) = detail["reason"].as_str().filter(|_| is_raised) {
                    case.exception = escaped(name).into_owned().into();
                }
                let resource = Medium::deserialize(&detail["resource"]).ok();
                case.lacked = resource.filter(|_| end == Some(ByeEnd::OutOfMemory));
                let limit = ProcessLimit::deserialize(&detail["limit"]).ok();
                case.limit = limit.filter(|_| is_raised).map(|limit| (limit, detail["limit_value"].as_u64()));
            }
            EntryKind::Oom if case.allocation.is_none() && unix - entry.unix_seconds <= LATELY => {
                let detail = detail(entry);
                let bytes = |key: &str| detail[key].as_f64();
                case.allocation = Some(FailedAllocation {
                    requested: bytes("requested"),
                    allocated: bytes("allocated"),
                    reserved: bytes("reserved"),
                    free: bytes("free"),
                    total: bytes("total"),
                    has_expandable_segments: detail["expandable_segments"].as_bool(),
                });
                step = step.or(entry.step);
            }
            _ => {}
        }
    }
    (step, phase)
}

/// What was observed of a process from outside.
fn case(
    view: &View<'_>,
    recent: &Recent,
    episode: &Episode,
    (member, observed): (&Member, Option<&Observed>),
) -> Case {
    let kernel_kill = recent.kill_of(member.key);
    let group = member.cgroup.clone().or_else(|| Some(observed?.cgroup.clone())).unwrap_or_default();
    let gpus = observed.map_or(&[][..], |known| &known.gpus);
    let unseen_kill = recent.unseen_kill(&group);
    let status = recent.status_of(member.key);
    Case {
        status,
        sender: status.and_then(|status| recent.sender_of(member.key, status)),
        counted_kill: recent.counted_kill(&group),
        counts_kills: recent.counts_kills_of(&group),
        sees_kernel_log: observed::is_ok(view, "kmsg"),
        is_signalled: recent.is_signalled(member.key),
        will_not_fit: episode.will_not_fit(member.key.pid),
        cgroup: episode.cgroup_level(view, &group, kernel_kill.as_ref().or(unseen_kill.as_ref())),
        host: episode.host_level(),
        gpu: episode.gpu_level(gpus),
        tmpfs: recent.tmpfs_of(member.key, &episode.workload.key, episode.between()),
        gpu_other: observed::gpu_other(view, &episode.workload.name, gpus),
        host_other: observed::host_other(view, &episode.workload.name),
        xid: recent.xid_of(gpus),
        kernel_kill,
        unseen_kill,
        ..Case::default()
    }
}
