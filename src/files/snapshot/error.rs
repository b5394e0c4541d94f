//! Errors of snapshots, with their location.

use std::fmt;

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
    SegmentKind {
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

/// Position of the reader in the snapshot; formatted only for an error.
#[derive(Clone, Copy, Debug)]
pub(super) enum Path<'p> {
    Root(&'static str),
    Key(&'p Path<'p>, &'static str),
    Item(&'p Path<'p>, usize),
}

impl Path<'_> {
    pub(super) fn over(&self, source: OverBudget) -> SnapshotError {
        SnapshotError::Memory { path: self.to_string(), source }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(name) => f.write_str(name),
            Self::Key(parent, key) => write!(f, "{parent}.{key}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}
