//! What `perf` exposes.

use crate::model::units::{Count, Flag, Ratio, Seconds};

crate::metrics! {
    /// Time on a processor, counted by perf_event since the workload was first seen.
    pub TASK_CLOCK: Counter<Seconds> = "memwarden_perf_task_clock_seconds_total" {workload};
    /// Switches of the workload's threads off a processor, since it was first seen.
    pub CONTEXT_SWITCHES: Counter<Count> = "memwarden_perf_context_switches_total" {workload}.counting("{switch}");
    /// Moves of the workload's threads from one processor to another, since it was first seen.
    pub MIGRATIONS: Counter<Count> = "memwarden_perf_migrations_total" {workload}.counting("{migration}");
    /// Page faults of the workload, minor and major, since it was first seen.
    pub PAGE_FAULTS: Counter<Count> = "memwarden_perf_page_faults_total" {workload}.counting("{fault}");
    /// Processor cycles of the workload, since it was first seen; scaled where counters took turns.
    pub CYCLES: Counter<Count> = "memwarden_perf_cycles_total" {workload}.counting("{cycle}");
    /// Instructions retired by the workload, since it was first seen; scaled where counters took turns.
    pub INSTRUCTIONS: Counter<Count> = "memwarden_perf_instructions_total" {workload}.counting("{instruction}");
    /// Cache accesses of the workload, since it was first seen; scaled where counters took turns.
    pub CACHE_REFERENCES: Counter<Count> = "memwarden_perf_cache_references_total" {workload}.counting("{access}");
    /// Cache misses of the workload, since it was first seen; scaled where counters took turns.
    pub CACHE_MISSES: Counter<Count> = "memwarden_perf_cache_misses_total" {workload}.counting("{miss}");
    /// Branches of the workload that were predicted wrongly, since it was first seen; scaled where counters took turns.
    pub BRANCH_MISSES: Counter<Count> = "memwarden_perf_branch_misses_total" {workload}.counting("{miss}");
    /// Instructions for each cycle in the last interval, as a ratio of the two counts.
    pub IPC: Gauge<Ratio> = "memwarden_perf_instructions_per_cycle_ratio" {workload};
    /// Share of the last interval in which the processor's counters of the workload were counting; below 1 they took turns, and totals are scaled.
    pub COUNTING: Gauge<Ratio> = "memwarden_perf_counting_ratio" {workload};
    /// Processes of the workload that are not counted: no permission, or no descriptor left for them.
    pub UNCOUNTED: Gauge<Count> = "memwarden_perf_uncounted_processes" {workload}.counting("{process}");
    /// Switches from one task to another on all processors, since the daemon started.
    pub HOST_CONTEXT_SWITCHES: Counter<Count> = "memwarden_host_perf_context_switches_total" {}.counting("{switch}");
    /// Moves of threads from one processor to another, since the daemon started.
    pub HOST_MIGRATIONS: Counter<Count> = "memwarden_host_perf_migrations_total" {}.counting("{migration}");
    /// Page faults on all processors, since the daemon started.
    pub HOST_PAGE_FAULTS: Counter<Count> = "memwarden_host_perf_page_faults_total" {}.counting("{fault}");
    /// Cycles of all processors, since the daemon started; scaled where counters took turns.
    pub HOST_CYCLES: Counter<Count> = "memwarden_host_perf_cycles_total" {}.counting("{cycle}");
    /// Instructions retired on all processors, since the daemon started; scaled where counters took turns.
    pub HOST_INSTRUCTIONS: Counter<Count> = "memwarden_host_perf_instructions_total" {}.counting("{instruction}");
    /// Cache accesses of all processors, since the daemon started; scaled where counters took turns.
    pub HOST_CACHE_REFERENCES: Counter<Count> = "memwarden_host_perf_cache_references_total" {}.counting("{access}");
    /// Cache misses of all processors, since the daemon started; scaled where counters took turns.
    pub HOST_CACHE_MISSES: Counter<Count> = "memwarden_host_perf_cache_misses_total" {}.counting("{miss}");
    /// Branches that were predicted wrongly on all processors, since the daemon started; scaled where counters took turns.
    pub HOST_BRANCH_MISSES: Counter<Count> = "memwarden_host_perf_branch_misses_total" {}.counting("{miss}");
    /// Instructions for each cycle on all processors in the last interval, as a ratio of the two counts.
    pub HOST_IPC: Gauge<Ratio> = "memwarden_host_perf_instructions_per_cycle_ratio" {};
    /// Share of the last interval in which the processors' counters of the host were counting; below 1 they took turns.
    pub HOST_COUNTING: Gauge<Ratio> = "memwarden_host_perf_counting_ratio" {};
    /// Whether the event can be counted for a workload or the host (scope): 0 where the hardware does not count it or the kernel does not allow it.
    pub AVAILABLE: Gauge<Flag> = "memwarden_perf_event_available" {event, scope};
    /// Always 1, with the value of kernel.perf_event_paranoid: from 2 on, and for the host from 1 on, CAP_PERFMON is needed.
    pub PARANOID: Gauge<Flag> = "memwarden_perf_event_paranoid_info" {level};
    /// Descriptors that counters hold open.
    pub DESCRIPTORS: Gauge<Count> = "memwarden_perf_descriptors" {}.counting("{file}");
}
