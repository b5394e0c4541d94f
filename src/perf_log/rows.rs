//! From frames to rows: what the ranks of a workload told, taken together.

use std::collections::BTreeMap;

use super::Row;
use crate::catalog::training;
use crate::model::frame::Frame;
use crate::model::label::Label;
use crate::model::point::{Family, Point};

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

/// Operations are told by the first of these conventions that is known: attention over all pairs, as published
/// figures count it, else six for each parameter.
const CONVENTIONS: [&str; 2] = ["full", "6n"];

/// What all ranks of a workload told in one frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkloadRow {
    row: Row,
    /// Of all ranks since their processes began.
    samples: Option<f64>,
}

/// What is told of each workload that trains.
pub fn workload_rows(frame: &Frame) -> BTreeMap<Label, WorkloadRow> {
    let mut all: BTreeMap<Label, WorkloadRow> = BTreeMap::new();
    for family in &frame.families {
        let name = family.desc.name;
        if !NAMES.contains(&name) {
            continue;
        }
        for point in &family.points {
            let (Some(workload), Some(value)) = (label(family, point, "workload"), Some(point.value)) else {
                continue;
            };
            let told = all.entry(workload.clone()).or_default();
            let row = &mut told.row;
            match name {
                STEP => row.step = row.step.max(whole(value)),
                // The slowest rank is what the others wait for.
                STEP_SECONDS => most(&mut row.step_seconds, value),
                TOKEN_RATE => sum(&mut row.tokens_per_second, value),
                SAMPLES => sum(&mut told.samples, value),
                LOSS => {
                    let first = label(family, point, "rank").is_some_and(|rank| rank.as_str() == "0");
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
    for (workload, told) in &mut all {
        told.row.unix_seconds = frame.at.unix().as_secs_f64();
        let by_convention = |name| CONVENTIONS.iter().find_map(|wanted| mean(frame, name, workload, wanted));
        if let Some((mean, ranks)) = by_convention(FLOPS) {
            told.row.flops_per_gpu = Some(mean);
            told.row.flops = Some(mean * ranks);
        }
        told.row.mfu = by_convention(MFU).map(|(mean, _)| mean);
    }
    // Who told no step has nothing to log.
    all.retain(|_, told| told.row.step > 0);
    all
}

fn label<'f>(family: &Family, point: &'f Point, name: &str) -> Option<&'f Label> {
    let place = family.desc.labels.iter().position(|own| *own == name)?;
    point.labels.get(place)
}

/// The mean over the ranks of a workload, and their number.
fn mean(frame: &Frame, name: &str, workload: &Label, convention: &str) -> Option<(f64, f64)> {
    let family = frame.families.iter().find(|family| family.desc.name == name)?;
    let (mut total, mut ranks) = (0.0, 0.0);
    for point in &family.points {
        let of = |name, wanted: &str| label(family, point, name).is_some_and(|own| own.as_str() == wanted);
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

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and steps are counts"
)]
fn whole(value: f64) -> u64 {
    value as u64
}

/// One workload followed: a row for every so many steps.
#[derive(Debug, Default)]
pub struct Follower {
    last: Option<WorkloadRow>,
}

impl Follower {
    /// The row that is due, where the job is `every` steps further than at the last, or began anew.
    pub fn row(&mut self, told: &WorkloadRow, every: u64) -> Option<Row> {
        let Some(last) = &self.last else {
            // The first one seen may be anywhere in a run; rates need two.
            self.last = Some(told.clone());
            return Some(told.row.clone());
        };
        let steps = told.row.step.checked_sub(last.row.step);
        if steps.is_some_and(|steps| steps < every) {
            return None;
        }
        let mut row = told.row.clone();
        let seconds = row.unix_seconds - last.row.unix_seconds;
        let samples = told.samples.zip(last.samples).map(|(now, before)| now - before);
        row.samples_per_second =
            samples.filter(|samples| *samples >= 0.0 && seconds > 0.0).map(|samples| samples / seconds);
        self.last = Some(told.clone());
        Some(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(step: u64, at: f64, samples: f64) -> WorkloadRow {
        WorkloadRow { row: Row { step, unix_seconds: at, ..Row::default() }, samples: Some(samples) }
    }

    #[test]
    fn rows_are_written_at_the_interval_and_after_a_restart() {
        let mut follower = Follower::default();
        let mut row = |step, at, samples| {
            let row = follower.row(&told(step, at, samples), 10)?;
            Some((row.step, row.samples_per_second))
        };
        assert_eq!(row(7, 100.0, 70.0), Some((7, None)));
        assert_eq!(row(16, 109.0, 160.0), None);
        assert_eq!(row(17, 110.0, 170.0), Some((17, Some(10.0))));
        assert_eq!(row(40, 112.0, 400.0), Some((40, Some(115.0))));
        assert_eq!(row(3, 200.0, 30.0), Some((3, None)), "another process counts from its own start");
    }
}
