//! What allocator snapshots say: for people, for programs, and drawn.

pub(crate) mod picture;
pub(crate) mod text;

#[cfg(any(fuzzing, test))]
use crate::files::snapshot::Snapshot;
use crate::files::snapshot::analysis::{Analysis, Comparison};

/// Grows when a key changes its meaning or goes.
pub(crate) const SCHEMA_VERSION: u32 = 1;

/// The report for programs.
#[derive(serde::Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) schema_version: u32,
    pub(crate) snapshots: Vec<FileReport<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) comparison: Option<&'a Comparison>,
}

/// What it says of one file.
#[derive(serde::Serialize)]
pub(crate) struct FileReport<'a> {
    pub(crate) file: String,
    pub(crate) file_bytes: usize,
    #[serde(flatten)]
    pub(crate) analysis: &'a Analysis<'a>,
}

/// Everything that is written about a snapshot, but to a file.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz(snapshot: &Snapshot<'_>, analysis: &Analysis<'_>) {
    let mut out = String::new();
    text::report("fuzz", 0, analysis, memwarden::report::Page::default(), &mut out);
    let _ = picture::page(&picture::draw(&[picture::Drawn { name: "fuzz".to_owned(), snapshot, analysis }]));
}
