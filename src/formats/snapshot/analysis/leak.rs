//! Memory that a trace allocates and never frees.
//!
//! # What it says
//! Which stacks allocated memory that is still live at the end, and which of
//! them did so step after step: those are suspects.
//!
//! # Method
//! The trace is cut into steps: where PyTorch annotated the starts of optimizer
//! steps, there; otherwise where live memory falls back by half of its last
//! rise and by a tenth of its whole range. The first and the unfinished last
//! piece are left out. A suspect left live memory in at least three steps, and
//! in at least half of them.
//!
//! # When it stays silent
//! With fewer than three whole steps after the first: one step in progress
//! looks the same as a leak.
//!
//! # False alarms
//! A cache that fills by a little in every step, for as long as it fills.

use super::lives::Lives;
use super::stacks::StackReport;
use crate::formats::snapshot::{Snapshot, StackId, Trace};
use crate::model::units::Bytes;

/// So many whole steps are needed after the first.
const STEPS: usize = 3;

/// What was allocated in the trace and is still live, and whether that repeats.
#[derive(Debug, serde::Serialize)]
pub struct Leaks {
    /// What the trace was cut by.
    pub windows: Windows,
    /// Whole steps after the first one.
    pub whole_steps: usize,
    /// Whether there are enough of them to tell a leak.
    pub conclusive: bool,
    /// Allocated in the trace and live at its end, together.
    pub unfreed_bytes: Bytes,
    /// By stack: suspects first, then the larger.
    pub stacks: Vec<Unfreed>,
}

/// What a trace was cut into steps by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Windows {
    /// The annotated starts of optimizer steps.
    OptimizerSteps,
    /// The rise and fall of live memory.
    RiseAndFall,
}

/// What one stack allocated and did not free.
#[derive(Debug, serde::Serialize)]
pub struct Unfreed {
    /// Whether it did so step after step.
    pub suspect: bool,
    /// All of it.
    pub live_bytes: Bytes,
    /// In how many allocations.
    pub allocations: u64,
    /// In how many of the whole steps.
    pub in_steps: usize,
    /// What a whole step leaves behind on average; nothing where there is none.
    pub per_step_bytes: Option<Bytes>,
    /// Who.
    pub stack: StackReport,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: u64,
    allocations: u64,
    /// In whole steps only.
    steady_bytes: u64,
    in_steps: usize,
    /// The last whole step that was counted, from 1.
    last_step: usize,
}

pub(super) fn leaks(snapshot: &Snapshot<'_>, trace: &Trace, lives: &Lives, top: usize) -> Leaks {
    let (windows, starts) = cut(snapshot, trace, lives);
    let whole_steps = starts.len().saturating_sub(1);
    let conclusive = whole_steps >= STEPS;
    let mut sums = vec![Sum::default(); snapshot.stacks.len()];
    let mut unfreed = 0u64;
    for life in lives.all.iter().filter(|life| life.died.is_none()) {
        let Some(born) = life.born else { continue };
        unfreed = unfreed.saturating_add(life.size);
        let sum = &mut sums[life.stack.index()];
        sum.bytes = sum.bytes.saturating_add(life.size);
        sum.allocations += 1;
        // 0 is before the first whole step; the last start begins what is unfinished.
        let step = starts.partition_point(|start| *start <= born.get());
        if step > 0 && step < starts.len() {
            sum.steady_bytes = sum.steady_bytes.saturating_add(life.size);
            if sum.last_step != step {
                (sum.last_step, sum.in_steps) = (step, sum.in_steps + 1);
            }
        }
    }
    let suspect = |sum: &Sum| conclusive && sum.in_steps >= STEPS && sum.in_steps * 2 >= whole_steps;
    let mut all: Vec<(u32, Sum)> = (0..).zip(sums).filter(|(_, sum)| sum.allocations > 0).collect();
    all.sort_by_key(|(stack, sum)| (!suspect(sum), std::cmp::Reverse(sum.bytes), *stack));
    let steps = u64::try_from(whole_steps).unwrap_or(u64::MAX);
    let stacks = all.into_iter().take(top).map(|(stack, sum)| Unfreed {
        suspect: suspect(&sum),
        live_bytes: Bytes::new(sum.bytes),
        allocations: sum.allocations,
        in_steps: sum.in_steps,
        per_step_bytes: sum.steady_bytes.checked_div(steps).map(Bytes::new),
        stack: StackReport::new(&snapshot.stacks, StackId::at(stack)),
    });
    let unfreed_bytes = Bytes::new(unfreed);
    Leaks { windows, whole_steps, conclusive, unfreed_bytes, stacks: stacks.collect() }
}

/// Where steps start, as event numbers; what comes before the first start is no whole step.
fn cut(snapshot: &Snapshot<'_>, trace: &Trace, lives: &Lives) -> (Windows, Vec<u32>) {
    let events = snapshot.events(trace);
    let first = events.first().and_then(|event| event.time_us);
    let annotated = snapshot.steps_us.iter().filter(|at| first.is_some_and(|first| first.get() <= **at));
    let mut starts = Vec::new();
    for at in annotated {
        let start = events.partition_point(|event| event.time_us.is_none_or(|time| time.get() < *at));
        if start < events.len() {
            starts.push(u32::try_from(start).unwrap_or(u32::MAX).saturating_add(1));
        }
    }
    starts.sort_unstable();
    starts.dedup();
    if starts.len() > STEPS {
        (Windows::OptimizerSteps, starts)
    } else {
        (Windows::RiseAndFall, troughs(lives))
    }
}

/// Where live memory had fallen back, and rose again.
fn troughs(lives: &Lives) -> Vec<u32> {
    let series = |mut visit: Box<dyn FnMut(u32, u64) + '_>| {
        let mut live = lives.base;
        for change in &lives.changes {
            let size = lives.all[change.life as usize].size;
            live = if change.birth { live.saturating_add(size) } else { live.saturating_sub(size) };
            visit(change.event, live);
        }
    };
    let (mut least, mut most) = (lives.base, lives.base);
    series(Box::new(|_, live| (least, most) = (least.min(live), most.max(live))));
    let deep = (most - least) / 10;
    let mut starts = Vec::new();
    let (mut low, mut low_at, mut high, mut falling) = (lives.base, 0, lives.base, false);
    series(Box::new(|event, live| {
        if falling {
            if live < low {
                (low, low_at) = (live, event);
            } else if live - low > deep {
                starts.push(low_at.max(1));
                (high, falling) = (live, false);
            }
        } else if live > high {
            high = live;
        } else if high - live > deep && high - live >= (high - low.min(high)) / 2 {
            (low, low_at, falling) = (live, event, true);
        }
    }));
    starts
}
