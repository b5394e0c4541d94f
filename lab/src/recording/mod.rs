//! Readers of recordings: series of values.

pub mod cells;
pub(crate) mod chart;
mod columns;
pub mod csv;
mod error;
pub mod prometheus;
pub mod report;
