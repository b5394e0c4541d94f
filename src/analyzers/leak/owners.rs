//! The workloads of the processes on GPUs: the driver reports pids, findings name workloads.

use std::collections::{BTreeMap, HashMap};

use crate::analyzers::ranks;
use crate::model::analyzer::View;
use crate::model::finding::Subject;
use crate::model::label::Label;
use crate::sources::workload::metrics::PROCESS_RSS;

/// The workload of each process on a GPU, from when it is first known until the process ends.
#[derive(Debug, Default)]
pub(super) struct Owners(BTreeMap<Subject, Label>);

impl Owners {
    /// Updates the workloads of these subjects and removes all others.
    pub(super) fn learn<'s>(&mut self, view: &View<'_>, subjects: impl Iterator<Item = &'s Subject> + Clone) {
        let on_gpu = subjects.filter(|subject| subject.resource.as_str() == "gpu_process");
        if on_gpu.clone().next().is_none() {
            self.0.clear();
            return;
        }
        let workloads = by_pid(view);
        let mut before = std::mem::take(&mut self.0);
        for subject in on_gpu {
            let known = before.remove(subject);
            if let Some(workload) = workloads.get(&subject.pid).map(|workload| (*workload).clone()).or(known)
            {
                self.0.insert(subject.clone(), workload);
            }
        }
    }

    /// The subject with its workload, where that is known.
    pub(super) fn named(&self, subject: &Subject) -> Subject {
        let mut named = subject.clone();
        if let Some(workload) = self.0.get(subject) {
            named.workload = workload.clone();
        }
        named
    }
}

/// The workload of each process that has its own series: the largest processes of each workload, and the ranks.
fn by_pid<'v>(view: &View<'v>) -> HashMap<&'v Label, &'v Label> {
    let mut found = HashMap::new();
    for point in view.points(&PROCESS_RSS) {
        let [workload, pid, _] = &*point.labels else { continue };
        if !workload.is_empty() {
            found.insert(pid, workload);
        }
    }
    let ranks = ranks::pids(view).into_iter().filter(|([workload, _], _)| !workload.is_empty());
    found.extend(ranks.map(|([workload, _], pid)| (pid, workload)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::point::Batch;
    use crate::model::units::Bytes;

    #[test]
    fn a_process_on_a_gpu_keeps_the_last_known_workload() {
        let subject = Subject::gpu_process(&"0".into(), &"GPU-a".into(), &"7".into());
        let mut owners = Owners::default();
        let mut learn = |workload_name: Option<&str>, subjects: &[Subject]| {
            let mut batch = Batch::new();
            if let Some(workload_name) = workload_name {
                let labels = [workload_name.into(), "7".into(), "python3".into()];
                batch.put(&PROCESS_RSS, &labels, Bytes::new(1));
            }
            owners.learn(&View::new(batch.families()), subjects.iter());
            owners.named(&subject).workload.to_string()
        };
        let own = std::slice::from_ref(&subject);
        assert_eq!(learn(None, own), "");
        assert_eq!(learn(Some("slurm-17"), own), "slurm-17");
        assert_eq!(learn(None, own), "slurm-17", "it may no longer be among the largest");
        learn(None, &[]);
        assert_eq!(learn(None, own), "", "another process may have its pid");
    }
}
