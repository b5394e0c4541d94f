//! The process lists and the utilization of each process.

use std::sync::atomic::Ordering;

use super::device_calls;
use crate::abi::{Answer, Code, Out, OutArray, ProcessSample, ProcessV1, ProcessV2, ProcessV3};
use crate::clock;
use crate::scenario::{Kind, Process};
use crate::target::Target;

/// Memory and utilization of a process added by churn.
pub(super) const CHURN_MEMORY: u64 = 256 << 20;

/// Above the largest pid of Linux, so that it is no process of the test machine.
const FIRST_CHURN_PID: u32 = 1 << 23;

/// Interval at which a real driver takes the utilization samples of processes.
const SAMPLE_EVERY_MICROS: u64 = 166_667;

/// A process with the instance it is on.
pub(super) struct Resident<'a> {
    pub(super) process: &'a Process,
    gpu_instance: u32,
    compute_instance: u32,
}

/// The processes of an instance, or of a GPU together with its instances.
pub(super) fn residents(target: &Target) -> Vec<Resident<'_>> {
    let gpu = target.gpu();
    let own = gpu.processes.iter().map(|process| Resident {
        process,
        gpu_instance: process.gi.unwrap_or(u32::MAX),
        compute_instance: process.ci.unwrap_or(u32::MAX),
    });
    let wanted = target.place.instance;
    let on_instances = gpu
        .instances()
        .filter(|(index, _)| wanted.is_none_or(|wanted| wanted == *index))
        .flat_map(|(_, instance)| {
            instance.processes.iter().map(|process| Resident {
                process,
                gpu_instance: process.gi.unwrap_or(instance.gi),
                compute_instance: process.ci.unwrap_or(instance.ci),
            })
        });
    own.filter(|_| wanted.is_none()).chain(on_instances).collect()
}

fn table(target: &Target, kind: Kind) -> Vec<ProcessV2> {
    let mut table: Vec<ProcessV2> = residents(target)
        .into_iter()
        .filter(|resident| resident.process.kind == kind)
        .map(|resident| ProcessV2 {
            pid: resident.process.pid,
            used_gpu_memory: resident.process.memory.as_ref().map_or(u64::MAX, |memory| target.at(memory)),
            gpu_instance: resident.gpu_instance,
            compute_instance: resident.compute_instance,
        })
        .collect();
    if kind == Kind::Compute && target.place.instance.is_none() {
        let probes = target.counters().probes.load(Ordering::Relaxed);
        table.extend((0..target.gpu().churn.extra(probes)).map(|extra| ProcessV2 {
            pid: FIRST_CHURN_PID + extra,
            used_gpu_memory: CHURN_MEMORY,
            gpu_instance: u32::MAX,
            compute_instance: u32::MAX,
        }));
    }
    table
}

/// nvml.h's two calls: the needed count first, then the entries.
fn list<T>(
    target: &Target,
    kind: Kind,
    count: &Out<u32>,
    infos: &OutArray<T>,
    convert: impl Fn(ProcessV2) -> T,
) -> Answer {
    let capacity = count.get()? as usize;
    if infos.is_null() && capacity > 0 {
        return Err(Code::INVALID_ARGUMENT);
    }
    let table = table(target, kind);
    count.set(u32::try_from(table.len()).unwrap_or(u32::MAX))?;
    let is_probe = capacity == 0 || capacity < table.len();
    if is_probe && kind == Kind::Compute && target.place.instance.is_none() {
        target.counters().probes.fetch_add(1, Ordering::Relaxed);
    }
    if capacity < table.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    infos.fill(table.into_iter().map(convert))
}

/// The calls of version 3, with the longer entries of the first drivers of R535.
fn newest(target: &Target, kind: Kind, count: &Out<u32>, infos: &OutArray<ProcessV2>) -> Answer {
    if !(535_043..=535_086).contains(&target.loaded.scenario.driver()) {
        return list(target, kind, count, infos, |process| process);
    }
    list(target, kind, count, &infos.cast(), |process| ProcessV3 {
        pid: process.pid,
        used_gpu_memory: process.used_gpu_memory,
        gpu_instance: process.gpu_instance,
        compute_instance: process.compute_instance,
        protected_memory: 701,
    })
}

fn v1(process: ProcessV2) -> ProcessV1 {
    ProcessV1 { pid: process.pid, used_gpu_memory: process.used_gpu_memory }
}

fn samples(target: &Target, since: u64) -> Vec<ProcessSample> {
    let now = clock::unix_micros();
    let timestamp = now - now % SAMPLE_EVERY_MICROS;
    if timestamp <= since {
        return Vec::new();
    }
    residents(target)
        .into_iter()
        .filter_map(|Resident { process, .. }| {
            let percent = |value: &Option<_>| value.as_ref().map_or(0, |value| target.at(value));
            process.sm.as_ref()?;
            Some(ProcessSample {
                pid: process.pid,
                timestamp,
                sm: percent(&process.sm),
                memory: percent(&process.mem),
                encoder: percent(&process.enc),
                decoder: percent(&process.dec),
            })
        })
        .collect()
}

device_calls! {
    nvmlDeviceGetComputeRunningProcesses_v3(target, count: Out<u32>, infos: OutArray<ProcessV2>) {
        newest(&target, Kind::Compute, &count, &infos)
    }

    nvmlDeviceGetComputeRunningProcesses_v2(target, count: Out<u32>, infos: OutArray<ProcessV2>) {
        list(&target, Kind::Compute, &count, &infos, |process| process)
    }

    nvmlDeviceGetComputeRunningProcesses(target, count: Out<u32>, infos: OutArray<ProcessV1>) {
        list(&target, Kind::Compute, &count, &infos, v1)
    }

    nvmlDeviceGetGraphicsRunningProcesses_v3(target, count: Out<u32>, infos: OutArray<ProcessV2>) {
        newest(&target, Kind::Graphics, &count, &infos)
    }

    nvmlDeviceGetGraphicsRunningProcesses_v2(target, count: Out<u32>, infos: OutArray<ProcessV2>) {
        list(&target, Kind::Graphics, &count, &infos, |process| process)
    }

    nvmlDeviceGetGraphicsRunningProcesses(target, count: Out<u32>, infos: OutArray<ProcessV1>) {
        list(&target, Kind::Graphics, &count, &infos, v1)
    }

    nvmlDeviceGetMPSComputeRunningProcesses_v3(target, count: Out<u32>, infos: OutArray<ProcessV2>) {
        newest(&target, Kind::Mps, &count, &infos)
    }

    nvmlDeviceGetMPSComputeRunningProcesses_v2(target, count: Out<u32>, infos: OutArray<ProcessV2>) {
        list(&target, Kind::Mps, &count, &infos, |process| process)
    }

    nvmlDeviceGetMPSComputeRunningProcesses(target, count: Out<u32>, infos: OutArray<ProcessV1>) {
        list(&target, Kind::Mps, &count, &infos, v1)
    }

    nvmlDeviceGetProcessUtilization(target, infos: OutArray<ProcessSample>, count: Out<u32>, since: u64) {
        if target.physical()?.mig_enabled() {
            return Err(Code::NOT_SUPPORTED);
        }
        let capacity = count.get()? as usize;
        let samples = samples(&target, since);
        count.set(u32::try_from(samples.len()).unwrap_or(u32::MAX))?;
        if samples.is_empty() {
            return Err(Code::NOT_FOUND);
        }
        if infos.is_null() || capacity < samples.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        infos.fill(samples)
    }
}
