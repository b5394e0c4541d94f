//! The summary of a run as JSON: statistics over all steps, and the newest steps one by one.

use std::collections::VecDeque;

use serde::Serialize;

use super::{GIB, StepRow, TERA, stamp};
use crate::model::units::real;

/// Number of the newest steps that are listed.
const LISTED_STEPS: usize = 1_000;

/// The values that are summarized while a run continues.
#[derive(Debug)]
pub struct Summary {
    workload: String,
    started: f64,
    rows: VecDeque<StepRow>,
    steps: u64,
    figures: [Figure; FIGURES.len()],
}

type Read = fn(&StepRow) -> Option<f64>;

/// The statistics: their key, and the figure.
const FIGURES: [(&str, Read); 8] = [
    ("step_time_ms", |row| row.step_seconds.map(|seconds| seconds * 1e3)),
    ("tokens_per_second", |row| row.tokens_per_second),
    ("samples_per_second", |row| row.samples_per_second),
    ("TFLOPS_per_GPU", |row| row.flops_per_gpu.map(|flops| flops / TERA)),
    ("TFLOPS_total", |row| row.flops.map(|flops| flops / TERA)),
    ("mfu_ratio", |row| row.mfu),
    ("memory_GB", |row| row.allocated.map(|bytes| bytes / GIB)),
    ("loss", |row| row.loss),
];

#[derive(Clone, Copy, Debug, Default)]
struct Figure {
    count: u64,
    mean: f64,
    min: f64,
    max: f64,
    last: f64,
}

impl Figure {
    fn add(&mut self, value: f64) {
        self.count += 1;
        (self.min, self.max) =
            if self.count == 1 { (value, value) } else { (self.min.min(value), self.max.max(value)) };
        self.mean += (value - self.mean) / real(self.count);
        self.last = value;
    }
}

#[derive(Serialize)]
struct Statistics {
    mean: f64,
    min: f64,
    max: f64,
    last: f64,
}

#[derive(Serialize)]
struct Session<'a> {
    workload: &'a str,
    start_time: String,
    last_update: String,
    total_iterations: u64,
}

#[derive(Serialize)]
struct Document<'a> {
    schema_version: u32,
    session_info: Session<'a>,
    statistics: serde_json::Map<String, serde_json::Value>,
    iteration_logs: Vec<serde_json::Map<String, serde_json::Value>>,
}

impl Summary {
    /// An empty summary; `started` in seconds since 1970.
    pub fn new(workload: &str, started: f64) -> Self {
        Self {
            workload: workload.to_owned(),
            started,
            rows: VecDeque::new(),
            steps: 0,
            figures: [Figure::default(); FIGURES.len()],
        }
    }

    pub fn add(&mut self, row: &StepRow) {
        self.steps += 1;
        for (figure, (_, read)) in self.figures.iter_mut().zip(FIGURES) {
            if let Some(value) = read(row).filter(|value| value.is_finite()) {
                figure.add(value);
            }
        }
        if self.rows.len() == LISTED_STEPS {
            self.rows.pop_front();
        }
        self.rows.push_back(row.clone());
    }

    /// The document. Values that were never known have no key.
    ///
    /// # Errors
    /// Errors of the serializer.
    pub fn json(&self) -> serde_json::Result<Vec<u8>> {
        let mut statistics = serde_json::Map::new();
        for (figure, (name, _)) in self.figures.iter().zip(FIGURES).filter(|(figure, _)| figure.count > 0) {
            let Figure { mean, min, max, last, .. } = *figure;
            statistics.insert(name.to_owned(), serde_json::to_value(Statistics { mean, min, max, last })?);
        }
        let last = self.rows.back().map_or(self.started, |row| row.unix_seconds);
        let mut bytes = serde_json::to_vec_pretty(&Document {
            schema_version: 1,
            session_info: Session {
                workload: &self.workload,
                start_time: stamp(self.started),
                last_update: stamp(last),
                total_iterations: self.steps,
            },
            statistics,
            iteration_logs: self.rows.iter().map(entry).collect(),
        })?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

fn entry(row: &StepRow) -> serde_json::Map<String, serde_json::Value> {
    let mut entry = serde_json::Map::new();
    entry.insert("iteration".to_owned(), row.step.into());
    entry.insert("timestamp".to_owned(), stamp(row.unix_seconds).into());
    for (name, read) in FIGURES {
        // JSON cannot represent values that are not finite.
        if let Some(value) = read(row).and_then(serde_json::Number::from_f64) {
            entry.insert(name.to_owned(), value.into());
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_of_all_steps_and_the_newest_are_kept() {
        let mut summary = Summary::new("sft", 1_750_764_420.0);
        for step in 0..1_500_u32 {
            summary.add(&StepRow {
                unix_seconds: 1_750_764_420.0 + f64::from(step),
                step: step.into(),
                step_seconds: Some(0.1 + 0.001 * f64::from(step % 2)),
                loss: (step < 3).then_some(if step == 1 { f64::NAN } else { 2.0 }),
                ..StepRow::default()
            });
        }
        let document: serde_json::Value = serde_json::from_slice(&summary.json().unwrap()).unwrap();
        assert_eq!(document["session_info"]["total_iterations"], 1_500);
        assert_eq!(document["iteration_logs"].as_array().unwrap().len(), LISTED_STEPS);
        assert_eq!(document["iteration_logs"][0]["iteration"], 500);
        let step_time = &document["statistics"]["step_time_ms"];
        let near = |key: &str, wanted: f64| (step_time[key].as_f64().unwrap() - wanted).abs() < 1e-6;
        assert!(near("mean", 100.5) && near("min", 100.0) && near("max", 101.0), "{step_time}");
        assert_eq!(document["statistics"]["loss"]["mean"], 2.0);
        assert!(document["statistics"].get("TFLOPS_per_GPU").is_none());
    }
}
