//! Converts a reading to points.

use super::bounds::Bounds;
use super::metrics as m;
use super::parse::EVENTS;
use super::reading::Reading;
use crate::host::pressure::Stall;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::units::{Bytes, Count};

/// Labels that are the same at every tick.
#[derive(Debug)]
pub struct RepeatedLabels {
    events: [Label; EVENTS.len()],
    some: Label,
    full: Label,
}

impl Default for RepeatedLabels {
    fn default() -> Self {
        Self { events: EVENTS.map(Label::from), some: "some".into(), full: "full".into() }
    }
}

pub fn put(out: &mut Batch, repeated: &RepeatedLabels, label: &Label, reading: &Reading, bounds: &Bounds) {
    let cgroup = std::slice::from_ref(label);
    let stat = &reading.stat;
    let bounds = if reading.never_swaps { bounds.without_swap() } else { *bounds };
    for (metric, value) in [
        (&m::USAGE, reading.usage),
        (&m::WORKING_SET, reading.working_set()),
        (&m::HELD, reading.held()),
        (&m::PEAK, reading.peak),
        (&m::ANON, stat.anon),
        (&m::FILE, stat.file),
        (&m::SHMEM, stat.shmem),
        (&m::KERNEL, reading.kernel),
        (&m::SLAB, stat.slab),
        (&m::SWAP_USAGE, reading.swap_usage),
        (&m::LIMIT, reading.limit.bytes()),
        (&m::HIGH, reading.high),
        (&m::SWAP_LIMIT, reading.swap_limit),
        (&m::BOTH_LIMIT, reading.both_limit.bytes()),
        (&m::EFFECTIVE_LIMIT, bounds.limit.bytes()),
        (&m::HEADROOM, bounds.headroom.bytes()),
    ] {
        out.put_some(metric, cgroup, value);
    }
    let swaps = bounds.headroom.bytes().is_some() && bounds.swap.limit > Bytes::ZERO;
    out.put_some(&m::SWAP_HEADROOM, cgroup, swaps.then_some(bounds.swap.left));
    out.put_some(&m::TASKS, cgroup, reading.tasks.map(Count));
    for (event, count) in repeated.events.iter().zip(reading.events) {
        if let Some(count) = count {
            out.put(&m::EVENTS, &[label.clone(), event.clone()], Count(count));
        }
    }
    put_stall(out, label, &repeated.some, reading.pressure.some);
    put_stall(out, label, &repeated.full, reading.pressure.full);
}

/// Puts the device memory of a cgroup, and the size of the regions where it is the root.
pub fn put_devices(
    out: &mut Batch,
    cgroup: &Label,
    [usage, limit, low, capacity]: &[Vec<(Label, Bytes)>; 4],
) {
    for (metric, amounts) in [(&m::DEVICE_USAGE, usage), (&m::DEVICE_LIMIT, limit), (&m::DEVICE_LOW, low)] {
        for (region, amount) in amounts {
            out.put(metric, &[cgroup.clone(), region.clone()], *amount);
        }
    }
    for (region, amount) in capacity {
        out.put(&m::DEVICE_CAPACITY, std::slice::from_ref(region), *amount);
    }
}

fn put_stall(out: &mut Batch, cgroup: &Label, kind: &Label, stall: Option<Stall>) {
    if let Some(stall) = stall {
        let labels = [cgroup.clone(), kind.clone()];
        out.put(&m::PRESSURE, &labels, stall.shares[0]);
        out.put(&m::STALLED, &labels, stall.total);
    }
}
