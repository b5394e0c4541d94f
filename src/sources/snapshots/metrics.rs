//! Metrics of the `snapshots` source. `folder` is the configured name of the folder, `rank` the one in the file name.

use crate::model::units::{Bytes, Count, Ratio, Seconds};

crate::metrics! {
    /// Unix time at which the rank's newest allocator snapshot was written.
    pub TIME: Gauge<Seconds> = "memwarden_snapshot_written_timestamp_seconds" {folder, rank}.budget(1_024);
    /// Memory that PyTorch's allocator reserved from the device, in the rank's newest snapshot.
    pub RESERVED: Gauge<Bytes> = "memwarden_snapshot_reserved_bytes" {folder, rank, device}.budget(4_096);
    /// Memory in allocated blocks of PyTorch's allocator, rounding included, in the rank's newest snapshot.
    pub ALLOCATED: Gauge<Bytes> = "memwarden_snapshot_allocated_bytes" {folder, rank, device}.budget(4_096);
    /// Memory in active blocks of PyTorch's allocator (allocated, or freed and still in use by another stream), in the rank's newest snapshot.
    pub ACTIVE: Gauge<Bytes> = "memwarden_snapshot_active_bytes" {folder, rank, device}.budget(4_096);
    /// Memory that the job requested for the active blocks of PyTorch's allocator, before rounding, in the rank's newest snapshot.
    pub REQUESTED: Gauge<Bytes> = "memwarden_snapshot_requested_bytes" {folder, rank, device}.budget(4_096);
    /// Free memory in segments that also have active blocks (inactive split), in the rank's newest snapshot.
    pub INACTIVE_SPLIT: Gauge<Bytes> = "memwarden_snapshot_inactive_split_bytes" {folder, rank, device}.budget(4_096);
    /// Memory that PyTorch's allocator can release to the driver before it raises an out-of-memory error, in the rank's newest snapshot.
    pub RELEASABLE: Gauge<Bytes> = "memwarden_snapshot_releasable_bytes" {folder, rank, device}.budget(4_096);
    /// Free memory of PyTorch's allocator that it cannot release to the driver (external fragmentation), in the rank's newest snapshot.
    pub UNRELEASABLE: Gauge<Bytes> = "memwarden_snapshot_unreleasable_bytes" {folder, rank, device}.budget(4_096);
    /// Largest contiguous free range of PyTorch's allocator, in the rank's newest snapshot.
    pub LARGEST_FREE: Gauge<Bytes> = "memwarden_snapshot_largest_free_bytes" {folder, rank, device}.budget(4_096);
    /// Representative request size of the job, by size: the last that failed, the 99th percentile or the largest of its large requests, in the rank's newest snapshot.
    pub REQUEST: Gauge<Bytes> = "memwarden_snapshot_request_bytes" {folder, rank, size}.budget(4_096);
    /// Share of the pool's free memory in ranges too small for a request of the given size, 0 to 1, in the rank's newest snapshot; absent where the pool has no free memory.
    pub UNUSABLE: Gauge<Ratio> = "memwarden_snapshot_unusable_ratio" {folder, rank, size}.budget(4_096);
    /// Free memory in ranges too small for a request of the given size, as a share of all reserved memory, 0 to 1, in the rank's newest snapshot.
    pub LOST: Gauge<Ratio> = "memwarden_snapshot_lost_ratio" {folder, rank, size}.budget(4_096);
    /// Allocations that failed within the trace of the rank's newest snapshot; at most 16 are counted for each device.
    pub FAILURES: Gauge<Count> = "memwarden_snapshot_failed_allocations" {folder, rank}.counting("{allocation}").budget(1_024);
    /// Live memory of allocation stacks that retain memory at every step, in the rank's newest snapshot; absent where the trace is too short.
    pub SUSPECTS: Gauge<Bytes> = "memwarden_snapshot_leak_suspect_bytes" {folder, rank}.budget(1_024);
    /// Allocator snapshots that were read from the watched folder.
    pub READ: Counter<Count> = "memwarden_snapshots_read_total" {folder}.counting("{snapshot}");
    /// Allocator snapshots in the watched folder that are ignored because they are of other users: in a folder that several users can write, of another user than that of the rank's process, or of another than root and the folder's owner where no process is known.
    pub OF_OTHERS: Gauge<Count> = "memwarden_snapshots_of_others" {folder}.counting("{snapshot}");
    /// Allocator snapshots in the watched folder that could not be read.
    pub ERRORS: Counter<Count> = "memwarden_snapshot_errors_total" {folder}.counting("{snapshot}");
}
