//! The rungs of protection, and the states of an escalation, in order.

use crate::model::names::named;
use serde::{Deserialize, Serialize};

named! {
    /// How far protection goes, the least first.
    pub enum Rung {
        /// Memory is near a level, or predicted to be exhausted.
        Warn = "warn",
        /// Memory is low: the record is written and the hook runs.
        Soft = "soft",
        /// A checkpoint is requested.
        Checkpoint = "checkpoint",
        /// SIGTERM is sent.
        Term = "term",
        /// The job is killed.
        Kill = "kill",
    }
}

named! {
    /// The state of an escalation, to which each step of a plan belongs.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum State {
        /// Not fit to act: a self-test failed, or the rate limit is used up.
        Disarmed = "disarmed",
        /// No watched reading is recent.
        Blind = "blind",
        /// Nothing is wrong.
        #[default]
        Ok = "ok",
        /// [`Rung::Warn`].
        Warn = "warn",
        /// [`Rung::Soft`].
        Soft = "soft",
        /// [`Rung::Checkpoint`].
        Checkpoint = "checkpoint",
        /// [`Rung::Term`].
        Term = "term",
        /// [`Rung::Kill`].
        Kill = "kill",
        /// Whether the victims are gone and their memory is back is looked at.
        Verify = "verify",
        /// Quiet after an incident.
        Cooldown = "cooldown",
    }
}

impl From<Rung> for State {
    fn from(rung: Rung) -> Self {
        Self::ALL[Self::Warn as usize + rung as usize]
    }
}

impl State {
    /// Whether a kill was decided, and the end of its victims or their memory is awaited.
    pub const fn is_after_kill(self) -> bool {
        matches!(self, Self::Kill | Self::Verify)
    }

    /// Whether entering the state can carry out steps.
    pub const fn acts(self) -> bool {
        matches!(self, Self::Soft | Self::Checkpoint | Self::Term | Self::Kill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_rung_has_its_name_and_its_order() {
        let states = Rung::ALL.map(State::from);
        assert_eq!(states.map(State::label), Rung::ALL.map(Rung::label));
        assert!(states.is_sorted());
    }
}
