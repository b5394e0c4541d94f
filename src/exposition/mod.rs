//! How a frame is shown: Prometheus text, JSON, HTTP, OTLP.
//!
//! Exporters read the newest frame and never reach back to a source.

#[cfg(feature = "otlp")]
pub mod otlp;
pub mod prometheus;

/// The newest frame; nothing before the first.
pub type Frames = tokio::sync::watch::Receiver<Option<std::sync::Arc<crate::model::frame::Frame>>>;
