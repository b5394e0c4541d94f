//! Feeds a recorded series to a tracker as the daemon would have done.

use std::time::Duration;

use forecast::tracker::{Assessment, Sample, Tracker};

use super::exhaustion::rules::{Level, RULES, Rules};
use crate::model::finding::Subject;
use crate::model::health::Rule;
use crate::model::series::{Row, Series};
use crate::model::time::Timestamp;

/// How a series is replayed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The limit in bytes, instead of the recorded one.
    pub limit: Option<f64>,
    /// Horizons of the probabilities in seconds.
    pub horizons: Vec<f64>,
    /// Samples from one assessment to the next, at least 1.
    pub every: usize,
    /// Whether it is the memory of a GPU, where the series does not say so.
    pub gpu: bool,
}

/// An assessment at one time.
#[derive(Clone, Debug)]
pub struct ReplayedAssessment {
    /// The time of the newest sample.
    pub at: f64,
    /// The limit at that time, in bytes.
    pub limit: Option<f64>,
    pub assessment: Assessment,
    /// The rule that decides the health of the resource; absent without a limit.
    pub rule: Option<Rule>,
}

/// The assessments of a series: one after every `options.every` samples, and one after the last sample. Empty only if
/// the series is empty.
pub fn replay(series: &Series, options: &Options) -> Vec<ReplayedAssessment> {
    let every = options.every.max(1);
    let horizons: Vec<f64> = options.horizons.iter().copied().chain(RULES).collect();
    let (mut tracker, mut rules) = (Tracker::new(), Rules::default());
    let subject =
        if options.gpu || series.gpu { Subject::gpu(&"".into(), &"".into()) } else { Subject::host() };
    let begin = series.rows.first().map_or(0.0, |row| row.at);
    let mut assessments = Vec::with_capacity(series.rows.len() / every + 1);
    for (i, row) in series.rows.iter().enumerate() {
        tracker.push(row.at, sample(row));
        if (i + 1) % every == 0 || i + 1 == series.rows.len() {
            let limit = options.limit.or(row.limit);
            let mut assessment = tracker.assess(limit, &horizons);
            let known = assessment.p_exhaustion.split_off(options.horizons.len());
            let since_begin = Duration::try_from_secs_f64(row.at - begin).unwrap_or_default();
            let now = Timestamp::new(since_begin, since_begin);
            rules.begin(now);
            let rule = limit.map(|limit| {
                let used = row.used / limit;
                let level = Level { used, occupied: used, is_stalled: false };
                rules.update(&subject, level, &assessment, [known[0], known[1]], now).0
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
