//! memwarden: how much memory is left on a training node, when it runs out,
//! and what should be done before it does.
//!
//! The modules, in the order to read them: [`model`] has the words, [`host`]
//! touches the machine, [`sources`] measure, [`engine`] makes a frame of it,
//! [`serve`] and [`otlp`] expose it, [`protection`] acts on it, [`app`] runs all of it as [`config`] says.

pub use memwarden_model::{self as model, choice, metrics, options, words};
pub use memwarden_plot as plot;

pub mod config;
pub mod events;
pub mod flops;
pub mod formats;
pub mod history;
pub mod host;
pub mod past_runs;

pub mod sources;

pub mod analyzers;

pub mod cluster;
pub mod engine;

pub mod protection;

pub mod job_summary;
pub mod node_view;
pub mod otlp;
pub mod perf_log;
pub mod report;
pub mod serve;
pub mod simulate;
pub mod top;

pub mod app;
pub mod catalog;
pub mod cli;

#[cfg(test)]
#[path = "../tests/it/skip.rs"]
mod skip;

#[cfg(test)]
mod tests;

#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
