//! How a frame is shown: Prometheus text, JSON, HTTP, OTLP.
//!
//! Exporters read the newest frame and never reach back to a source.

pub mod prometheus;
