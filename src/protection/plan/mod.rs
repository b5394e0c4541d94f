//! What a move means in steps: each action of the rung adds its own, in order.

pub mod actions;
pub mod victim;

use std::sync::Arc;

use self::victim::Roster;
use super::options::target::Target;
use super::policy::{Mode, Reason, State, Transition};
use super::words::step::{Stage, Step, TargetId, Work};

/// A policy that fired: what a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct PlanInput<'t> {
    /// The target's place in the configuration.
    pub id: TargetId,
    /// The target.
    pub target: &'t Target,
    /// The move.
    pub transition: &'t Transition,
    /// The rung it is on.
    pub stage: Stage,
    /// Who is asked, and who ends.
    pub roster: &'t Roster,
    /// What hooks and webhooks are told: a JSON document; absent where it could not be made.
    pub notification: Option<&'t Arc<str>>,
}

/// What can be done on a rung; each in a file of its own.
///
/// `plan` is pure: it names steps and does nothing. It must name nobody but
/// those on the roster, and adds at most a step for each of them.
pub trait Action: Sync {
    /// Adds the steps that are due.
    fn plan(&self, input: &PlanInput<'_>, out: &mut Plan);
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// What.
    pub step: Step,
    /// It is passed over where the step at this place was carried out.
    pub unless: Option<u16>,
}

/// The steps of one move; its room is kept from one to the next.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    steps: Vec<Planned>,
}

impl Plan {
    /// An empty plan with room for a target of `processes`.
    pub fn with_room(processes: usize) -> Self {
        Self { steps: Vec::with_capacity(processes + 8) }
    }

    /// The plan of a move, in the place of the one before.
    pub fn make(&mut self, input: &PlanInput<'_>) {
        self.steps.clear();
        for action in actions::on(input.stage) {
            action.plan(input, self);
        }
    }

    /// Adds a step.
    pub fn push(&mut self, input: &PlanInput<'_>, work: Work) {
        self.push_unless(input, work, None);
    }

    /// Adds a step that is passed over where the one at the place `unless` was carried out.
    pub fn push_unless(&mut self, input: &PlanInput<'_>, work: Work, unless: Option<u16>) {
        self.steps.push(Planned { step: Step { target: input.id, stage: input.stage, work }, unless });
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Planned] {
        &self.steps
    }
}

/// The rung whose actions a move calls for; nothing where it calls for none.
pub fn stage_of(transition: &Transition) -> Option<Stage> {
    let Transition { from, to, reason, .. } = *transition;
    if reason == Reason::Fresh {
        return None;
    }
    match to {
        State::Warn => Some(Stage::Warn),
        State::Soft => Some(Stage::Soft),
        State::Checkpoint => Some(Stage::Checkpoint),
        // Who stays is not asked again; only that it stays is said.
        State::Term | State::Verify if from == to => Some(Stage::Verify),
        State::Term => Some(Stage::Term),
        State::Kill => Some(Stage::Kill),
        State::Cooldown => Some(Stage::Cooldown),
        // It is only said that something is withheld.
        State::Disarmed if from == to => None,
        // Whoever was paused must go on, whatever ends the incident.
        State::Ok | State::Disarmed | State::Blind => Some(Stage::Cooldown),
        State::Verify => None,
    }
}

/// Whether steps that touch somebody may be carried out.
pub const fn may_touch(target: &Target) -> bool {
    matches!(target.limits.mode, Mode::Enforce)
}

#[cfg(test)]
mod tests;
