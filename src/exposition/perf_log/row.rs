//! What a frame says of each job's step: one row a workload, of its lowest rank.

use std::collections::BTreeMap;

use crate::model::frame::Frame;

/// A figure of a row.
#[derive(Debug)]
pub struct Column {
    /// Its key in the summary, and its tag in event files behind `training/`.
    pub name: &'static str,
    /// The metrics that have it; the first that is in the frame counts.
    metrics: &'static [&'static str],
}

const STEP: &str = "memwarden_training_step";

/// Places in [`COLUMNS`] that the table names.
pub(super) mod place {
    pub(in super::super) const STEP_SECONDS: usize = 0;
    pub(in super::super) const FLOPS: usize = 4;
    pub(in super::super) const JOB_TOKENS: usize = 6;
    pub(in super::super) const JOB_SAMPLES: usize = 8;
    pub(in super::super) const ALLOCATED: usize = 9;
}

/// Every figure, in base units; operations and shares are counted with attention over the whole square.
pub static COLUMNS: [Column; 12] = [
    Column { name: "step_seconds", metrics: &["memwarden_training_step_last_duration_seconds"] },
    Column { name: "loss", metrics: &["memwarden_training_loss"] },
    Column { name: "learning_rate", metrics: &["memwarden_training_learning_rate"] },
    Column { name: "gradient_norm", metrics: &["memwarden_training_gradient_norm"] },
    Column {
        name: "flops_per_second_per_gpu",
        metrics: &["memwarden_training_flops_per_second", "memwarden_training_reported_flops_per_second"],
    },
    Column {
        name: "mfu_ratio",
        metrics: &["memwarden_training_mfu_ratio", "memwarden_training_reported_mfu_ratio"],
    },
    Column {
        name: "job_tokens_per_second",
        metrics: &["memwarden_training_job_throughput_tokens_per_second"],
    },
    Column { name: "rank_tokens_per_second", metrics: &["memwarden_training_throughput_tokens_per_second"] },
    Column {
        name: "job_samples_per_second",
        metrics: &["memwarden_training_job_throughput_samples_per_second"],
    },
    Column { name: "allocated_bytes", metrics: &["memwarden_training_allocator_allocated_bytes"] },
    Column { name: "reserved_bytes", metrics: &["memwarden_training_allocator_reserved_bytes"] },
    Column { name: "joules_per_token", metrics: &["memwarden_training_token_energy_joules"] },
];

/// One step of one job.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// When the frame was made, in seconds since 1970.
    pub unix_seconds: f64,
    /// The optimizer step.
    pub step: u64,
    /// In the order of [`COLUMNS`]; what is not known is nothing.
    pub values: [Option<f64>; COLUMNS.len()],
}

/// The rows of a frame, by workload.
pub fn rows(frame: &Frame) -> BTreeMap<String, Row> {
    let mut speakers: BTreeMap<&str, (&str, f64)> = BTreeMap::new();
    for (labels, value) in points(frame, STEP) {
        let rank = labels.rank.unwrap_or_default();
        let entry = speakers.entry(labels.workload).or_insert((rank, value));
        if before(rank, entry.0) {
            *entry = (rank, value);
        }
    }
    let unix_seconds = frame.at.unix().as_secs_f64();
    let mut found: BTreeMap<String, Row> = BTreeMap::new();
    for (workload, (_, step)) in &speakers {
        let row = Row { unix_seconds, step: whole(*step), values: [None; COLUMNS.len()] };
        found.insert((*workload).to_owned(), row);
    }
    for (place, column) in COLUMNS.iter().enumerate() {
        for metric in column.metrics.iter().rev() {
            // A later one of the list is overwritten by an earlier one; devices of one rank are added up.
            let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
            for (labels, value) in points(frame, metric) {
                let speaks = speakers
                    .get(labels.workload)
                    .is_some_and(|(rank, _)| labels.rank.is_none_or(|own| own == *rank));
                if speaks && labels.convention.is_none_or(|convention| convention == "full") {
                    *sums.entry(labels.workload).or_default() += value;
                }
            }
            for (workload, value) in sums {
                if let Some(row) = found.get_mut(workload) {
                    row.values[place] = Some(value);
                }
            }
        }
    }
    found
}

/// The labels that matter here.
struct Labels<'a> {
    workload: &'a str,
    rank: Option<&'a str>,
    convention: Option<&'a str>,
}

fn points<'a>(frame: &'a Frame, metric: &str) -> impl Iterator<Item = (Labels<'a>, f64)> {
    let family = frame.families.iter().find(|family| family.desc.name == metric);
    family.into_iter().flat_map(|family| {
        let place = |name: &str| family.desc.labels.iter().position(|label| *label == name);
        let (workload, rank, convention) = (place("workload"), place("rank"), place("convention"));
        family.points.iter().filter_map(move |point| {
            let label = |place: Option<usize>| place.map(|place| point.labels[place].as_str());
            let labels =
                Labels { workload: label(workload)?, rank: label(rank), convention: label(convention) };
            Some((labels, point.value))
        })
    })
}

/// Whether a rank comes before another: by number where both have one.
fn before(rank: &str, other: &str) -> bool {
    match (rank.parse::<u64>(), other.parse::<u64>()) {
        (Ok(rank), Ok(other)) => rank < other,
        _ => rank < other,
    }
}

/// A step, which is a whole number in the frame.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "steps are whole and not negative"
)]
fn whole(step: f64) -> u64 {
    step.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_in_the_catalog() {
        for metric in COLUMNS.iter().flat_map(|column| column.metrics).chain(&[STEP]) {
            assert!(crate::catalog::all().any(|desc| desc.name == *metric), "{metric}");
        }
        let named =
            [place::STEP_SECONDS, place::FLOPS, place::JOB_TOKENS, place::JOB_SAMPLES, place::ALLOCATED];
        let names = named.map(|place| COLUMNS[place].name);
        let expected = [
            "step_seconds",
            "flops_per_second_per_gpu",
            "job_tokens_per_second",
            "job_samples_per_second",
            "allocated_bytes",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn ranks_are_ordered_as_numbers() {
        assert!(before("2", "10") && before("", "0") && before("3", "3@17") && !before("10", "9"));
    }
}
