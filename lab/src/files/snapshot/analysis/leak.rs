//! Memory that a trace allocates and never frees.
//!
//! # What it says
//! The stacks that allocated memory that is still live at the end, and those of them that did so in step after step:
//! these are suspects.
//!
//! # Method
//! The trace is divided into steps: at PyTorch's annotations of optimizer steps where there are any; otherwise where
//! live memory decreases by half of its last rise and by a tenth of its whole range. The first and the unfinished
//! last part are ignored. A suspect left memory allocated in at least three steps, and in at least half of them.
//!
//! # When it stays silent
//! With fewer than three complete steps after the first: one step in progress looks the same as a leak.
//!
//! # False alarms
//! A cache that fills by a little in every step, for as long as it fills.

use super::lifetimes::Lifetimes;
use super::stacks::StackReport;
use crate::files::snapshot::{Snapshot, StackId, Trace};
use memwarden::model::units::Bytes;

/// Minimum number of complete steps after the first.
const STEPS: usize = 3;

/// Memory that was allocated in the trace and is still live, and whether this repeats.
#[derive(Debug, serde::Serialize)]
pub struct Leaks {
    /// How the trace was divided.
    pub windows: Windows,
    /// Number of complete steps after the first.
    pub whole_steps: usize,
    /// Whether there are enough steps to detect a leak.
    pub conclusive: bool,
    /// Total memory that was allocated in the trace and is live at its end.
    pub unfreed_bytes: Bytes,
    /// By stack: suspects first, then by size.
    pub stacks: Vec<Unfreed>,
}

/// How a trace is divided into steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Windows {
    /// By the annotated starts of optimizer steps.
    OptimizerSteps,
    /// By the rise and fall of live memory.
    RiseAndFall,
}

/// Memory that one stack allocated and did not free.
#[derive(Debug, serde::Serialize)]
pub struct Unfreed {
    /// Whether it did so in step after step.
    pub suspect: bool,
    pub live_bytes: Bytes,
    pub allocations: u64,
    /// Number of complete steps with such allocations.
    pub in_steps: usize,
    /// Mean size per complete step; absent without complete steps.
    pub per_step_bytes: Option<Bytes>,
    pub stack: StackReport,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    bytes: u64,
    allocations: u64,
    /// Bytes in complete steps only.
    steady_bytes: u64,
    in_steps: usize,
    /// The last complete step that was counted, from 1.
    last_step: usize,
}

pub(super) fn leaks(snapshot: &Snapshot<'_>, trace: &Trace, lifetimes: &Lifetimes, top: usize) -> Leaks {
    let (windows, starts) = cut(snapshot, trace, lifetimes);
    let whole_steps = starts.len().saturating_sub(1);
    let conclusive = whole_steps >= STEPS;
    let mut sums = vec![Sum::default(); snapshot.stacks.count()];
    let mut unfreed = 0u64;
    for life in lifetimes.all.iter().filter(|life| life.freed.is_none()) {
        let Some(allocated) = life.allocated else { continue };
        unfreed = unfreed.saturating_add(life.size);
        let sum = &mut sums[life.stack.index()];
        sum.bytes = sum.bytes.saturating_add(life.size);
        sum.allocations += 1;
        // 0 is before the first complete step; the last start begins the unfinished step.
        let step = starts.partition_point(|start| *start <= allocated.get());
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

/// The starts of steps as event numbers; the part before the first start is not a complete step.
fn cut(snapshot: &Snapshot<'_>, trace: &Trace, lifetimes: &Lifetimes) -> (Windows, Vec<u32>) {
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
        (Windows::RiseAndFall, troughs(lifetimes))
    }
}

/// The minima of live memory between steps.
fn troughs(lifetimes: &Lifetimes) -> Vec<u32> {
    let least = lifetimes.live().map(|(_, live)| live).fold(lifetimes.base, u64::min);
    let deep = (lifetimes.peak().0 - least) / 10;
    let mut starts = Vec::new();
    let (mut low, mut low_at, mut high, mut falling) = (lifetimes.base, 0, lifetimes.base, false);
    for (change, live) in lifetimes.live() {
        if falling {
            if live < low {
                (low, low_at) = (live, change.event);
            } else if live - low > deep {
                starts.push(low_at.max(1));
                (high, falling) = (live, false);
            }
        } else if live > high {
            high = live;
        } else if high - live > deep && high - live >= (high - low.min(high)) / 2 {
            (low, low_at, falling) = (live, change.event, true);
        }
    }
    starts
}
