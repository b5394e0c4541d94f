//! Serves frames over HTTP: Prometheus text, JSON and a live page.
//!
//! A server reads the newest frame and never accesses a source.

pub mod history;
pub mod http;
pub mod json;
pub mod page;
pub mod prometheus;
pub mod timeline;
