//! Analysis of a trace: its duration, the peak and its stacks, failures, and driver calls.

use super::lifetimes::{Change, Lifetimes};
use super::stacks::{Holder, StackReport, Tally};
use super::totals::Survey;
use super::{Leaks, Options, leak};
use crate::files::snapshot::{Action, Event, Snapshot, Trace};
use memwarden::model::units::{Bytes, Seconds, Unit as _};

/// Analysis of one device's trace.
#[derive(Debug, serde::Serialize)]
pub struct TraceReport {
    /// The device's index.
    pub device: i64,
    pub events: u64,
    /// Time from its first to its last event; absent where the release writes no times.
    pub span_seconds: Option<f64>,
    pub allocations: u64,
    /// Frees of memory that was allocated before the trace began.
    pub unknown_frees: u64,
    /// Live memory when the trace began, as requested.
    pub base_bytes: Bytes,
    /// Live memory at its end, as requested.
    pub end_bytes: Bytes,
    /// Allocated in the trace and live at its end.
    pub traced_live_bytes: Bytes,
    /// Peak of the live memory that was allocated in the trace.
    pub traced_peak_bytes: Bytes,
    /// The peak of the live memory.
    pub peak: Peak,
    /// Segments and pages taken from the driver.
    pub segment_allocations: u64,
    /// Segments and pages released to the driver.
    pub segment_frees: u64,
    /// Memory taken from the driver in the trace minus the memory released to it.
    pub reserved_net_bytes: i128,
    /// Peak of that difference; at least 0.
    pub reserved_net_peak_bytes: Bytes,
    pub reserved_peak_bytes: Bytes,
    /// Failed allocations.
    pub failures: Vec<Failure>,
    /// Memory that was allocated and never freed.
    pub leaks: Leaks,
}

/// The peak of the live memory.
#[derive(Debug, serde::Serialize)]
pub struct Peak {
    /// Live memory at the peak, as requested.
    pub live_bytes: Bytes,
    /// The number of the event that reached it, from 1; 0 is before the first.
    pub event: u32,
    /// Time since the first event; absent where the release writes no times.
    pub after_seconds: Option<f64>,
    /// Memory by stack at the peak. A stack without frames stands for memory that is older than the trace and was
    /// freed.
    pub holders: Vec<Holder>,
}

/// An allocation that failed.
#[derive(Debug, serde::Serialize)]
pub struct Failure {
    /// The number of the event, from 1.
    pub event: u32,
    /// Time since the first event; absent where the release writes no times.
    pub after_seconds: Option<f64>,
    pub requested_bytes: Bytes,
    pub device_free_bytes: Bytes,
    pub stack: StackReport,
}

/// Maximum number of reported failures of a trace; a job that retries has the same one many times.
const FAILURES: usize = 16;

pub(super) fn report(
    snapshot: &Snapshot<'_>,
    trace: &Trace,
    survey: &Survey,
    options: &Options,
) -> TraceReport {
    let (events, lifetimes) = (snapshot.events(trace), Lifetimes::of(snapshot, trace));
    let start = events.iter().find_map(|event| event.time_us);
    let since =
        |event: &Event| Some(Seconds::from_micros(event.time_us?.get().saturating_sub(start?.get())).value());
    let count = |wanted: &[Action]| {
        let found = events.iter().filter(|event| wanted.contains(&event.action)).count();
        u64::try_from(found).unwrap_or(u64::MAX)
    };
    let (peak_live, peak_at) = lifetimes.peak();
    let (traced, traced_peak) = traced(&lifetimes);
    let (net, net_peak) = reserved_net(events);
    let mut tally = Tally::new(&snapshot.stacks);
    for life in lifetimes.all.iter().filter(|life| life.at(peak_at)) {
        tally.add(life.stack, life.size);
    }
    let failures = (1..).zip(events).filter(|(_, event)| event.action == Action::Oom);
    let failures = failures.take(FAILURES).map(|(number, event)| Failure {
        event: number,
        after_seconds: since(event),
        requested_bytes: Bytes::new(event.size),
        device_free_bytes: Bytes::new(event.address),
        stack: StackReport::new(&snapshot.stacks, event.stack),
    });
    let reserved = i128::from(survey.reserved(trace.device).get());
    let peak_event = (peak_at as usize).checked_sub(1).and_then(|index| events.get(index));
    TraceReport {
        device: trace.device,
        events: u64::try_from(events.len()).unwrap_or(u64::MAX),
        span_seconds: events.iter().rev().find(|event| event.time_us.is_some()).and_then(since),
        allocations: count(&[Action::Alloc]),
        unknown_frees: lifetimes.unknown_frees,
        base_bytes: Bytes::new(lifetimes.base),
        end_bytes: Bytes::new(lifetimes.live().last().map_or(lifetimes.base, |(_, live)| live)),
        traced_live_bytes: Bytes::new(traced),
        traced_peak_bytes: Bytes::new(traced_peak),
        peak: Peak {
            live_bytes: Bytes::new(peak_live),
            event: peak_at,
            after_seconds: peak_event.map_or_else(|| start.map(|_| 0.0), since),
            holders: tally.top(&snapshot.stacks, options.top),
        },
        segment_allocations: count(&[Action::SegmentAlloc, Action::SegmentMap]),
        segment_frees: count(&[Action::SegmentFree, Action::SegmentUnmap]),
        reserved_net_bytes: net,
        reserved_net_peak_bytes: Bytes::new(u64::try_from(net_peak).unwrap_or(u64::MAX)),
        reserved_peak_bytes: Bytes::new(u64::try_from(reserved - net + net_peak).unwrap_or(0)),
        failures: failures.collect(),
        leaks: leak::leaks(snapshot, trace, &lifetimes, options.top),
    }
}

/// Memory at the end of a trace that was allocated in it, and its peak, in bytes.
fn traced(lifetimes: &Lifetimes) -> (u64, u64) {
    let in_trace = |change: &&Change| lifetimes.all[change.life as usize].allocated.is_some();
    lifetimes.changes.iter().filter(in_trace).fold((0, 0), |(live, peak), change| {
        let live = change.of(live, lifetimes.all[change.life as usize].size);
        (live, peak.max(live))
    })
}

/// Memory that a trace took from the driver minus what it released, and its peak, in bytes.
fn reserved_net(events: &[Event]) -> (i128, i128) {
    events.iter().fold((0, 0), |(reserved, peak), event| {
        let reserved = reserved + event.reserved();
        (reserved, peak.max(reserved))
    })
}
