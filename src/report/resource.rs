//! The observed resources: their use over time, and the newest and the worst conclusion.

use std::collections::BTreeMap;

use super::curve::Curve;
use super::focus::Focus;
use super::frame_view::FrameView;
use crate::model::finding::Subject;
use crate::model::health::Health;
use crate::model::outlook::{Conclusion, Forecast};
use crate::plot::report::Mark;

/// Maximum number of resources.
const MOST: usize = 1_000;

/// The observed values of one resource.
#[derive(Clone, Debug, Default)]
pub(super) struct Resource {
    pub(super) used: Curve,
    /// The newest conclusion.
    pub(super) known: Conclusion,
    /// The worst health so far, and when it was reached, in seconds since the first sample.
    pub(super) worst: (Health, f64),
    pub(super) seen: f64,
}

/// All observed resources.
#[derive(Debug, Default)]
pub(super) struct Resources {
    pub(super) all: BTreeMap<Subject, Resource>,
}

impl Resources {
    /// Adds a sample; returns marks for each resource whose health becomes critical.
    pub(super) fn take(&mut self, frame: &FrameView, focus: &Focus, now: f64) -> Vec<Mark> {
        let mut marks = Vec::new();
        for known in frame.conclusions.iter().filter(|known| focus.has(&known.subject)) {
            let (Some(forecast), subject) = (&known.forecast, &known.subject) else { continue };
            if self.all.len() >= MOST && !self.all.contains_key(subject) {
                continue;
            }
            let resource = self.all.entry(subject.clone()).or_default();
            let (before, after) = (resource.health(), forecast.health());
            resource.used.push(now, forecast.used_bytes);
            resource.seen = now;
            if after > resource.worst.0 || resource.known.forecast.is_none() {
                resource.worst = (after, now);
            }
            resource.known = known.clone();
            if after > before && after == Health::Critical {
                marks.push(Mark { t_s: now, text: format!("{subject}: {}", after.word()), alarm: true });
            }
        }
        marks
    }
}

impl Resource {
    /// The newest forecast; a resource has one from its first sample on.
    pub(super) fn forecast(&self) -> Option<&Forecast> {
        self.known.forecast.as_ref()
    }

    /// Its health by its memory against its limit.
    pub(super) fn health(&self) -> Health {
        self.forecast().map_or(Health::Unknown, Forecast::health)
    }
}
