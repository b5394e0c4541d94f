//! What `leak` exposes. Every series begins with the labels of its subject, of which most are empty.

use crate::model::units::{Bytes, BytesPerSecond, Count, Flag, Ratio, Seconds, SignedBytes};

crate::metrics! {
    /// Whether this is the state of the growth of a workload, of one of its processes, of a process on a GPU, or of the allocator of a rank that the driver does not show: 1 for the one it has of insufficient, steady, warming, growing and leaking, 0 for the others. File cache never counts, and what the GPU's driver shows is at most growing, because allocators keep what they reserved.
    pub STATE: Gauge<Flag> = "memwarden_leak_state"
        {resource, cgroup, gpu, uuid, workload, pid, state}.budget(20_000);
    /// How fast the watched memory grows; absent before there are enough samples, and from the end of growth until the samples that are looked at no longer show it.
    pub GROWTH: Gauge<BytesPerSecond> = "memwarden_leak_growth_bytes_per_second"
        {resource, cgroup, gpu, uuid, workload, pid}.budget(4_000);
    /// How much it grows with each training step of the job, where the job tells its steps.
    pub STEP_GROWTH: Gauge<SignedBytes> = "memwarden_leak_growth_step_bytes"
        {resource, cgroup, gpu, uuid, workload, pid}.budget(4_000);
    /// When the growth began, in seconds since 1970; absent unless it grows.
    pub SINCE: Gauge<Seconds> = "memwarden_leak_since_timestamp_seconds"
        {resource, cgroup, gpu, uuid, workload, pid}.budget(4_000);
    /// How loud the evidence for growth is, 0.5 to 1: an order, not a probability; absent unless it grows.
    pub CONFIDENCE: Gauge<Ratio> = "memwarden_leak_confidence_ratio"
        {resource, cgroup, gpu, uuid, workload, pid}.budget(4_000);
    /// The rise over the window of the evidence; absent before there are enough samples.
    pub RISE: Gauge<Bytes> = "memwarden_leak_rise_bytes"
        {resource, cgroup, gpu, uuid, workload, pid}.budget(4_000);
    /// The length of the window of the evidence; absent before there are enough samples.
    pub WINDOW: Gauge<Seconds> = "memwarden_leak_window_seconds"
        {resource, cgroup, gpu, uuid, workload, pid}.budget(4_000);
    /// How many standard errors the slope of the floor, the center and the peak of the watched memory is away from none; absent before there are enough samples.
    pub SCORE: Gauge<Count> = "memwarden_leak_score"
        {resource, cgroup, gpu, uuid, workload, pid, envelope}.counting("{error}").budget(12_000);
    /// Subjects that are followed.
    pub FOLLOWED: Gauge<Count> = "memwarden_leak_subjects" {}.counting("{subject}");
    /// Subjects that are not followed because there are more than most.
    pub OMITTED: Gauge<Count> = "memwarden_leak_subjects_omitted" {}.counting("{subject}");
}
