//! What was, within a bound: rolling peaks of series.

pub mod buckets;
pub mod peaks;
