//! What an analyzer is, what it sees and what it says.

use super::desc::Metric;
use super::facts::Facts;
use super::finding::Finding;
use super::frame::SourceReport;
use super::label::Label;
use super::outlook::Outlook;
use super::point::{Batch, Family, Point};
use super::shortage::Shortage;
use super::time::Timestamp;

/// Something that judges what was measured.
///
/// `analyze` is called once a tick, after the sources, on the sampler thread.
/// It is deterministic in what it is given, reads no clock and no file, and
/// its memory is bounded. What it does not know it does not say.
pub trait Analyzer: Send {
    /// Judges one tick.
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis);

    /// What must survive a restart of the daemon; nothing where there is nothing to keep.
    ///
    /// It is a copy that another thread writes down, so that no tick waits for it.
    fn save(&self) -> Option<Keepsake> {
        None
    }

    /// Takes over what [`Analyzer::save`] of an earlier run wrote; it may have begun to look on meanwhile.
    ///
    /// # Errors
    /// What cannot be understood; the analyzer is as if nothing had been given.
    fn restore(&mut self, _saved: &str) -> Result<(), serde_json::Error> {
        Ok(())
    }
}

/// A copy of what an analyzer knows, which writes itself down as JSON when it is called.
pub type Keepsake = Box<dyn FnOnce(&mut dyn std::io::Write) -> Result<(), serde_json::Error> + Send>;

/// What the sources put in this tick.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    families: &'a [Family],
    sources: &'a [SourceReport],
    facts: Option<&'a Facts>,
}

impl<'a> View<'a> {
    /// A view of these families.
    pub const fn new(families: &'a [Family]) -> Self {
        Self { families, sources: &[], facts: None }
    }

    /// The same view, with how the sources fared that put them.
    pub const fn with_sources(self, sources: &'a [SourceReport]) -> Self {
        Self { sources, ..self }
    }

    /// The same view, with what the sources told beside points.
    pub const fn with_facts(self, facts: &'a Facts) -> Self {
        Self { facts: Some(facts), ..self }
    }

    /// What the sources told beside points in this tick; absent where only points are judged.
    pub const fn facts(&self) -> Option<&'a Facts> {
        self.facts
    }

    /// How each source fared in this tick.
    pub const fn sources(&self) -> &'a [SourceReport] {
        self.sources
    }

    /// The points of one metric; none where no source put any.
    pub fn points<M: Metric>(&self, metric: &'static M) -> &'a [Point] {
        let desc = metric.desc();
        let family = self.families.iter().find(|family| std::ptr::eq(family.desc, desc));
        family.map_or(&[], |family| &family.points)
    }

    /// The value of the point with these labels; absent where there is none.
    pub fn value<M: Metric>(&self, metric: &'static M, labels: &[Label]) -> Option<f64> {
        self.points(metric).iter().find(|point| *point.labels == *labels).map(|point| point.value)
    }
}

/// What the analyzers say in one tick.
#[derive(Debug, Default)]
pub struct Analysis {
    /// Gauges.
    pub batch: Batch,
    /// Statements.
    pub findings: Vec<Finding>,
    /// Limits of the analyzer that left something out.
    pub shortages: Vec<Shortage>,
    /// Statements as data.
    pub outlook: Outlook,
}
