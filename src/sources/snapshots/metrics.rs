//! What `snapshots` exposes. `watch` is the name of the watched folder, `rank` the one in the file's name.

use crate::model::units::{Bytes, Count, Ratio, Seconds};

crate::metrics! {
    /// When the newest snapshot of the rank was written, as Unix time.
    pub TIME: Gauge<Seconds> = "memwarden_snapshot_time_seconds" {watch, rank}.budget(1_024);
    /// Held from the driver by the allocator.
    pub RESERVED: Gauge<Bytes> = "memwarden_snapshot_reserved_bytes" {watch, rank, device}.budget(4_096);
    /// In blocks that the job has, after rounding.
    pub ALLOCATED: Gauge<Bytes> = "memwarden_snapshot_allocated_bytes" {watch, rank, device}.budget(4_096);
    /// Allocated, or given back and still in use by another stream.
    pub ACTIVE: Gauge<Bytes> = "memwarden_snapshot_active_bytes" {watch, rank, device}.budget(4_096);
    /// What the job asked for, of what is active; the rest is internal fragmentation.
    pub REQUESTED: Gauge<Bytes> = "memwarden_snapshot_requested_bytes" {watch, rank, device}.budget(4_096);
    /// Free next to active blocks of the same segment (inactive split).
    pub INACTIVE_SPLIT: Gauge<Bytes> = "memwarden_snapshot_inactive_split_bytes" {watch, rank, device}.budget(4_096);
    /// What the allocator gives back to the driver before it fails.
    pub RELEASABLE: Gauge<Bytes> = "memwarden_snapshot_releasable_bytes" {watch, rank, device}.budget(4_096);
    /// Free and not releasable: external fragmentation proper.
    pub STUCK: Gauge<Bytes> = "memwarden_snapshot_stuck_bytes" {watch, rank, device}.budget(4_096);
    /// The largest free range.
    pub LARGEST_FREE: Gauge<Bytes> = "memwarden_snapshot_largest_free_bytes" {watch, rank, device}.budget(4_096);
    /// A size that the job asks for: the last that failed, or the 99th percentile or the largest of its large requests.
    pub REQUEST: Gauge<Bytes> = "memwarden_snapshot_request_bytes" {watch, rank, size}.budget(4_096);
    /// Share of the pool's free memory in ranges too small for a request of that size, 0 to 1; absent where nothing is free.
    pub UNUSABLE: Gauge<Ratio> = "memwarden_snapshot_unusable_ratio" {watch, rank, size}.budget(4_096);
    /// What is lost to a request of that size as a share of everything reserved, 0 to 1.
    pub LOST: Gauge<Ratio> = "memwarden_snapshot_lost_ratio" {watch, rank, size}.budget(4_096);
    /// Allocations that failed within the snapshot's trace; of each device at most 16 are told.
    pub FAILURES: Gauge<Count> = "memwarden_snapshot_failed_allocations" {watch, rank}.counting("{allocation}").budget(1_024);
    /// Live memory of stacks that leave some behind step after step; absent where the trace is too short to tell.
    pub SUSPECTS: Gauge<Bytes> = "memwarden_snapshot_leak_suspect_bytes" {watch, rank}.budget(1_024);
    /// Snapshots that were read.
    pub READ: Counter<Count> = "memwarden_snapshots_read_total" {watch}.counting("{snapshot}");
    /// Snapshots that are left aside now because they are of other users: in a folder that several users can write, of another than that of the rank's process, or of another than root and the folder's owner where no process is known.
    pub OF_OTHERS: Gauge<Count> = "memwarden_snapshots_of_others" {watch}.counting("{snapshot}");
    /// Snapshots that could not be read.
    pub ERRORS: Counter<Count> = "memwarden_snapshot_errors_total" {watch}.counting("{snapshot}");
}
