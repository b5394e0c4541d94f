//! Runs the analyzers, isolated from each other's failures.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::value::RawValue;

use super::message;
use crate::analyzers::Registration;
use crate::config::Config;
use crate::host::clock;
use crate::model::acknowledged::Acknowledged;
use crate::model::analyzer::{Analysis, Analyzer, SavedState, View};
use crate::model::finding::{Finding, Severity};
use crate::model::frame::SourceReport;
use crate::model::outlook::Outlook;
use crate::model::point::Batch;
use crate::model::setting::Settings;
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag, Seconds};

crate::metrics! {
    /// Whether the last run of the analyzer was complete.
    pub ANALYZER_UP: Gauge<Flag> = "memwarden_analyzer_up" {analyzer};
    /// Time that the last run of the analyzer took.
    pub ANALYZER_DURATION: Gauge<Seconds> = "memwarden_analyzer_duration_seconds" {analyzer};
    /// Panics of the analyzer that were caught; the analyzer restarts without its history after each.
    pub ANALYZER_PANICS: Counter<Count> = "memwarden_analyzer_panics_total" {analyzer}.counting("{panic}");
    /// Active findings of the analyzer, by severity.
    pub FINDINGS: Gauge<Count> = "memwarden_findings" {analyzer, severity}.counting("{finding}");
}

/// The saved state of an earlier run, by analyzer.
pub type Kept = std::collections::BTreeMap<String, Box<RawValue>>;

pub(super) struct Analyzers {
    running: Vec<Running>,
    /// Saved state of an earlier run for analyzers that are not built yet.
    saved: Kept,
}

struct Running {
    registration: &'static Registration,
    settings: Settings,
    analyzer: Box<dyn Analyzer>,
    panics: u64,
    failing: bool,
}

impl Analyzers {
    pub(super) fn new() -> Self {
        Self { running: Vec::new(), saved: Kept::new() }
    }

    /// Applies a configuration; an analyzer whose section did not change keeps its state.
    pub(super) fn configure(&mut self, registry: &[&'static Registration], config: &Config) {
        let mut before = std::mem::take(&mut self.running);
        for registration in registry {
            let Some(wanted) = config.analyzers.get(registration.name).filter(|part| part.enabled) else {
                continue;
            };
            let same = |running: &Running| running.registration.name == registration.name;
            let running = match before.iter().position(same).map(|place| before.swap_remove(place)) {
                Some(running) if running.settings == wanted.settings => running,
                Some(running) => self.inherit(running, &wanted.settings),
                None => self.build(registration, &wanted.settings),
            };
            self.running.push(running);
        }
    }

    fn build(&mut self, registration: &'static Registration, settings: &Settings) -> Running {
        let mut analyzer = (registration.build)(settings);
        if let Some(saved) = self.saved.remove(registration.name)
            && let Err(error) = analyzer.restore(saved.get())
        {
            tracing::warn!(analyzer = registration.name, %error, "The saved state of the analyzer is invalid; what could not be read was discarded.");
        }
        Running { registration, settings: settings.clone(), analyzer, panics: 0, failing: false }
    }

    /// Rebuilds an analyzer with other settings and its previous state.
    fn inherit(&mut self, before: Running, settings: &Settings) -> Running {
        let mut text = Vec::new();
        let written = before.analyzer.save().map(|keepsake| keepsake(&mut text));
        if let Some(Ok(())) = written
            && let Ok(known) = serde_json::from_slice(&text)
        {
            self.saved.insert(before.registration.name.to_owned(), known);
        }
        self.build(before.registration, settings)
    }

    /// Restores the saved state of an earlier run.
    pub(super) fn restore(&mut self, saved: Kept) {
        self.saved = saved;
        for running in &mut self.running {
            if let Some(saved) = self.saved.remove(running.registration.name)
                && let Err(error) = running.analyzer.restore(saved.get())
            {
                let analyzer = running.registration.name;
                tracing::warn!(analyzer, %error, "The saved state of the analyzer is invalid; what could not be read was discarded.");
            }
        }
    }

    /// The state to keep across a restart.
    pub(super) fn save(&self) -> Vec<(&'static str, SavedState)> {
        let saved = self.running.iter().filter_map(|running| {
            let saved = catch_unwind(AssertUnwindSafe(|| running.analyzer.save())).ok().flatten();
            Some((running.registration.name, saved?))
        });
        saved.collect()
    }

    /// Runs each analyzer over the points in `batch`, adds its gauges, forgets the acknowledgements that end, and returns the
    /// findings and the outlook.
    pub(super) fn run(
        &mut self,
        at: Timestamp,
        batch: &mut Batch,
        sources: &[SourceReport],
        acknowledged: &mut Arc<Acknowledged>,
    ) -> (Vec<Finding>, Outlook) {
        let (mut results, mut findings, mut outlook) = (Batch::new(), Vec::new(), Outlook::default());
        let (mut shortages, mut answers) = (Vec::new(), Vec::new());
        for running in &mut self.running {
            let name = running.registration.name;
            let begun = clock::now();
            let view = View::new(batch.families()).with_sources(sources).with_facts(&batch.facts);
            let view = view.with_acknowledged(acknowledged);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let mut analysis = Analysis::default();
                running.analyzer.analyze(&view, at, &mut analysis);
                analysis
            }));
            let took = clock::now().since(begun);
            running.failing &= outcome.is_err();
            results.put(&ANALYZER_UP, &[name.into()], Flag(outcome.is_ok()));
            // The results of a failed analyzer are discarded entirely: they may be incomplete.
            let analysis = outcome.unwrap_or_else(|panic| running.failed(&*panic));
            results.put(&ANALYZER_DURATION, &[name.into()], took.into());
            results.put(&ANALYZER_PANICS, &[name.into()], Count(running.panics));
            for severity in Severity::ALL {
                let of = analysis.findings.iter().filter(|finding| finding.severity == severity);
                results.put(&FINDINGS, &[name.into(), severity.label().into()], Count(of.count() as u64));
            }
            results.absorb(analysis.batch);
            findings.extend(analysis.findings);
            shortages.extend(analysis.shortages);
            answers.extend(analysis.answers);
            outlook.absorb(analysis.outlook);
            for id in &analysis.unacknowledged {
                Arc::make_mut(acknowledged).remove(id);
            }
        }
        batch.absorb(results);
        batch.facts.shortages.append(&mut shortages);
        batch.facts.answers = answers;
        (findings, outlook)
    }
}

impl Running {
    /// Restarts the analyzer after a panic, which is logged once until a run completes again.
    fn failed(&mut self, panic: &(dyn std::any::Any + Send)) -> Analysis {
        self.panics += 1;
        self.analyzer = (self.registration.build)(&self.settings);
        if !std::mem::replace(&mut self.failing, true) {
            let (analyzer, panic) = (self.registration.name, message(panic));
            tracing::error!(analyzer, panic, "An analyzer panicked and was restarted.");
        }
        Analysis::default()
    }
}
