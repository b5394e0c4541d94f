//! Cgroups up to their `memory.high`, and whether the kernel throttles them there.
//!
//! Above `memory.high` the kernel reclaims, and lets each task sleep before it returns to its program
//! (`mem_cgroup_handle_over_high` in mm/memcontrol.c): a group whose memory cannot be reclaimed waits for ever and is not killed.
//! A group that is at it with page cache is healthy, so that only memory that cannot be reclaimed counts.

use std::collections::BTreeMap;

use forecast::tracker::Sample;

use super::resources::Resource;
use crate::model::analyzer::View;
use crate::model::finding::Subject;
use crate::model::ids::within;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::sources::{cgroup::metrics as m, memory};

/// Share of the last 10 seconds in which all tasks of a group waited for memory, from which it does not advance: 0.86 or more of one
/// that was throttled, and less than 0.1 of one that reclaimed page cache (docs/measurements/pressure.md).
const STALLED: f64 = 0.5;

/// Seconds for which a `high` event counts: a task sleeps for at most 2 s at each (`MEMCG_MAX_HIGH_DELAY_JIFFIES`).
const LATELY: f64 = 10.0;

/// The `high` events of each cgroup that has a `memory.high`.
#[derive(Debug, Default)]
pub(super) struct Throttling(BTreeMap<Label, Events>);

#[derive(Debug)]
struct Events {
    count: f64,
    /// When the count rose last, in seconds on the monotonic clock.
    rose: Option<f64>,
    is_stalled: bool,
}

impl Throttling {
    /// Takes the events and the pressure of a tick.
    pub(super) fn update(&mut self, view: &View<'_>, now: Timestamp) {
        let at = now.monotonic().as_secs_f64();
        let mut before = std::mem::take(&mut self.0);
        for (path, _) in view.by_label(&m::HIGH, 0) {
            let Some(count) = view.value(&m::EVENTS, &[path.clone(), "high".into()]) else { continue };
            let known = before.remove(path);
            let has_risen = known.as_ref().is_some_and(|known| count > known.count);
            let rose = if has_risen { Some(at) } else { known.and_then(|known| known.rose) };
            let waits = view.value(&m::PRESSURE, &[path.clone(), "full".into()]);
            let is_stalled =
                rose.is_some_and(|rose| at - rose <= LATELY) && waits.is_some_and(|share| share >= STALLED);
            self.0.insert(path.clone(), Events { count, rose, is_stalled });
        }
    }

    /// Each cgroup with a `memory.high` below its `memory.max`: what cannot be reclaimed, against it and the swap that the group may
    /// still take.
    pub(super) fn resources(&self, view: &View<'_>) -> Vec<Resource> {
        let highs = view.by_label(&m::HIGH, 0);
        if highs.is_empty() {
            return Vec::new();
        }
        let [held, anon, shmem, kernel, slab] =
            [&m::HELD, &m::ANON, &m::SHMEM, &m::KERNEL, &m::SLAB].map(|metric| view.by_label(metric, 0));
        let (swap, swap_limits) = (view.by_label(&m::SWAP_USAGE, 0), view.by_label(&m::SWAP_LIMIT, 0));
        let limits = view.by_label(&m::LIMIT, 0);
        let free_swap = view.value(&memory::metrics::SWAP_FREE, &[]).unwrap_or(0.0);
        let resource = |(path, high): (&Label, f64)| {
            if high <= 0.0 || limits.get(path).is_some_and(|limit| *limit <= high) {
                return None;
            }
            let of_kernel =
                kernel.get(path).zip(slab.get(path)).map_or(0.0, |(kernel, slab)| (kernel - slab).max(0.0));
            let counted = anon.get(path).zip(shmem.get(path)).map(|(anon, shmem)| anon + shmem + of_kernel);
            let used = held.get(path).copied().or(counted)?;
            let above = swap_limits.iter().filter(|(top, _)| within(path.as_str(), top.as_str()));
            let may_swap = above.map(|(top, limit)| (limit - swap.get(top).unwrap_or(&0.0)).max(0.0));
            let limit = high + may_swap.fold(free_swap, f64::min);
            let sample = Sample { used, unreclaimable: Some(used), allocated: None, peak: None };
            let is_stalled = self.0.get(path).is_some_and(|events| events.is_stalled);
            Some(Resource { is_stalled, ..Resource::new(Subject::memory_high(path), sample, limit) })
        };
        highs.into_iter().filter_map(resource).collect()
    }
}
