//! The observed resources: usage, limit, forecast and risk.

use std::collections::BTreeMap;

use serde::Serialize;

use super::curve::Curve;
use super::focus::Focus;
use super::frame_view::{self, FrameView, Index};
use crate::model::finding::Subject;
use crate::plot::report::Mark;

/// Maximum number of resources.
const MOST: usize = 1_000;

/// Levels of risk, the lowest first.
const LEVELS: [&str; 4] = ["low", "medium", "high", "critical"];

/// A time to exhaustion in seconds, from the time of its sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Tte {
    pub(super) p10_seconds: Option<f64>,
    pub(super) p50_seconds: Option<f64>,
    pub(super) p90_seconds: Option<f64>,
}

/// The observed values of one resource.
#[derive(Clone, Debug, Default)]
pub(super) struct Resource {
    pub(super) used: Curve,
    pub(super) limit: f64,
    pub(super) growth: Option<f64>,
    pub(super) tte: Option<Tte>,
    /// Probabilities of exhaustion by horizon: `1m`, `5m`, `15m`, `60m`.
    pub(super) within: BTreeMap<String, f64>,
    /// The risk level; absent before the first assessment.
    pub(super) level: Option<String>,
    pub(super) rule: Option<String>,
    pub(super) advice: Option<String>,
    /// The highest level so far, and when it was reached.
    pub(super) worst: Option<(String, f64)>,
    pub(super) seen: f64,
}

/// All observed resources.
#[derive(Debug, Default)]
pub(super) struct Resources {
    pub(super) all: BTreeMap<Subject, Resource>,
}

/// The index of a level in [`LEVELS`]; 0 for an unknown level.
pub(super) fn rank(level: Option<&str>) -> usize {
    level.and_then(|level| LEVELS.iter().position(|known| *known == level)).unwrap_or(0)
}

impl Resources {
    /// Adds a sample; returns marks for each rise of a risk to high or critical.
    pub(super) fn take(&mut self, frame: &FrameView, focus: &Focus, now: f64) -> Vec<Mark> {
        let mut marks = Vec::new();
        let index =
            frame.index(&[frame_view::GROWTH, frame_view::TTE, frame_view::PROBABILITY, frame_view::RISK]);
        for row in frame.rows(frame_view::HEADROOM) {
            let subject = row.subject();
            if !focus.has(&subject) {
                continue;
            }
            let Some((used, limit)) = usage(frame, &subject, row.value) else { continue };
            if self.all.len() >= MOST && !self.all.contains_key(&subject) {
                continue;
            }
            let resource = self.all.entry(subject.clone()).or_default();
            let before = rank(resource.level.as_deref());
            resource.take(&index, &subject, now, (used, limit));
            resource.explain(frame, &subject);
            let after = rank(resource.level.as_deref());
            if after > before && after >= 2 {
                let level = LEVELS[after];
                marks.push(Mark { t_s: now, text: format!("{subject}: {level}"), alarm: true });
            }
        }
        marks
    }
}

impl Resource {
    fn take(&mut self, index: &Index<'_>, subject: &Subject, now: f64, (used, limit): (f64, f64)) {
        self.used.push(now, used);
        (self.limit, self.seen) = (limit, now);
        self.growth = index.first(frame_view::GROWTH, subject);
        let estimate = |name: &str| {
            let mut rows = index.rows(frame_view::TTE, subject);
            rows.find(|row| row.label("estimate") == name).map(|row| row.value)
        };
        let tte =
            Tte { p10_seconds: estimate("p10"), p50_seconds: estimate("p50"), p90_seconds: estimate("p90") };
        self.tte = tte.p50_seconds.map(|_| tte);
        let horizons = index.rows(frame_view::PROBABILITY, subject);
        self.within = horizons.map(|row| (row.label("horizon").to_owned(), row.value)).collect();
        let level = index.rows(frame_view::RISK, subject).find(|row| row.value == 1.0);
        self.level = level.map(|row| row.label("level").to_owned());
        if let Some(level) = &self.level
            && rank(Some(level)) > rank(self.worst.as_ref().map(|worst| worst.0.as_str()))
        {
            self.worst = Some((level.clone(), now));
        }
    }

    /// Copies the rule and the advice from the finding.
    fn explain(&mut self, frame: &FrameView, subject: &Subject) {
        let finding = frame.finding("exhaustion", subject);
        let rule = finding.and_then(|finding| finding.summary.rsplit_once(": "));
        self.rule = rule.map(|(_, rule)| rule.trim_end_matches('.').to_owned());
        self.advice = finding.map(|finding| finding.advice.clone());
    }

    /// The used share of the limit now.
    pub(super) fn share(&self) -> Option<f64> {
        let (_, used) = self.used.last()?;
        (self.limit > 0.0).then(|| used / self.limit)
    }

    /// Confidence of the level: the probability in its rule; 1 where the rule compares measured values; for `low`,
    /// the probability of no exhaustion within the hour. Absent for a rule about a leak, and without a probability.
    pub(super) fn confidence(&self) -> Option<f64> {
        let within = |horizon: &str| self.within.get(horizon).copied();
        let level = self.level.as_deref()?;
        let Some(rule) = self.rule.as_deref().filter(|_| level != "low") else {
            return within("60m").map(|p| 1.0 - p);
        };
        match rule {
            rule if rule.contains("within 5 minutes") => within("5m"),
            rule if rule.contains("within 15 minutes") => within("15m"),
            rule if rule.contains("within an hour") => within("60m"),
            rule if rule.starts_with("used") => Some(1.0),
            _ => None,
        }
    }
}

/// Used memory and limit of a resource, consistent with the forecast.
fn usage(frame: &FrameView, subject: &Subject, headroom: f64) -> Option<(f64, f64)> {
    let gpu = [("gpu", subject.gpu.as_str()), ("uuid", subject.uuid.as_str())];
    let workload = [("workload", subject.workload.as_str())];
    let value = |name, labels: &[(&str, &str)]| frame.value(name, labels);
    match subject.resource.as_str() {
        "host" => Some((value(frame_view::HOST_USED, &[])?, value(frame_view::HOST_TOTAL, &[])?)),
        "gpu" => {
            let used = value(frame_view::GPU_USED, &gpu)?;
            Some((used, used + value(frame_view::GPU_FREE, &gpu)?))
        }
        "allocator" => {
            let pid = subject.pid.as_str();
            let of = |row: &&frame_view::Row| row.label("workload") == workload[0].1;
            let rank = frame
                .rows(frame_view::TRAINING_INFO)
                .iter()
                .filter(of)
                .find(|row| row.label("pid") == pid)?;
            let device = [workload[0], ("rank", rank.label("rank")), ("gpu", gpu[0].1)];
            let used = value(frame_view::ALLOCATOR_ALLOCATED, &device)?;
            Some((used, used + headroom))
        }
        "cgroup" => {
            let limit = value(frame_view::CGROUP_LIMIT, &[("cgroup", subject.cgroup.as_str())])?;
            Some((limit - headroom, limit))
        }
        _ => {
            let parts = value(frame_view::WORKLOAD_ANON, &workload)
                .zip(value(frame_view::WORKLOAD_SHARED, &workload));
            let used = parts
                .map(|(anon, shared)| anon + shared)
                .or_else(|| value(frame_view::WORKLOAD_RSS, &workload))?;
            Some((used, used + headroom))
        }
    }
}
