//! Feeds a recorded series to a tracker as the daemon would have done.

use super::tracker::{Assessment, Sample, Tracker};
use crate::model::series::{Row, Series};

/// How a series is replayed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The limit in bytes, instead of the recorded one.
    pub limit: Option<f64>,
    /// Horizons of the probabilities in seconds.
    pub horizons: Vec<f64>,
    /// Samples from one assessment to the next, at least 1.
    pub every: usize,
}

/// An assessment at one time.
#[derive(Clone, Debug)]
pub struct ReplayedAssessment {
    /// The time of the newest sample.
    pub at: f64,
    /// The limit at that time, in bytes.
    pub limit: Option<f64>,
    /// The assessment.
    pub assessment: Assessment,
}

/// The assessments of a series: one after every `options.every` samples, and one after the last sample. Empty only if
/// the series is empty.
pub fn replay(series: &Series, options: &Options) -> Vec<ReplayedAssessment> {
    let every = options.every.max(1);
    let mut tracker = Tracker::new();
    let mut assessments = Vec::with_capacity(series.rows.len() / every + 1);
    for (i, row) in series.rows.iter().enumerate() {
        tracker.push(row.at, sample(row));
        if (i + 1) % every == 0 || i + 1 == series.rows.len() {
            let limit = options.limit.or(row.limit);
            assessments.push(ReplayedAssessment {
                at: row.at,
                limit,
                assessment: tracker.assess(limit, &options.horizons),
            });
        }
    }
    assessments
}

/// Converts a row to a sample.
pub fn sample(row: &Row) -> Sample {
    Sample { used: row.used, unreclaimable: row.unreclaimable, allocated: row.allocated, peak: None }
}
