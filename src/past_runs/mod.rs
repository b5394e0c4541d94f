//! The memory of past runs: what the last runs of each command used on this node, and how they ended.
//!
//! The `training` source reports the ranks of each tick to [`PastRuns::tick`], which answers what is to be said of the earlier
//! runs of their commands. Whatever a job reports concerns the runs of its user only. Everything is bounded and divided
//! between the users; `app` keeps it in a file.

mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

pub use record::{Command, End, LifePeak, Outcome, PastRun, PhasePeak, SETTLING, ShownRun, ShownRuns};
use serde::{Deserialize, Serialize};

use crate::model::fair::{Room, Table};
use crate::model::fit::{Medium, Phase};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::printable;
use crate::model::time::Timestamp;

/// Most commands whose runs are kept, divided between the users.
pub const MOST_COMMANDS: usize = 256;
/// Most runs that are kept of a command.
pub const MOST_RUNS: usize = 8;
/// Most phases and resources of a run: every phase on every kind of resource.
const MOST_PEAKS: usize = 20;
/// Most runs that are observed at the same time, divided between the users.
const MOST_LIVE: usize = 512;
/// How long after its last rank has ended a run is kept open: the kernel may log its kill later than the connection ends.
const CLOSING: Duration = Duration::from_secs(3);
/// Most processes of a run that ended before it did and are remembered.
const MOST_GONE: usize = 64;
/// The version of the file, and of the answer to `memwarden history`.
const VERSION: u32 = 1;

/// What is known of one rank in this tick.
#[derive(Clone, Debug)]
pub struct ObservedRank {
    /// Its process.
    pub process: ProcessKey,
    /// The user whose share its runs take: the owner of subordinate user ids.
    pub payer: u32,
    /// Its command, with the shape of the model as far as it is known yet.
    pub command: Command,
    /// The name of its workload; empty where it belongs to none.
    pub workload: Label,
    /// The name of the run; empty where it is not known.
    pub run: Label,
    /// Whether its connection has ended.
    pub has_ended: bool,
    /// How it said that it ends; absent where it said nothing.
    pub outcome: Option<Outcome>,
    /// The innermost phase that it is in; empty where it is in none.
    pub phase: Label,
    /// Whether it has begun to train: it has reported a phase or a prediction.
    pub has_begun: bool,
    /// The last optimizer step that it completed.
    pub step: Option<u64>,
    /// Allocations that failed, as it reported.
    pub ooms: u64,
    /// The highest memory that it measured in its phases.
    pub peaks: Vec<PhasePeak>,
    /// The highest memory of its life so far on each of [`LIVES`], in bytes; absent where it is not known.
    pub life_peaks: [Option<u64>; LIVES.len()],
    /// Bytes of each token of a micro-batch.
    pub bytes_per_token: Option<f64>,
}

/// The resources whose peaks over the life of a process are remembered.
pub const LIVES: [Medium; 2] = [Medium::Device, Medium::Host];

/// The memory of one process over its life, on each of [`LIVES`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Life {
    /// The first step that was seen.
    first_step: Option<u64>,
    peaks: [Option<u64>; LIVES.len()],
    /// The peaks after [`SETTLING`] steps.
    settled: Option<[Option<u64>; LIVES.len()]>,
}

impl Life {
    fn observe(&mut self, rank: &ObservedRank) {
        self.first_step = self.first_step.or(rank.step);
        for (known, now) in self.peaks.iter_mut().zip(rank.life_peaks) {
            *known = (*known).max(now);
        }
        let is_settled =
            self.first_step.zip(rank.step).is_some_and(|(first, now)| now >= first.saturating_add(SETTLING));
        if is_settled {
            self.settled.get_or_insert(self.peaks);
        }
    }

    /// The growth after it settled.
    fn growth(&self) -> [Option<u64>; LIVES.len()] {
        let settled = self.settled.unwrap_or_default();
        std::array::from_fn(|place| Some(self.peaks[place]?.saturating_sub(settled[place]?)))
    }
}

/// Identifies a run while it is observed: user id of the processes, workload, run, script and hash of the arguments.
type LiveKey = (u32, [Label; 4]);

/// A run that is observed.
#[derive(Debug, PartialEq)]
struct LiveRun {
    command: Command,
    payer: u32,
    run: Label,
    started: Timestamp,
    /// The connected ranks, and when each was last seen.
    connected: BTreeMap<ProcessKey, Timestamp>,
    /// The processes whose connections ended last, and how they ended.
    gone: VecDeque<(ProcessKey, Outcome)>,
    /// Whether a process runs whose connection ended without a word: it connects again.
    is_awaited: bool,
    last_seen: Timestamp,
    ranks: u64,
    step: Option<u64>,
    /// Failed allocations of each connected rank, and its step when the last one was reported.
    ooms: BTreeMap<ProcessKey, (u64, Option<u64>)>,
    was_killed: bool,
    has_begun: bool,
    /// The worst end of the processes that are remembered no more.
    worst: Option<Outcome>,
    /// What is to be said of the earlier runs of its command, and the number of the last run when that was found out.
    said: (u64, Option<String>),
    peaks: BTreeMap<(Phase, Medium), u64>,
    /// The memory of each connected rank.
    lives: BTreeMap<ProcessKey, Life>,
    /// Of those that have left, the highest peaks and growths.
    past_lives: [[Option<u64>; LIVES.len()]; 2],
    bytes_per_token: Option<f64>,
}

/// The runs of a command, the oldest first.
type Runs = VecDeque<PastRun>;

#[derive(Debug)]
struct State {
    live: Table<u32, LiveKey, LiveRun>,
    commands: Table<u32, Command, Runs>,
    /// The number of the last run.
    last_number: u64,
    has_changed: bool,
}

/// The memory of past runs, shared between threads. No call takes longer than a copy of what is kept.
#[derive(Debug)]
pub struct PastRuns(Mutex<State>);

/// The file.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    memwarden_past_runs: u32,
    last_number: u64,
    /// Each with the user whose share it takes.
    commands: Vec<(u32, Command, Runs)>,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum PastRunsError {
    /// It is no such file, or damaged.
    #[error("the file of past runs is damaged")]
    Damaged(#[source] serde_json::Error),
    /// It is of another version of memwarden.
    #[error("the file of past runs is of version {0}")]
    Version(u32),
}

impl Default for PastRuns {
    fn default() -> Self {
        let (live, commands) = (Table::new(MOST_LIVE), Table::new(MOST_COMMANDS));
        Self(Mutex::new(State { live, commands, last_number: 0, has_changed: false }))
    }
}

impl PastRuns {
    /// Takes the ranks of one tick, connected or just ended, the processes that the kernel's OOM killer killed since the last
    /// one, the exit statuses of processes that were reaped since, and which processes run. Returns what is to be said of the earlier runs of the commands of connected ranks.
    pub fn tick(
        &self,
        ranks: &[ObservedRank],
        killed: &[ProcessKey],
        exits: &[(ProcessKey, i32)],
        is_running: impl Fn(ProcessKey) -> bool,
        now: Timestamp,
    ) -> BTreeMap<ProcessKey, String> {
        let mut state = lock(&self.0);
        for live in state.live.values_mut() {
            live.is_awaited =
                live.gone.iter().any(|(process, how)| how.end == End::Ended && is_running(*process));
        }
        let mut said = BTreeMap::new();
        for rank in ranks {
            let text = state.observe(rank, now);
            said.extend(text.filter(|_| !rank.has_ended).map(|text| (rank.process, text)));
        }
        for live in state.live.values_mut() {
            live.miss(now);
            live.was_killed |= live.has_any(killed);
            exits.iter().for_each(|(process, status)| live.exited(*process, *status));
        }
        let is_over = |live: &LiveRun| live.has_left() && now.since(live.last_seen) >= CLOSING;
        let over: Vec<LiveKey> =
            state.live.iter().filter(|(_, live)| is_over(live)).map(|(key, _)| key.clone()).collect();
        over.iter().for_each(|key| state.end(key));
        said
    }

    /// Ends the runs that are observed: the daemon stops. Their ends are not known, so that they are not kept, except those of
    /// runs that every rank has left.
    pub fn close(&self) {
        let mut state = lock(&self.0);
        let over = state.live.iter().filter(|(_, live)| live.has_left());
        let over: Vec<LiveKey> = over.map(|(key, _)| key.clone()).collect();
        over.iter().for_each(|key| state.end(key));
    }

    /// The runs of a user, or of all users, the newest first.
    pub fn shown(&self, user: Option<u32>) -> ShownRuns {
        let state = lock(&self.0);
        let own =
            state.commands.iter().filter(|(command, _)| user.is_none_or(|user| command.user_id == user));
        let mut runs: Vec<ShownRun> = own
            .flat_map(|(command, runs)| {
                runs.iter().map(|past| ShownRun { command: command.clone(), past: past.clone() })
            })
            .collect();
        runs.sort_by_key(|shown| std::cmp::Reverse(shown.past.number));
        ShownRuns { schema_version: VERSION, runs }
    }

    /// The text of the file, if anything has changed since the last call.
    pub fn changed(&self) -> Option<String> {
        let mut state = lock(&self.0);
        if !std::mem::take(&mut state.has_changed) {
            return None;
        }
        let commands = state.commands.owned();
        let commands =
            commands.map(|(payer, command, runs)| (payer, command.clone(), runs.clone())).collect();
        let file = File { memwarden_past_runs: VERSION, last_number: state.last_number, commands };
        drop(state);
        Some(serde_json::to_string(&file).expect("its keys are texts"))
    }

    /// Whether [`PastRuns::changed`] has a text.
    pub fn has_changed(&self) -> bool {
        lock(&self.0).has_changed
    }

    /// Takes over the file of an earlier daemon, before the runs that were observed since.
    ///
    /// # Errors
    /// [`PastRunsError`]; nothing is taken over then.
    pub fn restore(&self, text: &[u8]) -> Result<(), PastRunsError> {
        let file: File = serde_json::from_slice(text).map_err(PastRunsError::Damaged)?;
        if file.memwarden_past_runs != VERSION {
            return Err(PastRunsError::Version(file.memwarden_past_runs));
        }
        let mut state = lock(&self.0);
        let since = std::mem::replace(&mut state.commands, Table::new(MOST_COMMANDS));
        let offset = file.last_number;
        state.last_number = state.last_number.saturating_add(offset);
        for (payer, command, runs) in file.commands {
            runs.into_iter().for_each(|run| state.keep(payer, command.clone(), run));
        }
        for (payer, command, runs) in since.owned() {
            for run in runs {
                let number = run.number.saturating_add(offset);
                state.keep(payer, command.clone(), PastRun { number, ..run.clone() });
            }
        }
        state.has_changed = !since.is_empty();
        Ok(())
    }
}

impl State {
    /// Returns what is to be said of the earlier runs of its command.
    fn observe(&mut self, rank: &ObservedRank, now: Timestamp) -> Option<String> {
        let Command { user_id, script, arguments_hash, .. } = &rank.command;
        let names = [&rank.workload, &rank.run, script, arguments_hash].map(Clone::clone);
        let key = (*user_id, names);
        // The launcher has started the ranks again, or the user the command.
        let is_next = |live: &LiveRun| live.has_left() && !rank.has_ended && !live.has_lost(rank.process);
        if self.live.get(&key).is_some_and(is_next) {
            self.end(&key);
        }
        if !self.live.contains_key(&key) {
            let oldest = |_: &LiveKey, live: &LiveRun| live.last_seen.monotonic();
            if self.live.make_room(rank.payer, oldest) == Room::Refused {
                return None;
            }
            self.live.insert(rank.payer, key.clone(), LiveRun::new(rank, now));
        }
        let live = self.live.get_mut(&key)?;
        let has_changed = live.observe(rank, now);
        if has_changed || live.said.0 != self.last_number {
            let like = self.commands.iter().filter(|(command, _)| command.is_like(&live.command));
            let mut runs: Vec<&PastRun> = like.flat_map(|(_, runs)| runs).collect();
            runs.sort_by_key(|run| std::cmp::Reverse(run.number));
            live.said = (self.last_number, sentence(&runs));
        }
        live.said.1.clone()
    }

    /// Keeps a run that has ended, unless it did not begin to train and did not die.
    fn end(&mut self, key: &LiveKey) {
        let Some(live) = self.live.remove(key) else { return };
        let has_begun = live.has_begun || live.step.is_some() || !live.peaks.is_empty();
        let (payer, number) = (live.payer, self.last_number.saturating_add(1));
        let (command, run) = live.past(number);
        if has_begun || run.outcome.end.is_death() {
            self.last_number = number;
            self.keep(payer, command, run);
        }
    }

    fn keep(&mut self, payer: u32, command: Command, mut run: PastRun) {
        run.peaks.truncate(MOST_PEAKS);
        run.life_peaks.truncate(LIVES.len());
        if !self.commands.contains_key(&command) {
            let oldest = |_: &Command, runs: &Runs| runs.back().map(|run| run.number);
            let room = self.commands.make_room(payer, oldest);
            // A user of a full share has the oldest of its own commands replaced.
            if room == Room::Refused && self.commands.evict(payer, oldest).is_none() {
                return;
            }
            self.commands.insert(payer, command.clone(), Runs::new());
        }
        if let Some(runs) = self.commands.get_mut(&command) {
            runs.push_back(run);
            let excess = runs.len().saturating_sub(MOST_RUNS);
            runs.drain(..excess);
            self.has_changed = true;
        }
    }
}

impl LiveRun {
    fn new(rank: &ObservedRank, now: Timestamp) -> Self {
        Self {
            command: rank.command.clone(),
            payer: rank.payer,
            run: rank.run.clone(),
            started: now,
            connected: BTreeMap::new(),
            gone: VecDeque::new(),
            is_awaited: false,
            last_seen: now,
            ranks: 0,
            step: None,
            ooms: BTreeMap::new(),
            was_killed: false,
            has_begun: false,
            worst: None,
            said: (u64::MAX, None),
            peaks: BTreeMap::new(),
            lives: BTreeMap::new(),
            past_lives: [[None; LIVES.len()]; 2],
            bytes_per_token: None,
        }
    }

    /// Returns whether its command has changed.
    fn observe(&mut self, rank: &ObservedRank, now: Timestamp) -> bool {
        self.last_seen = now;
        // The shape of the model is known later than the first message.
        let command = Command {
            parameters: rank.command.parameters.or(self.command.parameters),
            trainable: rank.command.trainable.or(self.command.trainable),
            ..rank.command.clone()
        };
        let has_changed = command != self.command;
        self.command = command;
        self.has_begun |= rank.has_begun;
        self.step = self.step.max(rank.step);
        self.bytes_per_token = rank.bytes_per_token.or(self.bytes_per_token);
        for peak in &rank.peaks {
            let known = self.peaks.entry((peak.phase, peak.resource)).or_default();
            *known = peak.bytes.max(*known);
        }
        self.lives.entry(rank.process).or_default().observe(rank);
        self.gone.retain(|(process, _)| *process != rank.process);
        if self.connected.insert(rank.process, now).is_none() {
            self.ranks = self.ranks.max(self.connected.len() as u64);
        }
        let (ooms, at) = self.ooms.entry(rank.process).or_default();
        if rank.ooms > *ooms {
            (*ooms, *at) = (rank.ooms, rank.step);
        }
        if rank.has_ended {
            let ran_out = *ooms > 0 && *at == rank.step;
            let mut outcome = rank.outcome.clone().unwrap_or_else(|| Outcome::of(End::Ended));
            if ran_out && outcome.end > End::OutOfMemory {
                (outcome.end, outcome.resource) = (End::OutOfMemory, Some(Medium::Device));
            }
            if outcome.phase.is_empty() {
                outcome.phase = rank.phase.clone();
            }
            self.leaves(rank.process, outcome);
        }
        has_changed
    }

    fn leaves(&mut self, process: ProcessKey, outcome: Outcome) {
        self.connected.remove(&process);
        self.ooms.remove(&process);
        if let Some(life) = self.lives.remove(&process) {
            let own = [life.peaks, life.growth()];
            for (known, now) in self.past_lives.as_flattened_mut().iter_mut().zip(own.as_flattened()) {
                *known = (*known).max(*now);
            }
        }
        self.gone.push_back((process, outcome));
        let excess = self.gone.len().saturating_sub(MOST_GONE);
        let first = self.gone.drain(..excess).map(|(_, outcome)| outcome);
        self.worst = self.worst.take().into_iter().chain(first).min_by_key(|outcome| outcome.end);
    }

    /// Takes the exit status of a process, which says nothing new of one that said why it ends.
    fn exited(&mut self, process: ProcessKey, status: i32) {
        let known = self.gone.iter_mut().find(|(gone, _)| *gone == process).map(|(_, outcome)| outcome);
        if let Some(known) = known.filter(|known| matches!(known.end, End::Ended | End::Finished)) {
            *known = Outcome { phase: known.phase.clone(), ..Outcome::of_status(status) };
        }
    }

    /// Lets the ranks leave that are seen no more: another process may hold the connection of one that has ended.
    fn miss(&mut self, now: Timestamp) {
        let missed = self.connected.iter().filter(|(_, seen)| now.since(**seen) >= CLOSING);
        for process in missed.map(|(process, _)| *process).collect::<Vec<_>>() {
            self.leaves(process, Outcome::of(End::Ended));
        }
    }

    /// Whether one of these processes is a rank, or was one until lately.
    fn has_any(&self, processes: &[ProcessKey]) -> bool {
        processes.iter().any(|process| self.connected.contains_key(process) || self.has_lost(*process))
    }

    /// Whether this process was a rank until lately.
    fn has_lost(&self, process: ProcessKey) -> bool {
        self.gone.iter().any(|(gone, _)| *gone == process)
    }

    /// Whether no rank is connected, and none is expected to connect again.
    fn has_left(&self) -> bool {
        self.connected.is_empty() && !self.is_awaited
    }

    fn past(self, number: u64) -> (Command, PastRun) {
        let ends = self.worst.into_iter().chain(self.gone.into_iter().map(|(_, outcome)| outcome));
        let worst = ends.min_by_key(|outcome| outcome.end).unwrap_or_else(|| Outcome::of(End::Ended));
        let outcome = match worst.end {
            _ if self.was_killed => Outcome { phase: worst.phase, ..Outcome::of(End::OomKill) },
            End::Finished => Outcome::of(End::Finished),
            _ => worst,
        };
        let peaks = self.peaks.into_iter();
        let [highest, growth] = self.past_lives;
        let life_peaks = LIVES.into_iter().zip(highest).zip(growth);
        let run = PastRun {
            number,
            run: self.run,
            ranks: self.ranks,
            started_unix_seconds: self.started.unix().as_secs_f64(),
            ended_unix_seconds: self.last_seen.unix().as_secs_f64(),
            step: self.step,
            outcome,
            peaks: peaks.map(|((phase, resource), bytes)| PhasePeak { phase, resource, bytes }).collect(),
            life_peaks: life_peaks
                .filter_map(|((resource, bytes), growth_bytes)| {
                    Some(LifePeak { resource, bytes: bytes?, growth_bytes })
                })
                .collect(),
            bytes_per_token: self.bytes_per_token,
        };
        (self.command, run)
    }
}

/// That the last runs of a command died, after which step and why; absent if the last one did not. The newest run is first.
fn sentence(runs: &[&PastRun]) -> Option<String> {
    let died: Vec<&PastRun> = runs.iter().copied().take_while(|run| run.outcome.end.is_death()).collect();
    let (newest, count) = (died.first()?, died.len());
    let steps = died.iter().filter_map(|run| run.step);
    let at = steps.clone().min().zip(steps.clone().max()).map(|(first, last)| {
        if first == last { format!("after step {first}") } else { format!("after steps {first} to {last}") }
    });
    let begins = if count == 1 { "before its first step" } else { "before their first step" };
    let at = match at {
        Some(at) if steps.count() == count => at,
        Some(at) => format!("{at} or {begins}"),
        None => begins.to_owned(),
    };
    let words = newest.outcome.words();
    let why = match () {
        () if died.iter().all(|run| run.outcome.words() == words) => words,
        () if died.iter().all(|run| run.outcome.end.is_memory()) => "for lack of memory".to_owned(),
        () => format!("the last one: {words}"),
    };
    let phase = &newest.outcome.phase;
    let phase = if phase.is_empty() || died.iter().any(|run| run.outcome.phase != *phase) {
        String::new()
    } else {
        format!(", in {}", printable::escaped(phase.as_str()))
    };
    Some(match count {
        1 => format!("the last run of this command died {at}{phase} ({why})"),
        _ => format!("the last {count} runs of this command died {at}{phase} ({why})"),
    })
}
