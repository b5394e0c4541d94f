//! Which other workload held, or took, the memory that a process lacked.

use std::collections::HashMap;

use super::observed::{Gpu, Observed};
use crate::model::analyzer::View;
use crate::model::ends::OtherHolder;
use crate::model::ids::{WorkloadKey, within};
use crate::model::label::Label;
use crate::sources::{memory, workload};

/// Share of a resource above which another workload is worth naming.
const NOTICEABLE: f64 = 0.1;

/// The workload below the limit of this cgroup that grew the most lately, where it grew more than the one that was killed.
pub(super) fn in_group(
    known: &HashMap<WorkloadKey, Observed>,
    killed: Option<&Observed>,
    limit: &Label,
) -> Option<OtherHolder> {
    let killed = killed.filter(|_| !["", "/"].contains(&limit.as_str()))?;
    let is_inside = |own: &&Observed| own.name != killed.name && within(own.cgroup.as_str(), limit.as_str());
    let (other, (growth, bytes)) = known
        .values()
        .filter(is_inside)
        .map(|own| (own, own.growth()))
        .max_by(|(_, one), (_, other)| one.0.total_cmp(&other.0))?;
    (growth > killed.growth().0 && growth >= NOTICEABLE * bytes)
        .then(|| OtherHolder { workload: other.name.clone(), bytes })
}

/// The workload other than `own` with the most memory on one of these GPUs.
pub(super) fn on_gpu(view: &View<'_>, own: &Label, gpus: &[Gpu]) -> Option<OtherHolder> {
    let on_them = view
        .points(&workload::metrics::GPU_MEMORY)
        .iter()
        .filter(|point| point.labels[0] != *own && gpus.iter().any(|(_, uuid)| *uuid == point.labels[2]));
    let largest = on_them.max_by(|one, other| one.value.total_cmp(&other.value))?;
    Some(OtherHolder { workload: largest.labels[0].clone(), bytes: largest.value })
}

/// The workload other than `own` with the most resident memory, if it holds a noticeable share of the host's.
pub(super) fn on_host(view: &View<'_>, own: &Label) -> Option<OtherHolder> {
    let others = view.points(&workload::metrics::RSS).iter().filter(|point| point.labels[0] != *own);
    let largest = others.max_by(|one, other| one.value.total_cmp(&other.value))?;
    let total = view.value(&memory::metrics::TOTAL, &[])?;
    (largest.value >= NOTICEABLE * total)
        .then(|| OtherHolder { workload: largest.labels[0].clone(), bytes: largest.value })
}

#[cfg(test)]
mod tests;
