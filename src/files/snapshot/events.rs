//! The traces: the events of the allocator.

use super::error::{Path, SnapshotError};
use super::fields::Fields;
use super::segments::index;
use super::stacks::{Collector, StackId};
use super::{Action, Event, Snapshot, Trace};
use crate::files::pickle::{Budget, Id};

/// Appends the trace of one device, unless it is empty.
pub(super) fn trace<'a>(
    fields: Fields<'_, 'a>,
    (device, id): (usize, Id),
    path: &Path<'_>,
    snapshot: &mut Snapshot<'a>,
    stacks: &mut Collector<'a>,
    budget: &mut Budget,
) -> Result<(), SnapshotError> {
    let first = index(snapshot.events.len(), path)?;
    for (number, item) in fields.list(id, path)?.enumerate() {
        let path = Path::Item(path, number);
        let event = event(fields, item, &path, stacks, budget)?;
        budget.push(&mut snapshot.events, event).map_err(|source| path.over(source))?;
    }
    let events = (first, index(snapshot.events.len(), path)?);
    if events.0 < events.1 {
        let device = i64::try_from(device).unwrap_or(i64::MAX);
        budget.push(&mut snapshot.traces, Trace { device, events }).map_err(|source| path.over(source))?;
    }
    Ok(())
}

fn event<'a>(
    fields: Fields<'_, 'a>,
    id: Id,
    path: &Path<'_>,
    stacks: &mut Collector<'a>,
    budget: &mut Budget,
) -> Result<Event, SnapshotError> {
    let (mut action, mut address, mut size, mut time_us, mut frames) = (None, None, 0, None, None);
    for (key, value) in fields.record(id, path)? {
        match key {
            b"action" => action = Some(named(fields.text(value, &Path::Key(path, "action"))?)),
            b"addr" => address = Some(fields.unsigned(value, &Path::Key(path, "addr"))?),
            b"device_free" => address = Some(fields.unsigned(value, &Path::Key(path, "device_free"))?),
            b"size" => size = fields.unsigned(value, &Path::Key(path, "size"))?,
            b"time_us" => {
                let time = fields.unsigned(value, &Path::Key(path, "time_us"))?;
                time_us = std::num::NonZeroU64::new(time);
            }
            b"frames" => frames = Some(value),
            _ => {}
        }
    }
    let missing = |key| SnapshotError::Missing(Path::Key(path, key).to_string());
    let action = action.ok_or_else(|| missing("action"))?;
    let address = match (address, action) {
        (Some(address), _) => address,
        (None, Action::Alloc | Action::FreeRequested | Action::FreeCompleted) => return Err(missing("addr")),
        (None, _) => 0,
    };
    // The stacks of frees are not used, and are half of all stacks.
    let stack = match (frames, action) {
        (Some(frames), Action::Alloc | Action::Oom) => {
            stacks.stack(fields, frames, budget, &Path::Key(path, "frames"))?
        }
        _ => StackId::UNKNOWN,
    };
    Ok(Event { action, address, size, time_us, stack })
}

fn named(action: &[u8]) -> Action {
    match action {
        b"alloc" => Action::Alloc,
        b"free_requested" => Action::FreeRequested,
        b"free_completed" | b"free" => Action::FreeCompleted,
        b"segment_alloc" => Action::SegmentAlloc,
        b"segment_free" => Action::SegmentFree,
        b"segment_map" => Action::SegmentMap,
        b"segment_unmap" => Action::SegmentUnmap,
        b"snapshot" => Action::Snapshot,
        b"oom" => Action::Oom,
        _ => Action::Other,
    }
}
