//! Running the analyzers: each on its own, each failure its own affair.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::Value;

use super::message;
use crate::analyzers::Registration;
use crate::config::Config;
use crate::events::Events;
use crate::host::clock;
use crate::model::analyzer::{Analysis, Analyzer, Keepsake, View};
use crate::model::finding::{Finding, Severity};
use crate::model::point::Batch;
use crate::model::setting::Settings;
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag, Seconds};

crate::metrics! {
    /// Whether the analyzer's last run was complete.
    pub ANALYZER_UP: Gauge<Flag> = "memwarden_analyzer_up" {analyzer};
    /// How long the analyzer's last run took.
    pub ANALYZER_DURATION: Gauge<Seconds> = "memwarden_analyzer_duration_seconds" {analyzer};
    /// Defects of the analyzer that were caught, after each of which it began anew.
    pub ANALYZER_PANICS: Counter<Count> = "memwarden_analyzer_panics_total" {analyzer}.counting("{panic}");
    /// Findings in force, by how much they should worry.
    pub FINDINGS: Gauge<Count> = "memwarden_findings" {analyzer, severity}.counting("{finding}");
}

/// The analyzers that run.
pub(super) struct Analyzers {
    running: Vec<Running>,
    events: Arc<Events>,
    /// What an earlier run of the daemon kept, of analyzers that are not built yet.
    saved: serde_json::Map<String, Value>,
}

struct Running {
    registration: &'static Registration,
    settings: Settings,
    analyzer: Box<dyn Analyzer>,
    panics: u64,
}

impl Analyzers {
    pub(super) fn new(events: Arc<Events>) -> Self {
        Self { running: Vec::new(), events, saved: serde_json::Map::new() }
    }

    /// Takes over a configuration; an analyzer whose section did not change goes on with what it knows.
    pub(super) fn configure(&mut self, registry: &[&'static Registration], config: &Config) {
        let mut before = std::mem::take(&mut self.running);
        for registration in registry {
            let Some(wanted) = config.analyzers.get(registration.name).filter(|part| part.enabled) else {
                continue;
            };
            let same = |running: &Running| {
                running.registration.name == registration.name && running.settings == wanted.settings
            };
            let running = match before.iter().position(same) {
                Some(place) => before.swap_remove(place),
                None => self.build(registration, &wanted.settings),
            };
            self.running.push(running);
        }
    }

    fn build(&mut self, registration: &'static Registration, settings: &Settings) -> Running {
        let mut analyzer = (registration.build)(settings);
        if let Some(saved) = self.saved.remove(registration.name)
            && let Err(error) = analyzer.restore(saved)
        {
            tracing::warn!(analyzer = registration.name, %error, "What an earlier run kept is of no use.");
        }
        Running { registration, settings: settings.clone(), analyzer, panics: 0 }
    }

    /// Hands over what an earlier run kept.
    pub(super) fn restore(&mut self, saved: serde_json::Map<String, Value>) {
        self.saved = saved;
        for running in &mut self.running {
            if let Some(saved) = self.saved.remove(running.registration.name)
                && let Err(error) = running.analyzer.restore(saved)
            {
                let analyzer = running.registration.name;
                tracing::warn!(analyzer, %error, "What an earlier run kept is of no use.");
            }
        }
    }

    /// What must survive a restart.
    pub(super) fn save(&self) -> Vec<(&'static str, Keepsake)> {
        let saved = self.running.iter().filter_map(|running| {
            let saved = catch_unwind(AssertUnwindSafe(|| running.analyzer.save())).ok().flatten();
            Some((running.registration.name, saved?))
        });
        saved.collect()
    }

    /// Runs each over what the sources put into `batch`, adds its gauges, and returns the findings.
    pub(super) fn run(&mut self, at: Timestamp, batch: &mut Batch) -> Vec<Finding> {
        let mut analysis = Analysis::default();
        for running in &mut self.running {
            let name = running.registration.name;
            let before = analysis.findings.len();
            let begun = clock::now();
            let view = View::new(batch.families());
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                running.analyzer.analyze(&view, at, &mut analysis);
            }));
            let took = clock::now().since(begun);
            if let Err(panic) = &outcome {
                running.panics += 1;
                running.analyzer = (running.registration.build)(&running.settings);
                analysis.findings.truncate(before);
                tracing::error!(
                    analyzer = name,
                    panic = message(&**panic),
                    "An analyzer failed and begins anew."
                );
            }
            let out = &mut analysis.batch;
            out.put(&ANALYZER_UP, &[name.into()], Flag(outcome.is_ok()));
            out.put(&ANALYZER_DURATION, &[name.into()], took.into());
            out.put(&ANALYZER_PANICS, &[name.into()], Count(running.panics));
            for severity in Severity::ALL {
                let of = analysis.findings[before..].iter().filter(|finding| finding.severity == severity);
                out.put(&FINDINGS, &[name.into(), severity.label().into()], Count(of.count() as u64));
            }
        }
        batch.absorb(analysis.batch);
        self.events.found(&analysis.findings);
        analysis.findings
    }
}
