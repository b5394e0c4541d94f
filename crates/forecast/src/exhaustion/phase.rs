//! The peaks of one phase of a job, such as an evaluation after every 500 steps: how high they are, how much each one
//! exceeds the one before, and after how many steps the next one comes.

use std::collections::VecDeque;

use crate::history::excursions::CAPACITY;
use crate::stats::robust;

/// Occurrences that follow each other sooner than this share of the observed time are not kept: about the newest quarter
/// of the time is covered, however often the phase occurs.
const SPACING: f64 = 1.0 / 64.0;
/// Minimum time between two kept occurrences in seconds.
const LEAST_SPACING: f64 = 2.0;

/// One occurrence of a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Occurrence {
    /// The job's step at its end.
    pub step: f64,
    /// How often the phase was completed.
    pub count: f64,
    /// Its end in seconds on any clock that never steps.
    pub at: f64,
    /// The most memory in the phase, in bytes.
    pub top: f64,
    /// What remained after it, in bytes.
    pub base: f64,
}

/// The newest occurrences of a phase with one kind of memory, in bounded memory.
#[derive(Clone, Debug, Default)]
pub struct Occurrences(VecDeque<Occurrence>);

impl Occurrences {
    /// Adds an occurrence of a phase that has been observed for `observed` seconds, unless it follows the last one too
    /// soon.
    pub fn push(&mut self, new: Occurrence, observed: f64) {
        let spacing = (SPACING * observed).max(LEAST_SPACING);
        if self.0.back().is_some_and(|last| new.at - last.at < spacing) {
            return;
        }
        if self.0.len() >= CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(new);
    }

    /// The newest occurrence; absent for none.
    pub fn last(&self) -> Option<&Occurrence> {
        self.0.back()
    }

    /// Number of kept occurrences.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The peaks of the phase at the job's present `step`, at `now` on the clock of the occurrences.
    pub fn peaks(&self, step: f64, now: f64) -> PhasePeaks {
        PhasePeaks { occurrences: self.0.iter().copied().collect(), step, now }
    }
}

/// The newest peaks of a phase.
#[derive(Clone, Debug)]
pub struct PhasePeaks {
    /// Oldest first.
    pub(crate) occurrences: Vec<Occurrence>,
    /// The job's present step.
    pub(crate) step: f64,
    /// The present time in seconds, on the clock of the occurrences.
    pub(crate) now: f64,
}

impl PhasePeaks {
    /// The median number of steps between two occurrences, and the mean deviation from it; absent for fewer than two
    /// occurrences, and if no step was completed between them.
    pub(crate) fn period(&self) -> Option<(f64, f64)> {
        let pairs = self.occurrences.iter().zip(self.occurrences.iter().skip(1));
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
    pub(crate) fn seconds_per_step(&self) -> Option<f64> {
        let (first, last) = (self.occurrences.first()?, self.occurrences.last()?);
        let steps = last.step - first.step;
        (steps > 0.0).then(|| (last.at - first.at) / steps)
    }
}
