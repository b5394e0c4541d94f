//! The analyzer trait, its input and its output.

#![warn(missing_docs)]

use std::collections::BTreeMap;

use super::acknowledged::{Acknowledged, ProblemId};
use super::desc::Metric;
use super::facts::Facts;
use super::finding::Finding;
use super::fit::Answer;
use super::frame::SourceReport;
use super::health::Health;
use super::label::Label;
use super::outlook::Outlook;
use super::point::{Batch, Family, Point};
use super::shortage::Shortage;
use super::time::Timestamp;

/// Evaluates the samples of each tick.
///
/// `analyze` is called once a tick, after the sources, on the sampler thread. Its result depends only on its
/// arguments, it reads no clock and no file, and its memory is bounded. It makes no statement about what it does not
/// know.
pub trait Analyzer: Send {
    /// Evaluates one tick.
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis);

    /// The state to keep across a restart of the daemon; absent where there is none.
    ///
    /// It is a copy that another thread serializes, so that no tick waits for it.
    fn save(&self) -> Option<SavedState> {
        None
    }

    /// Restores the state that [`Analyzer::save`] of an earlier run wrote; ticks may have been evaluated before.
    ///
    /// # Errors
    /// The state is invalid; the analyzer continues without it.
    fn restore(&mut self, _saved: &str) -> Result<(), serde_json::Error> {
        Ok(())
    }
}

/// A copy of an analyzer's state, which serializes itself as JSON when called.
pub type SavedState = Box<dyn FnOnce(&mut dyn std::io::Write) -> Result<(), serde_json::Error> + Send>;

/// The points, source reports and facts of one tick.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    families: &'a [Family],
    sources: &'a [SourceReport],
    facts: Option<&'a Facts>,
    acknowledged: Option<&'a Acknowledged>,
}

impl<'a> View<'a> {
    /// A view of these families.
    pub const fn new(families: &'a [Family]) -> Self {
        Self { families, sources: &[], facts: None, acknowledged: None }
    }

    /// The same view with the reports of the sources.
    pub const fn with_sources(self, sources: &'a [SourceReport]) -> Self {
        Self { sources, ..self }
    }

    /// The same view with the facts of the sources.
    pub const fn with_facts(self, facts: &'a Facts) -> Self {
        Self { facts: Some(facts), ..self }
    }

    /// The same view with the acknowledged problems.
    pub const fn with_acknowledged(self, acknowledged: &'a Acknowledged) -> Self {
        Self { acknowledged: Some(acknowledged), ..self }
    }

    /// Whether a problem that is as bad as `health` is acknowledged.
    pub fn acknowledged(&self, id: &ProblemId, health: Health) -> bool {
        self.acknowledged.is_some_and(|known| known.of(id, health).is_some())
    }

    /// The facts of this tick; absent where only points are evaluated.
    pub const fn facts(&self) -> Option<&'a Facts> {
        self.facts
    }

    /// The report of each source in this tick.
    pub const fn sources(&self) -> &'a [SourceReport] {
        self.sources
    }

    /// The points of one metric; empty where no source added any.
    pub fn points<M: Metric>(&self, metric: &'static M) -> &'a [Point] {
        self.family(metric).map_or(&[], |family| &family.points)
    }

    /// The values of a metric by the label at `place`; of several with the same label, the last.
    pub fn by_label<M: Metric>(&self, metric: &'static M, place: usize) -> BTreeMap<&'a Label, f64> {
        let points = self.points(metric).iter();
        points.filter_map(|point| Some((point.labels.get(place)?, point.value))).collect()
    }

    fn family<M: Metric>(&self, metric: &'static M) -> Option<&'a Family> {
        let desc = metric.desc();
        self.families.iter().find(|family| std::ptr::eq(family.desc, desc))
    }

    /// The value of the point with these labels; absent where there is none.
    pub fn value<M: Metric>(&self, metric: &'static M, labels: &[Label]) -> Option<f64> {
        self.family(metric)?.value(labels)
    }
}

/// The results of the analyzers in one tick.
#[derive(Debug, Default)]
pub struct Analysis {
    /// Gauges.
    pub batch: Batch,
    /// The findings.
    pub findings: Vec<Finding>,
    /// Limits of the analyzer that left something out.
    pub shortages: Vec<Shortage>,
    /// Forecasts and leaks as data.
    pub outlook: Outlook,
    /// What ranks are told of their predictions, at most one for each process. An answer is sent when it changes.
    pub answers: Vec<Answer>,
    /// Problems whose acknowledgements end: they are resolved, or something happened again that their severity does not show.
    pub unacknowledged: Vec<ProblemId>,
}
