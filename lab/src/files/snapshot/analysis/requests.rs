//! Usability of the free memory for requests of the sizes that the job makes.
//!
//! The index is the kernel's unusable-free index (mm/vmstat.c,
//! `unusable_free_index`): the share of free memory in ranges too small for
//! the request. A request of up to 1 MiB is served from the small pool, a
//! larger one from the large pool (c10/core/AllocatorConfig.h, `kSmallSize`).

use super::totals::Survey;
use crate::files::snapshot::{Action, BlockState, SegmentKind, Snapshot};
use memwarden::model::units::Bytes;

/// The largest request that the small pool serves, and what sizes are rounded up to, in bytes.
const SMALL: u64 = 1 << 20;
const ROUND: u64 = 512;

/// One request size, and whether it can be served.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Request {
    /// Origin of the size.
    pub origin: Origin,
    /// The size, rounded up to 512 bytes as the allocator does.
    pub size_bytes: Bytes,
    /// Free memory of the pool that would serve it.
    pub free_bytes: Bytes,
    /// The share of it in ranges that are too small; absent where no memory is free.
    pub unusable_ratio: Option<f64>,
    /// Memory in ranges that are too small and cannot be released: lost to this request.
    pub lost_bytes: Bytes,
    /// The lost memory as a share of the reserved memory.
    pub lost_ratio: Option<f64>,
    /// Whether it can be served without memory from the driver.
    pub fits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Given on the command line.
    Given,
    /// The last failed request of the trace.
    Failed,
    /// The 99 % quantile of the large requests of the trace.
    TraceP99,
    /// The largest request of the trace.
    TraceMax,
    /// Without a trace: the 99 % quantile of the large live blocks.
    LiveP99,
    /// Without a trace: the largest live block.
    LiveMax,
}

pub(super) fn requests(snapshot: &Snapshot<'_>, survey: &Survey, given: Option<Bytes>) -> Vec<Request> {
    let traced = snapshot.events.iter().filter(|event| event.action == Action::Alloc);
    let mut sizes: Vec<u64> = traced.map(|event| event.size).filter(|size| *size > SMALL).collect();
    let (mut p99, mut max) = (Origin::TraceP99, Origin::TraceMax);
    if sizes.is_empty() {
        let live = snapshot.blocks.iter().filter(|block| block.state != BlockState::Free);
        sizes = live.map(|block| block.requested).filter(|size| *size > SMALL).collect();
        (p99, max) = (Origin::LiveP99, Origin::LiveMax);
    }
    let mut wanted = Vec::new();
    wanted.extend(given.map(|size| (Origin::Given, size.get())));
    let failed = snapshot.events.iter().rev().find(|event| event.action == Action::Oom);
    wanted.extend(failed.map(|event| (Origin::Failed, event.size)));
    if !sizes.is_empty() {
        let rank = (sizes.len() * 99).div_ceil(100) - 1;
        let (_, value, _) = sizes.select_nth_unstable(rank);
        wanted.push((p99, *value));
        wanted.extend(sizes.iter().max().map(|size| (max, *size)));
    }
    wanted.into_iter().map(|(origin, size)| judge(snapshot, survey, origin, size)).collect()
}

fn judge(snapshot: &Snapshot<'_>, survey: &Survey, origin: Origin, size: u64) -> Request {
    let size = size.max(1).checked_next_multiple_of(ROUND).unwrap_or(size);
    let pool = if size <= SMALL { SegmentKind::Small } else { SegmentKind::Large };
    let (mut free, mut unusable, mut lost, mut fits) = (0u64, 0u64, 0u64, false);
    for run in survey.runs.iter().filter(|run| snapshot.segments[run.segment as usize].kind == pool) {
        free = free.saturating_add(run.size);
        if run.size < size {
            unusable = unusable.saturating_add(run.size);
            lost = lost.saturating_add(run.size - run.releasable);
        } else {
            fits = true;
        }
    }
    let lost_bytes = Bytes::new(lost);
    let share = |part: u64, whole: Bytes| Bytes::new(part).share_of(whole).map(|share| share.get());
    Request {
        origin,
        size_bytes: Bytes::new(size),
        free_bytes: Bytes::new(free),
        unusable_ratio: share(unusable, Bytes::new(free)),
        lost_bytes,
        lost_ratio: share(lost, survey.totals.reserved_bytes),
        fits,
    }
}
