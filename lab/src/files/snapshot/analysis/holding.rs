//! Allocated memory by stack over a trace: the data of a plot.

use super::lifetimes::Lifetimes;
use super::stacks::{StackReport, Tally};
use crate::files::snapshot::{Event, Snapshot, StackId, Trace};

/// A trace in columns, each at its peak.
#[derive(Debug)]
pub struct Holding {
    /// Names of the rows: the stacks with the most memory at the peak; then all other stacks; last the memory without
    /// a stack.
    pub stacks: Vec<String>,
    /// Memory of each row, in bytes, by column.
    pub columns: Vec<Vec<u64>>,
    /// Reserved memory, in bytes, by column.
    pub reserved: Vec<u64>,
}

impl Holding {
    /// Divides the trace into columns; `share` returns the position of an event, 0 to 1.
    pub fn of(
        snapshot: &Snapshot<'_>,
        trace: &Trace,
        stacks: usize,
        columns: usize,
        share: &dyn Fn(u32) -> f64,
    ) -> Self {
        let lifetimes = Lifetimes::of(snapshot, trace);
        let top = at_peak(snapshot, &lifetimes, stacks);
        let mut class = vec![top.len(); snapshot.stacks.count()];
        for (number, stack) in top.iter().enumerate() {
            class[stack.index()] = number;
        }
        class[StackId::UNKNOWN.index()] = top.len() + 1;
        let mut now = vec![0u64; top.len() + 2];
        for life in lifetimes.all.iter().filter(|life| life.allocated.is_none()) {
            let sum = &mut now[class[life.stack.index()]];
            *sum = sum.saturating_add(life.size);
        }
        let mut names: Vec<String> =
            top.iter().map(|stack| StackReport::new(&snapshot.stacks, *stack).short).collect();
        names.push("all other stacks".to_owned());
        names.push("no stack recorded, or older than the trace and gone".to_owned());
        let column = |event: u32| column(share(event), columns);
        let columns_of_stacks = highest(&lifetimes, &class, now, columns, column);
        let reserved = reserved(snapshot, trace, columns, column);
        Self { stacks: names, columns: columns_of_stacks, reserved }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a column of a picture, clamped to those there are"
)]
fn column(share: f64, columns: usize) -> usize {
    ((share * columns as f64).max(0.0) as usize).min(columns.saturating_sub(1))
}

/// The stacks with the most memory at the peak.
fn at_peak(snapshot: &Snapshot<'_>, lifetimes: &Lifetimes, stacks: usize) -> Vec<StackId> {
    let (_, at) = lifetimes.peak();
    let mut tally = Tally::new(&snapshot.stacks);
    for life in lifetimes.all.iter().filter(|life| life.at(at) && life.stack != StackId::UNKNOWN) {
        tally.add(life.stack, life.size);
    }
    tally.largest(stacks)
}

/// The sums at the peak of each column; those of the previous column if there was no event.
fn highest(
    lifetimes: &Lifetimes,
    class: &[usize],
    mut now: Vec<u64>,
    columns: usize,
    column: impl Fn(u32) -> usize,
) -> Vec<Vec<u64>> {
    let total = |sums: &[u64]| sums.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let mut found: Vec<Vec<u64>> = Vec::with_capacity(columns);
    found.push(now.clone());
    let mut most = total(&now);
    for change in &lifetimes.changes {
        let at = column(change.event);
        while found.len() <= at {
            found.push(now.clone());
            most = total(&now);
        }
        let life = &lifetimes.all[change.life as usize];
        let sum = &mut now[class[life.stack.index()]];
        *sum = change.of(*sum, life.size);
        let live = total(&now);
        if live > most && found.len() == at + 1 {
            most = live;
            found[at].clone_from(&now);
        }
    }
    found.resize(columns, now);
    found
}

fn reserved(
    snapshot: &Snapshot<'_>,
    trace: &Trace,
    columns: usize,
    column: impl Fn(u32) -> usize,
) -> Vec<u64> {
    let own = snapshot.segments.iter().filter(|segment| segment.device == trace.device);
    let mut now: i128 = own.map(|segment| i128::from(segment.size)).sum();
    let events = snapshot.events(trace);
    now -= events.iter().map(Event::reserved).sum::<i128>();
    let bytes = |now: i128| u64::try_from(now.max(0)).unwrap_or(u64::MAX);
    let mut found = vec![bytes(now)];
    for (number, event) in (1..).zip(events) {
        let (at, by) = (column(number), event.reserved());
        if by != 0 {
            while found.len() <= at {
                found.push(bytes(now));
            }
            now += by;
            if let Some(most) = found.get_mut(at) {
                *most = bytes(now).max(*most);
            }
        }
    }
    found.resize(columns, bytes(now));
    found
}
