//! The free ranges that cannot be released, and their neighbors.

use super::stacks::StackReport;
use super::totals::Survey;
use crate::files::snapshot::{Block, BlockState, Snapshot};
use memwarden::model::units::Bytes;

/// A free range between active blocks.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Gap {
    pub address: u64,
    pub size_bytes: Bytes,
    /// The device's index.
    pub device: i64,
    pub segment_bytes: Bytes,
    /// The active block below; absent at the start of the segment.
    pub before: Option<Neighbor>,
    /// The active block above; absent at the end of the segment.
    pub after: Option<Neighbor>,
}

/// An active block next to a gap.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Neighbor {
    pub size_bytes: Bytes,
    pub requested_bytes: Bytes,
    pub state: BlockState,
    /// The stack that allocated it.
    pub stack: StackReport,
}

pub(super) fn largest(snapshot: &Snapshot<'_>, survey: &Survey, top: usize) -> Vec<Gap> {
    let mut runs: Vec<_> = survey.runs.iter().filter(|run| run.releasable < run.size).collect();
    runs.sort_by_key(|run| (std::cmp::Reverse(run.size - run.releasable), run.blocks.0));
    runs.truncate(top);
    let neighbor = |block: &Block| Neighbor {
        size_bytes: Bytes::new(block.size),
        requested_bytes: Bytes::new(block.requested),
        state: block.state,
        stack: StackReport::new(&snapshot.stacks, block.stack),
    };
    let gap = |run: &super::totals::Run| {
        let segment = &snapshot.segments[run.segment as usize];
        let (first, end) = run.blocks;
        let before = first.checked_sub(1).filter(|before| *before >= segment.blocks.0);
        let after = Some(end).filter(|after| *after < segment.blocks.1);
        Gap {
            address: snapshot.blocks[first as usize].address,
            size_bytes: Bytes::new(run.size),
            device: segment.device,
            segment_bytes: Bytes::new(segment.size),
            before: before.map(|before| neighbor(&snapshot.blocks[before as usize])),
            after: after.map(|after| neighbor(&snapshot.blocks[after as usize])),
        }
    };
    runs.into_iter().map(gap).collect()
}
