//! The NUMA nodes of workloads that may not use all of them: the kernel ends a process that finds no memory on the nodes that its
//! cpuset allows, whatever is free on others.

use std::collections::BTreeMap;

use forecast::tracker::Sample;

use super::resources::Resource;
use crate::model::analyzer::View;
use crate::model::finding::Subject;
use crate::model::label::Label;
use crate::sources::{huge_pages, memory, numa, workload};

/// The memory of the nodes of each workload that is bound to some, of all processes that use them, without pools of huge pages. Swap
/// counts, because the kernel swaps out before it ends a process.
pub(super) fn of_bound_workloads(view: &View<'_>) -> Vec<Resource> {
    let mut bound: BTreeMap<&Label, Vec<&Label>> = BTreeMap::new();
    for point in view.points(&workload::metrics::BOUND) {
        let [workload, node] = &*point.labels else { continue };
        bound.entry(workload).or_default().push(node);
    }
    if bound.is_empty() {
        return Vec::new();
    }
    let total = view.by_label(&numa::metrics::TOTAL, 0);
    let available = view.by_label(&numa::metrics::AVAILABLE, 0);
    let pools = view.points(&huge_pages::metrics::OF_NODE);
    let starts = view.by_label(&workload::metrics::START, 0);
    let swap = view.value(&memory::metrics::SWAP_FREE, &[]).unwrap_or(0.0);
    let resource = |(workload, nodes): (&Label, Vec<&Label>)| {
        let sum = |amounts: &BTreeMap<&Label, f64>| -> Option<f64> {
            nodes.iter().map(|node| amounts.get(*node).copied()).sum()
        };
        let in_pools = pools.iter().filter(|point| nodes.contains(&&point.labels[0]));
        let total = sum(&total)? - in_pools.map(|point| point.value).sum::<f64>();
        let available = sum(&available)?;
        let names = Vec::from_iter(nodes.iter().map(|node| node.as_str())).join(",");
        let sample = Sample { used: total - available, unreclaimable: None, allocated: None, peak: None };
        Some(Resource {
            life: starts.get(workload).copied().unwrap_or(0.0),
            ..Resource::new(Subject::numa_nodes(workload, &names.into()), sample, total + swap)
        })
    };
    bound.into_iter().filter_map(resource).collect()
}
