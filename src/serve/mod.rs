//! How a frame is served: Prometheus text, JSON, a page, all over HTTP.
//!
//! A server reads the newest frame and never reaches back to a source.

pub mod http;
pub mod json;
pub mod page;
pub mod prometheus;
pub mod timeline;
