//! Metrics of the `leak` analyzer. Every series begins with the labels of its subject, most of which are empty.

use crate::model::units::{Bytes, BytesPerSecond, BytesPerStep, Count, Flag, Ratio, Seconds};

crate::metrics! {
    /// Growth state of a workload, a process, a process on a GPU, a rank's allocator, or the GPU memory of a rank outside of its allocator (outside_allocator): 1 for the current state (insufficient, steady, warming, growing or leaking), 0 for the others. Page cache is excluded; memory reported by the GPU driver is never classified above growing, because allocators keep reserved memory.
    pub STATE: Gauge<Flag> = "memwarden_leak_state"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region, state}.budget(20_000);
    /// Growth rate of the memory that the leak analyzer tracks; absent before there are enough samples, and after growth ends until the evaluated samples no longer include it.
    pub GROWTH: Gauge<BytesPerSecond> = "memwarden_leak_growth_bytes_per_second"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region}.budget(4_000);
    /// Growth of the tracked memory for each training step; absent where the job reports no steps.
    pub STEP_GROWTH: Gauge<BytesPerStep> = "memwarden_leak_growth_bytes_per_step"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region}.budget(4_000);
    /// Unix time at which the tracked memory began to grow; absent while it does not grow.
    pub SINCE: Gauge<Seconds> = "memwarden_leak_since_timestamp_seconds"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region}.budget(4_000);
    /// Strength of the evidence for growth of the tracked memory, 0.5 to 1; orders suspects and is not a probability. Absent while the memory does not grow.
    pub CONFIDENCE: Gauge<Ratio> = "memwarden_leak_confidence_ratio"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region}.budget(4_000);
    /// Increase of the tracked memory over the evaluation window; absent before there are enough samples.
    pub RISE: Gauge<Bytes> = "memwarden_leak_rise_bytes"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region}.budget(4_000);
    /// Length of the window in which the leak analyzer evaluates the growth of the tracked memory; absent before there are enough samples.
    pub WINDOW: Gauge<Seconds> = "memwarden_leak_window_seconds"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region}.budget(4_000);
    /// Distance of the slope of the tracked memory from zero in standard errors, for its lower envelope (floor), center and upper envelope (peak); absent before there are enough samples.
    pub SCORE: Gauge<Count> = "memwarden_leak_score"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region, envelope}.counting("{error}").budget(12_000);
    /// GPU memory of the rank's process that its allocators did not reserve, such as the CUDA context, NCCL, workspaces of libraries and CUDA graphs; absent where the driver does not report the memory of the process, or the job not what its allocators reserved.
    pub OUTSIDE: Gauge<Bytes> = "memwarden_rank_gpu_memory_outside_allocator_bytes" {workload, rank, gpu, uuid}.budget(4_000);
    /// Workloads, processes and allocators that the leak analyzer tracks.
    pub FOLLOWED: Gauge<Count> = "memwarden_leak_subjects" {}.counting("{subject}");
    /// Workloads, processes and allocators that the leak analyzer does not track because the limit analyzers.leak.max_subjects is reached.
    pub OMITTED: Gauge<Count> = "memwarden_leak_subjects_omitted" {}.counting("{subject}");
}
