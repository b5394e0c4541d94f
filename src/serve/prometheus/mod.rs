//! The text formats of Prometheus: 0.0.4 and OpenMetrics 1.0.
//!
//! [`negotiate`] chooses by the client's headers, [`encode`](mod@encode) writes (both of the crate
//! `memwarden_exporter`), [`pages`] caches the result, so that
//! a frame is rendered once for all scrapers.

pub mod dcgm;
pub mod pages;

pub use encode::{Format, encode};
pub use memwarden_exporter::{encode, negotiate};
pub use pages::Pages;
