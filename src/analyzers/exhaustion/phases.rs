//! The peaks of the phases that jobs report, such as an evaluation after every 500 steps: how high they are, how much
//! each one exceeds the one before, and after how many steps the next one comes.
//!
//! A job reports for each phase how often it was completed and the most memory that was allocated in it so far
//! (`clients/PROTOCOL.md`). Peaks of less than a second, which no sample shows, are known this way. The host memory of a
//! workload, and the memory of a cgroup that it is in, is what their samples during a phase show; a phase in which there
//! was no sample is left out.

use std::collections::BTreeMap;

use forecast::exhaustion::phase::{Occurrence, Occurrences, PhasePeaks};

use crate::model::analyzer::View;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::sources::training::metrics as training;

/// The name that the job gives to a phase, and the peaks of that phase.
pub(in crate::analyzers) type NamedPhase = (Label, PhasePeaks);

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
    kept: Occurrences,
}

#[derive(Debug)]
struct Phase {
    count: f64,
    born: f64,
    step: f64,
    /// The most memory that the rank's allocator allocated so far.
    top: Option<f64>,
    allocator: Occurrences,
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
                allocator: Occurrences::default(),
                host: BTreeMap::new(),
            });
            known.host.retain(|memory, _| used.iter().any(|(own, _)| own == memory));
            if count > known.count {
                let observed = at - known.born;
                if let Some((top, base)) = top.zip(base) {
                    known.allocator.push(Occurrence { step, count, at, top, base: base.value }, observed);
                }
                for (memory, base) in used {
                    let Some(sampled) = known.host.get_mut(memory) else { continue };
                    if let Some(top) = sampled.top.take() {
                        let (top, base) = (top.max(*base), *base);
                        sampled.kept.push(Occurrence { step, count, at, top, base }, observed);
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
    ) -> Option<NamedPhase> {
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
    ) -> Option<NamedPhase> {
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
    phases: impl Iterator<Item = (&'a [Label; 3], &'a Occurrences)>,
    view: &View<'_>,
    height: impl Fn(&Occurrence) -> f64,
    now: Timestamp,
) -> Option<NamedPhase> {
    let newest = |kept: &Occurrences| kept.last().map_or(0.0, &height);
    let several = phases.filter(|(_, kept)| kept.len() > 1);
    let ([workload, rank, phase], kept) =
        several.max_by(|(_, one), (_, other)| newest(one).total_cmp(&newest(other)))?;
    let step = view.value(&training::STEPS, &[workload.clone(), rank.clone()])?;
    Some((phase.clone(), kept.peaks(step, now.monotonic().as_secs_f64())))
}
