//! The bounded history of one series: its newest samples, its past, and its peaks.

pub mod buckets;
pub mod excursions;
pub mod life;
pub mod past;
