//! The traces: the events of the allocator.

use super::decode::Reader;
use super::error::SnapshotError;
use super::fields::Field;
use super::segments::index;
use super::stacks::StackId;
use super::{Action, Event, Trace};

impl<'a> Reader<'a> {
    /// Appends the trace of one device, unless it is empty.
    pub(super) fn trace(&mut self, device: i64, field: Field<'_, 'a>) -> Result<(), SnapshotError> {
        let first = index(self.snapshot.events.len(), &field)?;
        for item in field.list()? {
            let event = self.event(item)?;
            self.budget.push(&mut self.snapshot.events, event).map_err(|source| item.over(source))?;
        }
        let events = (first, index(self.snapshot.events.len(), &field)?);
        if events.0 < events.1 {
            let trace = Trace { device, events };
            self.budget.push(&mut self.snapshot.traces, trace).map_err(|source| field.over(source))?;
        }
        Ok(())
    }

    fn event(&mut self, field: Field<'_, 'a>) -> Result<Event, SnapshotError> {
        let (mut action, mut address, mut size, mut time_us, mut frames) = (None, None, 0, None, None);
        for (key, value) in field.record()? {
            match key {
                b"action" => action = Some(named(value.text()?)),
                b"addr" | b"device_free" => address = Some(value.unsigned()?),
                b"size" => size = value.unsigned()?,
                b"time_us" => time_us = std::num::NonZeroU64::new(value.unsigned()?),
                b"frames" => frames = Some(value),
                _ => {}
            }
        }
        let action = action.ok_or_else(|| field.missing("action"))?;
        let address = match (address, action) {
            (Some(address), _) => address,
            (None, Action::Alloc | Action::FreeRequested | Action::FreeCompleted) => {
                return Err(field.missing("addr"));
            }
            (None, _) => 0,
        };
        // The stacks of frees are not used, and are half of all stacks.
        let stack = match (frames, action) {
            (Some(frames), Action::Alloc | Action::Oom) => self.stacks.stack(&frames, &mut self.budget)?,
            _ => StackId::UNKNOWN,
        };
        Ok(Event { action, address, size, time_us, stack })
    }
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
