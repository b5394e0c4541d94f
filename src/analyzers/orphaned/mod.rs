//! Detects GPU memory that belongs to no running process, such as after SIGKILL.
//!
//! # What it says
//! One finding for each GPU with such memory, with the process and the workload that ended there.
//!
//! # Method
//! While no process is listed for an NVIDIA GPU, the memory in use beyond the least that was seen, which the driver itself uses,
//! is orphaned. While processes are listed, it is what became unattributed when another process ended, at most as much as
//! that process had: managed memory and memory that processes share may be listed for none of them. Memory that is listed for
//! a process that has ended is orphaned too. All of this after `after`: the driver takes seconds to release memory.
//!
//! # When it stays silent
//! Where the driver does not report the memory of each process; of a GPU that gives parts away (vGPU), whose memory guests
//! use; without an ended process, in a container without the pid namespace of the host, where the driver lists no process
//! of others, and for GPUs of AMD and Intel, whose processes are found late.

mod device;
pub mod metrics;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use self::device::Device;
use super::Registration;
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::facts::{Facts, GpuProcess};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::format;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Seconds, Unit};
use crate::sources::gpu::metrics::{INFO, MEMORY_UNATTRIBUTED, VIRTUALIZATION};

/// Pid of the kernel's thread `kthreadd`, which only the pid namespace of the host shows.
const KTHREADD: u32 = 2;
/// Seconds for which a GPU without values is remembered.
const KEPT: f64 = 600.0;

crate::options! {
    /// The options of the analyzer.
    struct Options {
        /// Time for which memory of a GPU must belong to no running process before it is reported as orphaned.
        after: Duration = 60s in 1s..=1d;
        /// Orphaned memory of a GPU below which it is not reported.
        min_memory: Bytes = 512MiB;
    }
}

/// Registration of the `orphaned` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "orphaned",
    about: "Detects GPU memory that belongs to no running process, and the process that ended there.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings| Box::new(Orphaned::new(&Options::read(settings))))
};

struct Orphaned {
    after: Duration,
    /// In bytes.
    least: f64,
    /// By index and UUID.
    devices: BTreeMap<[Label; 2], Device>,
}

impl Analyzer for Orphaned {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let Some(facts) = view.facts() else { return };
        let points = view.points(&MEMORY_UNATTRIBUTED);
        if points.is_empty() && self.devices.is_empty() {
            return;
        }
        let at = now.monotonic().as_secs_f64();
        let guests: BTreeSet<&Label> = view
            .points(&VIRTUALIZATION)
            .iter()
            .filter(|point| point.labels[2].as_str().starts_with("host_"))
            .map(|point| &point.labels[1])
            .collect();
        let nvidia: BTreeSet<&Label> = view
            .points(&INFO)
            .iter()
            .filter(|point| point.labels.last().is_some_and(|vendor| vendor.as_str() == "nvidia"))
            .map(|point| &point.labels[1])
            .collect();
        let is_host =
            facts.processes.as_ref().is_some_and(|table| table.get(KTHREADD).is_some_and(|row| row.kernel));
        let mut listed: HashMap<&Label, Vec<&GpuProcess>> = HashMap::new();
        for process in &facts.gpu_processes {
            listed.entry(&process.uuid).or_default().push(process);
        }
        for point in points {
            let [gpu, uuid] = &*point.labels else { continue };
            if guests.contains(uuid) {
                continue;
            }
            let device = self.devices.entry([gpu.clone(), uuid.clone()]).or_default();
            device.seen = at;
            let listed = listed.get(uuid).map_or(&[][..], Vec::as_slice);
            let all = is_host && nvidia.contains(uuid);
            let bytes = device.orphaned(listed, point.value, (facts, all), now);
            if bytes < self.least {
                device.since = None;
                // The memory of what ended before is free again.
                if device.ended.as_ref().is_some_and(|ended| now.unix().as_secs_f64() - ended.unix > 10.0) {
                    device.ended = None;
                }
                continue;
            }
            let since = *device.since.get_or_insert(now);
            if now.since(since) > self.after {
                report(device, (gpu, uuid), (bytes, since), (facts, now), out);
            }
        }
        self.devices.retain(|_, device| at - device.seen < KEPT);
    }
}

impl Orphaned {
    fn new(options: &Options) -> Self {
        Self { after: options.after, least: options.min_memory.value(), devices: BTreeMap::new() }
    }
}

fn report(
    device: &Device,
    (gpu, uuid): (&Label, &Label),
    (bytes, since): (f64, Timestamp),
    (facts, now): (&Facts, Timestamp),
    out: &mut Analysis,
) {
    let ended = device.ended.as_ref();
    let who = ended.map(|ended| ended.who.clone()).unwrap_or_default();
    let labels = [gpu.clone(), uuid.clone(), who.workload.clone(), who.user, who.run];
    out.batch.put(&metrics::BYTES, &labels, Bytes::of(bytes));
    let since = since.unix().as_secs_f64();
    out.batch.put_some(&metrics::SINCE, &[gpu.clone(), uuid.clone()], Seconds::new(since));
    let goes_on = facts.workloads.iter().any(|workload| workload.name == who.workload);
    let mut summary =
        format!("GPU {gpu} has {} in use that belong to no running process.", format::bytes(bytes));
    let mut evidence = vec![Evidence { what: "orphaned_bytes", value: bytes }];
    if let Some(ended) = ended {
        let of = if who.workload.is_empty() { String::new() } else { format!(" of {}", who.workload) };
        let rest = if goes_on { "; other processes of this workload still run" } else { "" };
        summary.pop();
        summary += &format!(": {} (pid {}){of} has ended there{rest}.", who.comm, ended.pid);
        let ago = now.unix().as_secs_f64() - ended.unix;
        evidence.push(Evidence { what: "bytes_of_ended_processes", value: ended.memory });
        evidence.push(Evidence { what: "seconds_since_end", value: ago });
    }
    out.findings.push(Finding {
        analyzer: REGISTRATION.name,
        subject: Subject::gpu(gpu, uuid),
        state: "orphaned",
        severity: Severity::Warning,
        since_unix_seconds: since,
        summary,
        evidence,
        advice: if goes_on {
            "End the other processes of the workload: one that has inherited the device keeps its memory. `fuser -v /dev/nvidia*` lists who has it open."
        } else {
            "End the processes that have the device open, which `fuser -v /dev/nvidia*` lists. If none has, drain the node and reset the GPU with `nvidia-smi --gpu-reset -i GPU`."
        },
    });
}

#[cfg(test)]
mod tests;
