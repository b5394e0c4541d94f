//! Reads typed values of a record; errors state the position.

use super::error::{Path, SnapshotError};
use crate::files::pickle::{Arena, Id, Value};

/// Maximum number of keys of a record: no release writes more than 16. It bounds the cost of a record that is
/// referenced often.
const MOST_KEYS: usize = 64;

/// Reads values of one pickle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'r, 'a>(pub(super) &'r Arena<'a>);

impl<'r, 'a> Fields<'r, 'a> {
    /// The keys and values of a record.
    pub(super) fn record(
        self,
        id: Id,
        path: &Path<'_>,
    ) -> Result<impl Iterator<Item = (&'a [u8], Id)> + 'r, SnapshotError> {
        if self.0.value(id) != Value::Dict {
            return Err(self.kind(id, path, "a dictionary"));
        }
        if self.0.len(id) > 2 * MOST_KEYS {
            return Err(SnapshotError::TooManyKeys { path: path.to_string(), limit: MOST_KEYS });
        }
        let arena = self.0;
        Ok(arena.pairs(id).filter_map(move |(key, value)| match arena.value(key) {
            Value::Text(key) => Some((key, value)),
            _ => None,
        }))
    }

    pub(super) fn list(
        self,
        id: Id,
        path: &Path<'_>,
    ) -> Result<impl Iterator<Item = Id> + 'r, SnapshotError> {
        match self.0.value(id) {
            Value::List | Value::Tuple => Ok(self.0.items(id)),
            _ => Err(self.kind(id, path, "a list")),
        }
    }

    /// A number of bytes or an address.
    pub(super) fn unsigned(self, id: Id, path: &Path<'_>) -> Result<u64, SnapshotError> {
        match self.0.value(id) {
            Value::Int(value) => {
                u64::try_from(value).map_err(|_| self.kind(id, path, "an integer of 0 or more"))
            }
            _ => Err(self.kind(id, path, "an integer")),
        }
    }

    /// An index or a handle. A handle with the highest bit set keeps its bits.
    pub(super) fn signed(self, id: Id, path: &Path<'_>) -> Result<i64, SnapshotError> {
        match self.0.value(id) {
            Value::Int(value) => Ok(i64::try_from(value)
                .unwrap_or_else(|_| u64::try_from(value).map_or(i64::MIN, u64::cast_signed))),
            _ => Err(self.kind(id, path, "an integer")),
        }
    }

    pub(super) fn boolean(self, id: Id, path: &Path<'_>) -> Result<bool, SnapshotError> {
        match self.0.value(id) {
            Value::Bool(value) => Ok(value),
            Value::Int(value) => Ok(value != 0),
            _ => Err(self.kind(id, path, "a boolean")),
        }
    }

    pub(super) fn text(self, id: Id, path: &Path<'_>) -> Result<&'a [u8], SnapshotError> {
        match self.0.value(id) {
            Value::Text(text) => Ok(text),
            _ => Err(self.kind(id, path, "text")),
        }
    }

    pub(super) fn kind(self, id: Id, path: &Path<'_>, expected: &'static str) -> SnapshotError {
        let found = match self.0.value(id) {
            Value::Int(value) => value.to_string(),
            Value::Text(text) => format!("{:?}", shortened(text)),
            other => other.kind().to_owned(),
        };
        SnapshotError::SegmentKind { path: path.to_string(), expected, found }
    }
}

/// The beginning of a text, for an error.
fn shortened(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned()
}
