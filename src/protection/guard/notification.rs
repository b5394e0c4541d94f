//! The JSON object that hooks and webhooks receive for each transition.

use std::sync::Arc;

use super::input::JobNames;
use super::journal::JobTransition;
use crate::model::label::Label;
use crate::protection::options::target::Target;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{Condition, Resource, Truth};

/// The JSON of a transition; `incident` is the id of the incident, if there is one.
///
/// The top-level texts and numbers are the environment of a hook. Unknown names are `null`, and not in the environment.
pub(super) fn json(
    target: &Target,
    moved: &JobTransition,
    roster: &Roster,
    names: &JobNames,
    incident: Option<&str>,
) -> Arc<str> {
    let transition = &moved.transition;
    let mut resources = serde_json::Map::new();
    for resource in Resource::ALL {
        if let Some(reading) = moved.observed.reading(resource) {
            let value = serde_json::json!({
                "headroom_bytes": reading.value.headroom(),
                "total_bytes": reading.value.room.limit,
                "swap_bytes": reading.value.room.swap,
                "age_seconds": reading.age.as_secs_f64(),
            });
            resources.insert(resource.label().to_owned(), value);
        }
    }
    let met = |wanted: Truth| -> Vec<&str> {
        let conditions = moved.conditions.evaluated().filter(|(_, truth)| *truth == wanted);
        conditions.map(|(condition, _): (Condition, _)| condition.label()).collect()
    };
    let pids: Vec<u32> = roster.largest.iter().map(|key| key.pid).collect();
    let foreseen = moved.observed.forecast.and_then(|forecast| forecast.value).map(|forecast| forecast.p50);
    let known = |name: &Label| (!name.as_str().is_empty()).then(|| name.clone());
    let JobNames { workload, owner } = names;
    let notification = serde_json::json!({
        "target": target.name,
        "mode": moved.mode,
        "incident": incident,
        "workload": known(workload),
        "run": known(&owner.run.name),
        "user": known(&owner.user),
        "cgroup": known(&owner.cgroup),
        "slurm_job_id": known(&owner.slurm_job_id),
        "namespace": known(&owner.pod.namespace),
        "pod": known(&owner.pod.pod),
        "container": known(&owner.pod.container),
        "at_unix_seconds": transition.at.unix().as_secs_f64(),
        "from": transition.from,
        "to": transition.to,
        "reason": transition.reason.label(),
        "why": transition.reason.to_string(),
        "resources": resources,
        "seconds_to_exhaustion": foreseen,
        "met": met(Truth::Met),
        "unknown": met(Truth::Unknown),
        "pids": pids,
        "resident_bytes": roster.resident,
    });
    notification.to_string().into()
}
