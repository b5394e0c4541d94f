//! How a frame is shown: Prometheus text, JSON, HTTP, OTLP.
//!
//! Exporters read the newest frame and never reach back to a source.

pub mod http;
pub mod incident;
pub mod json;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod plot;
pub mod prometheus;
pub mod record;
pub mod report;
pub mod status;

/// The newest frame; nothing before the first.
pub type Frames = tokio::sync::watch::Receiver<Option<std::sync::Arc<crate::model::frame::Frame>>>;
