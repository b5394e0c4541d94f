//! The allocator's settings in a snapshot.

use super::error::SnapshotError;
use super::fields::Field;
use crate::files::pickle::Value;

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
    pub(super) fn read(field: Field<'_, 'a>) -> Result<Self, SnapshotError> {
        let mut settings = Self::default();
        for (key, value) in field.record()? {
            match key {
                b"PYTORCH_CUDA_ALLOC_CONF" | b"PYTORCH_ALLOC_CONF" => {
                    settings.conf = String::from_utf8_lossy(value.text()?);
                }
                b"max_split_size" => {
                    // -1 means no limit, and so does the largest size in older releases.
                    settings.max_split_size_bytes =
                        u64::try_from(value.signed()?).ok().filter(|size| *size < u64::MAX >> 1);
                }
                b"garbage_collection_threshold" => {
                    settings.garbage_collection_threshold_ratio = match value.arena.value(value.id) {
                        Value::Float(ratio) if ratio.is_finite() => Some(ratio),
                        Value::Int(0) => Some(0.0),
                        _ => return Err(value.wrong("a finite number")),
                    };
                }
                b"expandable_segments" => settings.expandable_segments = Some(value.boolean()?),
                b"roundup_power2_divisions" => {
                    let mut most = 0;
                    for (_, divisions) in value.record()? {
                        // Its key is text of the file.
                        let divisions = Field { path: value.path, ..divisions };
                        most = most.max(divisions.unsigned()?);
                    }
                    settings.roundup_power2_divisions = Some(most);
                }
                _ => {}
            }
        }
        Ok(settings)
    }
}
