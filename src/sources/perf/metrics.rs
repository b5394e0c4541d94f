//! Metrics of the `perf` source.

use crate::model::units::{Count, Flag, Ratio, Seconds};

crate::metrics! {
    /// CPU time of the workload, counted by perf_event since the workload was first seen.
    pub TASK_CLOCK: Counter<Seconds> = "memwarden_perf_task_clock_seconds_total" {workload};
    /// Context switches of the workload's threads, counted by perf_event since the workload was first seen.
    pub CONTEXT_SWITCHES: Counter<Count> = "memwarden_perf_context_switches_total" {workload}.counting("{switch}");
    /// Migrations of the workload's threads between CPUs, counted by perf_event since the workload was first seen.
    pub MIGRATIONS: Counter<Count> = "memwarden_perf_migrations_total" {workload}.counting("{migration}");
    /// Page faults of the workload, minor and major, counted by perf_event since the workload was first seen.
    pub PAGE_FAULTS: Counter<Count> = "memwarden_perf_page_faults_total" {workload}.counting("{fault}");
    /// CPU cycles of the workload since it was first seen; estimated where hardware counters were multiplexed.
    pub CYCLES: Counter<Count> = "memwarden_perf_cycles_total" {workload}.counting("{cycle}");
    /// Instructions retired by the workload since it was first seen; estimated where hardware counters were multiplexed.
    pub INSTRUCTIONS: Counter<Count> = "memwarden_perf_instructions_total" {workload}.counting("{instruction}");
    /// Cache accesses of the workload since it was first seen; estimated where hardware counters were multiplexed.
    pub CACHE_REFERENCES: Counter<Count> = "memwarden_perf_cache_references_total" {workload}.counting("{access}");
    /// Cache misses of the workload since it was first seen; estimated where hardware counters were multiplexed.
    pub CACHE_MISSES: Counter<Count> = "memwarden_perf_cache_misses_total" {workload}.counting("{miss}");
    /// Mispredicted branches of the workload since it was first seen; estimated where hardware counters were multiplexed.
    pub BRANCH_MISSES: Counter<Count> = "memwarden_perf_branch_misses_total" {workload}.counting("{miss}");
    /// Instructions per CPU cycle of the workload over the last sampling interval.
    pub IPC: Gauge<Ratio> = "memwarden_perf_instructions_per_cycle_ratio" {workload};
    /// Share of the last sampling interval in which the workload's hardware counters were active; below 1 they were multiplexed, and the totals are estimated.
    pub COUNTING: Gauge<Ratio> = "memwarden_perf_counting_ratio" {workload};
    /// Processes of the workload without perf_event counters, because of missing permission or the limit of descriptors.
    pub UNCOUNTED: Gauge<Count> = "memwarden_perf_uncounted_processes" {workload}.counting("{process}");
    /// Context switches on all CPUs of the host since memwarden started.
    pub HOST_CONTEXT_SWITCHES: Counter<Count> = "memwarden_host_perf_context_switches_total" {}.counting("{switch}");
    /// Migrations of threads between CPUs of the host since memwarden started.
    pub HOST_MIGRATIONS: Counter<Count> = "memwarden_host_perf_migrations_total" {}.counting("{migration}");
    /// Page faults on all CPUs of the host since memwarden started.
    pub HOST_PAGE_FAULTS: Counter<Count> = "memwarden_host_perf_page_faults_total" {}.counting("{fault}");
    /// Cycles of all CPUs of the host since memwarden started; estimated where hardware counters were multiplexed.
    pub HOST_CYCLES: Counter<Count> = "memwarden_host_perf_cycles_total" {}.counting("{cycle}");
    /// Instructions retired on all CPUs of the host since memwarden started; estimated where hardware counters were multiplexed.
    pub HOST_INSTRUCTIONS: Counter<Count> = "memwarden_host_perf_instructions_total" {}.counting("{instruction}");
    /// Cache accesses of all CPUs of the host since memwarden started; estimated where hardware counters were multiplexed.
    pub HOST_CACHE_REFERENCES: Counter<Count> = "memwarden_host_perf_cache_references_total" {}.counting("{access}");
    /// Cache misses of all CPUs of the host since memwarden started; estimated where hardware counters were multiplexed.
    pub HOST_CACHE_MISSES: Counter<Count> = "memwarden_host_perf_cache_misses_total" {}.counting("{miss}");
    /// Mispredicted branches on all CPUs of the host since memwarden started; estimated where hardware counters were multiplexed.
    pub HOST_BRANCH_MISSES: Counter<Count> = "memwarden_host_perf_branch_misses_total" {}.counting("{miss}");
    /// Instructions per CPU cycle on all CPUs of the host over the last sampling interval.
    pub HOST_IPC: Gauge<Ratio> = "memwarden_host_perf_instructions_per_cycle_ratio" {};
    /// Share of the last sampling interval in which the host's hardware counters were active; below 1 they were multiplexed, and the totals are estimated.
    pub HOST_COUNTING: Gauge<Ratio> = "memwarden_host_perf_counting_ratio" {};
    /// Whether the perf_event event can be counted, by scope (workload or host); 0 where the hardware does not support it or the kernel does not allow it.
    pub AVAILABLE: Gauge<Flag> = "memwarden_perf_event_available" {event, scope};
    /// Value of kernel.perf_event_paranoid as the label level; always 1. CAP_PERFMON is needed from 2 on, and for counters of the host from 1 on.
    pub PARANOID: Gauge<Flag> = "memwarden_perf_event_paranoid_info" {level};
    /// File descriptors that perf_event counters hold open.
    pub DESCRIPTORS: Gauge<Count> = "memwarden_perf_descriptors" {}.counting("{file}");
}
