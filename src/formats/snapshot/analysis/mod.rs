//! What a snapshot means: figures, who holds the memory, what would help.
//!
//! Every struct is also the JSON report: units are in the names. What the file
//! does not tell is absent. A share of free memory is never a verdict by
//! itself, because the allocator gives whole free segments back before it fails.

mod advice;
mod compare;
mod gaps;
mod holding;
mod leak;
mod lives;
mod requests;
mod stacks;
mod timeline;
mod totals;

pub use advice::Advice;
pub use compare::{Change as Difference, Comparison, compare};
pub use gaps::{Gap, Neighbor};
pub use holding::Holding;
pub use leak::{Leaks, Unfreed, Windows};
pub use lives::{Change, Life, Lives};
pub use requests::{Origin, Request};
pub use stacks::{Holder, StackReport};
pub use timeline::{Failure, Peak, TraceReport};
pub use totals::{Group, SegmentReport, Totals};

use super::error::SnapshotError;
use super::{Settings, Snapshot};
use crate::model::units::Bytes;

/// What to report.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The length of each list of stacks and gaps.
    pub top: usize,
    /// A request whose chances are to be told, beside those that the job makes.
    pub request: Option<Bytes>,
}

/// Everything there is to say about one snapshot.
#[derive(Debug, serde::Serialize)]
pub struct Analysis<'a> {
    /// All segments together.
    pub totals: Totals,
    /// By device.
    pub devices: Vec<Group>,
    /// By device and stream: a stream's free memory serves only that stream.
    pub streams: Vec<Group>,
    /// By device and pool: a pool's free memory serves only that pool.
    pub pools: Vec<Group>,
    /// What free memory is worth for requests of real sizes.
    pub requests: Vec<Request>,
    /// The stacks that hold the most memory now.
    pub stacks: Vec<Holder>,
    /// The largest free ranges that cannot be given back, and who is on either side.
    pub gaps: Vec<Gap>,
    /// What the traces tell, by device.
    pub traces: Vec<TraceReport>,
    /// The allocator's settings; nothing where the release does not write them.
    pub allocator_settings: Option<Settings<'a>>,
    /// Which settings would help, and why.
    pub advice: Vec<Advice>,
    /// What about the file is odd.
    pub notes: Vec<String>,
    /// Every segment, in the order of the file.
    pub segments: Vec<SegmentReport>,
}

/// Analyzes a snapshot: once over its blocks, once over its events.
///
/// # Errors
/// Where that would take more memory than reading the file was allowed.
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
        stacks: stacks::holders(snapshot, options.top),
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

/// What is held for each event, block, segment and stack while they are looked at, in bytes: see [`Life`], the
/// map of open allocations, [`SegmentReport`] with its place in three groups, and the free ranges.
const FOR_EVENT: usize = 80;
const FOR_BLOCK: usize = 64;
const FOR_SEGMENT: usize = size_of::<SegmentReport>() + 6 * size_of::<Group>();
const FOR_STACK: usize = 48;

/// Makes sure that the bound on memory holds for the analysis too.
fn afford(snapshot: &Snapshot<'_>) -> Result<(), SnapshotError> {
    let needed = [
        (snapshot.events.len(), FOR_EVENT),
        (snapshot.blocks.len(), FOR_BLOCK),
        (snapshot.segments.len(), FOR_SEGMENT),
        (snapshot.stacks.len(), FOR_STACK),
    ];
    let needed: usize = needed.iter().map(|(count, each)| count.saturating_mul(*each)).sum();
    let needed = u64::try_from(needed).unwrap_or(u64::MAX);
    let taken = snapshot.budget.clone().take(needed);
    taken.map_err(|source| super::error::Path::Root("analysis").over(source))
}
