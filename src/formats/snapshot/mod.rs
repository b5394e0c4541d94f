//! PyTorch allocator snapshots, of every release that writes them.
//!
//! [`decode()`] goes by what a file has, never by a version: a field that a
//! release did not write yet is absent, not zero. [`analysis::analyze`] says what the
//! snapshot means. Formats: torch/csrc/cuda/Module.cpp (`memorySnapshot`) and
//! torch/csrc/cuda/memory_snapshot.cpp.

pub mod analysis;
mod decode;
pub mod digest;
mod error;
mod events;
mod fields;
mod segments;
mod settings;
mod stacks;
#[cfg(test)]
mod tests;

pub use decode::decode;
pub use error::SnapshotError;
pub use settings::Settings;
pub use stacks::{Frame, StackId, Stacks};

use super::pickle::Budget;

/// An allocator's state, and what led to it.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// What the allocator holds from the driver, in the order of the file.
    pub segments: Vec<Segment>,
    /// The blocks of all segments; [`Segment::blocks`] says whose.
    pub blocks: Vec<Block>,
    /// The traces, one for each device that has one.
    pub traces: Vec<Trace>,
    /// The events of all traces; [`Trace::events`] says whose.
    pub events: Vec<Event>,
    /// The allocator's settings, where the release writes them.
    pub settings: Option<Settings<'a>>,
    /// When each optimizer step began, in microseconds of the trace's clock.
    pub steps_us: Vec<u64>,
    /// The call stacks that blocks and events name.
    pub stacks: Stacks<'a>,
    /// What about the file is odd, for people; at most [`Snapshot::NOTES`].
    pub notes: Vec<String>,
    /// What is held, and what may still be taken to analyze it.
    pub(super) budget: Budget,
}

impl Snapshot<'_> {
    /// So many notes are kept.
    pub const NOTES: usize = 20;

    /// The most memory that reading took at once, the file included, in bytes.
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

/// A range of memory held from the driver. For expandable segments, each mapped range.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// The device's index.
    pub device: i64,
    /// Where it starts; nothing where the release does not say.
    pub address: Option<u64>,
    /// Its size, in bytes.
    pub size: u64,
    /// The stream it belongs to, as the driver's handle; 0 is the default stream.
    pub stream: i64,
    /// Which of the allocator's two pools it is of.
    pub kind: Kind,
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
pub enum Kind {
    /// For requests below 1 MiB.
    Small,
    /// For requests of 1 MiB and more.
    Large,
}

/// A piece of a segment. Blocks follow each other without holes.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Where it starts: as said, or as the blocks before it add up to.
    pub address: u64,
    /// Its size after rounding, in bytes.
    pub size: u64,
    /// What was asked for, in bytes; the size itself where the release does not say. 0 for free blocks.
    pub requested: u64,
    /// What it is used for.
    pub state: State,
    /// Who asked for it.
    pub stack: StackId,
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The job has it.
    Allocated,
    /// The job gave it back, and another stream may still use it.
    PendingFree,
    /// Free.
    Free,
}

/// What happened on one device, as far as the ring buffer goes back.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// The device's index.
    pub device: i64,
    /// First event, and the one after the last, in [`Snapshot::events`].
    pub events: (u32, u32),
}

/// One thing that the allocator did.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What it did.
    pub action: Action,
    /// The block or segment; for [`Action::Oom`] the bytes that the device had free.
    pub address: u64,
    /// The bytes asked for, or the size of the segment.
    pub size: u64,
    /// When, in microseconds of the job's clock; nothing before PyTorch 2.1.
    pub time_us: Option<std::num::NonZeroU64>,
    /// Who caused it; known for allocations and failures.
    pub stack: StackId,
}

/// What the allocator did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Gave a block to the job.
    Alloc,
    /// Got a block back, which another stream may still use.
    FreeRequested,
    /// Can use the block again.
    FreeCompleted,
    /// Took memory from the driver.
    SegmentAlloc,
    /// Gave memory back to the driver.
    SegmentFree,
    /// Grew an expandable segment.
    SegmentMap,
    /// Shrank an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// Could not do what was asked.
    Oom,
    /// Something that a later release writes.
    Other,
}
