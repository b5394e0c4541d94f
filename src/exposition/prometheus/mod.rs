//! The text formats of Prometheus: 0.0.4 and OpenMetrics 1.0.

pub mod encode;

pub use encode::{Format, encode};
