//! Configuration keys of the `perf` source.

crate::options! {
    /// The options of the source.
    pub(super) struct Options {
        /// Whether events are counted for the whole host; needs kernel.perf_event_paranoid of 0 or less, or CAP_PERFMON.
        host: bool = true;
        /// Whether events are counted for each workload.
        workloads: bool = true;
        /// Whether cycles, instructions and misses are counted with hardware counters, in addition to the kernel's
        /// software counters. Disable it where a profiler of a job needs the hardware counters.
        hardware: bool = true;
        /// Maximum number of file descriptors for counters. Each thread needs one for each event; a process for which
        /// there are not enough is not counted and is reported as uncounted.
        max_descriptors: usize = 2000 in 9..=1000000;
    }
}
