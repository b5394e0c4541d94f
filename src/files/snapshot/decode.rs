//! Decodes the bytes of a file to a [`Snapshot`].

use super::error::{Path, SnapshotError};
use super::fields::Fields;
use super::settings::Settings;
use super::stacks::{Collector, Stacks};
use super::{Snapshot, events, segments};
use crate::files::pickle::{self, Budget, Id, Limits, Value};

/// Reads a snapshot of any release.
///
/// # Errors
/// If the pickle is invalid, hostile or larger than `limits`, with the offset; if it is not a snapshot, with the
/// position in it.
pub fn decode<'a>(file: &'a [u8], limits: &Limits) -> Result<Snapshot<'a>, SnapshotError> {
    let mut budget = Budget::new(limits, file);
    let arena = pickle::read(file, limits, &mut budget)?;
    let fields = Fields(&arena);
    let root = Path::Root("snapshot");
    let mut stacks = Collector::new(&arena, &mut budget, &root)?;
    let mut snapshot = Snapshot {
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
    let (mut list, mut traces, mut annotations) = (None, None, None);
    match arena.value(arena.root()) {
        // Before PyTorch 2.0, a snapshot was its segments.
        Value::List => list = Some(arena.root()),
        Value::Dict => {
            for (key, value) in fields.record(arena.root(), &root)? {
                match key {
                    b"segments" => list = Some(value),
                    b"device_traces" => traces = Some(value),
                    b"allocator_settings" => {
                        let path = Path::Root("allocator_settings");
                        snapshot.settings = Some(Settings::read(fields, value, &path)?);
                    }
                    b"external_annotations" => annotations = Some(value),
                    _ => {}
                }
            }
        }
        other => return Err(SnapshotError::NotSnapshot(format!("it holds {}", other.kind()))),
    }
    let list = list.ok_or_else(|| SnapshotError::NotSnapshot("it has no segments".to_owned()))?;
    let path = Path::Root("segments");
    for (number, item) in fields.list(list, &path)?.enumerate() {
        let path = Path::Item(&path, number);
        segments::segment(fields, item, &path, &mut snapshot, &mut stacks, &mut budget)?;
    }
    if let Some(traces) = traces {
        let path = Path::Root("device_traces");
        for (device, item) in fields.list(traces, &path)?.enumerate() {
            let path = Path::Item(&path, device);
            events::trace(fields, (device, item), &path, &mut snapshot, &mut stacks, &mut budget)?;
        }
    }
    if let Some(annotations) = annotations {
        steps(fields, annotations, &mut snapshot, &mut budget)?;
    }
    snapshot.stacks = stacks.finish(&mut budget);
    arena.release(&mut budget);
    snapshot.budget = budget;
    Ok(snapshot)
}

/// The starts of optimizer steps, which PyTorch annotates automatically.
fn steps(
    fields: Fields<'_, '_>,
    list: Id,
    snapshot: &mut Snapshot<'_>,
    budget: &mut Budget,
) -> Result<(), SnapshotError> {
    let path = Path::Root("external_annotations");
    for (number, item) in fields.list(list, &path)?.enumerate() {
        let path = Path::Item(&path, number);
        let (mut starts, mut step, mut time_us) = (false, false, None);
        for (key, value) in fields.record(item, &path)? {
            match key {
                b"stage" => starts = fields.text(value, &Path::Key(&path, "stage"))? == b"START",
                b"name" => {
                    step = fields.text(value, &Path::Key(&path, "name"))?.starts_with(b"Optimizer.step#");
                }
                b"time_us" => time_us = Some(fields.unsigned(value, &Path::Key(&path, "time_us"))?),
                _ => {}
            }
        }
        if let Some(time_us) = time_us.filter(|_| starts && step) {
            budget.push(&mut snapshot.steps_us, time_us).map_err(|source| path.over(source))?;
        }
    }
    Ok(())
}
