//! The processes on one GPU: their memory and utilization.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessUtilizationSample;

use super::calls::call;
use super::process_list::Entry;
use super::sweep::SweepResult;
use super::{problem, process_list};
use crate::sources::gpu::field::Field;
use crate::sources::gpu::protocol::{Process, Reason};

#[derive(Debug, Default)]
pub(super) struct Processes {
    /// Timestamp of the newest utilization sample seen, in microseconds of the driver's clock.
    utilization_seen: Option<u64>,
}

impl Processes {
    /// The processes with their memory and utilization; nothing if the driver does not list them.
    pub(super) fn list(&mut self, device: &Device<'_>, found: &mut SweepResult) -> Option<Vec<Process>> {
        let mut listed: Vec<(ProcessInfoKey, Option<u64>)> = Vec::new();
        let mut refused = None;
        let mut answered = false;
        for versions in &process_list::LISTS {
            match process_list::list(device, versions) {
                Ok(processes) => {
                    answered = true;
                    merge(&mut listed, processes);
                }
                // Without MPS or a display, the driver may not support a list of that kind.
                Err(error) => {
                    let refusal = problem::refusal(error);
                    if refusal.reason != Reason::Unsupported || refused.is_none() {
                        refused = Some(refusal);
                    }
                }
            }
        }
        if let Some(refusal) = refused
            && (!answered || refusal.reason != Reason::Unsupported)
        {
            found.refuse(Field::Processes, refusal);
            if !answered {
                return None;
            }
        }
        let utilization = self.process_utilization(device, found);
        Some(by_pid(&listed, &utilization))
    }

    /// The newest utilization of each process that ran since the last sweep.
    fn process_utilization(
        &mut self,
        device: &Device<'_>,
        found: &mut SweepResult,
    ) -> Vec<ProcessUtilizationSample> {
        let samples = match process_list::attempts(|_| {
            call("nvmlDeviceGetProcessUtilization", || {
                device.process_utilization_stats(self.utilization_seen)
            })
        }) {
            Ok(samples) => samples,
            // NVML returns this if no process ran (nvml-wrapper issue 56).
            Err(NvmlError::NotFound) => Vec::new(),
            Err(error) => {
                found.refuse(Field::ProcessUtilization, problem::refusal(error));
                return Vec::new();
            }
        };
        let first = self.utilization_seen.is_none();
        let newest = samples.iter().map(|sample| sample.timestamp).max();
        self.utilization_seen = newest.or(self.utilization_seen).or(Some(0));
        if first {
            // The driver returns its whole buffer, including processes that have exited.
            return Vec::new();
        }
        let mut samples: Vec<_> = samples;
        samples.sort_by_key(|sample| (sample.pid, std::cmp::Reverse(sample.timestamp)));
        samples.dedup_by_key(|sample| sample.pid);
        samples
    }
}

/// A process on one instance: pid, GPU instance, compute instance.
type ProcessInfoKey = (u32, Option<u32>, Option<u32>);

/// Adds a list; a process that is in two lists has the same memory value in both.
fn merge(listed: &mut Vec<(ProcessInfoKey, Option<u64>)>, processes: Vec<Entry>) {
    for process in processes {
        let key = (process.pid, process.gpu_instance, process.compute_instance);
        match listed.iter_mut().find(|known| known.0 == key) {
            Some(known) => known.1 = known.1.max(process.memory),
            None => listed.push((key, process.memory)),
        }
    }
}

/// One entry per pid; its memory is unknown if it is unknown on any instance.
fn by_pid(
    listed: &[(ProcessInfoKey, Option<u64>)],
    utilization: &[ProcessUtilizationSample],
) -> Vec<Process> {
    let mut processes: Vec<Process> = Vec::with_capacity(listed.len());
    for ((pid, ..), memory) in listed {
        match processes.iter_mut().find(|known| known.pid == *pid) {
            Some(known) => {
                known.memory = known.memory.zip(*memory).map(|(one, other)| one.saturating_add(other));
            }
            None => {
                let sample = utilization.iter().find(|sample| sample.pid == *pid);
                processes.push(Process {
                    pid: *pid,
                    memory: *memory,
                    sm: sample.map(|sample| sample.sm_util),
                    encoder: sample.map(|sample| sample.enc_util),
                    decoder: sample.map(|sample| sample.dec_util),
                });
            }
        }
    }
    processes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(pid: u32, memory: Option<u64>, gpu_instance: Option<u32>) -> Entry {
        Entry { pid, memory, gpu_instance, compute_instance: None }
    }

    #[test]
    fn a_process_in_two_lists_is_one_and_on_two_instances_has_the_sum() {
        let mut listed = Vec::new();
        merge(
            &mut listed,
            vec![info(1, Some(10), None), info(2, Some(5), Some(1)), info(3, Some(7), Some(1))],
        );
        merge(&mut listed, vec![info(1, Some(10), None), info(2, Some(6), Some(2)), info(3, None, Some(2))]);
        let ran = |pid, sm_util| ProcessUtilizationSample {
            pid,
            timestamp: 0,
            sm_util,
            mem_util: 0,
            enc_util: 2,
            dec_util: 3,
        };
        let found = by_pid(&listed, &[ran(2, 40), ran(9, 1)]);
        let process = |pid, memory, sm: Option<u32>| Process {
            pid,
            memory,
            sm,
            encoder: sm.map(|_| 2),
            decoder: sm.map(|_| 3),
        };
        let expected = [process(1, Some(10), None), process(2, Some(11), Some(40)), process(3, None, None)];
        assert_eq!(found, expected);
    }
}
