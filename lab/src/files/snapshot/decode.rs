//! Decodes the bytes of a file to a [`Snapshot`].

use super::Snapshot;
use super::error::SnapshotError;
use super::fields::{Field, Path};
use super::settings::Settings;
use super::stacks::{Collector, Stacks};
use crate::files::pickle::{self, Budget, Limits, Value};

/// What was read so far.
pub(super) struct Reader<'a> {
    pub(super) snapshot: Snapshot<'a>,
    pub(super) stacks: Collector<'a>,
    pub(super) budget: Budget,
}

/// Reads a snapshot of any release.
///
/// # Errors
/// If the pickle is invalid, hostile or larger than `limits`, with the offset; if it is not a snapshot, with the
/// position in it.
pub fn decode<'a>(file: &'a [u8], limits: &Limits) -> Result<Snapshot<'a>, SnapshotError> {
    let mut budget = Budget::new(limits, file);
    let arena = pickle::read(file, limits, &mut budget)?;
    let root = Field { arena: &arena, id: arena.root(), path: Path::Root("snapshot") };
    let stacks = Collector::new(&root, &mut budget)?;
    let snapshot = Snapshot {
        segments: Vec::new(),
        blocks: Vec::new(),
        traces: Vec::new(),
        events: Vec::new(),
        settings: None,
        steps_us: Vec::new(),
        stacks: Stacks::none(),
        notes: Vec::new(),
        budget: Budget::new(limits, file),
    };
    let mut reader = Reader { snapshot, stacks, budget };
    let (mut list, mut traces, mut annotations) = (None, None, None);
    match arena.value(arena.root()) {
        // Before PyTorch 2.0, a snapshot was its segments.
        Value::List => list = Some(Field { path: Path::Root("segments"), ..root }),
        Value::Dict => {
            for (key, value) in root.record()? {
                match key {
                    b"segments" => list = Some(value),
                    b"device_traces" => traces = Some(value),
                    b"allocator_settings" => reader.snapshot.settings = Some(Settings::read(value)?),
                    b"external_annotations" => annotations = Some(value),
                    _ => {}
                }
            }
        }
        other => return Err(SnapshotError::NotSnapshot(format!("it holds {}", other.kind()))),
    }
    let list = list.ok_or_else(|| SnapshotError::NotSnapshot("it has no segments".to_owned()))?;
    for item in list.list()? {
        reader.segment(item)?;
    }
    if let Some(traces) = traces {
        for (device, item) in (0..).zip(traces.list()?) {
            reader.trace(device, item)?;
        }
    }
    if let Some(annotations) = annotations {
        for item in annotations.list()? {
            reader.annotation(item)?;
        }
    }
    let Reader { mut snapshot, stacks, mut budget } = reader;
    snapshot.stacks = stacks.finish(&mut budget);
    arena.release(&mut budget);
    snapshot.budget = budget;
    Ok(snapshot)
}

impl<'a> Reader<'a> {
    /// Adds the start of an optimizer step, which PyTorch annotates automatically.
    fn annotation(&mut self, field: Field<'_, 'a>) -> Result<(), SnapshotError> {
        let (mut starts, mut step, mut time_us) = (false, false, None);
        for (key, value) in field.record()? {
            match key {
                b"stage" => starts = value.text()? == b"START",
                b"name" => step = value.text()?.starts_with(b"Optimizer.step#"),
                b"time_us" => time_us = Some(value.unsigned()?),
                _ => {}
            }
        }
        match time_us.filter(|_| starts && step) {
            Some(time_us) => self.budget.push(&mut self.snapshot.steps_us, time_us),
            None => Ok(()),
        }
        .map_err(|source| field.over(source))
    }
}
