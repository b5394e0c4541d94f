//! What is shown: the newest data, and the recent past of each subject.

use std::collections::{BTreeMap, VecDeque};

use crate::cluster::Cluster;
use crate::history::recent::Subject;
use crate::node_view::NodeView;
use crate::node_view::events::Event;

/// Seconds of the recent past that are kept.
pub(super) const RETENTION_SECONDS: f64 = 600.0;
/// Two samples that are at most this far apart, in seconds, have no gap between them: twice the longest interval, and a
/// late answer.
const CONNECTED: f64 = 25.0;
/// Maximum number of points of one subject.
const MOST_POINTS: usize = 1_200;
/// Maximum number of subjects.
const MOST_SUBJECTS: usize = 400;

#[derive(Clone, Debug)]
pub enum Data {
    Node(Box<NodeData>),
    /// All nodes that a Prometheus-compatible server scrapes.
    Cluster(Box<Cluster>),
}

#[derive(Clone, Debug, Default)]
pub struct NodeData {
    pub view: NodeView,
    /// Its events, oldest first.
    pub events: Vec<Event>,
}

/// The values of a subject in the past: seconds since 1970, and the value where there is one.
pub type Past = Vec<(f64, Option<f64>)>;

/// What a source of data reports.
#[derive(Clone, Debug)]
pub enum Update {
    /// New data, and the past of subjects that were asked for.
    Data(Data, Vec<(Subject, Past)>),
    /// No data, and why, in one sentence without its period.
    Failed(String),
}

/// The recent past of each subject, in bounded memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Trails(BTreeMap<Subject, VecDeque<(f64, Option<f64>)>>);

impl Trails {
    /// Adds the values of a node.
    pub(super) fn take(&mut self, view: &NodeView) {
        let at = view.unix_seconds;
        self.push(Subject::Host, at, view.host.used);
        for gpu in &view.gpus {
            self.push(Subject::Gpu(gpu.uuid.as_str().into()), at, gpu.used.filter(|_| gpu.answers()));
        }
        for workload in &view.workloads {
            self.push(Subject::Workload(workload.name.as_str().into()), at, workload.rss);
            for rank in &workload.ranks {
                let allocated: Vec<f64> = rank.allocators.iter().filter_map(|own| own.allocated).collect();
                if !allocated.is_empty() {
                    let subject = Subject::Rank(workload.name.as_str().into(), rank.rank.as_str().into());
                    self.push(subject, at, Some(allocated.iter().sum()));
                }
            }
        }
        self.0.retain(|_, trail| trail.back().is_some_and(|(last, _)| at - last <= RETENTION_SECONDS));
    }

    fn push(&mut self, subject: Subject, at: f64, value: Option<f64>) {
        if self.0.len() >= MOST_SUBJECTS && !self.0.contains_key(&subject) {
            return;
        }
        let trail = self.0.entry(subject).or_default();
        if trail.back().is_some_and(|(last, _)| *last >= at) {
            return;
        }
        trail.push_back((at, value));
        while trail.len() > MOST_POINTS
            || trail.front().is_some_and(|(first, _)| at - first > RETENTION_SECONDS)
        {
            trail.pop_front();
        }
    }

    /// Puts the past of a subject before what is known of it.
    pub(super) fn seed(&mut self, subject: Subject, past: Past) {
        if self.0.len() >= MOST_SUBJECTS && !self.0.contains_key(&subject) {
            return;
        }
        let trail = self.0.entry(subject).or_default();
        let first = trail.front().map_or(f64::INFINITY, |(first, _)| *first);
        for point in past.into_iter().rev().filter(|(at, _)| *at < first) {
            if trail.len() < MOST_POINTS {
                trail.push_front(point);
            }
        }
    }

    /// The largest value in each of `columns` equal parts of the last 10 minutes before `now`; absent where there is none.
    pub(super) fn columns(&self, subject: &Subject, columns: usize, now: f64) -> Vec<Option<f64>> {
        let mut all = vec![None; columns];
        if columns == 0 {
            return all;
        }
        let count = f64::from(u32::try_from(columns).unwrap_or(u32::MAX));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and the number of columns"
        )]
        let column =
            |at: f64| (((1.0 - (now - at) / RETENTION_SECONDS) * count).max(0.0) as usize).min(columns - 1);
        let mut before = None;
        for (at, value) in self.0.get(subject).into_iter().flatten() {
            if *at > now || now - at > RETENTION_SECONDS {
                continue;
            }
            let place = column(*at);
            if let Some(value) = value {
                // At long intervals not every column has a sample.
                let from =
                    before.filter(|before| at - before <= CONNECTED).map_or(place, |at| column(at) + 1);
                for cell in &mut all[from.min(place)..=place] {
                    *cell = Some(cell.map_or(*value, |known: f64| known.max(*value)));
                }
            }
            before = value.map(|_| *at);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_is_bounded_and_keeps_its_gaps() {
        let mut trails = Trails::default();
        let mut view = NodeView::default();
        for at in [1000.0, 1001.0, 1300.0, 1300.0] {
            view.unix_seconds = at;
            view.host.used = (at > 1000.0).then_some(at);
            trails.take(&view);
        }
        trails.seed(Subject::Host, vec![(900.0, Some(5.0)), (1000.0, Some(7.0))]);
        let shown = trails.columns(&Subject::Host, 6, 1300.0);
        assert_eq!(shown, [None, None, Some(5.0), Some(1001.0), None, Some(1300.0)]);
        (view.unix_seconds, view.host.used) = (2000.0, Some(8.0));
        trails.take(&view);
        assert_eq!(trails.columns(&Subject::Host, 2, 2000.0), [None, Some(8.0)]);
    }
}
