//! Errors of parameter files, with their location.

use crate::files::pickle::{OverBudget, PickleError};

/// A parameter file that could not be read. The caller adds the name of the file.
#[derive(Debug, thiserror::Error)]
pub enum ParameterError {
    /// The bytes could not be read.
    #[error("cannot read {len} bytes at byte {offset}")]
    Read {
        /// The offset, in bytes from the start of the file.
        offset: u64,
        /// The requested length, in bytes.
        len: u64,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is shorter than its header states.
    #[error("{what} ends at byte {end}, and the file has {len}; it was cut off")]
    CutOff {
        /// The part that is truncated.
        what: &'static str,
        /// Its end according to the header, in bytes.
        end: u64,
        /// The size of the file, in bytes.
        len: u64,
    },
    /// A part is larger than in any regular file.
    #[error("{what} has {len} bytes, and at most {limit} are read")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Its size, in bytes.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The header or index is not valid JSON.
    #[error("{what}")]
    Json {
        /// The part of the file.
        what: &'static str,
        source: serde_json::Error,
    },
    /// A tensor's entry is inconsistent with itself, another entry, or the file.
    #[error("tensor {name:?}: {why}")]
    Tensor {
        /// Its name, shortened if it is very long.
        name: String,
        why: String,
    },
    /// The file is not a valid zip archive of a known format.
    #[error("byte {offset}: {why}")]
    Zip {
        /// The offset, in bytes from the start of the file.
        offset: u64,
        why: String,
    },
    /// The pickle of the file is invalid.
    #[error("its pickle")]
    Pickle(#[from] PickleError),
    /// Loading the pickle would call a function that is not known to be harmless. It was not called.
    #[error(
        "byte {offset} of its pickle: loading it would call {name}, which is not known to be harmless; nothing was called"
    )]
    Calls {
        /// The operation's offset, in bytes from the start of the pickle.
        offset: u32,
        /// The name of the function.
        name: String,
    },
    /// More memory is required than the size of the file, or of its pickle, justifies.
    #[error("its tensors")]
    Memory(#[from] OverBudget),
    /// An index, or the metadata of a folder, is inconsistent with its files.
    #[error("{0}")]
    Index(String),
    /// A format that is known and not read.
    #[error("{what} is not read; {instead}")]
    Format {
        /// The format, with its article.
        what: &'static str,
        /// What can be given instead.
        instead: &'static str,
    },
}

impl ParameterError {
    /// An error of a tensor's entry.
    pub(super) fn tensor(name: &str, why: impl Into<String>) -> Self {
        Self::Tensor { name: shortened(name), why: why.into() }
    }

    pub(super) fn zip(offset: u64, why: impl Into<String>) -> Self {
        Self::Zip { offset, why: why.into() }
    }
}

/// A name from a file, shortened for a message.
pub(super) fn shortened(name: &str) -> String {
    const MOST: usize = 200;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
