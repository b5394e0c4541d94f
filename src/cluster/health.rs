//! How nodes, runs and the whole cluster are, and the sentence that says so. `memwarden cluster` and `memwarden top` show
//! both.

use super::{Alert, Cluster, Node, NodeState, Run, WorstFit};
use crate::model::fit::Verdict;
use crate::model::format;
use crate::model::health::Health;

impl NodeState {
    pub const fn health(self) -> Health {
        match self {
            Self::Complete => Health::Ok,
            Self::Hung => Health::Critical,
            Self::Blind | Self::Stale | Self::Down => Health::Unknown,
        }
    }
}

impl Node {
    /// How it is: a node that is not seen completely, or whose memory is not known, is never ok.
    pub fn health(&self) -> Health {
        self.memory.max(self.state.health())
    }
}

impl Run {
    /// How it is: a run whose ranks are not all seen is never ok.
    pub fn health(&self) -> Health {
        let stalled = if self.is_stalled() { Health::Critical } else { Health::Ok };
        let fit = self.failing_fit().map_or(Health::Ok, |fit| fit.verdict.into());
        self.memory.max(stalled).max(fit).in_part(self.is_incomplete())
    }

    /// What its ranks predict, if it will not fit.
    pub fn failing_fit(&self) -> Option<&WorstFit> {
        self.fit.as_ref().filter(|fit| fit.verdict == Verdict::WillNotFit)
    }

    /// Whether what its ranks predict fits, in words; absent where they predict nothing.
    pub fn fit_words(&self) -> Option<String> {
        let WorstFit { verdict, phase, .. } = self.fit.as_ref()?;
        Some(match verdict {
            Verdict::Fits => "fits".to_owned(),
            Verdict::Unknown => format!("{phase} unknown"),
            Verdict::Tight => format!("{phase} may not fit"),
            Verdict::WillNotFit => format!("{phase} will not fit"),
        })
    }

    /// Whether ranks are not seen, or it is not known how many ranks there are.
    pub fn is_incomplete(&self) -> bool {
        self.missing().is_none_or(|missing| missing > 0.0)
    }

    /// A word for its progress; absent without steps.
    pub fn progress(&self) -> Option<&'static str> {
        let is_known = self.has_stall_alert || self.step_age_ratio.is_some();
        is_known.then(|| if self.is_stalled() { "stalled" } else { "advances" })
    }

    /// The resource that is exhausted first, as text; absent while no exhaustion is predicted.
    pub fn first_resource(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        let gpu = if first.gpu.is_empty() { String::new() } else { format!(" {}", first.gpu) };
        Some(format!("{}{gpu} of {}", first.resource, first.instance))
    }
}

impl Alert {
    /// How what it is about is.
    pub fn health(&self) -> Health {
        match Health::of_word(&self.severity) {
            // An alert without a severity that is known requires attention all the same.
            Health::Unknown => Health::Warning,
            known => known,
        }
    }
}

impl Cluster {
    /// How it is: as the worst of its nodes, runs and alerts.
    pub fn health(&self) -> Health {
        let nodes = self.nodes.iter().map(Node::health);
        let runs = self.runs.iter().map(Run::health);
        let alerts = self.alerts.iter().flatten().map(Alert::health);
        nodes.chain(runs).chain(alerts).max().unwrap_or(Health::Unknown)
    }

    /// What it has, what is wrong, and where memory runs out first. The names of nodes and runs are as the server has them.
    pub fn sentence(&self) -> String {
        let mut parts =
            vec![format::counted(self.nodes.len(), "node"), format::counted(self.runs.len(), "run")];
        let mut add = |count: usize, what: &str, rest: &str| {
            if count > 0 {
                parts.push(format!("{}{rest}", format::counted(count, what)));
            }
        };
        let short = self.nodes.iter().filter(|node| node.memory == Health::Critical).count();
        add(short, "node", " about to run out of memory");
        add(self.runs.iter().filter(|run| run.is_stalled()).count(), "run", " stalled");
        add(self.runs.iter().filter(|run| run.failing_fit().is_some()).count(), "run", " that will not fit");
        for state in [NodeState::Down, NodeState::Stale, NodeState::Hung, NodeState::Blind] {
            let count = self.nodes.iter().filter(|node| node.state == state).count();
            add(count, "node", &format!(" {}", state.label()));
        }
        let incomplete = self.runs.iter().filter(|run| run.is_incomplete()).count();
        add(incomplete, "run", " with ranks that are not seen");
        let alerts = self.alerts.iter().flatten();
        add(alerts.filter(|alert| alert.health() == Health::Critical).count(), "alert", " critical");
        let mut sentence = format!("{}.", parts.join(", "));
        if let Some(first) = self.first() {
            sentence.push_str(&format!(" {first}."));
        }
        sentence
    }

    /// Where memory runs out first: with the run, if it is one's.
    fn first(&self) -> Option<String> {
        let node = self
            .nodes
            .iter()
            .filter_map(|node| Some((node.time_to_exhaustion_seconds?, node)))
            .min_by(|(one, _), (other, _)| one.total_cmp(other));
        let of_run =
            |run: &Run| Some((run.first.as_ref()?.time_to_exhaustion_seconds, run.first_resource()?));
        let run = self
            .runs
            .iter()
            .filter_map(|run| of_run(run).map(|(left, resource)| (left, resource, run)))
            .min_by(|(one, ..), (other, ..)| one.total_cmp(other));
        match (node, run) {
            // The same resource is a node's and a run's.
            (node, Some((left, resource, run))) if node.is_none_or(|(of_node, _)| left <= of_node) => {
                Some(format!("First to run out, in {}: {resource}, run {}", format::duration(left), run.run))
            }
            (Some((left, node)), _) => {
                Some(format!("First to run out, in {}: {}", format::duration(left), node.instance))
            }
            (None, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answers, sample};
    use super::*;
    use crate::cluster::Answers;

    #[test]
    fn the_sentence_counts_what_is_wrong_and_names_what_runs_out_first() {
        let cluster = Cluster::new(&answers(), None);
        assert_eq!(cluster.health(), Health::Critical);
        assert_eq!(
            cluster.sentence(),
            "4 nodes, 3 runs, 1 node about to run out of memory, 1 run stalled, 1 run that will not fit, 1 node down, 1 node \
             hung, 3 runs with ranks that are not seen. First to run out, in 4 min: gpu 1 of leaks, run b."
        );
    }

    #[test]
    fn a_run_whose_ranks_are_not_all_seen_is_not_ok() {
        let mut answers = Answers::default();
        answers[0] = vec![sample(&[("instance", "good")], 0.0)];
        answers[1] = vec![sample(&[("instance", "good")], 0.0)];
        let cluster = |answers: &Answers| {
            let cluster = Cluster::new(answers, None);
            (cluster.health(), cluster.is_incomplete())
        };
        assert_eq!(cluster(&answers), (Health::Ok, false));
        answers[6] = vec![sample(&[("run", "a")], 3.0)];
        answers[14] = vec![sample(&[("run", "a")], 0.0)];
        assert_eq!(cluster(&answers), (Health::Unknown, true), "its world size is not known");
        answers[7] = vec![sample(&[("run", "a")], 4.0)];
        assert_eq!(cluster(&answers), (Health::Unknown, true));
        answers[7] = vec![sample(&[("run", "a")], 3.0)];
        assert_eq!(cluster(&answers), (Health::Ok, false));
        answers[1] = vec![sample(&[("instance", "good")], 2.0)];
        assert_eq!(cluster(&answers), (Health::Warning, false));
    }
}
