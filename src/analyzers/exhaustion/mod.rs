//! Forecasts when a resource is exhausted at its current growth, and with which probability.
//!
//! Finds the resources in a frame and writes what is concluded of them, with the rule that decides the health of each
//! ([`crate::model::health`]); the method, its references and its known false alarms are documented in
//! [`forecast::exhaustion`].

mod analyzer;
mod loads;
pub mod metrics;
mod nodes;
mod phases;
mod resources;
pub(super) mod rules;
mod throttling;

pub use analyzer::REGISTRATION;
