//! Summary of an allocator snapshot, small enough for exposition as metrics: the answer of `memwarden snapshot-digest`.

use serde::{Deserialize, Serialize};

/// Summary of one snapshot, in bytes and counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Digest {
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
