//! What `imbalance` exposes.

use crate::model::units::{Bytes, Count, Flag, Ratio};

crate::metrics! {
    /// How much more memory the workload uses on its fullest GPU than on the mean of its GPUs, as a share of that mean; workload is absent for all GPUs of the node together; absent for fewer than two GPUs.
    pub SPREAD: Gauge<Ratio> = "memwarden_imbalance_memory_spread_ratio" {workload};
    /// The GPU on which the workload uses most; always 1, absent for fewer than two GPUs.
    pub BOTTLENECK: Gauge<Flag> = "memwarden_imbalance_memory_bottleneck_info" {workload, gpu, uuid};
    /// Memory on the workload's other GPUs, together, that stays unused once its fullest GPU is full.
    pub STRANDED: Gauge<Bytes> = "memwarden_imbalance_stranded_bytes" {workload};
    /// How much less busy the workload's idlest GPU is than the mean of its GPUs, as a share of that mean, over a minute; absent for fewer than two GPUs, and while all idle.
    pub IDLEST: Gauge<Ratio> = "memwarden_imbalance_utilization_lag_ratio" {workload};
    /// The workload's idlest GPU; always 1, absent where the lag is.
    pub STRAGGLER: Gauge<Flag> = "memwarden_imbalance_straggler_info" {workload, gpu, uuid};
    /// The workload's share of the resident memory of all workloads of the node.
    pub SHARE: Gauge<Ratio> = "memwarden_imbalance_workload_memory_share_ratio" {workload};
    /// How much longer the slowest rank takes for a step than the mean of the workload's ranks, as a share of that mean, over a minute; absent for fewer than two ranks, and where one does not tell.
    pub STEP_SPREAD: Gauge<Ratio> = "memwarden_imbalance_step_time_spread_ratio" {workload};
    /// The rank that takes longest for a step; always 1, absent where the spread is.
    pub SLOWEST: Gauge<Flag> = "memwarden_imbalance_slowest_rank_info" {workload, rank};
    /// The share of its time that one rank waits for data more than the one that waits least, over a minute.
    pub LOADER_SPREAD: Gauge<Ratio> = "memwarden_imbalance_loader_wait_spread_ratio" {workload};
    /// How many steps the last rank is behind the first, as they were last heard of.
    pub BEHIND: Gauge<Count> = "memwarden_imbalance_steps_behind" {workload}.counting("{step}");
    /// How much more the fullest rank has allocated than the mean of the workload's ranks, as a share of that mean.
    pub RANK_SPREAD: Gauge<Ratio> = "memwarden_imbalance_rank_memory_spread_ratio" {workload};
    /// The rank that has allocated most; always 1, absent where the spread is.
    pub FULLEST_RANK: Gauge<Flag> = "memwarden_imbalance_fullest_rank_info" {workload, rank};
}
