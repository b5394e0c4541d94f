//! The observed growth of each subject.

use std::collections::BTreeMap;

use super::curve::Curve;
use super::focus::Focus;
use super::frame_view::{self, FrameView};
use crate::model::finding::Subject;
use crate::model::outlook::{self, LeakState};
use crate::plot::report::Mark;

/// Maximum number of subjects; of those that disappeared, the ones without growth are removed first.
const MOST: usize = 500;

/// The observed growth of one subject.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth {
    /// The evaluated memory.
    pub(super) used: Curve,
    /// The newest conclusion.
    pub(super) known: outlook::Growth,
    /// Start of the growth in seconds since the first sample; negative where it began before.
    pub(super) since: Option<f64>,
    /// The name of the program of a process.
    pub(super) comm: String,
    pub(super) seen: f64,
}

/// All tracked subjects.
#[derive(Debug, Default)]
pub(super) struct Growths {
    pub(super) all: BTreeMap<Subject, Growth>,
}

impl Growths {
    /// Adds a sample; returns marks for newly detected leaks.
    pub(super) fn take(&mut self, frame: &FrameView, focus: &Focus, now: f64, begun_unix: f64) -> Vec<Mark> {
        let mut marks = Vec::new();
        for conclusion in frame.conclusions.iter().filter(|known| focus.has(&known.subject)) {
            let (Some(known), subject) = (&conclusion.growth, &conclusion.subject) else { continue };
            let growth = self.all.entry(subject.clone()).or_default();
            // A process is not marked, because its workload is.
            let own = subject.resource.as_str() != "process";
            if own && known.leaks() && !growth.known.leaks() {
                marks.push(Mark { t_s: now, text: format!("{subject}: leak detected"), alarm: true });
            }
            growth.known = known.clone();
            growth.seen = now;
            growth.since = known.since_unix_seconds.filter(|_| known.grows()).map(|unix| unix - begun_unix);
            growth.used.push(now, known.evaluated_bytes);
            if !own {
                let mut rows = frame.rows(frame_view::PROCESS_RSS).iter();
                if let Some(row) = rows.find(|row| row.label("pid") == subject.pid.as_str()) {
                    row.label("comm").clone_into(&mut growth.comm);
                }
            }
        }
        while self.all.len() > MOST {
            let gone = self.all.iter().filter(|(_, growth)| growth.seen < now);
            let Some(calm) = gone.min_by_key(|(_, growth)| growth.known.state).map(|(s, _)| s.clone()) else {
                break;
            };
            self.all.remove(&calm);
        }
        marks
    }
}

impl Growth {
    /// The state of its growth.
    pub(super) fn state(&self) -> LeakState {
        self.known.state
    }
}
