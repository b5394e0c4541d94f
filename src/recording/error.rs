//! Why a recording or a checkpoint cannot be read.

use std::io;

use super::columns::CsvError;
use crate::formats::older_logs::LogError;
use crate::formats::parameters::ParameterError;

/// Why a recording or a checkpoint cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordingError {
    /// Where another error occurred.
    #[error("{place}")]
    At {
        /// A file, or a place in it.
        place: String,
        /// The error.
        source: Box<Self>,
    },
    /// The operating system's error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file of parameters is wrong.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
    /// A recording of an older tool is wrong.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A table is wrong.
    #[error(transparent)]
    Csv(#[from] CsvError),
    /// A report of memwarden's is wrong.
    #[error(transparent)]
    Report(#[from] serde_json::Error),
    /// The file is larger than is read.
    #[error("it is larger than {mib} MiB")]
    TooLarge {
        /// The limit.
        mib: u64,
    },
    /// A column that was named does not exist.
    #[error("there is no column {wanted:?}; there are {}", .known.join(", "))]
    NoColumn {
        /// The name.
        wanted: String,
        /// The columns of the file.
        known: Vec<String>,
    },
    /// A folder has several indexes of shards.
    #[error("several indexes; name the one that is meant")]
    SeveralIndexes,
    /// A checkpoint of `torch.distributed.checkpoint`.
    #[error("a distributed checkpoint (.distcp), whose format is not read")]
    Distributed,
    /// A folder has no file of parameters.
    #[error("no .safetensors, .bin, .pt or .pth file")]
    NoTensors,
    /// A file of parameters has no known format.
    #[error("neither a safetensors file nor an archive of torch.save")]
    UnknownFormat,
    /// A file was replaced or written while it was read.
    #[error("it was changed while it was read")]
    Changed,
}

/// Says where an error occurred.
pub(super) trait Place<T> {
    /// Puts the error at `place`, a file or a place in it.
    fn at(self, place: impl FnOnce() -> String) -> Result<T, RecordingError>;
}

impl<T, E: Into<RecordingError>> Place<T> for Result<T, E> {
    fn at(self, place: impl FnOnce() -> String) -> Result<T, RecordingError> {
        self.map_err(|error| RecordingError::At { place: place(), source: Box::new(error.into()) })
    }
}
