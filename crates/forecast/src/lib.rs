//! Growth of memory and the time to its exhaustion, from the samples of one series.
//!
//! Pure and deterministic: bytes and times in, assessments out; no input, no output, no clock. A
//! [`Tracker`](tracker::Tracker) follows one series in bounded memory ([`history`]). [`leak`] describes how growth is
//! classified, [`exhaustion`] how it is forecast when the growth reaches a limit.
//!
//! Modules in the order of their imports; each one imports only modules above it.

#![warn(missing_docs)]

pub mod estimate;
pub mod rules;
pub mod stats;

pub mod history;
pub mod view;

pub mod leak;

pub mod exhaustion;
pub mod pace;
mod series_verdict;

pub mod tracker;

pub use estimate::{Basis, LeakState, Rate, Tte};
pub use rules::Rules;
