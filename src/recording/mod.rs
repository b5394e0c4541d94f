//! Recordings of series: their readers.

pub mod cells;
pub mod csv;
pub mod prometheus;
pub mod report;
