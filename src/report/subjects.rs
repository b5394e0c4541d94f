//! The observed subjects: the newest conclusion about each, its memory over time, and its worst health.

use std::collections::BTreeMap;

use serde::Serialize;

use super::curve::Curve;
use super::focus::Focus;
use crate::model::finding::Subject;
use crate::model::health::Health;
use crate::model::outlook::{Forecast, Growth, LeakState};
use crate::node_view::NodeView;
use crate::plot::report::Mark;

/// Maximum number of subjects; of those that disappeared, the ones without growth are removed first.
const MOST: usize = 1_000;

/// Seconds without evidence of growth after which it is over for a report, though the daemon states it for a minute.
const STEADY: f64 = 10.0;

/// What was observed of a resource with a limit.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Limited {
    #[serde(skip)]
    pub(super) used: Curve,
    /// The newest forecast.
    #[serde(flatten)]
    pub(super) forecast: Forecast,
    #[serde(skip)]
    pub(super) advice: &'static str,
    /// The worst health so far, and when it was reached, in seconds since the first sample.
    pub(super) worst_health: Health,
    #[serde(rename = "worst_health_at_seconds")]
    pub(super) worst_at: f64,
    #[serde(skip)]
    pub(super) seen: f64,
}

/// What was observed of memory that may grow.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Growing {
    /// The evaluated memory.
    #[serde(skip)]
    pub(super) used: Curve,
    /// The newest growth.
    #[serde(flatten)]
    pub(super) known: Growth,
    /// Start of the growth in seconds since the first sample; negative where it began before.
    #[serde(rename = "since_seconds")]
    pub(super) since: Option<f64>,
    /// The name of the program of a process.
    pub(super) comm: String,
    /// The cgroup of a workload; empty where it is not known.
    #[serde(skip)]
    pub(super) cgroup: String,
    #[serde(skip)]
    pub(super) seen: f64,
    /// From when on there was no evidence of growth, in seconds since the first sample; absent while there is.
    #[serde(skip)]
    steady_from: Option<f64>,
}

#[derive(Debug, Default)]
pub(super) struct Subjects {
    pub(super) limited: BTreeMap<Subject, Limited>,
    pub(super) growing: BTreeMap<Subject, Growing>,
}

impl Subjects {
    /// Adds a sample; returns marks for each resource whose health becomes critical, and for new leaks.
    pub(super) fn take(&mut self, view: &NodeView, focus: &Focus, now: f64, begun_unix: f64) -> Vec<Mark> {
        let mut marks = Vec::new();
        let mut mark = |text: String| marks.push(Mark { t_s: now, text, alarm: true });
        for known in view.conclusions.iter().filter(|known| focus.has(&known.subject)) {
            let subject = &known.subject;
            if let Some(forecast) = &known.forecast
                && (self.limited.len() < MOST || self.limited.contains_key(subject))
            {
                let is_new = !self.limited.contains_key(subject);
                let own = self.limited.entry(subject.clone()).or_default();
                let (before, after) = (own.forecast.health(), forecast.health());
                own.used.push(now, forecast.used_bytes);
                if after > own.worst_health || is_new {
                    (own.worst_health, own.worst_at) = (after, now);
                }
                if after > before && after == Health::Critical {
                    mark(format!("{subject}: {}", after.label()));
                }
                (own.forecast, own.advice, own.seen) = (forecast.clone(), known.advice(), now);
            }
            if let Some(growth) = &known.growth {
                let own = self.growing.entry(subject.clone()).or_default();
                // A process is not marked, because its workload is.
                let is_process = subject.resource.as_str() == "process";
                if !is_process && growth.leaks() && !own.known.leaks() {
                    mark(format!("{subject}: leak detected"));
                }
                own.used.push(now, growth.evaluated_bytes);
                own.seen = now;
                // Its evidence may have ended a moment ago, as when the processes exit: what is stated is shown as it was.
                let (grows, was_stated) = (growth.grows(), growth.stated.is_some() && own.known.grows());
                own.steady_from = if grows { None } else { own.steady_from.or(Some(now)) };
                let is_steady = own.steady_from.is_some_and(|from| now - from >= STEADY);
                if was_stated && !grows && !is_steady {
                    continue;
                }
                own.since =
                    growth.since_unix_seconds.filter(|_| growth.grows()).map(|unix| unix - begun_unix);
                if is_process
                    && let Some((_, process)) =
                        view.processes().find(|(_, own)| own.pid == subject.pid.as_str())
                {
                    process.name.clone_into(&mut own.comm);
                }
                if subject.resource.as_str() == "workload"
                    && let Some(workload) =
                        view.workloads.iter().find(|known| known.name == subject.workload.as_str())
                {
                    workload.cgroup.clone_into(&mut own.cgroup);
                }
                own.known = growth.clone();
                own.known.stated = growth.stated.filter(|_| !is_steady);
            }
        }
        while self.growing.len() > MOST {
            let gone = self.growing.iter().filter(|(_, growth)| growth.seen < now);
            let Some(calm) =
                gone.min_by_key(|(_, growth)| growth.state()).map(|(subject, _)| subject.clone())
            else {
                break;
            };
            self.growing.remove(&calm);
        }
        marks
    }
}

impl Growing {
    pub(super) fn state(&self) -> LeakState {
        self.known.state
    }
}
