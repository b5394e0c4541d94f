//! Configuration: YAML text, checked against the declared options, to typed values.
//!
//! A reload is applied completely or not at all: a file with one mistake changes nothing. One pass reports every
//! mistake, each with file, line and key. [`schema`] declares the keys, `tree` parses YAML with line numbers,
//! `value` parses one scalar, `read` walks both, [`default_file`] writes the commented default.

mod checked;
pub mod default_file;
mod perf_logs;
mod problem;
mod read;
pub mod schema;
mod tree;
mod value;

pub use checked::{
    Compatibility, Config, Listen, Log, LogFormat, Otlp, OtlpNames, OtlpProtocol, PartConfig, Paths,
    Sampling, Web,
};
pub use perf_logs::PerfLogs;
pub use problem::{ConfigError, Problem};
pub(crate) use read::parse_section;
pub use read::{Override, parse, parse_str};

/// The socket of a daemon with the default configuration.
pub fn default_socket() -> &'static str {
    schema::SOCKET.default
}

/// Parses a size with its unit, as in the configuration and the options of commands.
///
/// # Errors
/// The problem with the text, and an example.
pub fn size(text: &str) -> Result<crate::model::units::Bytes, String> {
    value::size(text)
}

/// Parses a duration with its unit, as in the configuration and the options of commands.
///
/// # Errors
/// The problem with the text, and an example.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    value::duration(text)
}
