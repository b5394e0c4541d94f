//! Converts frames to rows: the values of all ranks of a workload.

use std::collections::BTreeMap;

use super::StepRow;
use crate::catalog::training;
use crate::model::frame::Frame;
use crate::model::label::Label;
use crate::model::units::whole;

const STEP: &str = training::STEP.desc.name;
const STEP_SECONDS: &str = training::STEP_LAST.desc.name;
const TOKEN_RATE: &str = training::TOKEN_RATE.desc.name;
const SAMPLES: &str = training::SAMPLES.desc.name;
const FLOPS: &str = training::FLOPS.desc.name;
const MFU: &str = training::MFU.desc.name;
const LOSS: &str = training::LOSS.desc.name;
const ALLOCATED: &str = training::ALLOCATED.desc.name;
const RESERVED: &str = training::RESERVED.desc.name;

/// Every metric that is read.
pub const NAMES: &[&str] = &[STEP, STEP_SECONDS, TOKEN_RATE, SAMPLES, FLOPS, MFU, LOSS, ALLOCATED, RESERVED];

/// Operations are taken from the first of these conventions that is reported: attention over all pairs, as published
/// figures count it, else six for each parameter.
const CONVENTIONS: [&str; 2] = ["full", "6n"];

/// The values of all ranks of a workload in one frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadRow {
    row: StepRow,
    /// Of all ranks since their processes began.
    samples: Option<f64>,
}

/// The values of each workload that trains.
pub fn workload_rows(frame: &Frame) -> BTreeMap<Label, WorkloadRow> {
    let mut all: BTreeMap<Label, WorkloadRow> = BTreeMap::new();
    for family in &frame.families {
        let name = family.desc.name;
        if !NAMES.contains(&name) {
            continue;
        }
        for point in &family.points {
            let (Some(workload), value) = (point.label(family.desc, "workload"), point.value) else {
                continue;
            };
            let values = all.entry(workload.clone()).or_default();
            let row = &mut values.row;
            match name {
                STEP => row.step = row.step.max(whole(value)),
                // The other ranks wait for the slowest one.
                STEP_SECONDS => most(&mut row.step_seconds, value),
                TOKEN_RATE => sum(&mut row.tokens_per_second, value),
                SAMPLES => sum(&mut values.samples, value),
                LOSS => {
                    let first = point.label(family.desc, "rank").is_some_and(|rank| rank.as_str() == "0");
                    if first || row.loss.is_none() {
                        row.loss = Some(value);
                    }
                }
                ALLOCATED => most(&mut row.allocated, value),
                RESERVED => most(&mut row.reserved, value),
                _ => {}
            }
        }
    }
    for (workload, values) in &mut all {
        values.row.unix_seconds = frame.at.unix().as_secs_f64();
        let by_convention = |name| CONVENTIONS.iter().find_map(|wanted| mean(frame, name, workload, wanted));
        if let Some((mean, ranks)) = by_convention(FLOPS) {
            values.row.flops_per_gpu = Some(mean);
            values.row.flops = Some(mean * ranks);
        }
        values.row.mfu = by_convention(MFU).map(|(mean, _)| mean);
    }
    // Workloads without a step have nothing to log.
    all.retain(|_, values| values.row.step > 0);
    all
}

/// The mean over the ranks of a workload, and their number.
fn mean(frame: &Frame, name: &str, workload: &Label, convention: &str) -> Option<(f64, f64)> {
    let family = frame.families.iter().find(|family| family.desc.name == name)?;
    let (mut total, mut ranks) = (0.0, 0.0);
    for point in &family.points {
        let of =
            |name, wanted: &str| point.label(family.desc, name).is_some_and(|own| own.as_str() == wanted);
        if of("workload", workload.as_str()) && of("convention", convention) {
            total += point.value;
            ranks += 1.0;
        }
    }
    (ranks > 0.0).then(|| (total / ranks, ranks))
}

fn most(to: &mut Option<f64>, value: f64) {
    *to = Some(to.map_or(value, |known| known.max(value)));
}

fn sum(to: &mut Option<f64>, value: f64) {
    *to = Some(to.unwrap_or(0.0) + value);
}

/// Selects the steps of one workload that are logged.
#[derive(Debug, Default)]
pub struct Follower {
    last: Option<WorkloadRow>,
}

impl Follower {
    /// Returns a row if the job is `every` steps further than at the last row, or has restarted.
    pub fn row(&mut self, values: &WorkloadRow, every: u64) -> Option<StepRow> {
        let Some(last) = &self.last else {
            // The first step may be anywhere in a run; rates need two.
            self.last = Some(values.clone());
            return Some(values.row.clone());
        };
        let steps = values.row.step.checked_sub(last.row.step);
        if steps.is_some_and(|steps| steps < every) {
            return None;
        }
        let mut row = values.row.clone();
        let seconds = row.unix_seconds - last.row.unix_seconds;
        let samples = values.samples.zip(last.samples).map(|(now, before)| now - before);
        row.samples_per_second =
            samples.filter(|samples| *samples >= 0.0 && seconds > 0.0).map(|samples| samples / seconds);
        self.last = Some(values.clone());
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(step: u64, at: f64, samples: f64) -> WorkloadRow {
        WorkloadRow { row: StepRow { step, unix_seconds: at, ..StepRow::default() }, samples: Some(samples) }
    }

    #[test]
    fn rows_are_written_at_the_interval_and_after_a_restart() {
        let mut follower = Follower::default();
        let mut row = |step, at, samples| {
            let row = follower.row(&values(step, at, samples), 10)?;
            Some((row.step, row.samples_per_second))
        };
        assert_eq!(row(7, 100.0, 70.0), Some((7, None)));
        assert_eq!(row(16, 109.0, 160.0), None);
        assert_eq!(row(17, 110.0, 170.0), Some((17, Some(10.0))));
        assert_eq!(row(40, 112.0, 400.0), Some((40, Some(115.0))));
        assert_eq!(row(3, 200.0, 30.0), Some((3, None)), "another process counts from its own start");
    }
}
