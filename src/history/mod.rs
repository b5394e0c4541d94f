//! Bounded histories: series in buckets, and rolling peaks.

pub mod buckets;
pub mod excursions;
pub mod life;
pub mod past;
pub mod peaks;
pub mod recent;
pub mod rings;
