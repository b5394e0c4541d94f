//! Steps whose effect lasts: those that have not ended yet, and a frozen cgroup.

use std::time::Duration;

use crate::model::time::Timestamp;
use crate::protection::types::step::{Group, Ticket};

/// Pending steps of one job at once.
const CAPACITY: usize = 32;

/// The label of the step that waits for the end of victims.
pub(in super::super) const AWAIT_END: &str = "await_end";
/// The label of the step that waits for the checkpoint acknowledgement.
pub(in super::super) const AWAIT_CHECKPOINT: &str = "await";

/// A step that has started and not ended.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct PendingStep {
    pub(in super::super) ticket: Ticket,
    /// Its label.
    pub(in super::super) label: &'static str,
    /// When it was begun.
    pub(in super::super) begun: Timestamp,
    /// Whether a newer wait has replaced it: its end says nothing of the victims of now.
    pub(in super::super) replaced: bool,
}

/// The steps of a job that have started and not ended, at most 32.
#[derive(Debug)]
pub(in super::super) struct PendingSteps(Vec<PendingStep>);

impl PendingSteps {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(CAPACITY))
    }

    /// Adds a step; false where there is no room. A wait for the end of victims replaces earlier ones, and takes the place
    /// of another step where there is no room: only these waits and that for the acknowledgement decide anything.
    pub(in super::super) fn add(&mut self, ticket: Ticket, label: &'static str, begun: Timestamp) -> bool {
        if self.0.len() == self.0.capacity() {
            let other = self.0.iter().position(|step| !matches!(step.label, AWAIT_END | AWAIT_CHECKPOINT));
            let Some(other) = other.filter(|_| label == AWAIT_END) else { return false };
            self.0.swap_remove(other);
        }
        if label == AWAIT_END {
            self.0.iter_mut().filter(|step| step.label == AWAIT_END).for_each(|old| old.replaced = true);
        }
        self.0.push(PendingStep { ticket, label, begun, replaced: false });
        true
    }

    pub(in super::super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The step with this ticket.
    pub(in super::super) fn find(&self, ticket: Ticket) -> Option<PendingStep> {
        self.0.iter().find(|step| step.ticket == ticket).copied()
    }

    /// Removes a step that has ended.
    pub(in super::super) fn remove(&mut self, ticket: Ticket) {
        if let Some(place) = self.0.iter().position(|step| step.ticket == ticket) {
            self.0.swap_remove(place);
        }
    }

    /// Whether a kill has not ended.
    pub(super) fn kills(&self) -> bool {
        self.0.iter().any(|step| step.label.starts_with("kill"))
    }

    /// Whether a step waits for the end of the newest victims.
    pub(super) fn awaits_end(&self) -> bool {
        self.0.iter().any(|step| step.label == AWAIT_END && !step.replaced)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Whether the cgroup of a job is frozen.
#[derive(Debug, Default)]
pub(in super::super) struct Freeze {
    /// The cgroup that was frozen and has not been thawed.
    pub(in super::super) group: Option<Group>,
    /// When it was frozen; absent once thawing was tried.
    since: Option<Timestamp>,
}

impl Freeze {
    /// The cgroup was frozen.
    pub(in super::super) fn begin(&mut self, group: Group, now: Timestamp) {
        *self = Self { group: Some(group), since: Some(now) };
    }

    /// The cgroup was thawed, by a step of a plan.
    pub(in super::super) fn end(&mut self, group: &Group) {
        self.group.take_if(|frozen| frozen == group);
    }

    /// Whether it has been frozen for `limit`; true once.
    pub(in super::super) fn expires(&mut self, now: Timestamp, limit: Duration) -> bool {
        self.since.take_if(|since| now.since(*since) >= limit).is_some()
    }
}
