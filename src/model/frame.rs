//! Everything known at one tick. A frame never changes.

use std::sync::Arc;

use super::finding::Finding;
use super::outlook::Outlook;
use super::point::Family;
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
    /// All metrics with at least one point, in the order of the catalog's rooms.
    pub families: Vec<Family>,
    /// How each source fared.
    pub sources: Vec<SourceReport>,
    /// What the analyzers state, those in force.
    pub findings: Vec<Finding>,
    /// What the analyzers forecast, as data: what programs decide on.
    pub outlook: Outlook,
    /// What happened to training jobs lately.
    pub timeline: Arc<Timeline>,
}

/// How one source fared in this frame.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SourceReport {
    /// The name in the registry.
    pub source: &'static str,
    /// What became of the last sample.
    pub status: Status,
    /// Why, where the status is not `ok`.
    pub why: Option<String>,
    /// Seconds since its last complete sample; absent before the first.
    pub age_seconds: Option<f64>,
}

impl Frame {
    /// How many series it has.
    pub fn series(&self) -> usize {
        self.families.iter().map(|family| family.points.len()).sum()
    }

    /// The value of one series, for lookups by name: screens and tests.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let family = self.families.iter().find(|family| family.desc.name == name)?;
        let wanted = |point: &&super::point::Point| {
            labels.iter().all(|(label, value)| {
                family
                    .desc
                    .labels
                    .iter()
                    .position(|name| name == label)
                    .is_some_and(|place| point.labels[place].as_str() == *value)
            })
        };
        family.points.iter().find(wanted).map(|point| point.value)
    }
}
