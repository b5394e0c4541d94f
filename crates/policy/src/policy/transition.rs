//! The modes of a policy, and the transitions of an escalation.

use crate::model::names::named;
use crate::model::time::Timestamp;
pub use crate::types::reason::Reason;
use crate::types::rung::State;

named! {
    /// Whether a policy acts.
    #[derive(Default, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Mode {
        /// Nothing is watched.
        #[default]
        Off = "off",
        /// Everything is decided, exported and logged; nothing is done.
        Observe = "observe",
        /// What is decided is done.
        Enforce = "enforce",
    }
}

/// One transition of an escalation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Transition {
    /// When.
    pub at: Timestamp,
    /// The state before.
    pub from: State,
    /// The state after; the same as before where the transition only reports ([`Reason::SaveTooLarge`],
    /// [`Reason::Unkillable`], [`Reason::Withheld`]).
    pub to: State,
    /// Why.
    pub reason: Reason,
    /// The number of its incident, from 1; 0 outside incidents.
    pub incident: u64,
    /// Whether the checkpoint signal is due: at most once per incident.
    pub ask: bool,
    /// Whether it is the first of its incident that terminates the job, which the rate limits count.
    pub counts: bool,
}

impl Transition {
    /// Whether it carries out steps; a return from BLIND repeats none.
    pub fn acts(&self) -> bool {
        self.to.acts() && (self.to != self.from || self.ask) && self.reason != Reason::Fresh
    }
}
