//! When protection acts, and how far: a pure state machine that receives everything, time included.
//!
//! [`observed`] holds the input, [`judge`] evaluates the conditions, [`escalation`] changes the state of one job, and [`board`]
//! keeps the escalations of all jobs from terminating two jobs for one shortage. Nothing here reads a clock or a file, and
//! nothing allocates after construction.

pub mod board;
pub mod condition;
pub mod escalation;
pub mod flow;
pub mod gate;
pub mod judge;
pub mod limits;
pub mod observed;
pub mod rate;
pub mod transition;

#[cfg(test)]
mod tests;

pub use board::{Board, Occupied, UsedUp};
pub use condition::{Condition, Conditions, Truth};
pub use escalation::Escalation;
pub use flow::Flow;
pub use gate::Gate;
pub use limits::{Levels, Limits, SwapCounts, Trigger};
pub use observed::{Ack, Aged, ByResource, Members, Observed, Reading};
pub use transition::{Mode, Transition};

pub use super::types::reason::{Reason, Resource};
pub use super::types::rung::{Rung, State};
