//! Configuration: YAML text, checked against the declared options, to typed values.
//!
//! A reload is applied completely or not at all: a file with one mistake changes nothing. One pass reports every
//! mistake, each with file, line and key. [`schema`] declares the keys, `read` reads them with
//! [`crate::model::setting::reader`], [`default_file`] writes the commented default.

mod checked;
pub mod default_file;
mod read;
pub mod schema;

pub use checked::{Config, PartConfig};
pub use read::{Override, parse, parse_str, require_key};
pub use schema::{
    Compatibility, Log, LogFormat, LogLevel, Otlp, OtlpCompression, OtlpNames, OtlpProtocol, Paths,
    PerfFormats, PerfLogs, Sampling, Web,
};

pub use crate::model::setting::problem::{ConfigError, Problem};
pub use crate::model::setting::{duration, size};

/// The socket of a daemon with the default configuration.
pub fn default_socket() -> std::path::PathBuf {
    Web::default().socket.unwrap_or_default()
}
