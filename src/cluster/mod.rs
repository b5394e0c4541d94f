//! Nodes and training runs of a cluster, by what a Prometheus-compatible server answers.
//!
//! The server does the work, by the recording rules of `alerts/`: few series for each node and run are read. Nothing here
//! opens a connection.

mod answer;
mod health;
mod past;
mod tables;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::fit::Verdict;
pub use crate::model::health::Health;
use crate::model::names::named;
pub use answer::{AnswerError, Range, Sample, alerts, ranges, samples, server_time};
pub use past::{Named, PAST_QUERIES, Past, PastAnswers};

/// The instant queries whose answers make a [`Cluster`], in the order of [`Answers`].
pub const QUERIES: [&str; 16] = [
    "instance:memwarden_node_state:level",
    "instance:memwarden_forecast_health:max",
    "instance:memwarden_forecast_time_to_exhaustion_seconds:min{estimate=\"p50\"}",
    "instance:memwarden_forecast_exhaustion_probability:max{horizon=\"15m\"}",
    "instance:memwarden_leak_leaking:count",
    "instance:memwarden_findings:sum{severity=\"critical\"}",
    // A run of which no rank is seen any more has none where one of its nodes is down, and has ended otherwise.
    "run:memwarden_ranks:count or on (job, run) 0 * count by (job, run) (last_over_time(rank:memwarden_run:info[1h]) \
     and on (job, instance) instance:memwarden_node_state:level == 4)",
    "run:memwarden_world_size:max",
    "run:memwarden_owner:info",
    "run:memwarden_forecast_time_to_exhaustion_seconds:min",
    "topk by (job, run) (1, rank:memwarden_training_step_duration:against_run)",
    "run:memwarden_training_allocator_allocated_bytes:spread",
    "run:memwarden_training_tokens_per_second:sum",
    "min by (job, run) (rank:memwarden_training_step_age:of_run)",
    "run:memwarden_forecast_health:max",
    // The worst verdict on what its ranks predict, in the order of `Verdict`.
    "topk by (job, run) (1, (memwarden_fit_verdict_info{verdict=\"fits\"} \
     or 2 * memwarden_fit_verdict_info{verdict=\"unknown\"} or 3 * memwarden_fit_verdict_info{verdict=\"tight\"} \
     or 4 * memwarden_fit_verdict_info{verdict=\"will_not_fit\"}) \
     * on (job, instance, workload, rank) group_left (run) rank:memwarden_run:info)",
];

/// The answers to [`QUERIES`], in their order.
pub type Answers = [Vec<Sample>; QUERIES.len()];

named! {
    /// How much of a node is seen; the worst comes last.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum NodeState {
        /// Everything that memwarden samples there.
        Complete = "complete",
        /// A source fails.
        Blind = "blind",
        /// A GPU hangs or is lost.
        Hung = "hung",
        /// memwarden responds and takes no new samples.
        Stale = "stale",
        /// It is not reached, or not discovered any more.
        Down = "down",
    }
}

impl NodeState {
    /// The state of a value of `instance:memwarden_node_state:level`.
    fn of(level: f64) -> Self {
        match level {
            l if l >= 4.0 => Self::Down,
            l if l >= 3.0 => Self::Stale,
            l if l >= 2.0 => Self::Hung,
            l if l >= 1.0 => Self::Blind,
            _ => Self::Complete,
        }
    }
}

/// One node. What the server does not answer is absent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Node {
    /// The label `job` of its target.
    pub job: String,
    /// The label `instance` of its target.
    pub instance: String,
    /// How much of it is seen.
    pub state: NodeState,
    /// The worst health of the memory of its resources; unknown for a node that is stale or down.
    pub memory: Health,
    /// Median time until its first resource is exhausted; absent while no exhaustion is predicted.
    pub time_to_exhaustion_seconds: Option<f64>,
    /// Probability that one of its resources is exhausted within 15 minutes.
    pub exhaustion_probability_15m_ratio: Option<f64>,
    /// Number of workloads, ranks and GPU processes that leak.
    pub leaks: Option<f64>,
    pub critical_findings: Option<f64>,
}

/// The resource of a run that is exhausted first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstResource {
    pub instance: String,
    /// The kind of resource.
    pub resource: String,
    /// The index of the GPU; empty for others.
    pub gpu: String,
    /// Median time until it is exhausted.
    pub time_to_exhaustion_seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowestRank {
    pub instance: String,
    pub rank: String,
    /// Its step time, divided by that of the median rank of the run.
    pub step_time_ratio: f64,
}

/// The worst verdict on what the ranks of a run predict of their memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorstFit {
    pub verdict: Verdict,
    pub phase: String,
    /// The kind of resource that it takes memory from.
    pub resource: String,
    /// The node of the rank.
    pub instance: String,
    pub rank: String,
}

/// One training run, on all of its nodes. What the server does not answer is absent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// The label `job` of the targets of its nodes.
    pub job: String,
    /// Its name.
    pub run: String,
    pub user: String,
    /// Number of ranks that are seen.
    pub ranks: f64,
    /// Number of ranks that it has.
    pub world_size: Option<f64>,
    /// The resource that is exhausted first; absent while no exhaustion is predicted.
    pub first: Option<FirstResource>,
    /// The worst health of the memory of its resources.
    pub memory: Health,
    /// The slowest rank; absent for fewer than two ranks with a step time.
    pub slowest: Option<SlowestRank>,
    /// Allocated memory of the fullest rank, divided by the mean of the ranks.
    pub memory_spread_ratio: Option<f64>,
    /// Throughput of all ranks.
    pub tokens_per_second: Option<f64>,
    /// Time since the last step of any rank, divided by 20 times the mean step time; the run is stalled above 1.
    pub step_age_ratio: Option<f64>,
    /// Whether the phases that its ranks predict fit the memory that is there; absent where they predict nothing.
    pub fit: Option<WorstFit>,
    /// Whether the alert RunStalled fires for it, which also knows whether a GPU hangs.
    pub has_stall_alert: bool,
}

impl Run {
    /// Whether no rank makes progress.
    pub fn is_stalled(&self) -> bool {
        self.has_stall_alert || self.step_age_ratio.is_some_and(|age| age > 1.0)
    }

    /// Number of ranks that are not seen; absent where the world size is not known.
    pub fn missing(&self) -> Option<f64> {
        self.world_size.map(|world| (world - self.ranks).max(0.0))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Alert {
    pub name: String,
    /// `critical`, `warning` or `info`; empty where it has no such label.
    pub severity: String,
    /// Its description, or its summary.
    pub text: String,
    pub labels: BTreeMap<String, String>,
}

/// Everything that is known of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cluster {
    /// The nodes, ordered by [`Cluster::new`].
    pub nodes: Vec<Node>,
    /// The runs, those with the least time left first.
    pub runs: Vec<Run>,
    /// The firing alerts, the most severe first; absent where the server evaluates no alerts.
    pub alerts: Option<Vec<Alert>>,
}

impl Cluster {
    /// A cluster by the answers to [`QUERIES`] and the firing alerts.
    ///
    /// Nodes that are not seen come first, then those whose memory has the worst health, then those with the least time left.
    pub fn new(answers: &Answers, alerts: Option<Vec<Alert>>) -> Self {
        let [states, healths, times, chances, leaks, findings, ranks, ..] = answers;
        let mut nodes: Vec<Node> = states
            .iter()
            .map(|sample| {
                let of =
                    |answer: &[Sample]| sample.same(answer, &["job", "instance"]).map(|found| found.value);
                let state = NodeState::of(sample.value);
                let is_known = state < NodeState::Stale;
                Node {
                    job: sample.label("job"),
                    instance: sample.label("instance"),
                    state,
                    memory: of(healths).filter(|_| is_known).map_or(Health::Unknown, Health::of_number),
                    time_to_exhaustion_seconds: of(times).filter(|_| is_known),
                    exhaustion_probability_15m_ratio: of(chances).filter(|_| is_known),
                    leaks: of(leaks).filter(|_| is_known),
                    critical_findings: of(findings).filter(|_| is_known),
                }
            })
            .collect();
        nodes.sort_by(|one, other| {
            let left = |node: &Node| node.time_to_exhaustion_seconds.unwrap_or(f64::INFINITY);
            other
                .state
                .cmp(&one.state)
                .then(other.memory.cmp(&one.memory))
                .then(left(one).total_cmp(&left(other)))
                .then_with(|| one.instance.cmp(&other.instance))
        });
        let mut runs: Vec<Run> = ranks.iter().map(|sample| run(sample, answers)).collect();
        for alert in alerts.iter().flatten().filter(|alert| alert.name == "RunStalled") {
            let is_it = |run: &&mut Run| {
                alert.labels.get("run") == Some(&run.run)
                    && alert.labels.get("job").is_none_or(|job| *job == run.job)
            };
            runs.iter_mut().filter(is_it).for_each(|run| run.has_stall_alert = true);
        }
        runs.sort_by(|one, other| {
            let left = |run: &Run| {
                run.first.as_ref().map_or(f64::INFINITY, |first| first.time_to_exhaustion_seconds)
            };
            let wrong = |run: &Run| (run.is_stalled(), run.failing_fit().is_some());
            wrong(other)
                .cmp(&wrong(one))
                .then(left(one).total_cmp(&left(other)))
                .then_with(|| one.run.cmp(&other.run))
        });
        let alerts = alerts.map(|mut alerts| {
            alerts.sort_by(|one, other| {
                other
                    .health()
                    .cmp(&one.health())
                    .then_with(|| (&one.name, &one.text).cmp(&(&other.name, &other.text)))
            });
            alerts
        });
        Self { nodes, runs, alerts }
    }

    /// Keeps only this run, its nodes with a statement of their own, and its alerts.
    pub fn narrow(&mut self, run: &str) {
        self.runs.retain(|known| known.run == run);
        let of_run = |instance: &str, runs: &[Run]| {
            runs.iter().any(|run| {
                run.first.as_ref().is_some_and(|first| first.instance == instance)
                    || run.slowest.as_ref().is_some_and(|slowest| slowest.instance == instance)
                    || run.failing_fit().is_some_and(|fit| fit.instance == instance)
            })
        };
        let runs = &self.runs;
        self.nodes.retain(|node| of_run(&node.instance, runs));
        if let Some(alerts) = &mut self.alerts {
            alerts.retain(|alert| alert.labels.get("run").is_some_and(|known| known == run));
        }
    }

    /// Whether part of the cluster is not seen: a node, the memory of a node, or ranks of a run.
    pub fn is_incomplete(&self) -> bool {
        self.nodes.iter().any(|node| node.state != NodeState::Complete || node.memory == Health::Unknown)
            || self.runs.iter().any(Run::is_incomplete)
    }
}

fn run(sample: &Sample, answers: &Answers) -> Run {
    let [.., worlds, owners, times, slowest, spreads, tokens, ages, healths, fits] = answers;
    let of = |answer: &[Sample]| sample.same(answer, &["job", "run"]).cloned();
    let value = |answer: &[Sample]| of(answer).map(|found| found.value);
    Run {
        job: sample.label("job"),
        run: sample.label("run"),
        user: of(owners).map(|owner| owner.label("user")).unwrap_or_default(),
        ranks: sample.value,
        world_size: value(worlds),
        first: of(times).map(|first| FirstResource {
            instance: first.label("instance"),
            resource: first.label("resource"),
            gpu: first.label("gpu"),
            time_to_exhaustion_seconds: first.value,
        }),
        memory: value(healths).map_or(Health::Unknown, Health::of_number),
        slowest: of(slowest).map(|rank| SlowestRank {
            instance: rank.label("instance"),
            rank: rank.label("rank"),
            step_time_ratio: rank.value,
        }),
        memory_spread_ratio: value(spreads),
        tokens_per_second: value(tokens),
        step_age_ratio: value(ages),
        fit: of(fits).and_then(|fit| {
            Some(WorstFit {
                verdict: Verdict::of_label(&fit.label("verdict"))?,
                phase: fit.label("phase"),
                resource: fit.label("resource"),
                instance: fit.label("instance"),
                rank: fit.label("rank"),
            })
        }),
        has_stall_alert: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn sample(labels: &[(&str, &str)], value: f64) -> Sample {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Sample { labels: std::iter::once(("job".to_owned(), "m".to_owned())).chain(labels).collect(), value }
    }

    pub(super) fn answers() -> Answers {
        let mut answers = Answers::default();
        let states = [("good", 0.0), ("leaks", 0.0), ("lost", 4.0), ("hangs", 2.0)];
        answers[0] = states.map(|(instance, level)| sample(&[("instance", instance)], level)).to_vec();
        answers[1] = [("good", 0.0), ("leaks", 3.0), ("lost", 0.0)]
            .map(|(i, v)| sample(&[("instance", i)], v))
            .to_vec();
        answers[2] = vec![sample(&[("instance", "leaks")], 240.0), sample(&[("instance", "lost")], 5.0)];
        answers[6] =
            vec![sample(&[("run", "a")], 8.0), sample(&[("run", "b")], 3.0), sample(&[("run", "c")], 1.0)];
        answers[7] = vec![sample(&[("run", "b")], 4.0)];
        answers[8] = vec![sample(&[("run", "b"), ("user", "alice")], 1.0)];
        answers[9] =
            vec![sample(&[("run", "b"), ("instance", "leaks"), ("resource", "gpu"), ("gpu", "1")], 240.0)];
        answers[13] = vec![sample(&[("run", "c")], 1.5)];
        let fit = [("phase", "save"), ("resource", "host"), ("instance", "leaks"), ("rank", "2")];
        let of_run = |run, verdict| [&[("run", run), ("verdict", verdict)][..], &fit].concat();
        answers[15] = vec![sample(&of_run("a", "fits"), 1.0), sample(&of_run("b", "will_not_fit"), 4.0)];
        answers
    }

    #[test]
    fn the_worst_comes_first_and_the_unseen_before_it() {
        let cluster = Cluster::new(&answers(), None);
        let nodes: Vec<_> = cluster.nodes.iter().map(|node| (node.instance.as_str(), node.memory)).collect();
        assert_eq!(
            nodes,
            [
                ("lost", Health::Unknown),
                ("hangs", Health::Unknown),
                ("leaks", Health::Critical),
                ("good", Health::Ok)
            ]
        );
        assert_eq!(
            cluster.nodes[0].time_to_exhaustion_seconds, None,
            "what a lost node had is not known any more"
        );
        let runs: Vec<_> = cluster.runs.iter().map(|run| run.run.as_str()).collect();
        assert_eq!(runs, ["c", "b", "a"]);
        let b = &cluster.runs[1];
        assert_eq!((b.user.as_str(), b.missing()), ("alice", Some(1.0)));
        assert_eq!(b.first.as_ref().unwrap().instance, "leaks");
        assert_eq!(cluster.runs[2].missing(), None);
        assert!(cluster.health() == Health::Critical && cluster.is_incomplete());
    }

    #[test]
    fn a_run_that_will_not_fit_is_critical() {
        let cluster = Cluster::new(&answers(), None);
        let shown: Vec<_> = cluster.runs.iter().map(|run| (run.run.as_str(), run.fit_words())).collect();
        let fails = Some("save will not fit".to_owned());
        assert_eq!(shown, [("c", None), ("b", fails), ("a", Some("fits".to_owned()))]);
        let mut answers = answers();
        answers[14] = vec![sample(&[("run", "a")], 0.0), sample(&[("run", "b")], 0.0)];
        answers[6].iter_mut().for_each(|ranks| ranks.value = 4.0);
        answers[7] = vec![sample(&[("run", "a")], 4.0), sample(&[("run", "b")], 4.0)];
        let healths: Vec<_> = Cluster::new(&answers, None).runs.iter().map(|run| run.health()).collect();
        assert_eq!(healths[1..], [Health::Critical, Health::Ok]);
    }

    #[test]
    fn a_run_with_a_stall_alert_does_not_advance() {
        let mut answers = answers();
        answers[13] = vec![sample(&[("run", "b")], 0.2)];
        let labels = [("job", "m"), ("run", "b")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let alert = |name: &str| Alert {
            name: name.to_owned(),
            severity: "critical".to_owned(),
            text: String::new(),
            labels: labels.clone().into(),
        };
        let progress = |alerts| {
            let cluster = Cluster::new(&answers, Some(alerts));
            let run = cluster.runs.iter().find(|run| run.run == "b").unwrap();
            (run.progress(), run.health())
        };
        assert_eq!(progress(vec![alert("RunRanksMissing")]).0, Some("advances"));
        assert_eq!(progress(vec![alert("RunStalled")]), (Some("stalled"), Health::Critical));
    }

    #[test]
    fn a_run_alone_has_its_nodes_and_alerts() {
        let alert = |run: &str| Alert {
            name: "RunStalled".to_owned(),
            severity: "critical".to_owned(),
            text: String::new(),
            labels: BTreeMap::from([("run".to_owned(), run.to_owned())]),
        };
        let mut cluster = Cluster::new(&answers(), Some(vec![alert("b"), alert("c")]));
        cluster.narrow("b");
        assert_eq!((cluster.runs.len(), cluster.nodes.len(), cluster.alerts.unwrap().len()), (1, 1, 1));
    }

    #[test]
    fn an_empty_cluster_alarms_nobody_and_a_complete_one_is_complete() {
        let mut answers = Answers::default();
        answers[0] = vec![sample(&[("instance", "good")], 0.0)];
        let cluster = Cluster::new(&answers, Some(Vec::new()));
        assert!(cluster.health() == Health::Unknown && cluster.is_incomplete(), "its memory is not known");
        answers[1] = vec![sample(&[("instance", "good")], 0.0)];
        let cluster = Cluster::new(&answers, Some(Vec::new()));
        assert!(cluster.health() == Health::Ok && !cluster.is_incomplete());
    }
}
