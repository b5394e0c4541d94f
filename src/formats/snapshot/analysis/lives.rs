//! When each allocation of a trace was born and died, and what was there before the trace began.
//!
//! A trace is a ring buffer and starts in the middle of the job's life. What
//! was live then is what is live now and was not born in the trace, and what
//! died in the trace without having been born in it.

use std::collections::HashMap;
use std::num::NonZeroU32;

use crate::formats::snapshot::{Action, Snapshot, StackId, State, Trace};

/// One allocation.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// What was asked for, in bytes.
    pub size: u64,
    /// The event that made it, counted from the trace's start; nothing where it is older.
    pub born: Option<NonZeroU32>,
    /// The event that ended it, counted from 1; nothing where it lives on.
    pub died: Option<NonZeroU32>,
    /// Who asked for it; unknown where it is older than the trace and gone.
    pub stack: StackId,
}

impl Life {
    /// Whether it lives after that many events.
    pub fn at(&self, events: u32) -> bool {
        self.born.is_none_or(|born| born.get() <= events) && self.died.is_none_or(|died| died.get() > events)
    }
}

/// A birth or a death.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The event, counted from 1.
    pub event: u32,
    /// Whose, in [`Lives::all`].
    pub life: u32,
    /// Whether it was born; it died otherwise.
    pub birth: bool,
}

/// Every allocation that a trace tells of.
#[derive(Debug, Default)]
pub struct Lives {
    /// In the order of birth; older ones where the trace tells of them.
    pub all: Vec<Life>,
    /// Births and deaths in the order of events.
    pub changes: Vec<Change>,
    /// Live when the trace began, in bytes.
    pub base: u64,
    /// Frees of something that was not born in the trace.
    pub unknown_frees: u64,
    /// Live at the end by the trace, and not in the blocks.
    pub missing: u64,
}

impl Lives {
    /// The lives of a trace.
    pub fn of(snapshot: &Snapshot<'_>, trace: &Trace) -> Self {
        let mut lives = Self::default();
        let mut open: HashMap<u64, u32> = HashMap::new();
        for (number, event) in (1..).map_while(NonZeroU32::new).zip(snapshot.events(trace)) {
            match event.action {
                Action::Alloc => {
                    // An address that is given out again was freed, even if the trace lacks that event.
                    if let Some(old) = open.insert(event.address, lives.next()) {
                        lives.dies(old, number);
                    }
                    let life = Life { size: event.size, born: Some(number), died: None, stack: event.stack };
                    lives.changes.push(Change { event: number.get(), life: lives.next(), birth: true });
                    lives.all.push(life);
                }
                Action::FreeCompleted => {
                    let life = open.remove(&event.address).unwrap_or_else(|| {
                        lives.unknown_frees += 1;
                        lives.before(event.size, event.stack)
                    });
                    lives.dies(life, number);
                }
                _ => {}
            }
        }
        for segment in snapshot.segments.iter().filter(|segment| segment.device == trace.device) {
            for block in snapshot.blocks(segment).iter().filter(|block| block.state != State::Free) {
                if let Some(life) = open.remove(&block.address) {
                    // The block's stack is the same one, and is kept when the trace was recorded without stacks.
                    let life = &mut lives.all[life as usize];
                    if life.stack == StackId::UNKNOWN {
                        life.stack = block.stack;
                    }
                    continue;
                }
                lives.before(block.requested, block.stack);
            }
        }
        lives.missing = u64::try_from(open.len()).unwrap_or(u64::MAX);
        lives
    }

    fn next(&self) -> u32 {
        u32::try_from(self.all.len()).expect("each is of an event or a block, which are numbered in 32 bits")
    }

    /// One that is older than the trace.
    fn before(&mut self, size: u64, stack: StackId) -> u32 {
        self.base = self.base.saturating_add(size);
        let life = self.next();
        self.all.push(Life { size, born: None, died: None, stack });
        life
    }

    fn dies(&mut self, life: u32, event: NonZeroU32) {
        self.all[life as usize].died = Some(event);
        self.changes.push(Change { event: event.get(), life, birth: false });
    }
}
