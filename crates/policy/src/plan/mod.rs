//! The steps of a transition: each action of its state adds steps, in order.

mod actions;
pub mod ranks;
pub mod victim;

use std::sync::Arc;

use self::victim::Roster;
use super::options::target::Target;
use super::policy::{Mode, Observed, Reason, State, Transition};
use super::types::step::{Step, TargetId, Work};

#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'t> {
    /// The id of the slot.
    pub id: TargetId,
    pub target: &'t Target,
    pub transition: &'t Transition,
    /// The observations of the transition.
    pub observed: &'t Observed,
    /// The state whose actions are due.
    pub stage: State,
    /// The processes, in the orders of their signals.
    pub roster: &'t Roster,
    /// The JSON document for hooks and webhooks; absent where there is none.
    pub notification: Option<&'t Arc<str>>,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    pub step: Step,
    /// The step is skipped where the step at this index was carried out.
    pub unless: Option<u16>,
}

/// The steps of one transition. The allocation is kept from one plan to the next.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    steps: Vec<Planned>,
}

impl Plan {
    /// An empty plan with room for a target of `processes`.
    pub fn with_room(processes: usize) -> Self {
        Self { steps: Vec::with_capacity(processes + 8) }
    }

    /// Makes the plan of a transition, in place of the one before.
    pub fn make(&mut self, input: &PlanInput<'_>) {
        self.steps.clear();
        for action in actions::on(input) {
            action(input, self);
        }
    }

    /// Adds a step.
    pub fn push(&mut self, input: &PlanInput<'_>, work: Work) {
        self.push_unless(input, work, None);
    }

    /// Adds a step that is skipped where the one at the index `unless` was carried out.
    pub fn push_unless(&mut self, input: &PlanInput<'_>, work: Work, unless: Option<u16>) {
        self.steps.push(Planned { step: Step { target: input.id, stage: input.stage, work }, unless });
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Planned] {
        &self.steps
    }
}

/// The state whose actions a transition requires; absent where it requires none.
pub fn stage_of(transition: &Transition) -> Option<State> {
    let Transition { from, to, reason, .. } = *transition;
    if reason == Reason::Fresh {
        return None;
    }
    match to {
        // Victims that stay are not signalled again; the transition only reports them.
        State::Term | State::Verify if from == to => Some(State::Verify),
        State::Warn | State::Soft | State::Checkpoint | State::Term | State::Kill | State::Cooldown => {
            Some(to)
        }
        // The transition only reports that the rate limit forbids an action.
        State::Disarmed if from == to => None,
        // A frozen cgroup must be thawed, whatever ends the incident.
        State::Ok | State::Disarmed | State::Blind => Some(State::Cooldown),
        State::Verify => None,
    }
}

/// Whether steps that act on processes may be carried out.
pub const fn may_touch(target: &Target) -> bool {
    matches!(target.limits.mode, Mode::Enforce)
}

#[cfg(test)]
mod tests;
