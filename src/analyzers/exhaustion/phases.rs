//! The peaks of the phases that jobs report, such as an evaluation after every 500 steps: how high they are, how much
//! each one exceeds the one before, and after how many steps the next one comes.
//!
//! A job reports for each phase how often it was completed and the most memory that was allocated in it so far
//! (`clients/PROTOCOL.md`). Peaks of less than a second, which no sample shows, are known this way. The host memory of a
//! workload, and the memory of a cgroup that it is in, is what their samples during a phase show; a phase in which there
//! was no sample is left out.

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
    /// The most memory in the phase, in bytes.
    pub(super) top: f64,
    /// What remained after it, in bytes.
    pub(super) base: f64,
}

/// The phase of a rank or of a workload whose peaks are the highest.
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

/// The newest occurrences with one kind of memory, oldest first.
#[derive(Debug, Default)]
struct Kept(VecDeque<Occurrence>);

impl Kept {
    /// Adds an occurrence, unless the last one was less than `spacing` seconds ago.
    fn push(&mut self, new: Occurrence, spacing: f64) {
        if self.0.back().is_some_and(|last| new.at - last.at < spacing) {
            return;
        }
        if self.0.len() >= CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(new);
    }
}

/// Host memory in which the phases of a workload have peaks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HostMemory {
    /// That of the workload.
    Own,
    /// That of the cgroup with this path, which the workload is in.
    Cgroup(Label),
}

/// The used memory of the workloads, and of the cgroups that they are in, in bytes.
pub(super) type Used = BTreeMap<Label, Vec<(HostMemory, f64)>>;

/// What the samples show of one host memory.
#[derive(Debug, Default)]
struct Sampled {
    /// The most in the present occurrence; absent before its first sample.
    top: Option<f64>,
    kept: Kept,
}

#[derive(Debug)]
struct Phase {
    count: f64,
    born: f64,
    step: f64,
    /// The most memory that the rank's allocator allocated so far.
    top: Option<f64>,
    allocator: Kept,
    host: BTreeMap<HostMemory, Sampled>,
}

/// The phases of all ranks, by workload, rank and phase.
#[derive(Debug, Default)]
pub(super) struct Phases(BTreeMap<[Label; 3], Phase>);

impl Phases {
    /// Adds the phases that were completed in this tick, and removes those of ranks that have ended.
    pub(super) fn update(&mut self, view: &View<'_>, used: &Used, now: Timestamp) {
        let at = now.monotonic().as_secs_f64();
        let mut before = std::mem::take(&mut self.0);
        let allocated = view.points(&training::ALLOCATED);
        for point in view.points(&training::PHASES) {
            let [workload, rank, phase] = &*point.labels else { continue };
            let of_rank = [workload.clone(), rank.clone()];
            let Some(step) = view.value(&training::STEPS, &of_rank) else { continue };
            let (count, used) = (point.value, used.get(workload).map_or(&[][..], Vec::as_slice));
            let top = view.value(&training::PHASE_PEAK, &point.labels);
            let base =
                allocated.iter().find(|other| other.labels[0] == *workload && other.labels[1] == *rank);
            let key = [workload.clone(), rank.clone(), phase.clone()];
            let known = before.remove(&key).filter(|known| {
                let fell = top.zip(known.top).is_some_and(|(top, before)| top < before);
                count >= known.count && step >= known.step && !fell
            });
            let mut known = known.unwrap_or_else(|| Phase {
                count,
                born: at,
                step,
                top,
                allocator: Kept::default(),
                host: BTreeMap::new(),
            });
            known.host.retain(|memory, _| used.iter().any(|(own, _)| own == memory));
            if count > known.count {
                let spacing = (SPACING * (at - known.born)).max(LEAST_SPACING);
                if let Some((top, base)) = top.zip(base) {
                    known.allocator.push(Occurrence { step, count, at, top, base: base.value }, spacing);
                }
                for (memory, base) in used {
                    let Some(sampled) = known.host.get_mut(memory) else { continue };
                    if let Some(top) = sampled.top.take() {
                        let (top, base) = (top.max(*base), *base);
                        sampled.kept.push(Occurrence { step, count, at, top, base }, spacing);
                    }
                }
            }
            if view.value(&training::PHASE_NOW, &point.labels).is_some() {
                for (memory, used) in used {
                    let top = &mut known.host.entry(memory.clone()).or_default().top;
                    *top = Some(top.map_or(*used, |top| top.max(*used)));
                }
            }
            (known.count, known.step, known.top) = (count, step, top);
            self.0.insert(key, known);
        }
    }

    /// The phase of the rank with the highest newest peak of the allocator, of those that occurred at least twice.
    pub(super) fn of_rank(
        &self,
        view: &View<'_>,
        [workload, rank]: &[Label; 2],
        now: Timestamp,
    ) -> Option<PhasePeaks> {
        let own = self.of(workload).take_while(|([_, own, _], _)| own <= rank);
        let own = own.filter(|([_, own, _], _)| own == rank).map(|(key, phase)| (key, &phase.allocator));
        highest(own, view, |last| last.top, now)
    }

    /// The phase of the workloads, of any rank, with the largest newest increase of a host memory, of those that occurred
    /// at least twice.
    pub(super) fn of_workloads(
        &self,
        view: &View<'_>,
        workloads: &[Label],
        memory: &HostMemory,
        now: Timestamp,
    ) -> Option<PhasePeaks> {
        let all = workloads.iter().flat_map(|workload| self.of(workload));
        let own = all.filter_map(|(key, phase)| Some((key, &phase.host.get(memory)?.kept)));
        highest(own, view, |last| last.top - last.base, now)
    }

    fn of(&self, workload: &Label) -> impl Iterator<Item = (&[Label; 3], &Phase)> {
        let from = [workload.clone(), Label::default(), Label::default()];
        self.0.range(from..).take_while(move |([of, ..], _)| of == workload)
    }
}

fn highest<'a>(
    phases: impl Iterator<Item = (&'a [Label; 3], &'a Kept)>,
    view: &View<'_>,
    height: impl Fn(&Occurrence) -> f64,
    now: Timestamp,
) -> Option<PhasePeaks> {
    let newest = |kept: &Kept| kept.0.back().map_or(0.0, &height);
    let several = phases.filter(|(_, kept)| kept.0.len() > 1);
    let ([workload, rank, phase], kept) =
        several.max_by(|(_, one), (_, other)| newest(one).total_cmp(&newest(other)))?;
    let step = view.value(&training::STEPS, &[workload.clone(), rank.clone()])?;
    let all = kept.0.iter().copied().collect();
    Some(PhasePeaks { phase: phase.clone(), all, step, now: now.monotonic().as_secs_f64() })
}
