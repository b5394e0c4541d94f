//! Writes the output of commands: to standard output and error, on which no control character of a file or a user
//! arrives, and to files named on the command line.

use std::io::{self, Write as _};
use std::path::Path;

use anyhow::Context as _;

use super::report::for_standard_error;
use crate::config::ConfigError;
use crate::host::user_files;
use crate::model::printable;
use crate::serve::http::WebConfigError;

/// Writes text of several lines to standard output; names in it must have been escaped.
pub fn text(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(printable::lines(text).as_bytes())
}

/// Writes text of several lines that may have the colors of reports to standard output; names in it must have been
/// escaped.
pub fn colored_text(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(printable::colored(text).as_bytes())
}

/// Writes text of several lines to standard error, wrapped on a terminal. A closed standard error is ignored.
pub fn note(text: &str) {
    let _ = io::stderr().lock().write_all(printable::lines(&for_standard_error(text)).as_bytes());
}

/// Writes text of several lines with the colors of reports to standard error, wrapped on a terminal.
pub fn colored_note(text: &str) -> io::Result<()> {
    io::stderr().lock().write_all(printable::colored(&for_standard_error(text)).as_bytes())
}

/// Writes the reason for a failed command to standard error.
pub fn complain(error: &anyhow::Error) {
    note(&format!("memwarden: {}\n", described(error)));
}

/// An error and its causes; the errors of a configuration file have a line each, all others are one line.
pub fn described(error: &anyhow::Error) -> String {
    let causes = error.chain().map(|cause| {
        let text = cause.to_string();
        let of_a_page = matches!(cause.downcast_ref(), Some(WebConfigError::Refused(_)));
        let several = of_a_page || cause.is::<ConfigError>() || cause.is::<ConfigErrors>();
        if several { printable::lines(&text).into_owned() } else { printable::escaped(&text).into_owned() }
    });
    causes.collect::<Vec<_>>().join(": ")
}

/// The errors of a configuration file, one per line.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigErrors(pub(super) String);

/// Writes a file named on the command line: never through a link, into a pipe or a device, and atomically.
///
/// `-` and `/dev/stdout` are standard output, `/dev/stderr` is standard error, and `/dev/null` is nothing.
pub fn file(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let name = || format!("cannot write {}", path.display());
    match path.to_str() {
        Some("-" | "/dev/stdout") => {
            io::stdout().lock().write_all(content).context("cannot write to standard output")
        }
        Some("/dev/stderr") => io::stderr().lock().write_all(content).with_context(name),
        Some("/dev/null") => Ok(()),
        _ => user_files::put(path, content).with_context(name),
    }
}
