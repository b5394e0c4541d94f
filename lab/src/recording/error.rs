//! Errors of recordings.

use std::io;

use super::columns::CsvError;
use crate::files::older_logs::LogError;

/// A recording that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordingError {
    #[error("{place}")]
    At {
        /// A file, or a position in it.
        place: String,
        source: Box<Self>,
    },
    /// The operating system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// An invalid recording of an older tool.
    #[error(transparent)]
    Log(#[from] LogError),
    /// An invalid table.
    #[error(transparent)]
    Csv(#[from] CsvError),
    /// An invalid report of memwarden.
    #[error(transparent)]
    Report(#[from] serde_json::Error),
    /// The file exceeds the maximum size.
    #[error("it is larger than {mib} MiB")]
    TooLarge { mib: u64 },
    /// A requested column does not exist.
    #[error("there is no column {wanted:?}; there are {}", .known.join(", "))]
    NoColumn { wanted: String, known: Vec<String> },
}

/// Adds the location to an error.
pub(super) trait InFile<T> {
    /// Adds `place`, a file or a position in it, to the error.
    fn at(self, place: impl FnOnce() -> String) -> Result<T, RecordingError>;
}

impl<T, E: Into<RecordingError>> InFile<T> for Result<T, E> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T, RecordingError> {
        self.map_err(|error| RecordingError::At { place: place(), source: Box::new(error.into()) })
    }
}
