//! Metrics of the `fit` analyzer.

use crate::model::units::{Bytes, Flag, Ratio};

crate::metrics! {
    /// Memory that is there for the rank in the phase: what it holds now and what is free, without what the other ranks of its run take in the same phase.
    pub CAPACITY: Gauge<Bytes> = "memwarden_fit_capacity_bytes" {workload, rank, phase, resource, cgroup, gpu, uuid};
    /// Memory that is left at the predicted peak of the phase; absent where memory is missing or the peak is not known.
    pub HEADROOM: Gauge<Bytes> = "memwarden_fit_headroom_bytes" {workload, rank, phase, resource, cgroup, gpu, uuid};
    /// Memory that is missing at the predicted peak of the phase; absent where the peak fits or is not known.
    pub MISSING: Gauge<Bytes> = "memwarden_fit_missing_bytes" {workload, rank, phase, resource, cgroup, gpu, uuid};
    /// Probability, 0 to 1, that the phase needs more memory than there is; absent where its peak or the free memory is not known.
    pub PROBABILITY: Gauge<Ratio> = "memwarden_fit_exhaustion_probability_ratio" {workload, rank, phase, resource, cgroup, gpu, uuid};
    /// Whether the phase fits (verdict fits, tight, unknown or will_not_fit); always 1, one series for each phase and resource of a rank.
    pub VERDICT: Gauge<Flag> = "memwarden_fit_verdict_info" {workload, rank, phase, resource, cgroup, gpu, uuid, verdict};
}
