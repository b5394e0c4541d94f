//! The rungs of protection, and the states of an escalation, in order.

use crate::model::names::named;
use serde::{Serialize, Serializer};

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

impl Rung {
    /// The words of a maximum in the configuration, the least first. With `ignore`, which is no rung, a trigger is
    /// ignored.
    pub const MAX_WORDS: &'static [&'static str] = &["ignore", "warn", "soft", "checkpoint", "term", "kill"];
}

/// The state of an escalation, to which each step of a plan belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Not fit to act: a self-test failed, or the rate limit is used up.
    Disarmed,
    /// No watched reading is recent.
    Blind,
    /// Nothing is wrong.
    Ok,
    /// At a rung.
    At(Rung),
    /// Whether the victims are gone and their memory is back is looked at.
    Verify,
    /// Quiet after an incident.
    Cooldown,
}

impl State {
    /// Every state, so that each has its series.
    pub const ALL: [Self; 10] = [
        Self::Disarmed,
        Self::Blind,
        Self::Ok,
        Self::At(Rung::Warn),
        Self::At(Rung::Soft),
        Self::At(Rung::Checkpoint),
        Self::At(Rung::Term),
        Self::At(Rung::Kill),
        Self::Verify,
        Self::Cooldown,
    ];

    /// Its index in [`State::ALL`].
    pub const fn index(self) -> usize {
        match self {
            Self::Disarmed => 0,
            Self::Blind => 1,
            Self::Ok => 2,
            Self::At(rung) => 3 + rung as usize,
            Self::Verify => 8,
            Self::Cooldown => 9,
        }
    }

    /// The value of the `state` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Disarmed => "disarmed",
            Self::Blind => "blind",
            Self::Ok => "ok",
            Self::At(rung) => rung.label(),
            Self::Verify => "verify",
            Self::Cooldown => "cooldown",
        }
    }

    /// Whether a kill was decided, and the end of its victims or their memory is awaited.
    pub const fn is_after_kill(self) -> bool {
        matches!(self, Self::At(Rung::Kill) | Self::Verify)
    }

    /// Whether entering the state can carry out steps.
    pub const fn acts(self) -> bool {
        matches!(self, Self::At(Rung::Soft | Rung::Checkpoint | Rung::Term | Rung::Kill))
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_in_order_and_each_has_its_index() {
        assert!(State::ALL.is_sorted());
        for (index, state) in State::ALL.into_iter().enumerate() {
            assert_eq!(state.index(), index);
        }
    }

    #[test]
    fn every_word_of_a_maximum_but_the_first_is_a_rung() {
        let rungs: Vec<_> = Rung::MAX_WORDS.iter().map(|word| Rung::of_label(word)).collect();
        assert_eq!((rungs[0], &rungs[1..]), (None, &Rung::ALL.map(Some)[..]));
    }
}
