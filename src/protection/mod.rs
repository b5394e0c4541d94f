//! Memory protection: the actions before memory is exhausted, and their records.
//!
//! [`options`] configure it, [`policy`] decides when to act, [`plan`] on which processes and in which steps; these are
//! pure: observations and the time are arguments. [`guard`] is the thread that runs them. [`enforce`] is the only code
//! that signals, kills, freezes or starts a hook, and checks each process immediately before. [`record`] has the audit
//! log and the incidents.
//! [`types`] has the types that all of them share.

pub use memwarden_policy::{options, plan, policy, types};

pub mod enforce;
pub mod record;

pub mod guard;

pub mod metrics;
pub mod status;
