//! Summary of a snapshot for the daemon.

use super::Snapshot;
use super::analysis::{self, Analysis, Options, Origin};
use super::error::SnapshotError;
use memwarden::formats::snapshot_digest::{Device, Digest, Request};

/// Maximum number of suspect stacks in the sum.
const STACKS: usize = 256;

/// Summarizes a snapshot.
///
/// # Errors
/// If this would take more memory than the limit of reading the file.
pub fn digest(snapshot: &Snapshot<'_>) -> Result<Digest, SnapshotError> {
    let found = analysis::analyze(snapshot, &Options { top: STACKS, request: None })?;
    Ok(Digest {
        devices: found.devices.iter().map(device).collect(),
        requests: found.requests.iter().filter_map(request).collect(),
        failures: found.traces.iter().map(|trace| trace.failures.len() as u64).sum(),
        suspect_bytes: suspects(&found),
        advice: found.advice.iter().map(|advice| format!("{}: {}", advice.setting, advice.why)).collect(),
    })
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
