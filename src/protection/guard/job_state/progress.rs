//! A plan that is being carried out.

use std::sync::Arc;

use super::super::journal::JobTransition;
use crate::model::time::Timestamp;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::State;

/// How far the plan of a job's newest transition has been carried out. The same plan is made again from it in each round.
#[derive(Debug)]
pub(in super::super) struct PlanProgress {
    /// The transition.
    pub(in super::super) moved: JobTransition,
    /// The state whose actions are due.
    pub(in super::super) stage: State,
    /// The processes at the transition.
    pub(in super::super) roster: Arc<Roster>,
    /// The document for hooks and webhooks.
    pub(in super::super) notification: Option<Arc<str>>,
    /// When the levels were read that led to the transition.
    pub(in super::super) read: Timestamp,
    /// Whether each step so far was carried out, or skipped because another was.
    pub(in super::super) carried: Vec<bool>,
    /// Number of processes that a checkpoint was requested from, with or without a handler.
    pub(in super::super) signals: u32,
    /// Number of those with a handler.
    pub(in super::super) requested: u32,
}

impl PlanProgress {
    /// The index of the next step.
    pub(in super::super) fn next(&self) -> usize {
        self.carried.len()
    }

    /// Whether the step at an index was carried out or skipped.
    pub(in super::super) fn was_carried(&self, place: u16) -> bool {
        self.carried.get(usize::from(place)).copied().unwrap_or(false)
    }
}
