//! The memory of past runs: what the last runs of each command used on this node, and how they ended.
//!
//! The `training` source reports the ranks of each tick to [`PastRuns::tick`], which answers what is to be said of the earlier
//! runs of their commands. Whatever a job reports concerns the runs of its user only. Everything is bounded and divided
//! between the users; `app` keeps it in a file.

mod live;
mod record;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use live::{LIVES, ObservedRank};
pub use record::{Command, LifePeak, Outcome, PastRun, PhasePeak, SETTLING, ShownRun, ShownRuns};
use serde::{Deserialize, Serialize};

use self::live::LiveRun;
use crate::model::ends::{End, EndCause};
use crate::model::fair::{Room, Table};
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
/// The ticks until the end of its processes is in a frame, and read from it.
const CLOSING_TICKS: u32 = 3;
/// Most processes of a run that ended before it did and are remembered.
const MOST_GONE: usize = 64;
/// The version of the file, and of the answer to `memwarden history`.
const VERSION: u32 = 2;

/// Identifies a run while it is observed: user id of the processes, workload, run, script and hash of the arguments.
type LiveKey = (u32, [Label; 4]);

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
    /// Takes the ranks of one tick, connected or just ended, the ends of the previous frame, the exit statuses of processes that
    /// were reaped since, and which processes run. Returns what is to be said of the earlier runs of the commands of connected ranks.
    pub fn tick(
        &self,
        ranks: &[ObservedRank],
        ends: &[Arc<End>],
        exits: &[(ProcessKey, i32)],
        is_running: impl Fn(ProcessKey) -> bool,
        now: Timestamp,
    ) -> BTreeMap<ProcessKey, String> {
        let mut state = lock(&self.0);
        for live in state.live.values_mut() {
            live.is_awaited =
                live.gone.iter().any(|(process, how)| how.cause == EndCause::Unknown && is_running(*process));
        }
        let mut said = BTreeMap::new();
        for rank in ranks {
            let text = state.observe(rank, now);
            said.extend(text.filter(|_| !rank.has_ended).map(|text| (rank.process, text)));
        }
        for live in state.live.values_mut() {
            live.miss(now);
            exits.iter().for_each(|(process, status)| live.exited(*process, *status));
            ends.iter().for_each(|end| live.explain(end));
            live.ticks_left = if live.has_left() { live.ticks_left.saturating_add(1) } else { 0 };
        }
        let is_over =
            |live: &LiveRun| live.ticks_left >= CLOSING_TICKS && now.since(live.last_seen) >= CLOSING;
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
        if has_begun || run.outcome.is_death() {
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

/// That the last runs of a command died, after which step and why; absent if the last one did not. The newest run is first.
fn sentence(runs: &[&PastRun]) -> Option<String> {
    let died: Vec<&PastRun> = runs.iter().copied().take_while(|run| run.outcome.is_death()).collect();
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
        () if died.iter().all(|run| run.outcome.cause.is_memory()) => "for lack of memory".to_owned(),
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
