//! Which process each rank is, and which ranks train together.

use std::collections::{BTreeSet, HashMap};

use crate::model::analyzer::View;
use crate::model::label::Label;
use crate::model::point::Point;
use crate::sources::training::metrics::INFO;

/// The values of these labels of a rank's information; absent where it has no such label.
fn labels<'v, const N: usize>(point: &'v Point, names: [&str; N]) -> Option<[&'v Label; N]> {
    let place = |name: &str| INFO.desc.labels.iter().position(|label| *label == name);
    let found: Vec<&Label> = names
        .iter()
        .map(|name| place(name).and_then(|place| point.labels.get(place)))
        .collect::<Option<_>>()?;
    found.try_into().ok()
}

/// The pid of each rank, by workload and rank; without the ranks whose pid is unknown.
pub(super) fn pids<'v>(view: &View<'v>) -> HashMap<[&'v Label; 2], &'v Label> {
    let of = |point: &'v Point| {
        let [workload, rank, pid] = labels(point, ["workload", "rank", "pid"])?;
        Some(([workload, rank], Some(pid).filter(|pid| !pid.is_empty())?))
    };
    view.points(&INFO).iter().filter_map(of).collect()
}

/// The run of each rank that trains together with others, by workload and rank. Not in it is a process that is a world
/// of one rank: two of them are independent, also in one workload and under one name.
pub(super) fn runs<'v>(view: &View<'v>) -> HashMap<[&'v Label; 2], &'v Label> {
    let of = |point: &'v Point| {
        let [workload, rank, world, run] = labels(point, ["workload", "rank", "world", "run"])?;
        let several = world.as_str().parse::<u64>().is_ok_and(|world| world > 1);
        several.then_some(([workload, rank], run))
    };
    view.points(&INFO).iter().filter_map(of).collect()
}

/// The workloads with ranks that do not train together.
pub(super) fn independent(view: &View<'_>) -> BTreeSet<Label> {
    let runs = runs(view);
    let mut first = HashMap::new();
    let apart = view.points(&INFO).iter().filter_map(|point| {
        let key = labels(point, ["workload", "rank"])?;
        let run = runs.get(&key);
        let other = *first.entry(key[0]).or_insert((key, run));
        (other.0 != key && (run.is_none() || other.1 != run)).then(|| key[0].clone())
    });
    apart.collect()
}
