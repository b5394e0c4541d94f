//! What was, within a bound: the life of a series in buckets, rolling peaks.

pub mod buckets;
pub mod life;
pub mod past;
pub mod peaks;
