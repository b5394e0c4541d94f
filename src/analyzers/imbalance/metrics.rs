//! Metrics of the `imbalance` analyzer.

use crate::model::units::{Bytes, Count, Flag, Ratio};

crate::metrics! {
    /// Memory that the workload uses on its fullest GPU above the mean of its GPUs, as a share of the mean; the label workload is empty for all GPUs of the node together. Absent for fewer than two GPUs.
    pub SPREAD: Gauge<Ratio> = "memwarden_imbalance_memory_spread_ratio" {workload};
    /// GPU on which the workload uses the most memory; always 1, absent for fewer than two GPUs.
    pub BOTTLENECK: Gauge<Flag> = "memwarden_imbalance_memory_bottleneck_info" {workload, gpu, uuid};
    /// Memory on the workload's other GPUs, in total, that remains unused when its fullest GPU is full.
    pub STRANDED: Gauge<Bytes> = "memwarden_imbalance_stranded_bytes" {workload};
    /// Utilization of the workload's least busy GPU below the mean of its GPUs, as a share of the mean, averaged over 1 minute; absent for fewer than two GPUs and while all are idle.
    pub IDLEST: Gauge<Ratio> = "memwarden_imbalance_utilization_lag_ratio" {workload};
    /// GPU of the workload with the lowest utilization; always 1, absent for fewer than two GPUs and while all are idle.
    pub STRAGGLER: Gauge<Flag> = "memwarden_imbalance_straggler_info" {workload, gpu, uuid};
    /// Resident memory of the workload as a share of the resident memory of all workloads of the node, 0 to 1.
    pub SHARE: Gauge<Ratio> = "memwarden_imbalance_workload_memory_share_ratio" {workload};
    /// Step time of the slowest rank of a run above the mean of its ranks on this node, as a share of the mean, averaged over 1 minute; absent for fewer than two ranks and while any rank reports no step time.
    pub STEP_SPREAD: Gauge<Ratio> = "memwarden_imbalance_step_time_spread_ratio" {workload, run};
    /// Rank of a run with the longest step time on this node; always 1, absent for fewer than two ranks and while any rank reports no step time.
    pub SLOWEST: Gauge<Flag> = "memwarden_imbalance_slowest_rank_info" {workload, run, rank};
    /// Largest minus smallest share of time that the ranks of a run wait for the data loader, averaged over 1 minute.
    pub LOADER_SPREAD: Gauge<Ratio> = "memwarden_imbalance_loader_wait_spread_ratio" {workload, run};
    /// Optimizer steps between the most and the least advanced rank of a run on this node, by the last report of each.
    pub BEHIND: Gauge<Count> = "memwarden_imbalance_steps_behind" {workload, run}.counting("{step}");
    /// Allocated memory of the fullest rank of a run above the mean of its ranks on this node, as a share of the mean.
    pub RANK_SPREAD: Gauge<Ratio> = "memwarden_imbalance_rank_memory_spread_ratio" {workload, run};
    /// Rank of a run with the most allocated memory on this node; always 1, absent while there is no comparison of the ranks' memory.
    pub FULLEST_RANK: Gauge<Flag> = "memwarden_imbalance_fullest_rank_info" {workload, run, rank};
}
