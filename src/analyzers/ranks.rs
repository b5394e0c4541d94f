//! Maps ranks to processes.

use std::collections::HashMap;

use crate::model::analyzer::View;
use crate::model::label::Label;
use crate::sources::training::metrics::INFO;

/// The pid of each rank, by workload and rank; without the ranks whose pid is unknown.
pub(super) fn pids<'v>(view: &View<'v>) -> HashMap<[&'v Label; 2], &'v Label> {
    let place = |name| INFO.desc.labels.iter().position(|label| *label == name);
    let (workload, rank, pid) = (place("workload"), place("rank"), place("pid"));
    let of = |point: &'v crate::model::point::Point| {
        let [workload, rank, pid] =
            [workload, rank, pid].map(|place| place.and_then(|place| point.labels.get(place)));
        Some(([workload?, rank?], pid.filter(|pid| !pid.is_empty())?))
    };
    view.points(&INFO).iter().filter_map(of).collect()
}
