//! Metrics of the `ends` analyzer.

use crate::model::units::Count;

crate::metrics! {
    /// Ends of workloads, of ranks, and of single processes that a signal or the OOM killer ended or that used much memory, since memwarden started, by the user of the workload (empty for users after the first 64, and for processes of no tracked workload) and the most probable cause: cgroup_limit, host_memory, shared_memory, gpu_memory (its own), gpu_neighbor (that of another workload), gpu_fragmentation, process_limit, will_not_fit (it ended itself), gpu_fault, memwarden (protection), killed (by another program or a person), failed, finished or unknown.
    pub ENDS: Counter<Count> = "memwarden_ends_total" {user, cause}.counting("{end}").budget(1_000);
    /// Last ends of a run (or of a workload, if its run is not known), on this node, that all had the same cause for which starting it again without a change cannot help; absent after any other end, an hour after the last one, and below 2.
    pub REPEATED: Gauge<Count> = "memwarden_ends_repeated" {workload, run, user, cause}.counting("{end}").budget(256);
}
