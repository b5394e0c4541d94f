//! The allocator's settings in a snapshot.

use super::error::{Path, SnapshotError};
use super::fields::Fields;
use crate::files::pickle::{Id, Value};

/// The settings of `PYTORCH_CUDA_ALLOC_CONF`.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Settings<'a> {
    /// The variable itself; empty where it was not set.
    pub conf: std::borrow::Cow<'a, str>,
    /// Blocks above this size are never split, in bytes; absent without a limit.
    pub max_split_size_bytes: Option<u64>,
    /// Unused blocks are freed above this share of the allowed memory; 0 is never.
    pub garbage_collection_threshold_ratio: Option<f64>,
    /// Whether segments can grow in place.
    pub expandable_segments: Option<bool>,
    /// The largest number of divisions between two powers of two that requests are rounded to; 0 is no rounding.
    pub roundup_power2_divisions: Option<u64>,
}

impl<'a> Settings<'a> {
    pub(super) fn read(fields: Fields<'_, 'a>, id: Id, path: &Path<'_>) -> Result<Self, SnapshotError> {
        let mut settings = Self::default();
        for (key, value) in fields.record(id, path)? {
            match key {
                b"PYTORCH_CUDA_ALLOC_CONF" | b"PYTORCH_ALLOC_CONF" => {
                    let text = fields.text(value, &Path::Key(path, "PYTORCH_CUDA_ALLOC_CONF"))?;
                    settings.conf = String::from_utf8_lossy(text);
                }
                b"max_split_size" => {
                    // -1 means no limit, and so does the largest size in older releases.
                    let size = fields.signed(value, &Path::Key(path, "max_split_size"))?;
                    settings.max_split_size_bytes =
                        u64::try_from(size).ok().filter(|size| *size < u64::MAX >> 1);
                }
                b"garbage_collection_threshold" => {
                    settings.garbage_collection_threshold_ratio = match fields.0.value(value) {
                        Value::Float(ratio) if ratio.is_finite() => Some(ratio),
                        Value::Int(0) => Some(0.0),
                        _ => {
                            let path = Path::Key(path, "garbage_collection_threshold");
                            return Err(fields.kind(value, &path, "a finite number"));
                        }
                    };
                }
                b"expandable_segments" => {
                    let path = Path::Key(path, "expandable_segments");
                    settings.expandable_segments = Some(fields.boolean(value, &path)?);
                }
                b"roundup_power2_divisions" => {
                    let path = Path::Key(path, "roundup_power2_divisions");
                    let mut most = 0;
                    for (_, divisions) in fields.record(value, &path)? {
                        most = most.max(fields.unsigned(divisions, &path)?);
                    }
                    settings.roundup_power2_divisions = Some(most);
                }
                _ => {}
            }
        }
        Ok(settings)
    }
}
