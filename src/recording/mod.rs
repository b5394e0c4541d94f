//! Readers of recordings: series of values, and the parameters in checkpoints.

pub mod cells;
pub(crate) mod chart;
pub(crate) mod checkpoint;
mod columns;
pub mod csv;
mod error;
pub mod prometheus;
pub mod report;
