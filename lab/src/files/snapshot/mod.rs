//! PyTorch allocator snapshots, of every release that writes them.
//!
//! [`decode()`] depends on the content of a file, never on a version: a field that a release does not write is
//! absent, not zero. [`analysis::analyze`] evaluates a snapshot. Formats: torch/csrc/cuda/Module.cpp
//! (`memorySnapshot`) and torch/csrc/cuda/memory_snapshot.cpp.

pub mod analysis;
mod decode;
mod digest;
mod error;
mod events;
mod fields;
mod segments;
mod settings;
mod stacks;
#[cfg(test)]
mod tests;

pub use decode::decode;
pub use digest::digest;
pub use error::SnapshotError;
pub use settings::Settings;
pub use stacks::{Frame, StackId, Stacks};

use super::pickle::Budget;

/// The state of an allocator, and its trace.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The reserved segments, in the order of the file.
    pub segments: Vec<Segment>,
    /// The blocks of all segments; see [`Segment::blocks`].
    pub blocks: Vec<Block>,
    /// The traces, one for each device that has one.
    pub traces: Vec<Trace>,
    /// The events of all traces; see [`Trace::events`].
    pub events: Vec<Event>,
    /// The allocator's settings, where the release writes them.
    pub settings: Option<Settings<'a>>,
    /// Start of each optimizer step, in microseconds of the trace's clock.
    pub steps_us: Vec<u64>,
    /// The call stacks of blocks and events.
    pub stacks: Stacks<'a>,
    /// Anomalies of the file, as text; at most [`Snapshot::NOTES`].
    pub notes: Vec<String>,
    /// Memory in use, and the limit that also applies to the analysis.
    pub(super) budget: Budget,
}

impl Snapshot<'_> {
    pub const NOTES: usize = 20;

    /// Peak memory use of reading, including the file, in bytes.
    pub const fn memory_bytes(&self) -> u64 {
        self.budget.most()
    }

    /// The blocks of a segment, by address.
    pub fn blocks(&self, segment: &Segment) -> &[Block] {
        &self.blocks[segment.blocks.0 as usize..segment.blocks.1 as usize]
    }

    /// The events of a trace, oldest first.
    pub fn events(&self, trace: &Trace) -> &[Event] {
        &self.events[trace.events.0 as usize..trace.events.1 as usize]
    }

    fn note(&mut self, note: impl FnOnce() -> String) {
        if self.notes.len() < Self::NOTES {
            self.notes.push(note());
        }
    }
}

/// A range of reserved memory. For expandable segments, each mapped range.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The device's index.
    pub device: i64,
    /// Its address; absent where the release does not write it.
    pub address: Option<u64>,
    /// Its size, in bytes.
    pub size: u64,
    /// The stream it belongs to, as the driver's handle; 0 is the default stream.
    pub stream: i64,
    /// Its pool.
    pub kind: SegmentKind,
    /// The private pool, as CUDA graphs have; (0, 0) is the default pool.
    pub pool: (i64, i64),
    /// Whether it can grow and shrink in place.
    pub expandable: bool,
    /// First block, and the one after the last, in [`Snapshot::blocks`].
    pub blocks: (u32, u32),
}

/// One of the allocator's two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentKind {
    /// The small pool, for requests below 1 MiB.
    Small,
    /// The large pool, for requests of 1 MiB and more.
    Large,
}

/// A block of a segment. Blocks are contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Its address: as in the file, or computed from the blocks before it.
    pub address: u64,
    /// Its size after rounding, in bytes.
    pub size: u64,
    /// The requested size, in bytes; equal to the size where the release does not write it. 0 for free blocks.
    pub requested: u64,
    pub state: BlockState,
    /// The stack that allocated it.
    pub stack: StackId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockState {
    /// Allocated by the job.
    Allocated,
    /// Freed by the job, and possibly still in use by another stream.
    PendingFree,
    Free,
}

/// The events of one device in the ring buffer.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// The device's index.
    pub device: i64,
    /// First event, and the one after the last, in [`Snapshot::events`].
    pub events: (u32, u32),
}

#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub action: Action,
    /// The address of the block or segment; for [`Action::Oom`] the free bytes of the device.
    pub address: u64,
    /// The requested size, or the size of the segment.
    pub size: u64,
    /// Time in microseconds of the job's clock; absent before PyTorch 2.1.
    pub time_us: Option<std::num::NonZeroU64>,
    /// The stack that caused it; known for allocations and failures.
    pub stack: StackId,
}

impl Event {
    /// By how much it changed the reserved memory, in bytes.
    fn reserved(&self) -> i128 {
        match self.action {
            Action::SegmentAlloc | Action::SegmentMap => i128::from(self.size),
            Action::SegmentFree | Action::SegmentUnmap => -i128::from(self.size),
            _ => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A block was allocated.
    Alloc,
    /// A block was freed, and may still be in use by another stream.
    FreeRequested,
    /// The block can be reused.
    FreeCompleted,
    /// Memory was taken from the driver.
    SegmentAlloc,
    /// Memory was released to the driver.
    SegmentFree,
    /// An expandable segment was extended.
    SegmentMap,
    /// An expandable segment was reduced.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// An allocation failed.
    Oom,
    /// An action of a later release.
    Other,
}
