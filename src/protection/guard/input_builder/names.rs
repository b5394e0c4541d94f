//! The names of a job, for hooks, webhooks and alerts.

use std::collections::BTreeSet;

use crate::model::facts::{Facts, WorkloadNames};
use crate::model::ids::WorkloadKey;
use crate::protection::guard::input::JobNames;
use crate::protection::guard::job_slots::{JobIdentity, JobSlot};

/// The names of a job. A job whose processes are in several workloads has those of its cgroup only.
pub(super) fn names(job: &JobSlot, workloads: &BTreeSet<&WorkloadKey>, facts: &Facts) -> JobNames {
    let key = match &job.claim.what {
        JobIdentity::Workload(key) => Some(key),
        JobIdentity::Group(_) if workloads.len() == 1 => workloads.first().copied(),
        JobIdentity::Group(_) | JobIdentity::None => None,
    };
    let mut owner =
        key.and_then(|key| facts.names_of(key)).map(|names| WorkloadNames::clone(names)).unwrap_or_default();
    if let JobIdentity::Group(path) = &job.claim.what {
        owner.cgroup = path.clone();
    }
    // The job of one user in a workload of several users.
    let of_workload = key.and_then(|key| facts.workloads.iter().find(|workload| workload.key == *key));
    if let Some(user) =
        job.claim.user.filter(|user| of_workload.is_none_or(|workload| workload.user != *user))
    {
        let named = facts.workloads.iter().find(|workload| workload.user == user);
        let named = named.and_then(|workload| facts.names_of(&workload.key));
        owner.user = named.map_or_else(|| user.into(), |names| names.user.clone());
    }
    let workload = of_workload.map(|workload| workload.name.clone()).unwrap_or_default();
    JobNames { workload, owner }
}
