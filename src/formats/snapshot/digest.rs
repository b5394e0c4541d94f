//! The figures of a snapshot that are worth following: what is small enough to be sent on, and to be shown beside the rest.

use serde::{Deserialize, Serialize};

use super::Snapshot;
use super::analysis::{self, Analysis, Options, Origin};
use super::error::SnapshotError;

/// What one snapshot says, in bytes and counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Digest {
    /// By device.
    pub devices: Vec<Device>,
    /// What free memory is worth for the sizes that the job really asks for.
    pub requests: Vec<Request>,
    /// Allocations that failed within the trace; of each device at most 16 are told apart.
    pub failures: u64,
    /// Live memory of stacks that leave some behind step after step, in bytes; absent where the trace is too short to
    /// tell.
    pub suspect_bytes: Option<u64>,
    /// What would help, in words.
    pub advice: Vec<String>,
}

/// The sums of one device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its index.
    pub device: i64,
    /// Held from the driver.
    pub reserved: u64,
    /// In blocks that the job has, after rounding.
    pub allocated: u64,
    /// Allocated, or still in use by another stream.
    pub active: u64,
    /// What was asked for, of what is active.
    pub requested: u64,
    /// Free next to active blocks of the same segment.
    pub inactive_split: u64,
    /// What the allocator gives back to the driver before it fails.
    pub releasable: u64,
    /// Free, and not releasable.
    pub unreleasable: u64,
    /// The largest free range.
    pub largest_free: u64,
}

/// One size that the job asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Where the size comes from: `failed`, `p99` or `max`.
    pub size: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The share of the pool's free memory in ranges too small for it; absent where nothing is free.
    pub unusable: Option<f64>,
    /// What is lost to it as a share of everything reserved; absent where nothing is.
    pub lost: Option<f64>,
}

/// Suspects beyond so many stacks are not worth a sum.
const STACKS: usize = 256;

impl Digest {
    /// Looks at a snapshot.
    ///
    /// # Errors
    /// Where that would take more memory than reading the file was allowed.
    pub fn of(snapshot: &Snapshot<'_>) -> Result<Self, SnapshotError> {
        let found = analysis::analyze(snapshot, &Options { top: STACKS, request: None })?;
        Ok(Self {
            devices: found.devices.iter().map(device).collect(),
            requests: found.requests.iter().filter_map(request).collect(),
            failures: found.traces.iter().map(|trace| trace.failures.len() as u64).sum(),
            suspect_bytes: suspects(&found),
            advice: found.advice.iter().map(|advice| format!("{}: {}", advice.setting, advice.why)).collect(),
        })
    }
}

fn device(group: &analysis::Group) -> Device {
    let totals = &group.totals;
    Device {
        device: group.device,
        reserved: totals.reserved_bytes.get(),
        allocated: totals.allocated_bytes.get(),
        active: totals.active_bytes.get(),
        requested: totals.requested_bytes.get(),
        inactive_split: totals.inactive_split_bytes.get(),
        releasable: totals.releasable_bytes.get(),
        unreleasable: totals.unreleasable_bytes.get(),
        largest_free: totals.largest_free_bytes.get(),
    }
}

fn request(request: &analysis::Request) -> Option<Request> {
    let size = match request.origin {
        Origin::Given => return None,
        Origin::Failed => "failed",
        Origin::TraceP99 | Origin::LiveP99 => "p99",
        Origin::TraceMax | Origin::LiveMax => "max",
    };
    Some(Request {
        size: size.to_owned(),
        bytes: request.size_bytes.get(),
        unusable: request.unusable_ratio,
        lost: request.lost_ratio,
    })
}

fn suspects(found: &Analysis<'_>) -> Option<u64> {
    let told = found.traces.iter().filter(|trace| trace.leaks.conclusive);
    let sums = told.map(|trace| {
        let suspects = trace.leaks.stacks.iter().filter(|stack| stack.suspect);
        suspects.map(|stack| stack.live_bytes.get()).sum::<u64>()
    });
    sums.reduce(u64::saturating_add)
}
