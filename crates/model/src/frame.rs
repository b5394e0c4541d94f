//! Everything known at one tick. A frame never changes.

use std::sync::Arc;

use super::acknowledged::Acknowledged;
use super::finding::Finding;
use super::outlook::Outlook;
use super::point::{Family, Point};
use super::source::Status;
use super::time::Timestamp;
use super::timeline::Timeline;

/// Everything known at one tick.
#[derive(Debug)]
pub struct Frame {
    /// Counts published frames from 1.
    pub sequence: u64,
    /// When sampling of this frame began.
    pub at: Timestamp,
    /// All metrics with at least one point, in the order of the catalog.
    pub families: Vec<Family>,
    pub sources: Vec<SourceReport>,
    pub findings: Vec<Finding>,
    /// The forecasts of the analyzers as data, for programs that decide on them.
    pub outlook: Outlook,
    /// Recent events of training jobs.
    pub timeline: Arc<Timeline>,
    /// The problems that operators have acknowledged.
    pub acknowledged: Arc<Acknowledged>,
}

#[derive(Clone, Debug, serde::Serialize)]
pub struct SourceReport {
    /// The name in the registry.
    pub source: &'static str,
    /// The result of the last sample.
    pub status: Status,
    /// The reason, if the status is not `ok`.
    pub why: Option<String>,
    /// Seconds since its last complete sample; absent before the first.
    pub age_seconds: Option<f64>,
}

impl Frame {
    pub fn series(&self) -> usize {
        self.families.iter().map(|family| family.points.len()).sum()
    }

    /// The value of one series, for lookups by name: screens and tests.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let family = self.families.iter().find(|family| family.desc.name == name)?;
        let wanted = |point: &&Point| {
            let has = |(label, value): &(&str, &str)| {
                point.label(family.desc, label).is_some_and(|own| own.as_str() == *value)
            };
            labels.iter().all(has)
        };
        family.points.iter().find(wanted).map(|point| point.value)
    }
}
