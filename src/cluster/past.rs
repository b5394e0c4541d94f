//! The recent past of nodes and runs: what `memwarden cluster --plot` draws.

use std::collections::BTreeSet;

use super::{Cluster, Range};

/// The range queries whose answers make a [`Past`], in the order of [`PastAnswers`].
pub const PAST_QUERIES: [&str; 3] = [
    "max by (job, instance) (memwarden_host_memory_utilization_ratio or \
     memwarden_gpu_memory_used_bytes / memwarden_gpu_memory_total_bytes)",
    "instance:memwarden_forecast_time_to_exhaustion_seconds:min{estimate=\"p50\"}",
    "run:memwarden_forecast_time_to_exhaustion_seconds:min",
];

/// The answers to [`PAST_QUERIES`], in their order.
pub type PastAnswers = [Vec<Range>; PAST_QUERIES.len()];

/// Longest time to exhaustion that is kept, in seconds: with days beside minutes, minutes could not be seen.
const LONGEST: f64 = 3600.0 * 4.0;

/// A series by the name of its node or run; the points are Unix times in seconds and values.
pub type Named = (String, Vec<(f64, f64)>);

/// Series of the nodes and runs that need attention first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Past {
    /// Share of the memory in use of the fullest of host and GPUs of each node.
    pub used: Vec<Named>,
    /// Median time to exhaustion of each node in seconds, up to four hours.
    pub node_time_left: Vec<Named>,
    /// The same of each run.
    pub run_time_left: Vec<Named>,
}

impl Past {
    /// The past of the nodes and runs of a cluster, at most `most` series of each kind: of the nodes and runs in their order,
    /// and of memory in use, of the fullest nodes.
    pub fn new(cluster: &Cluster, answers: PastAnswers, most: usize) -> Self {
        let nodes: Vec<(&str, &str)> =
            cluster.nodes.iter().map(|node| (node.job.as_str(), node.instance.as_str())).collect();
        let runs: Vec<(&str, &str)> =
            cluster.runs.iter().map(|run| (run.job.as_str(), run.run.as_str())).collect();
        let [mut used, node_time_left, run_time_left] = answers;
        let known: BTreeSet<(&str, &str)> = nodes.iter().copied().collect();
        used.retain(|range| known.contains(&(range.label("job"), range.label("instance"))));
        used.sort_by(|a, b| newest(b).total_cmp(&newest(a)));
        let used = used.into_iter().map(|range| (range.label("instance").to_owned(), range.points));
        Self {
            used: used.take(most).collect(),
            node_time_left: ordered(&nodes, "instance", node_time_left, most),
            run_time_left: ordered(&runs, "run", run_time_left, most),
        }
    }
}

/// The newest value; lower than any other if there is none.
fn newest(range: &Range) -> f64 {
    range.points.last().map_or(f64::NEG_INFINITY, |(_, value)| *value)
}

/// The series of the first `most` names that have one. Of several with the same name, such as the resources of a run, the
/// smallest value of each time counts.
fn ordered(names: &[(&str, &str)], label: &str, ranges: Vec<Range>, most: usize) -> Vec<Named> {
    let series = names.iter().filter_map(|(job, name)| {
        let same = ranges.iter().filter(|range| range.label("job") == *job && range.label(label) == *name);
        let mut points: Vec<(f64, f64)> = same.flat_map(|range| range.points.iter().copied()).collect();
        points.retain(|(_, value)| *value <= LONGEST);
        points.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        points.dedup_by_key(|(time, _)| *time);
        (!points.is_empty()).then(|| ((*name).to_owned(), points))
    });
    series.take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Answers, Sample};

    fn range(labels: &[(&str, &str)], points: &[(f64, f64)]) -> Range {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Range { labels, points: points.to_vec() }
    }

    fn cluster(names: &[&str]) -> Cluster {
        let mut answers = Answers::default();
        answers[0] = names
            .iter()
            .map(|name| {
                let labels = [("job", "m"), ("instance", name)];
                Sample { labels: labels.map(|(n, v)| (n.to_owned(), v.to_owned())).into(), value: 0.0 }
            })
            .collect();
        Cluster::new(&answers, None)
    }

    #[test]
    fn the_fullest_known_nodes_and_the_shortest_times_are_kept() {
        let node = |name, points: &[(f64, f64)]| range(&[("job", "m"), ("instance", name)], points);
        let used = vec![
            node("a", &[(0.0, 0.9), (15.0, 0.3)]),
            node("b", &[(0.0, 0.1), (15.0, 0.8)]),
            node("c", &[(15.0, 0.5)]),
            range(&[("job", "other"), ("instance", "a")], &[(15.0, 1.0)]),
        ];
        let left = vec![
            node("a", &[(0.0, 600.0), (15.0, 400_000.0)]),
            node("a", &[(0.0, 300.0)]),
            node("b", &[(0.0, 400_000.0)]),
        ];
        let past = Past::new(&cluster(&["a", "b", "c"]), [used, left, Vec::new()], 2);
        let names: Vec<&str> = past.used.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "c"], "the two fullest now, and only nodes of the report");
        assert_eq!(past.node_time_left, [("a".to_owned(), vec![(0.0, 300.0)])], "the least; not days");
        assert!(past.run_time_left.is_empty());
    }
}
