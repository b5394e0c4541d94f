//! GPU memory of ranks that their allocators did not reserve: context, NCCL, workspaces of libraries, CUDA graphs.

use std::collections::HashMap;

use crate::analyzers::ranks;
use crate::model::analyzer::View;
use crate::model::label::Label;
use crate::sources::gpu::metrics::PROCESS_MEMORY;
use crate::sources::training::metrics::RESERVED;

/// That memory of one rank on one GPU.
pub(super) struct Outside<'v> {
    /// Workload, rank, index and UUID of the GPU.
    pub(super) labels: [Label; 4],
    pub(super) pid: &'v Label,
    /// In bytes.
    pub(super) bytes: f64,
}

/// Of each rank and GPU of which the driver reports the memory of the process, and the job what its allocators reserved.
/// Absent where that is more than the process has: the two are not of the same instant.
pub(super) fn outside<'v>(view: &View<'v>) -> Vec<Outside<'v>> {
    let points = view.points(&RESERVED);
    if points.is_empty() {
        return Vec::new();
    }
    let on_gpu = view.points(&PROCESS_MEMORY).iter().filter_map(|point| {
        let [gpu, uuid, pid] = &*point.labels else { return None };
        Some(((gpu, pid), (uuid, point.value)))
    });
    let on_gpu: HashMap<_, _> = on_gpu.collect();
    let pids = ranks::pids(view);
    let mut reserved: HashMap<(&Label, &Label), ([&Label; 2], f64)> = HashMap::new();
    for point in points {
        let [workload, rank, _, gpu] = &*point.labels else { continue };
        let Some(pid) = pids.get(&[workload, rank]).filter(|_| !gpu.is_empty()) else { continue };
        reserved.entry((gpu, pid)).or_insert(([workload, rank], 0.0)).1 += point.value;
    }
    let of = |((gpu, pid), ([workload, rank], reserved)): ((&'v Label, &'v Label), ([&Label; 2], f64))| {
        let (uuid, used) = on_gpu.get(&(gpu, pid))?;
        let labels = [workload.clone(), rank.clone(), gpu.clone(), (*uuid).clone()];
        (*used >= reserved).then(|| Outside { labels, pid, bytes: used - reserved })
    };
    reserved.into_iter().filter_map(of).collect()
}
