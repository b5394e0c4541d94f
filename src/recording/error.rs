//! Errors of recordings and checkpoints.

use std::io;

use super::columns::CsvError;
use crate::files::older_logs::LogError;
use crate::files::parameters::ParameterError;

/// A recording or a checkpoint that cannot be read.
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
    /// An invalid parameter file.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
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
    /// A folder has several indexes of shards.
    #[error("several indexes; name the one that is meant")]
    SeveralIndexes,
    /// A file with a part of a checkpoint of `torch.distributed.checkpoint`.
    #[error("a part of a distributed checkpoint (.distcp); give its folder, which has the file .metadata")]
    Distributed,
    /// A folder has parts of a distributed checkpoint, and not its metadata.
    #[error(
        "parts of a distributed checkpoint (.distcp) without the file .metadata, which names their tensors"
    )]
    NoMetadata,
    /// A folder has no parameter file.
    #[error(
        "no .safetensors, .bin, .pt, .pth, .ckpt, .npz or .npy file, and no .metadata of a distributed checkpoint"
    )]
    NoTensors,
    /// A parameter file has no known format.
    #[error("neither a safetensors file, nor an archive of torch.save or numpy.savez, nor a .npy file")]
    UnknownFormat,
    /// A file was replaced or written while it was read.
    #[error("it was changed while it was read")]
    Changed,
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
