//! Feeds a recorded series to a tracker as the daemon would have done.

use forecast::tracker::{Assessment, Sample, Tracker};

use crate::model::health::{Judged, Rule};
use crate::model::outlook::LeakState;
use crate::model::series::{Row, Series};

/// The horizons that the rules of a health use, in seconds.
const RULES: [f64; 2] = [900.0, 3600.0];

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
    /// The rule that decides the health of the resource; absent without a limit.
    pub rule: Option<Rule>,
}

/// The assessments of a series: one after every `options.every` samples, and one after the last sample. Empty only if
/// the series is empty.
pub fn replay(series: &Series, options: &Options) -> Vec<ReplayedAssessment> {
    let every = options.every.max(1);
    let horizons: Vec<f64> = options.horizons.iter().copied().chain(RULES).collect();
    let mut tracker = Tracker::new();
    let mut assessments = Vec::with_capacity(series.rows.len() / every + 1);
    for (i, row) in series.rows.iter().enumerate() {
        tracker.push(row.at, sample(row));
        if (i + 1) % every == 0 || i + 1 == series.rows.len() {
            let limit = options.limit.or(row.limit);
            let mut assessment = tracker.assess(limit, &horizons);
            let known = assessment.p_exhaustion.split_off(options.horizons.len());
            let rule = limit.map(|limit| {
                Rule::of(&Judged {
                    used: row.used / limit,
                    grows: assessment.leak >= LeakState::Growing,
                    leaks: assessment.leak == LeakState::Leaking,
                    // What the series is about is not known, such as a GPU.
                    grew: false,
                    may_be_reserved: false,
                    within_15_minutes: known[0],
                    within_hour: known[1],
                })
            });
            assessments.push(ReplayedAssessment { at: row.at, limit, assessment, rule });
        }
    }
    assessments
}

/// Converts a row to a sample.
pub fn sample(row: &Row) -> Sample {
    Sample { used: row.used, unreclaimable: row.unreclaimable, allocated: row.allocated, peak: None }
}
