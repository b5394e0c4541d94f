//! Segments and their blocks.

use super::decode::Reader;
use super::error::SnapshotError;
use super::fields::Field;
use super::stacks::StackId;
use super::{Block, BlockState, Segment, SegmentKind};
use crate::files::pickle::OverBudget;

impl<'a> Reader<'a> {
    /// Appends one segment and its blocks.
    pub(super) fn segment(&mut self, field: Field<'_, 'a>) -> Result<(), SnapshotError> {
        let (mut device, mut stream, mut pool, mut expandable) = (0, 0, (0, 0), false);
        let (mut address, mut size, mut kind, mut list) = (None, None, None, None);
        for (key, value) in field.record()? {
            match key {
                b"device" => device = value.signed()?,
                b"address" => address = Some(value.unsigned()?),
                b"total_size" => size = Some(value.unsigned()?),
                b"stream" => stream = value.signed()?,
                b"segment_type" => {
                    kind = match value.text()? {
                        b"small" => Some(SegmentKind::Small),
                        b"large" => Some(SegmentKind::Large),
                        _ => return Err(value.wrong("small or large")),
                    };
                }
                b"segment_pool_id" => pool = pool_id(&value)?,
                b"is_expandable" => expandable = value.boolean()?,
                b"blocks" => list = Some(value),
                _ => {}
            }
        }
        let size = size.ok_or_else(|| field.missing("total_size"))?;
        let list = list.ok_or_else(|| field.missing("blocks"))?;
        let first = index(self.snapshot.blocks.len(), &list)?;
        let (mut next, mut sum) = (address.unwrap_or(0), 0u64);
        for item in list.list()? {
            let block = self.block(item, next)?;
            if address.is_some() && block.address != next {
                let note = || format!("{}: does not start where the block before it ends", item.path);
                self.snapshot.note(note);
            }
            next = block.address.saturating_add(block.size);
            sum = sum.saturating_add(block.size);
            self.budget.push(&mut self.snapshot.blocks, block).map_err(|source| item.over(source))?;
        }
        if sum != size {
            self.snapshot.note(|| format!("{}: its blocks have {sum} bytes, and it has {size}", field.path));
        }
        // Releases before 1.6 write no type; only a small segment has exactly 2 MiB.
        let kind = kind.unwrap_or(if size <= 2 << 20 { SegmentKind::Small } else { SegmentKind::Large });
        let blocks = (first, index(self.snapshot.blocks.len(), &list)?);
        let segment = Segment { device, address, size, stream, kind, pool, expandable, blocks };
        self.budget.push(&mut self.snapshot.segments, segment).map_err(|source| field.over(source))
    }

    /// One block; `next` is its address where the release writes none.
    fn block(&mut self, field: Field<'_, 'a>, next: u64) -> Result<Block, SnapshotError> {
        let (mut address, mut size, mut requested, mut state) = (next, None, None, None);
        let (mut frames, mut history) = (None, None);
        for (key, value) in field.record()? {
            match key {
                b"address" => address = value.unsigned()?,
                b"size" => size = Some(value.unsigned()?),
                b"requested_size" => requested = Some(value.unsigned()?),
                b"state" => {
                    state = Some(match value.text()? {
                        b"active_allocated" => BlockState::Allocated,
                        // PyTorch's documentation uses the second spelling, its code the first.
                        b"active_pending_free" | b"active_awaiting_free" => BlockState::PendingFree,
                        b"inactive" => BlockState::Free,
                        _ => return Err(value.wrong("a block's state")),
                    });
                }
                b"frames" => frames = Some(value),
                b"history" => history = Some(value),
                _ => {}
            }
        }
        let size = size.ok_or_else(|| field.missing("size"))?;
        let state = state.ok_or_else(|| field.missing("state"))?;
        if state == BlockState::Free {
            return Ok(Block { address, size, requested: 0, state, stack: StackId::UNKNOWN });
        }
        let mut stack = StackId::UNKNOWN;
        if let Some(frames) = frames {
            stack = self.stacks.stack(&frames, &mut self.budget)?;
        } else if let Some(history) = history {
            // PyTorch 2.0 and older: the owners of the block, the current one first.
            if let Some(owner) = history.list()?.next() {
                for (key, value) in owner.record()? {
                    match key {
                        b"real_size" => requested = Some(value.unsigned()?),
                        b"frames" => stack = self.stacks.stack(&value, &mut self.budget)?,
                        _ => {}
                    }
                }
            }
        }
        let requested = requested.unwrap_or(size).min(size);
        Ok(Block { address, size, requested, state, stack })
    }
}

fn pool_id(field: &Field<'_, '_>) -> Result<(i64, i64), SnapshotError> {
    let mut items = field.list()?;
    match (items.next(), items.next()) {
        (Some(first), Some(second)) => Ok((first.signed()?, second.signed()?)),
        _ => Err(field.wrong("two integers")),
    }
}

pub(super) fn index(len: usize, field: &Field<'_, '_>) -> Result<u32, SnapshotError> {
    let limit = u64::from(u32::MAX);
    u32::try_from(len).map_err(|_| field.over(OverBudget { limit }))
}
