//! The observed growth of each subject: its state and the evidence for it.

use std::collections::BTreeMap;

use super::curve::Curve;
use super::focus::Focus;
use super::frame_view::{self, FrameView, Index};
use crate::model::finding::Subject;
use crate::plot::report::Mark;

/// Maximum number of subjects; of those that disappeared, the ones without growth are removed first.
const MOST: usize = 500;

/// States, from no growth to a leak.
const STATES: [&str; 5] = ["insufficient", "steady", "warming", "growing", "leaking"];

/// The observed growth of one subject.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth {
    /// The evaluated memory.
    pub(super) used: Curve,
    pub(super) state: String,
    pub(super) per_second: Option<f64>,
    /// Start of the growth in seconds since the first sample; negative where it began before.
    pub(super) since: Option<f64>,
    pub(super) confidence: Option<f64>,
    pub(super) rise: Option<f64>,
    pub(super) window: Option<f64>,
    /// Slopes in standard errors, by envelope: floor, center, peak.
    pub(super) scores: BTreeMap<String, f64>,
    /// The summary of the analyzer's finding.
    pub(super) summary: Option<String>,
    pub(super) advice: Option<String>,
    pub(super) comm: String,
    pub(super) seen: f64,
}

/// All tracked subjects.
#[derive(Debug, Default)]
pub(super) struct Growths {
    pub(super) all: BTreeMap<Subject, Growth>,
}

/// The index of a state in [`STATES`]; 0 for an unknown state.
pub(super) fn rank(state: &str) -> usize {
    STATES.iter().position(|known| *known == state).unwrap_or(0)
}

impl Growths {
    /// Adds a sample; returns marks for newly detected leaks.
    pub(super) fn take(&mut self, frame: &FrameView, focus: &Focus, now: f64, begun_unix: f64) -> Vec<Mark> {
        let mut marks = Vec::new();
        let index = frame.index(&[
            frame_view::LEAK_GROWTH,
            frame_view::LEAK_SINCE,
            frame_view::LEAK_CONFIDENCE,
            frame_view::LEAK_RISE,
            frame_view::LEAK_WINDOW,
            frame_view::LEAK_SCORE,
        ]);
        for row in frame.rows(frame_view::LEAK_STATE).iter().filter(|row| row.value == 1.0) {
            let subject = row.subject();
            if !focus.has(&subject) {
                continue;
            }
            let growth = self.all.entry(subject.clone()).or_default();
            let state = row.label("state");
            // A process is not marked, because its workload is.
            let own = subject.resource.as_str() != "process";
            if own && state == "leaking" && growth.state != "leaking" {
                marks.push(Mark { t_s: now, text: format!("{subject}: leak detected"), alarm: true });
            }
            state.clone_into(&mut growth.state);
            growth.take((frame, &index), &subject, now, begun_unix);
        }
        while self.all.len() > MOST {
            let gone = self.all.iter().filter(|(_, growth)| growth.seen < now);
            let Some(calm) = gone.min_by_key(|(_, growth)| rank(&growth.state)).map(|(s, _)| s.clone())
            else {
                break;
            };
            self.all.remove(&calm);
        }
        marks
    }
}

impl Growth {
    fn take(
        &mut self,
        (frame, index): (&FrameView, &Index<'_>),
        subject: &Subject,
        now: f64,
        begun_unix: f64,
    ) {
        self.seen = now;
        let first = |name| index.first(name, subject);
        self.per_second = first(frame_view::LEAK_GROWTH);
        self.since = first(frame_view::LEAK_SINCE).map(|unix| unix - begun_unix);
        self.confidence = first(frame_view::LEAK_CONFIDENCE);
        (self.rise, self.window) = (first(frame_view::LEAK_RISE), first(frame_view::LEAK_WINDOW));
        let scores = index.rows(frame_view::LEAK_SCORE, subject);
        self.scores = scores.map(|row| (row.label("envelope").to_owned(), row.value)).collect();
        let finding = frame.finding("leak", subject);
        self.summary = finding.map(|finding| finding.summary.clone());
        self.advice = finding.map(|finding| finding.advice.clone());
        if let Some(used) = watched(frame, subject, &mut self.comm) {
            self.used.push(now, used);
        }
    }
}

/// The memory that is evaluated for leaks: anonymous and shared memory where it is known separately.
fn watched(frame: &FrameView, subject: &Subject, comm: &mut String) -> Option<f64> {
    let (workload, pid) = (("workload", subject.workload.as_str()), ("pid", subject.pid.as_str()));
    let sum = |anon, shared, whole, labels: &[(&str, &str)]| {
        let parts = frame.value(anon, labels).zip(frame.value(shared, labels));
        parts.map(|(anon, shared)| anon + shared).or_else(|| frame.value(whole, labels))
    };
    match subject.resource.as_str() {
        "workload" => {
            sum(frame_view::WORKLOAD_ANON, frame_view::WORKLOAD_SHARED, frame_view::WORKLOAD_RSS, &[workload])
        }
        "process" => {
            let mut rows = frame.rows(frame_view::PROCESS_RSS).iter();
            if let Some(row) = rows.find(|row| row.label("pid") == pid.1) {
                row.label("comm").clone_into(comm);
            }
            sum(
                frame_view::PROCESS_ANON,
                frame_view::PROCESS_SHARED,
                frame_view::PROCESS_RSS,
                &[workload, pid],
            )
        }
        "gpu_process" => frame.value(frame_view::GPU_PROCESS, &[("uuid", subject.uuid.as_str()), pid]),
        _ => None,
    }
}
