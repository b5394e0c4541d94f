//! Why a parameter file was not read, and where in it.

use crate::formats::pickle::{OverBudget, PickleError};

/// A parameter file that could not be read. The file's name is the caller's to add.
#[derive(Debug, thiserror::Error)]
pub enum ParameterError {
    /// The operating system did not give the bytes.
    #[error("cannot read {len} bytes at byte {offset}")]
    Read {
        /// Where, in bytes from the start of the file.
        offset: u64,
        /// How much was wanted, in bytes.
        len: u64,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is shorter than what it says of itself.
    #[error("{what} ends at byte {end}, and the file has {len}; it was cut off")]
    CutOff {
        /// What does not fit.
        what: &'static str,
        /// Where it would end, in bytes.
        end: u64,
        /// The size of the file, in bytes.
        len: u64,
    },
    /// Something is larger than any honest file has it.
    #[error("{what} has {len} bytes, and at most {limit} are read")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size, in bytes.
        len: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The header or index is not the JSON it should be.
    #[error("{what}")]
    Json {
        /// Which part of the file.
        what: &'static str,
        /// The line, the column and what is wrong there.
        source: serde_json::Error,
    },
    /// A tensor's entry contradicts itself, another, or the file.
    #[error("tensor {name:?}: {why}")]
    Tensor {
        /// Its name, cut where it is very long.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The file is no zip archive as `torch.save` writes it.
    #[error("byte {offset}: {why}")]
    Zip {
        /// Where, in bytes from the start of the file.
        offset: u64,
        /// What is wrong there.
        why: String,
    },
    /// The pickle in the archive is damaged.
    #[error("data.pkl")]
    Pickle(#[from] PickleError),
    /// The pickle would call something that is not known to be harmless. It was not called.
    #[error(
        "data.pkl byte {offset}: loading it would call {name}, which is not known to be harmless; nothing was called"
    )]
    Calls {
        /// The operation's offset, in bytes from the start of data.pkl.
        offset: u32,
        /// The name of what would be called.
        name: String,
    },
    /// More memory would be needed than the size of the pickle justifies.
    #[error("data.pkl: its tensors")]
    Memory(#[from] OverBudget),
    /// An index names what is not there, or leaves out what is.
    #[error("{0}")]
    Index(String),
}

impl ParameterError {
    /// An entry that is wrong.
    pub(super) fn tensor(name: &str, why: impl Into<String>) -> Self {
        Self::Tensor { name: shortened(name), why: why.into() }
    }

    /// An archive that is wrong.
    pub(super) fn zip(offset: u64, why: impl Into<String>) -> Self {
        Self::Zip { offset, why: why.into() }
    }
}

/// A foreign name that is not longer than a line of a message.
pub(super) fn shortened(name: &str) -> String {
    const MOST: usize = 200;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
