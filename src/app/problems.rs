//! Follows the problems of the node, and forgets the acknowledgements of those that ended or got worse.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::sampler::Request;
use crate::engine::Frames;
use crate::model::acknowledged::{Acknowledged, Acknowledgement, ProblemId};
use crate::model::health::Health;
use crate::model::time::Timestamp;
use crate::node_view::{NodeView, Problem, Situation};
use crate::serve::http;

/// A problem that is absent for less time has not ended: a source can fail in some samples, and after a restart of the daemon a
/// forecast takes about a minute.
const ABSENCE: Duration = Duration::from_secs(120);

/// Passes acknowledgements of operators to the sampler.
pub(super) struct Operators(pub(super) Sender<Request>);

impl http::Acknowledge for Operators {
    fn acknowledge(&self, id: ProblemId, health: Health, acknowledgement: Acknowledgement) {
        // The sampler has ended only if the daemon ends.
        let _ = self.0.send(Request::Acknowledge(id, health, acknowledgement));
    }
}

/// Follows the frames until the sampler ends.
pub(super) async fn follow(mut frames: Frames, sampler: Sender<Request>) {
    let mut absent = Absent::default();
    while frames.changed().await.is_ok() {
        let Some(frame) = frames.borrow_and_update().clone() else { continue };
        if frame.acknowledged.is_empty() {
            continue;
        }
        let shown = Arc::clone(&frame);
        let view =
            move || NodeView::of(Some(&shown), &Situation { stale_after: 1.0, ..Situation::default() });
        // What panics is counted where it is shown.
        let Ok(view) = tokio::task::spawn_blocking(view).await else { continue };
        let over = absent.over(&frame.acknowledged, &view.problems, frame.at);
        if !over.is_empty() && sampler.send(Request::Forget(over)).is_err() {
            return;
        }
    }
}

/// Since when acknowledged problems are absent.
#[derive(Debug, Default)]
struct Absent(BTreeMap<ProblemId, Timestamp>);

impl Absent {
    /// The acknowledged problems whose acknowledgement ends.
    fn over(&mut self, acknowledged: &Acknowledged, problems: &[Problem], now: Timestamp) -> Vec<ProblemId> {
        let is_there = |id: &ProblemId| problems.iter().any(|problem| id.is(&problem.id));
        self.0.retain(|id, _| acknowledged.ids().any(|known| known == id) && !is_there(id));
        let worse =
            problems.iter().filter(|problem| problem.acknowledged.is_none()).map(|own| own.id.clone());
        let mut over: Vec<ProblemId> =
            worse.filter(|id| acknowledged.ids().any(|known| known.is(id))).collect();
        for id in acknowledged.ids().filter(|id| !is_there(id)) {
            let since = *self.0.entry(id.clone()).or_insert(now);
            if now.since(since) >= ABSENCE {
                over.push(id.clone());
            }
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::finding::Subject;

    #[test]
    fn an_acknowledgement_ends_with_its_problem_and_when_it_gets_worse() {
        let id = ProblemId::new("memory", Subject::host());
        let mut known = Acknowledged::default();
        known.add(id.clone(), Health::Warning, Acknowledgement::default());
        let problem = |health| {
            let acknowledged = known.of(&id, health).cloned();
            vec![Problem { id: id.clone(), health, acknowledged, ..Problem::default() }]
        };
        let mut absent = Absent::default();
        let at = Timestamp::from_secs;
        assert!(absent.over(&known, &problem(Health::Warning), at(0)).is_empty());
        assert!(absent.over(&known, &[], at(1)).is_empty());
        assert!(absent.over(&known, &[], at(120)).is_empty());
        assert!(absent.over(&known, &problem(Health::Unknown), at(121)).is_empty(), "it came back");
        assert!(absent.over(&known, &[], at(122)).is_empty());
        assert!(absent.over(&known, &[], at(241)).is_empty());
        assert_eq!(absent.over(&known, &[], at(242)), std::slice::from_ref(&id));
        assert_eq!(absent.over(&known, &problem(Health::Critical), at(243)), std::slice::from_ref(&id));
    }
}
