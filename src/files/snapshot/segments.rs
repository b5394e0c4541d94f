//! Segments and their blocks.

use super::error::{Path, SnapshotError};
use super::fields::Fields;
use super::stacks::{Collector, StackId};
use super::{Block, BlockState, Segment, SegmentKind, Snapshot};
use crate::files::pickle::{Budget, Id};

/// Appends one segment and its blocks.
pub(super) fn segment<'a>(
    fields: Fields<'_, 'a>,
    id: Id,
    path: &Path<'_>,
    snapshot: &mut Snapshot<'a>,
    stacks: &mut Collector<'a>,
    budget: &mut Budget,
) -> Result<(), SnapshotError> {
    let (mut device, mut stream, mut pool, mut expandable) = (0, 0, (0, 0), false);
    let (mut address, mut size, mut kind, mut list) = (None, None, None, None);
    for (key, value) in fields.record(id, path)? {
        match key {
            b"device" => device = fields.signed(value, &Path::Key(path, "device"))?,
            b"address" => address = Some(fields.unsigned(value, &Path::Key(path, "address"))?),
            b"total_size" => size = Some(fields.unsigned(value, &Path::Key(path, "total_size"))?),
            b"stream" => stream = fields.signed(value, &Path::Key(path, "stream"))?,
            b"segment_type" => {
                let path = Path::Key(path, "segment_type");
                kind = match fields.text(value, &path)? {
                    b"small" => Some(SegmentKind::Small),
                    b"large" => Some(SegmentKind::Large),
                    _ => return Err(fields.kind(value, &path, "small or large")),
                };
            }
            b"segment_pool_id" => pool = pool_id(fields, value, &Path::Key(path, "segment_pool_id"))?,
            b"is_expandable" => expandable = fields.boolean(value, &Path::Key(path, "is_expandable"))?,
            b"blocks" => list = Some(value),
            _ => {}
        }
    }
    let size = size.ok_or_else(|| SnapshotError::Missing(Path::Key(path, "total_size").to_string()))?;
    let place = Path::Key(path, "blocks");
    let list = list.ok_or_else(|| SnapshotError::Missing(place.to_string()))?;
    let first = index(snapshot.blocks.len(), &place)?;
    let (mut next, mut sum) = (address.unwrap_or(0), 0u64);
    for (number, item) in fields.list(list, &place)?.enumerate() {
        let path = Path::Item(&place, number);
        let block = block(fields, item, next, &path, stacks, budget)?;
        if address.is_some() && block.address != next {
            snapshot.note(|| format!("{path}: does not start where the block before it ends"));
        }
        next = block.address.saturating_add(block.size);
        sum = sum.saturating_add(block.size);
        budget.push(&mut snapshot.blocks, block).map_err(|source| path.over(source))?;
    }
    if sum != size {
        snapshot.note(|| format!("{path}: its blocks have {sum} bytes, and it has {size}"));
    }
    // Releases before 1.6 write no type; only a small segment has exactly 2 MiB.
    let kind = kind.unwrap_or(if size <= 2 << 20 { SegmentKind::Small } else { SegmentKind::Large });
    let blocks = (first, index(snapshot.blocks.len(), &place)?);
    let segment = Segment { device, address, size, stream, kind, pool, expandable, blocks };
    budget.push(&mut snapshot.segments, segment).map_err(|source| path.over(source))
}

fn block<'a>(
    fields: Fields<'_, 'a>,
    id: Id,
    next: u64,
    path: &Path<'_>,
    stacks: &mut Collector<'a>,
    budget: &mut Budget,
) -> Result<Block, SnapshotError> {
    let (mut address, mut size, mut requested, mut state) = (next, None, None, None);
    let (mut frames, mut history) = (None, None);
    for (key, value) in fields.record(id, path)? {
        match key {
            b"address" => address = fields.unsigned(value, &Path::Key(path, "address"))?,
            b"size" => size = Some(fields.unsigned(value, &Path::Key(path, "size"))?),
            b"requested_size" => {
                requested = Some(fields.unsigned(value, &Path::Key(path, "requested_size"))?);
            }
            b"state" => {
                let path = Path::Key(path, "state");
                state = Some(match fields.text(value, &path)? {
                    b"active_allocated" => BlockState::Allocated,
                    // PyTorch's documentation uses the second spelling, its code the first.
                    b"active_pending_free" | b"active_awaiting_free" => BlockState::PendingFree,
                    b"inactive" => BlockState::Free,
                    _ => return Err(fields.kind(value, &path, "a block's state")),
                });
            }
            b"frames" => frames = Some(value),
            b"history" => history = Some(value),
            _ => {}
        }
    }
    let missing = |key| SnapshotError::Missing(Path::Key(path, key).to_string());
    let size = size.ok_or_else(|| missing("size"))?;
    let state = state.ok_or_else(|| missing("state"))?;
    if state == BlockState::Free {
        return Ok(Block { address, size, requested: 0, state, stack: StackId::UNKNOWN });
    }
    let mut stack = StackId::UNKNOWN;
    if let Some(frames) = frames {
        stack = stacks.stack(fields, frames, budget, &Path::Key(path, "frames"))?;
    } else if let Some(history) = history {
        // PyTorch 2.0 and older: the owners of the block, the current one first.
        let place = Path::Key(path, "history");
        if let Some(owner) = fields.list(history, &place)?.next() {
            let place = Path::Item(&place, 0);
            for (key, value) in fields.record(owner, &place)? {
                match key {
                    b"real_size" => {
                        requested = Some(fields.unsigned(value, &Path::Key(&place, "real_size"))?);
                    }
                    b"frames" => {
                        stack = stacks.stack(fields, value, budget, &Path::Key(&place, "frames"))?;
                    }
                    _ => {}
                }
            }
        }
    }
    let requested = requested.unwrap_or(size).min(size);
    Ok(Block { address, size, requested, state, stack })
}

fn pool_id(fields: Fields<'_, '_>, id: Id, path: &Path<'_>) -> Result<(i64, i64), SnapshotError> {
    let mut items = fields.list(id, path)?;
    match (items.next(), items.next()) {
        (Some(first), Some(second)) => Ok((fields.signed(first, path)?, fields.signed(second, path)?)),
        _ => Err(fields.kind(id, path, "two integers")),
    }
}

pub(super) fn index(len: usize, path: &Path<'_>) -> Result<u32, SnapshotError> {
    let limit = u64::from(u32::MAX);
    u32::try_from(len).map_err(|_| path.over(crate::files::pickle::OverBudget { limit }))
}
