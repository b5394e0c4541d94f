//! What parameter files hold: for people, for programs, and drawn.

pub(crate) mod picture;
pub(crate) mod text;

use std::collections::BTreeMap;

use crate::files::parameters::adapter::Adapter;
use crate::files::parameters::compare::Comparison;
use crate::files::parameters::scan::ScanResult;
use crate::files::parameters::summary::{self, Item, Options, Row, Summary, summarize};
use crate::recording::checkpoint::scan::Speed;
use crate::recording::checkpoint::{Checkpoint, Shard};

/// Grows when a key changes its meaning or goes.
pub(crate) const SCHEMA_VERSION: u32 = 1;

#[derive(serde::Serialize)]
pub(crate) struct CheckpointReport<'a> {
    pub(crate) path: String,
    pub(crate) files: Vec<FileReport<'a>>,
    pub(crate) notes: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) adapter: Option<&'a Adapter>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scan: Option<Speed>,
    pub(crate) summary: Summary<'a>,
    pub(crate) all: Vec<Row<'a>>,
}

#[derive(serde::Serialize)]
pub(crate) struct FileReport<'a> {
    pub(crate) file: String,
    pub(crate) file_bytes: u64,
    pub(crate) tensors: usize,
    pub(crate) metadata: &'a BTreeMap<String, String>,
}

#[derive(serde::Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) schema_version: u32,
    pub(crate) checkpoints: &'a [CheckpointReport<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) comparison: Option<&'a Comparison<'a>>,
}

/// The report on a checkpoint, with what was found in the values of its tensors, in their order, and how fast they
/// were read; nothing of both where no values were read.
pub(crate) fn tell<'a>(
    checkpoint: &'a Checkpoint,
    scanned: Option<(Vec<Option<ScanResult>>, Speed)>,
    options: &Options,
) -> CheckpointReport<'a> {
    let (found, speed) = match scanned {
        Some((found, speed)) => (found, Some(speed)),
        None => (vec![None; checkpoint.tensors().count()], None),
    };
    let items: Vec<Item<'a>> =
        checkpoint.tensors().zip(found).map(|((file, tensor), found)| Item { file, tensor, found }).collect();
    let file = |shard: &'a Shard| FileReport {
        file: shard.path.display().to_string(),
        file_bytes: shard.size,
        tensors: shard.part.tensors.len(),
        metadata: &shard.part.metadata,
    };
    CheckpointReport {
        path: checkpoint.path.display().to_string(),
        files: checkpoint.files.iter().map(file).collect(),
        notes: &checkpoint.notes,
        adapter: checkpoint.adapter.as_ref(),
        scan: speed,
        summary: summarize(&items, options),
        all: items.iter().map(summary::row).collect(),
    }
}
