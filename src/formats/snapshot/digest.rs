//! Summary of a snapshot, small enough for exposition as metrics.

use serde::{Deserialize, Serialize};

use super::Snapshot;
use super::analysis::{self, Analysis, Options, Origin};
use super::error::SnapshotError;

/// Summary of one snapshot, in bytes and counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Digest {
    /// By device.
    pub devices: Vec<Device>,
    /// Usability of the free memory for the request sizes of the job.
    pub requests: Vec<Request>,
    /// Number of failed allocations in the trace; at most 16 of each device.
    pub failures: u64,
    /// Live memory of the stacks that leave memory allocated in step after step, in bytes; absent where the trace is
    /// too short.
    pub suspect_bytes: Option<u64>,
    pub advice: Vec<String>,
}

/// The totals of one device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its index.
    pub device: i64,
    pub reserved: u64,
    /// Allocated memory, after rounding.
    pub allocated: u64,
    /// Active memory: allocated, or still in use by another stream.
    pub active: u64,
    /// Requested part of the active memory.
    pub requested: u64,
    /// Free memory in segments with an active block (inactive split).
    pub inactive_split: u64,
    /// Memory that the allocator releases to the driver before an allocation fails.
    pub releasable: u64,
    /// Free and not releasable: external fragmentation.
    pub unreleasable: u64,
    /// The largest free range.
    pub largest_free: u64,
}

/// One request size of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Origin of the size: `failed`, `p99` or `max`.
    pub size: String,
    pub bytes: u64,
    /// The share of the pool's free memory in ranges too small for it; absent where no memory is free.
    pub unusable: Option<f64>,
    /// Memory lost to this request as a share of the reserved memory; absent where none is reserved.
    pub lost: Option<f64>,
}

/// Maximum number of suspect stacks in the sum.
const STACKS: usize = 256;

impl Digest {
    /// Summarizes a snapshot.
    ///
    /// # Errors
    /// If this would take more memory than the limit of reading the file.
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
    let traces = found.traces.iter().filter(|trace| trace.leaks.conclusive);
    let sums = traces.map(|trace| {
        let suspects = trace.leaks.stacks.iter().filter(|stack| stack.suspect);
        suspects.map(|stack| stack.live_bytes.get()).sum::<u64>()
    });
    sums.reduce(u64::saturating_add)
}
