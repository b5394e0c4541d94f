//! When to act, and how far: a state machine that is given everything, time included.
//!
//! [`observed`] goes in, [`judge`] says of each condition whether it is met,
//! [`escalation`] goes up or down one rung, [`board`] keeps the ladders of all
//! targets from taking two victims for one shortage. Nothing here reads a
//! clock or a file, and nothing allocates once it is built.

pub mod board;
pub mod condition;
pub mod escalation;
pub mod flow;
pub mod judge;
pub mod limits;
pub mod observed;
pub mod rate;
pub mod state;

#[cfg(test)]
mod tests;

pub use board::{Board, Occupied, UsedUp};
pub use condition::{Condition, Conditions, Truth};
pub use escalation::{Escalation, Gate};
pub use flow::Flow;
pub use limits::{Levels, Limits, Trigger};
pub use observed::{Ack, AckKind, Aged, Forecast, Members, Observed, Reading, Resource};
pub use state::{MaxState, Mode, Reason, State, Transition};
