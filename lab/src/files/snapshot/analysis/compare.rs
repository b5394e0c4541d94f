//! Compares two snapshots of the same job: which stacks' memory grew.

use std::collections::BTreeMap;

use super::stacks::{StackReport, Tally};
use super::totals::{Totals, survey};
use crate::files::snapshot::{Frame, Snapshot, SnapshotError, StackId};
use memwarden::model::units::Bytes;

/// The differences of two snapshots.
#[derive(Debug, serde::Serialize)]
pub struct Comparison {
    /// The totals of the first.
    pub before: Totals,
    /// The totals of the second.
    pub after: Totals,
    /// The stacks whose live memory changed the most, in either direction.
    pub stacks: Vec<Change>,
}

/// The memory of one stack in both.
#[derive(Debug, serde::Serialize)]
pub struct Change {
    /// Its memory in the first.
    pub before_bytes: Bytes,
    /// Its memory in the second.
    pub after_bytes: Bytes,
    /// The difference.
    pub change_bytes: i128,
    pub before_blocks: u64,
    pub after_blocks: u64,
    pub stack: StackReport,
}

#[derive(Default)]
struct Held {
    stack: Option<(bool, StackId)>,
    bytes: [u64; 2],
    blocks: [u64; 2],
}

/// Compares two snapshots. Stacks are equal if all their frames are.
///
/// # Errors
/// If this would take more memory than the limit of reading one of them.
pub fn compare(before: &Snapshot<'_>, after: &Snapshot<'_>, top: usize) -> Result<Comparison, SnapshotError> {
    super::afford(before)?;
    super::afford(after)?;
    let mut held: BTreeMap<Vec<Frame<'_>>, Held> = BTreeMap::new();
    for (second, snapshot) in [(false, before), (true, after)] {
        for (stack, bytes, blocks) in Tally::live(snapshot).held() {
            let entry = held.entry(snapshot.stacks.frames(stack).copied().collect()).or_default();
            entry.stack = Some((second, stack));
            entry.bytes[usize::from(second)] = bytes;
            entry.blocks[usize::from(second)] = blocks;
        }
    }
    let change = |held: &Held| i128::from(held.bytes[1]) - i128::from(held.bytes[0]);
    let mut all: Vec<Held> = held.into_values().filter(|held| held.bytes[0] != held.bytes[1]).collect();
    all.sort_by_key(|held| std::cmp::Reverse(change(held).abs()));
    let stacks = all.iter().take(top).filter_map(|held| {
        let (second, stack) = held.stack?;
        let stacks = if second { &after.stacks } else { &before.stacks };
        Some(Change {
            before_bytes: Bytes::new(held.bytes[0]),
            after_bytes: Bytes::new(held.bytes[1]),
            change_bytes: change(held),
            before_blocks: held.blocks[0],
            after_blocks: held.blocks[1],
            stack: StackReport::new(stacks, stack),
        })
    });
    let stacks = stacks.collect();
    Ok(Comparison { before: survey(before).totals, after: survey(after).totals, stacks })
}
