//! A run that is observed: what its ranks report, until the last of them has ended.

use std::collections::{BTreeMap, VecDeque};

use super::record::{Command, LifePeak, Outcome, PastRun, PhasePeak, SETTLING};
use super::{CLOSING, MOST_GONE};
use crate::model::ends::{End, EndCause};
use crate::model::fit::{Medium, Phase};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::time::Timestamp;

/// What is known of one rank in this tick.
#[derive(Clone, Debug)]
pub struct ObservedRank {
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
pub(super) struct Life {
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

/// A run that is observed.
#[derive(Debug, PartialEq)]
pub(super) struct LiveRun {
    pub(super) command: Command,
    pub(super) payer: u32,
    pub(super) workload: Label,
    pub(super) run: Label,
    pub(super) started: Timestamp,
    /// The connected ranks, and when each was last seen.
    pub(super) connected: BTreeMap<ProcessKey, Timestamp>,
    /// The processes whose connections ended last, and how they ended.
    pub(super) gone: VecDeque<(ProcessKey, Outcome)>,
    /// Whether a process runs whose connection ended without a word: it connects again.
    pub(super) is_awaited: bool,
    pub(super) last_seen: Timestamp,
    pub(super) ranks: u64,
    pub(super) step: Option<u64>,
    /// Failed allocations of each connected rank, and its step when the last one was reported.
    pub(super) ooms: BTreeMap<ProcessKey, (u64, Option<u64>)>,
    /// Number of ticks since its last rank has left.
    pub(super) ticks_left: u32,
    pub(super) has_begun: bool,
    /// The worst end of the processes that are remembered no more.
    pub(super) worst: Option<Outcome>,
    /// What is to be said of the earlier runs of its command, and the number of the last run when that was found out.
    pub(super) said: (u64, Option<String>),
    pub(super) peaks: BTreeMap<(Phase, Medium), u64>,
    /// The memory of each connected rank.
    pub(super) lives: BTreeMap<ProcessKey, Life>,
    /// Of those that have left, the highest peaks and growths.
    pub(super) past_lives: [[Option<u64>; LIVES.len()]; 2],
    pub(super) bytes_per_token: Option<f64>,
}

impl LiveRun {
    pub(super) fn new(rank: &ObservedRank, now: Timestamp) -> Self {
        Self {
            command: rank.command.clone(),
            payer: rank.payer,
            workload: rank.workload.clone(),
            run: rank.run.clone(),
            started: now,
            connected: BTreeMap::new(),
            gone: VecDeque::new(),
            is_awaited: false,
            last_seen: now,
            ranks: 0,
            step: None,
            ooms: BTreeMap::new(),
            ticks_left: 0,
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
    pub(super) fn observe(&mut self, rank: &ObservedRank, now: Timestamp) -> bool {
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
            let mut outcome = rank.outcome.clone().unwrap_or_default();
            if ran_out && outcome.order() > Outcome::from(EndCause::GpuMemory).order() {
                (outcome.cause, outcome.resource) = (EndCause::GpuMemory, Some(Medium::Device));
            }
            if outcome.phase.is_empty() {
                outcome.phase = rank.phase.clone();
            }
            self.leaves(rank.process, outcome);
        }
        has_changed
    }

    pub(super) fn leaves(&mut self, process: ProcessKey, outcome: Outcome) {
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
        self.worst = self.worst.take().into_iter().chain(first).min_by_key(Outcome::order);
    }

    /// Takes the exit status of a process, which says nothing new of one that said why it ends.
    pub(super) fn exited(&mut self, process: ProcessKey, status: i32) {
        let known = self.gone.iter_mut().find(|(gone, _)| *gone == process).map(|(_, outcome)| outcome);
        if let Some(known) =
            known.filter(|known| matches!(known.cause, EndCause::Unknown | EndCause::Finished))
        {
            *known = Outcome { phase: known.phase.clone(), ..Outcome::of_status(status) };
        }
    }

    /// Takes the typed end of a process of the run, or of its whole workload.
    pub(super) fn explain(&mut self, end: &End) {
        if end.cause == EndCause::Unknown || end.unix_seconds < self.started.unix().as_secs_f64() {
            return;
        }
        let is_of_all = end.is_whole
            && end.user_id == self.command.user_id
            && !end.workload.is_empty()
            && end.workload == self.workload
            && self.has_left();
        let outcome = Outcome::from(end);
        let is_it = |gone: &ProcessKey| gone.pid == end.pid && end.user_id == self.command.user_id;
        match self.gone.iter_mut().find(|(gone, _)| is_it(gone)).map(|(_, outcome)| outcome) {
            Some(known) if end.cause == EndCause::Finished && known.cause != EndCause::Unknown => {}
            // It told the lack of memory for which its launcher ended it.
            Some(known)
                if end.cause == EndCause::Killed
                    && !matches!(known.cause, EndCause::Unknown | EndCause::Finished)
                    && known.order() < outcome.order() => {}
            Some(known) => {
                let phase = if end.phase.is_empty() { known.phase.clone() } else { end.phase.clone() };
                *known = Outcome { phase, ..outcome };
            }
            None if is_of_all => {
                self.worst = self.worst.take().into_iter().chain([outcome]).min_by_key(Outcome::order);
            }
            None => {}
        }
    }

    /// Lets the ranks leave that are seen no more: another process may hold the connection of one that has ended.
    pub(super) fn miss(&mut self, now: Timestamp) {
        let missed = self.connected.iter().filter(|(_, seen)| now.since(**seen) >= CLOSING);
        for process in missed.map(|(process, _)| *process).collect::<Vec<_>>() {
            self.leaves(process, Outcome::default());
        }
    }

    /// Whether this process was a rank until lately.
    pub(super) fn has_lost(&self, process: ProcessKey) -> bool {
        self.gone.iter().any(|(gone, _)| *gone == process)
    }

    /// Whether no rank is connected, and none is expected to connect again.
    pub(super) fn has_left(&self) -> bool {
        self.connected.is_empty() && !self.is_awaited
    }

    pub(super) fn past(self, number: u64) -> (Command, PastRun) {
        let ends = self.worst.into_iter().chain(self.gone.into_iter().map(|(_, outcome)| outcome));
        let worst = ends.min_by_key(Outcome::order).unwrap_or_default();
        let outcome = if worst.cause == EndCause::Finished { worst.cause.into() } else { worst };
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
