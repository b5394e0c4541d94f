//! Analysis of a snapshot: statistics, memory by stack, and advice.
//!
//! Every struct is also the JSON report: units are in the names. Values that the file does not have are absent. A
//! share of free memory is never a verdict on its own, because the allocator releases completely free segments before
//! an allocation fails.

mod advice;
mod compare;
mod gaps;
mod holding;
mod leak;
mod lifetimes;
mod requests;
mod stacks;
mod timeline;
mod totals;

pub use advice::Advice;
pub use compare::{Change as Difference, Comparison, compare};
pub use gaps::{Gap, Neighbor};
pub use holding::Holding;
pub use leak::{Leaks, Unfreed, Windows};
pub use lifetimes::{Change, Lifetime, Lifetimes};
pub use requests::{Origin, Request};
use stacks::Tally;
pub use stacks::{Holder, StackReport};
pub use timeline::{Failure, Peak, TraceReport};
pub use totals::{Group, SegmentReport, Totals};

use super::error::SnapshotError;
use super::{Settings, Snapshot};
use memwarden::model::units::Bytes;

/// What to report.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The length of each list of stacks and gaps.
    pub top: usize,
    /// A request size to assess in addition to those of the job.
    pub request: Option<Bytes>,
}

#[derive(Debug, serde::Serialize)]
pub struct Analysis<'a> {
    /// Totals of all segments.
    pub totals: Totals,
    /// By device.
    pub devices: Vec<Group>,
    /// By device and stream: a stream's free memory serves only that stream.
    pub streams: Vec<Group>,
    /// By device and pool: a pool's free memory serves only that pool.
    pub pools: Vec<Group>,
    /// Usability of the free memory for requests of real sizes.
    pub requests: Vec<Request>,
    /// The stacks with the most live memory.
    pub stacks: Vec<Holder>,
    /// The largest free ranges that cannot be released, with their neighbors.
    pub gaps: Vec<Gap>,
    /// Analysis of the traces, by device.
    pub traces: Vec<TraceReport>,
    /// The allocator's settings; absent where the release does not write them.
    pub allocator_settings: Option<Settings<'a>>,
    /// Settings that would help, and the reasons.
    pub advice: Vec<Advice>,
    /// Anomalies of the file.
    pub notes: Vec<String>,
    /// Every segment, in the order of the file.
    pub segments: Vec<SegmentReport>,
}

/// Analyzes a snapshot, in one pass over its blocks and one over its events.
///
/// # Errors
/// If this would take more memory than the limit of reading the file.
pub fn analyze<'a>(snapshot: &Snapshot<'a>, options: &Options) -> Result<Analysis<'a>, SnapshotError> {
    afford(snapshot)?;
    let survey = totals::survey(snapshot);
    let requests = requests::requests(snapshot, &survey, options.request);
    let traces: Vec<TraceReport> =
        snapshot.traces.iter().map(|trace| timeline::report(snapshot, trace, &survey, options)).collect();
    let mut analysis = Analysis {
        totals: survey.totals,
        devices: survey.groups(Group::device),
        streams: survey.groups(Group::stream),
        pools: survey.groups(Group::pool),
        requests,
        stacks: Tally::live(snapshot).top(&snapshot.stacks, options.top),
        gaps: gaps::largest(snapshot, &survey, options.top),
        traces,
        allocator_settings: snapshot.settings.clone(),
        advice: Vec::new(),
        notes: snapshot.notes.clone(),
        segments: survey.segments,
    };
    analysis.advice = advice::advise(&analysis);
    Ok(analysis)
}

/// Memory per event, block, segment and stack during the analysis, in bytes: see [`Lifetime`], the map of open
/// allocations, [`SegmentReport`] with its place in three groups, and the free ranges.
const FOR_EVENT: usize = 80;
const FOR_BLOCK: usize = 64;
const FOR_SEGMENT: usize = size_of::<SegmentReport>() + 6 * size_of::<Group>();
const FOR_STACK: usize = 48;

/// Checks that the analysis stays within the memory limit.
fn afford(snapshot: &Snapshot<'_>) -> Result<(), SnapshotError> {
    let needed = [
        (snapshot.events.len(), FOR_EVENT),
        (snapshot.blocks.len(), FOR_BLOCK),
        (snapshot.segments.len(), FOR_SEGMENT),
        (snapshot.stacks.count(), FOR_STACK),
    ];
    let needed: usize = needed.iter().map(|(count, each)| count.saturating_mul(*each)).sum();
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    let taken = snapshot.budget.clone().take(needed);
    taken.map_err(|source| SnapshotError::Memory { path: "analysis".to_owned(), source })
}
