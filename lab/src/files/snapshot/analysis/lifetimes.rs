//! Lifetimes of the allocations of a trace, and the memory that was live before the trace began.
//!
//! A trace is a ring buffer and starts in the middle of the job. The memory that was live then is what is live now
//! and was not allocated in the trace, plus what was freed in the trace without having been allocated in it.

use std::collections::HashMap;
use std::num::NonZeroU32;

use crate::files::snapshot::{Action, BlockState, Snapshot, StackId, Trace};

#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// The requested size in bytes.
    pub size: u64,
    /// The number of the event that allocated it, from the start of the trace; absent where it is older.
    pub allocated: Option<NonZeroU32>,
    /// The number of the event that freed it, from 1; absent while it is live.
    pub freed: Option<NonZeroU32>,
    /// The stack that allocated it; unknown where it is older than the trace and was freed.
    pub stack: StackId,
}

impl Lifetime {
    /// Whether it is live after this number of events.
    pub fn at(&self, events: u32) -> bool {
        self.allocated.is_none_or(|allocated| allocated.get() <= events)
            && self.freed.is_none_or(|freed| freed.get() > events)
    }
}

/// An allocation or a free.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The number of the event, from 1.
    pub event: u32,
    /// The index in [`Lifetimes::all`].
    pub life: u32,
    /// Whether it is an allocation; otherwise a free.
    pub is_allocation: bool,
}

impl Change {
    /// A sum of bytes after this change of an allocation of that size.
    pub(super) const fn of(&self, sum: u64, size: u64) -> u64 {
        if self.is_allocation { sum.saturating_add(size) } else { sum.saturating_sub(size) }
    }
}

/// All allocations of a trace.
#[derive(Debug, Default)]
pub struct Lifetimes {
    /// In the order of allocation; older ones at their first event in the trace.
    pub all: Vec<Lifetime>,
    /// Allocations and frees in the order of events.
    pub changes: Vec<Change>,
    /// Live memory when the trace began, in bytes.
    pub base: u64,
    /// Number of frees of memory that was not allocated in the trace.
    pub unknown_frees: u64,
    /// Number of allocations that are live at the end of the trace, and missing in the blocks.
    pub missing: u64,
}

impl Lifetimes {
    pub fn of(snapshot: &Snapshot<'_>, trace: &Trace) -> Self {
        let mut lifetimes = Self::default();
        let mut open: HashMap<u64, u32> = HashMap::new();
        for (number, event) in (1..).map_while(NonZeroU32::new).zip(snapshot.events(trace)) {
            match event.action {
                Action::Alloc => {
                    // An address that is allocated again was freed, even if the trace lacks that event.
                    if let Some(old) = open.insert(event.address, lifetimes.next()) {
                        lifetimes.free(old, number);
                    }
                    let life = Lifetime {
                        size: event.size,
                        allocated: Some(number),
                        freed: None,
                        stack: event.stack,
                    };
                    lifetimes.changes.push(Change {
                        event: number.get(),
                        life: lifetimes.next(),
                        is_allocation: true,
                    });
                    lifetimes.all.push(life);
                }
                Action::FreeCompleted => {
                    let life = open.remove(&event.address).unwrap_or_else(|| {
                        lifetimes.unknown_frees += 1;
                        lifetimes.before(event.size, event.stack)
                    });
                    lifetimes.free(life, number);
                }
                _ => {}
            }
        }
        for segment in snapshot.segments.iter().filter(|segment| segment.device == trace.device) {
            for block in snapshot.blocks(segment).iter().filter(|block| block.state != BlockState::Free) {
                if let Some(life) = open.remove(&block.address) {
                    // The block's stack is the same one, and is kept when the trace was recorded without stacks.
                    let life = &mut lifetimes.all[life as usize];
                    if life.stack == StackId::UNKNOWN {
                        life.stack = block.stack;
                    }
                    continue;
                }
                lifetimes.before(block.requested, block.stack);
            }
        }
        lifetimes.missing = u64::try_from(open.len()).unwrap_or(u64::MAX);
        lifetimes
    }

    /// Every change, with the live memory after it, in bytes.
    pub(super) fn live(&self) -> impl Iterator<Item = (&Change, u64)> {
        self.changes.iter().scan(self.base, |live, change| {
            *live = change.of(*live, self.all[change.life as usize].size);
            Some((change, *live))
        })
    }

    /// The peak of the live memory, in bytes, and the number of the event that reached it; 0 is before the first.
    pub(super) fn peak(&self) -> (u64, u32) {
        let higher = |peak: (u64, u32), (change, live): (&Change, u64)| {
            if live > peak.0 { (live, change.event) } else { peak }
        };
        self.live().fold((self.base, 0), higher)
    }

    fn next(&self) -> u32 {
        u32::try_from(self.all.len()).expect("each is of an event or a block, which are numbered in 32 bits")
    }

    /// Adds an allocation that is older than the trace.
    fn before(&mut self, size: u64, stack: StackId) -> u32 {
        self.base = self.base.saturating_add(size);
        let life = self.next();
        self.all.push(Lifetime { size, allocated: None, freed: None, stack });
        life
    }

    fn free(&mut self, life: u32, event: NonZeroU32) {
        self.all[life as usize].freed = Some(event);
        self.changes.push(Change { event: event.get(), life, is_allocation: false });
    }
}
