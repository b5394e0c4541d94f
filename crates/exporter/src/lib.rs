//! What an exporter of Prometheus needs beside its metrics: the parts of Go's exporter-toolkit, for hyper.
//!
//! [`web_config`] is the web-config file: TLS, users, headers, rate limit, read again when it changes. [`auth`] checks
//! users. [`connection`] serves one connection within the deadlines of [`meter`], [`connections`] limits how many there are
//! and divides them between clients, [`frame_limit`] limits the frames of HTTP/2. [`gate`] refuses cross-site requests, [`answer`] is a response. [`negotiate`] chooses a text format,
//! [`encode`](mod@encode) writes it.

pub mod answer;
pub mod auth;
pub mod connection;
pub mod connections;
pub mod encode;
pub mod frame_limit;
pub mod gate;
pub mod meter;
pub mod negotiate;
pub mod web_config;

use memwarden_model::{self as model, options};
