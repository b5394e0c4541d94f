//! The peaks of the phases that jobs report, such as an evaluation after every 500 steps: how high they are, how much
//! each one exceeds the one before, and after how many steps the next one comes.
//!
//! A job reports for each phase how often it was completed and the most memory that was allocated in it so far
//! (`clients/PROTOCOL.md`). Peaks of less than a second, which no sample shows, are known this way.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::analyzers::stats::robust;
use crate::history::excursions::CAPACITY;
use crate::model::analyzer::View;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::sources::training::metrics as training;

/// Occurrences that follow each other sooner than this share of the observed time are not kept: about the newest quarter
/// of the time is covered, however often the phase occurs.
const SPACING: f64 = 1.0 / 64.0;
/// Minimum time between two kept occurrences in seconds.
const LEAST_SPACING: f64 = 2.0;

/// One occurrence of a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::analyzers) struct Occurrence {
    /// The rank's step at its end.
    pub(super) step: f64,
    /// How often the phase was completed.
    pub(super) count: f64,
    /// Its end in seconds on the monotonic clock.
    pub(super) at: f64,
    /// The most memory that was allocated in the phase, in bytes.
    pub(super) top: f64,
    /// What remained allocated after it, in bytes.
    pub(super) base: f64,
}

/// The phase of a rank whose peaks are the highest.
#[derive(Clone, Debug)]
pub(in crate::analyzers) struct PhasePeaks {
    pub(super) phase: Label,
    /// The newest occurrences, oldest first.
    pub(super) all: Vec<Occurrence>,
    /// The rank's present step.
    pub(super) step: f64,
    /// The present time in seconds on the monotonic clock.
    pub(super) now: f64,
}

/// A phase and how often it occurs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PhasePeriod {
    /// The name that the job reports.
    pub phase: Label,
    /// Median number of steps from one occurrence to the next.
    pub steps: f64,
}

impl PhasePeaks {
    /// The median number of steps between two occurrences, and the mean deviation from it; absent for fewer than two
    /// occurrences, and if no step was completed between them.
    pub(super) fn period(&self) -> Option<(f64, f64)> {
        let pairs = self.all.iter().zip(self.all.iter().skip(1));
        let mut steps: Vec<f64> =
            pairs.map(|(one, next)| (next.step - one.step) / (next.count - one.count)).collect();
        if steps.is_empty() {
            return None;
        }
        let median = robust::median(&mut steps);
        let mut away: Vec<f64> = steps.iter().map(|own| (own - median).abs()).collect();
        (median > 0.0).then(|| (median, robust::median(&mut away)))
    }

    /// The mean duration of a step in seconds, with the phases; absent as for [`PhasePeaks::period`].
    pub(super) fn seconds_per_step(&self) -> Option<f64> {
        let (first, last) = (self.all.first()?, self.all.last()?);
        let steps = last.step - first.step;
        (steps > 0.0).then(|| (last.at - first.at) / steps)
    }

    /// The phase and its period.
    pub(in crate::analyzers) fn named(&self) -> Option<PhasePeriod> {
        Some(PhasePeriod { phase: self.phase.clone(), steps: self.period()?.0 })
    }
}

#[derive(Debug)]
struct Phase {
    count: f64,
    born: f64,
    all: VecDeque<Occurrence>,
}

/// The phases of all ranks, by workload, rank and phase.
#[derive(Debug, Default)]
pub(super) struct Phases(BTreeMap<[Label; 3], Phase>);

impl Phases {
    /// Adds the phases that were completed in this tick, and removes those of ranks that have ended.
    pub(super) fn update(&mut self, view: &View<'_>, now: Timestamp) {
        let at = now.monotonic().as_secs_f64();
        let mut before = std::mem::take(&mut self.0);
        let allocated = view.points(&training::ALLOCATED);
        for point in view.points(&training::PHASES) {
            let [workload, rank, phase] = &*point.labels else { continue };
            let of_rank = [workload.clone(), rank.clone()];
            let Some(top) = view.value(&training::PHASE_PEAK, &point.labels) else { continue };
            let Some(step) = view.value(&training::STEPS, &of_rank) else { continue };
            let base =
                allocated.iter().find(|other| other.labels[0] == *workload && other.labels[1] == *rank);
            let Some(base) = base.map(|point| point.value) else { continue };
            let key = [workload.clone(), rank.clone(), phase.clone()];
            let known = before.remove(&key).filter(|known| {
                let last = known.all.back();
                point.value >= known.count && last.is_none_or(|last| step >= last.step && top >= last.top)
            });
            let first = || Phase { count: point.value, born: at, all: VecDeque::new() };
            let mut known = known.unwrap_or_else(first);
            let spacing = (SPACING * (at - known.born)).max(LEAST_SPACING);
            let due = known.all.back().is_none_or(|last| at - last.at >= spacing);
            if point.value > known.count && due {
                if known.all.len() >= CAPACITY {
                    known.all.pop_front();
                }
                known.all.push_back(Occurrence { step, count: point.value, at, top, base });
            }
            known.count = point.value;
            self.0.insert(key, known);
        }
    }

    /// The phase of the rank with the highest newest peak, of those that occurred at least twice.
    pub(super) fn highest(
        &self,
        view: &View<'_>,
        workload: &Label,
        rank: &Label,
        now: Timestamp,
    ) -> Option<PhasePeaks> {
        let step = view.value(&training::STEPS, &[workload.clone(), rank.clone()])?;
        let from = [workload.clone(), rank.clone(), Label::default()];
        let own = self.0.range(from..).take_while(|([of, own, _], _)| of == workload && own == rank);
        let several = own.filter(|(_, phase)| phase.all.len() > 1);
        let newest = |phase: &Phase| phase.all.back().map_or(0.0, |last| last.top);
        let (key, phase) = several.max_by(|(_, one), (_, other)| newest(one).total_cmp(&newest(other)))?;
        let all = phase.all.iter().copied().collect();
        Some(PhasePeaks { phase: key[2].clone(), all, step, now: now.monotonic().as_secs_f64() })
    }
}
