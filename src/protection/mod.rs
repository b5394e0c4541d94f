//! When memory runs out, what is done about it, and to whom: decided here, done in `host`.
//!
//! [`options`] say what may happen, [`policy`] decides when, [`victim`] to
//! whom, [`plan`] in which steps, each from one of [`actions`]. All of it is
//! pure: what is observed, and the time, are arguments.

pub mod actions;
pub mod metrics;
pub mod options;
pub mod plan;
pub mod policy;
pub mod report;
pub mod signals;
pub mod target;
pub mod victim;
