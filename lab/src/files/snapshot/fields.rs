//! Reads typed values of a pickle; errors state the position.

use std::fmt;

use super::error::SnapshotError;
use crate::files::pickle::{Arena, Id, OverBudget, Value};

/// Maximum number of keys of a record: no release writes more than 16. It bounds the cost of a record that is
/// referenced often.
const MOST_KEYS: usize = 64;

/// A value of a pickle, and its position.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'p, 'a> {
    pub(super) arena: &'p Arena<'a>,
    pub(super) id: Id,
    pub(super) path: Path<'p>,
}

/// The position of a value; formatted only for an error.
#[derive(Clone, Copy, Debug)]
pub(super) enum Path<'p> {
    Root(&'static str),
    Key(&'p Path<'p>, &'p [u8]),
    Item(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(name) => f.write_str(name),
            Self::Key(Self::Root(_), key) => f.write_str(&String::from_utf8_lossy(key)),
            Self::Key(parent, key) => write!(f, "{parent}.{}", String::from_utf8_lossy(key)),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl<'a> Field<'_, 'a> {
    /// The keys and values of a record.
    pub(super) fn record(&self) -> Result<impl Iterator<Item = (&'a [u8], Field<'_, 'a>)>, SnapshotError> {
        if self.arena.value(self.id) != Value::Dict {
            return Err(self.wrong("a dictionary"));
        }
        if self.arena.len(self.id) > 2 * MOST_KEYS {
            return Err(SnapshotError::TooManyKeys { path: self.path.to_string(), limit: MOST_KEYS });
        }
        Ok(self.arena.pairs(self.id).filter_map(|(key, id)| match self.arena.value(key) {
            Value::Text(key) => Some((key, Field { id, path: Path::Key(&self.path, key), ..*self })),
            _ => None,
        }))
    }

    pub(super) fn list(&self) -> Result<impl Iterator<Item = Field<'_, 'a>>, SnapshotError> {
        let items = match self.arena.value(self.id) {
            Value::List | Value::Tuple => self.arena.items(self.id).enumerate(),
            _ => return Err(self.wrong("a list")),
        };
        Ok(items.map(|(number, id)| Field { id, path: Path::Item(&self.path, number), ..*self }))
    }

    /// A number of bytes or an address.
    pub(super) fn unsigned(&self) -> Result<u64, SnapshotError> {
        match self.arena.value(self.id) {
            Value::Int(value) => u64::try_from(value).map_err(|_| self.wrong("an integer of 0 or more")),
            _ => Err(self.wrong("an integer")),
        }
    }

    /// An index or a handle. A handle with the highest bit set keeps its bits.
    pub(super) fn signed(&self) -> Result<i64, SnapshotError> {
        match self.arena.value(self.id) {
            Value::Int(value) => Ok(i64::try_from(value)
                .unwrap_or_else(|_| u64::try_from(value).map_or(i64::MIN, u64::cast_signed))),
            _ => Err(self.wrong("an integer")),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool, SnapshotError> {
        match self.arena.value(self.id) {
            Value::Bool(value) => Ok(value),
            Value::Int(value) => Ok(value != 0),
            _ => Err(self.wrong("a boolean")),
        }
    }

    pub(super) fn text(&self) -> Result<&'a [u8], SnapshotError> {
        match self.arena.value(self.id) {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong("text")),
        }
    }

    /// It is not what it must be.
    pub(super) fn wrong(&self, expected: &'static str) -> SnapshotError {
        let found = match self.arena.value(self.id) {
            Value::Int(value) => value.to_string(),
            Value::Text(text) => format!("{:?}", String::from_utf8_lossy(&text[..text.len().min(40)])),
            other => other.kind().to_owned(),
        };
        SnapshotError::WrongType { path: self.path.to_string(), expected, found }
    }

    /// A record without this key.
    pub(super) fn missing(&self, key: &str) -> SnapshotError {
        SnapshotError::Missing(Path::Key(&self.path, key.as_bytes()).to_string())
    }

    /// The memory that it would take.
    pub(super) fn over(&self, source: OverBudget) -> SnapshotError {
        SnapshotError::Memory { path: self.path.to_string(), source }
    }
}
