//! The selection of a report: everything, or some GPUs, workloads and processes.

use std::collections::BTreeSet;

use crate::model::finding::Subject;
use crate::node_view::NodeView;

/// The selection of a report; empty selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Focus {
    /// GPUs, by index or UUID.
    pub devices: Option<BTreeSet<String>>,
    pub workloads: BTreeSet<String>,
    /// Processes whose workloads are selected; their workloads come from the daemon.
    pub pids: BTreeSet<String>,
}

impl Focus {
    /// Whether only some workloads are selected.
    pub fn is_narrow(&self) -> bool {
        !self.workloads.is_empty() || !self.pids.is_empty()
    }

    /// Adds the workloads of the selected processes, and both the index and the UUID of the selected GPUs.
    pub(super) fn learn(&mut self, view: &NodeView) {
        if let Some(devices) = &mut self.devices {
            for gpu in &view.gpus {
                let names = [gpu.index.as_str(), gpu.uuid.as_str()];
                if names.iter().any(|name| devices.contains(*name)) {
                    devices.extend(names.into_iter().filter(|name| !name.is_empty()).map(str::to_owned));
                }
            }
        }
        for (workload, process) in view.processes() {
            if self.pids.contains(&process.pid) && !workload.is_empty() {
                self.workloads.insert(workload.to_owned());
            }
        }
    }

    pub(super) fn has_gpu(&self, gpu: &str, uuid: &str) -> bool {
        self.devices.as_ref().is_none_or(|devices| devices.contains(gpu) || devices.contains(uuid))
    }

    /// Whether a workload is selected; the empty name stands for processes without a workload.
    pub(super) fn has_workload(&self, name: &str) -> bool {
        !self.is_narrow() || self.workloads.contains(name)
    }

    /// Whether a subject of an analyzer is selected.
    pub(super) fn has(&self, subject: &Subject) -> bool {
        match subject.resource.as_str() {
            "gpu" => self.has_gpu(subject.gpu.as_str(), subject.uuid.as_str()) && !self.is_narrow(),
            "gpu_process" | "outside_allocator" => {
                self.has_gpu(subject.gpu.as_str(), subject.uuid.as_str())
                    && (self.has_workload(subject.workload.as_str())
                        || self.pids.contains(subject.pid.as_str()))
            }
            "allocator" => {
                let gpu = subject.gpu.as_str();
                (gpu.is_empty() || self.has_gpu(gpu, gpu)) && self.has_workload(subject.workload.as_str())
            }
            "tmpfs" if subject.workload.is_empty() => !self.is_narrow(),
            "workload" | "process" | "rank" | "tmpfs" | "numa_nodes" => {
                self.has_workload(subject.workload.as_str())
            }
            _ => !self.is_narrow(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_is_what_was_given() {
        let all = Focus::default();
        let gpu = Subject::gpu(&"1".into(), &"GPU-b".into());
        let workload = Subject::workload(&"a".into());
        assert!(all.has(&gpu) && all.has(&workload) && all.has(&Subject::host()) && all.has_workload(""));
        let first = Focus { devices: Some(["0".to_owned()].into()), ..Focus::default() };
        assert!(!first.has(&gpu) && first.has(&workload));
        let narrow = Focus { workloads: ["a".to_owned()].into(), ..Focus::default() };
        assert!(narrow.has(&workload) && !narrow.has(&Subject::host()) && !narrow.has_workload("b"));
        assert!(narrow.has(&Subject::process(&"a".into(), &"7".into())));
    }
}
