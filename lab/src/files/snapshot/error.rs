//! Errors of snapshots, with their location.

use crate::files::pickle::{OverBudget, PickleError};

/// A snapshot that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The file is not a pickle of plain data.
    #[error("cannot read the pickle")]
    Pickle(#[from] PickleError),
    /// The pickle holds something else.
    #[error("not an allocator snapshot: {0}")]
    NotSnapshot(String),
    /// A value has the wrong type.
    #[error("{path}: expected {expected}, found {found}")]
    WrongType {
        /// The value, such as `segments[12].blocks[3].size`.
        path: String,
        expected: &'static str,
        found: String,
    },
    /// A value that every release writes is missing.
    #[error("{0}: missing")]
    Missing(String),
    /// A record has more keys than any release writes.
    #[error("{path}: more than {limit} keys")]
    TooManyKeys {
        /// The record.
        path: String,
        limit: usize,
    },
    /// The snapshot requires more memory than the size of the file justifies.
    #[error("{path}")]
    Memory {
        /// Where the limit was reached.
        path: String,
        /// The limit.
        source: OverBudget,
    },
}
