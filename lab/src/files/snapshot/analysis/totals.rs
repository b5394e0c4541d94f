//! Totals of segments, by segment and by group.

use crate::files::snapshot::{BlockState, Segment, SegmentKind, Snapshot};
use memwarden::model::units::Bytes;

/// Totals of some segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    pub segments: u64,
    /// Number of active blocks: allocated, or waiting for another stream.
    pub active_blocks: u64,
    pub free_blocks: u64,
    pub reserved_bytes: Bytes,
    /// Allocated memory, after rounding.
    pub allocated_bytes: Bytes,
    /// Active memory: allocated, or freed and still in use by another stream.
    pub active_bytes: Bytes,
    /// Requested part of the active memory.
    pub requested_bytes: Bytes,
    /// Lost to rounding: active minus requested.
    pub internal_bytes: Bytes,
    pub free_bytes: Bytes,
    /// Free memory in segments without an active block.
    pub whole_free_bytes: Bytes,
    /// Free memory in segments with an active block (inactive split).
    pub inactive_split_bytes: Bytes,
    /// Memory that the allocator releases to the driver before an allocation fails: segments without an active block,
    /// and the free pages of expandable ones.
    pub releasable_bytes: Bytes,
    /// Free and not releasable: external fragmentation.
    pub unreleasable_bytes: Bytes,
    pub largest_free_bytes: Bytes,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.segments += other.segments;
        self.active_blocks += other.active_blocks;
        self.free_blocks += other.free_blocks;
        for (to, from) in [
            (&mut self.reserved_bytes, other.reserved_bytes),
            (&mut self.allocated_bytes, other.allocated_bytes),
            (&mut self.active_bytes, other.active_bytes),
            (&mut self.requested_bytes, other.requested_bytes),
            (&mut self.internal_bytes, other.internal_bytes),
            (&mut self.free_bytes, other.free_bytes),
            (&mut self.whole_free_bytes, other.whole_free_bytes),
            (&mut self.inactive_split_bytes, other.inactive_split_bytes),
            (&mut self.releasable_bytes, other.releasable_bytes),
            (&mut self.unreleasable_bytes, other.unreleasable_bytes),
        ] {
            *to = to.saturating_add(from);
        }
        self.largest_free_bytes = self.largest_free_bytes.max(other.largest_free_bytes);
    }
}

/// A group of segments and its totals.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Group {
    /// The device's index.
    pub device: i64,
    /// The stream's handle, in a list by stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<i64>,
    /// The pool, in a list by pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<SegmentKind>,
    /// The private pool, in a list by pool; (0, 0) is the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_pool: Option<(i64, i64)>,
    #[serde(flatten)]
    pub totals: Totals,
}

type Key = (i64, Option<i64>, Option<SegmentKind>, Option<(i64, i64)>);

impl Group {
    pub(super) fn device(segment: &SegmentReport) -> Key {
        (segment.device, None, None, None)
    }

    pub(super) fn stream(segment: &SegmentReport) -> Key {
        (segment.device, Some(segment.stream), None, None)
    }

    pub(super) fn pool(segment: &SegmentReport) -> Key {
        (segment.device, None, Some(segment.pool), Some(segment.private_pool))
    }
}

#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct SegmentReport {
    /// Its address; absent where the release does not write it.
    pub address: Option<u64>,
    /// The device's index.
    pub device: i64,
    /// The stream's handle.
    pub stream: i64,
    pub pool: SegmentKind,
    /// The private pool; (0, 0) is the default one.
    pub private_pool: (i64, i64),
    /// Whether it can grow and shrink in place.
    pub expandable: bool,
    #[serde(flatten)]
    pub totals: Totals,
}

/// Consecutive free blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) segment: u32,
    /// The first block, and the one after the last, in [`Snapshot::blocks`].
    pub(super) blocks: (u32, u32),
    pub(super) size: u64,
    /// The part of it that can be released to the driver.
    pub(super) releasable: u64,
}

/// The result of one pass over the blocks.
#[derive(Debug)]
pub(super) struct Survey {
    pub(super) totals: Totals,
    pub(super) segments: Vec<SegmentReport>,
    pub(super) runs: Vec<Run>,
}

pub(super) fn survey(snapshot: &Snapshot<'_>) -> Survey {
    let mut survey = Survey {
        totals: Totals::default(),
        segments: Vec::with_capacity(snapshot.segments.len()),
        runs: Vec::new(),
    };
    for (number, segment) in (0..).zip(&snapshot.segments) {
        let totals = one(snapshot, number, segment, &mut survey.runs);
        survey.totals.add(&totals);
        survey.segments.push(SegmentReport {
            address: segment.address,
            device: segment.device,
            stream: segment.stream,
            pool: segment.kind,
            private_pool: segment.pool,
            expandable: segment.expandable,
            totals,
        });
    }
    survey
}

fn one(snapshot: &Snapshot<'_>, number: u32, segment: &Segment, runs: &mut Vec<Run>) -> Totals {
    let first = runs.len();
    let mut totals = Totals { segments: 1, reserved_bytes: Bytes::new(segment.size), ..Totals::default() };
    for (place, block) in (segment.blocks.0..).zip(snapshot.blocks(segment)) {
        let size = Bytes::new(block.size);
        if block.state == BlockState::Free {
            totals.free_blocks += 1;
            totals.free_bytes = totals.free_bytes.saturating_add(size);
            match runs.last_mut().filter(|run| run.segment == number && run.blocks.1 == place) {
                Some(run) => {
                    run.blocks.1 = place + 1;
                    run.size = run.size.saturating_add(block.size);
                }
                None => runs.push(Run {
                    segment: number,
                    blocks: (place, place + 1),
                    size: block.size,
                    releasable: 0,
                }),
            }
            continue;
        }
        totals.active_blocks += 1;
        totals.active_bytes = totals.active_bytes.saturating_add(size);
        totals.requested_bytes = totals.requested_bytes.saturating_add(Bytes::new(block.requested));
        if block.state == BlockState::Allocated {
            totals.allocated_bytes = totals.allocated_bytes.saturating_add(size);
        }
    }
    for run in &mut runs[first..] {
        run.releasable = if totals.active_blocks == 0 {
            run.size
        } else if segment.expandable {
            let start = snapshot.blocks[run.blocks.0 as usize].address;
            pages(segment, start.saturating_sub(segment.address.unwrap_or(0)), run.size)
        } else {
            0
        };
        totals.releasable_bytes = totals.releasable_bytes.saturating_add(Bytes::new(run.releasable));
        totals.largest_free_bytes = totals.largest_free_bytes.max(Bytes::new(run.size));
    }
    let free = totals.free_bytes;
    if totals.active_blocks == 0 {
        totals.whole_free_bytes = free;
    } else {
        totals.inactive_split_bytes = free;
    }
    totals.unreleasable_bytes = free.saturating_sub(totals.releasable_bytes);
    totals.internal_bytes = totals.active_bytes.saturating_sub(totals.requested_bytes);
    totals
}

/// The whole pages inside a free range of an expandable segment, which the allocator can unmap: pages are
/// `kSmallBuffer` or `kLargeBuffer` long (c10/core/AllocatorConfig.h), and a mapped range starts with one.
fn pages(segment: &Segment, start: u64, size: u64) -> u64 {
    let page = match segment.kind {
        SegmentKind::Small => 2 << 20,
        SegmentKind::Large => 20 << 20,
    };
    let end = start.saturating_add(size) / page * page;
    end.saturating_sub(start.div_ceil(page).saturating_mul(page))
}

impl Survey {
    /// Totals of the segments with equal keys, in the order of the keys.
    pub(super) fn groups(&self, key: impl Fn(&SegmentReport) -> Key) -> Vec<Group> {
        let mut groups = std::collections::BTreeMap::<Key, Totals>::new();
        for segment in &self.segments {
            groups.entry(key(segment)).or_default().add(&segment.totals);
        }
        let group = |((device, stream, pool, private_pool), totals)| Group {
            device,
            stream,
            pool,
            private_pool,
            totals,
        };
        groups.into_iter().map(group).collect()
    }

    pub(super) fn reserved(&self, device: i64) -> Bytes {
        self.segments
            .iter()
            .filter(|segment| segment.device == device)
            .map(|segment| segment.totals.reserved_bytes)
            .sum()
    }
}
