//! Collects all samples of a report in bounded memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::curve::{Curve, Statistics};
use super::focus::Focus;
use super::subjects::Subjects;
use super::training::Training;
use crate::model::ends::{End, EndEvidence};
use crate::model::format;
use crate::model::outlook::Outlook;
use crate::model::timeline::Timeline;
use crate::model::units::whole;
use crate::node_view::{Gpu, Host, NodeView, Workload};
use crate::plot::report::Mark;

/// Maximum number of series; further ones are counted.
const MOST_CURVES: usize = 2_000;
/// Maximum number of processes whose peaks are kept; the smallest are removed first.
const MOST_PROCESSES: usize = 1_000;
/// Maximum number of marks; later ones are dropped.
const MOST_MARKS: usize = 200;

/// The key of the unusable share of the free memory of a zone.
pub(super) const UNUSABLE: &str = "unusable_free_ratio";

/// Type of a series: host, GPU or workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Host,
    Gpu,
    Workload,
    Zone,
}

/// Key of one series: its type, the name of its subject, and the key of its values in the JSON.
pub(super) type Key = (Kind, String, &'static str);

#[derive(Clone, Debug, Serialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) comm: String,
    pub(super) workload: String,
    #[serde(rename = "resident_bytes")]
    pub(super) current: f64,
    #[serde(rename = "peak_resident_bytes")]
    pub(super) peak: f64,
    #[serde(rename = "peak_at_seconds")]
    pub(super) peak_at: f64,
    #[serde(rename = "last_seen_seconds")]
    pub(super) seen: f64,
}

/// Collects samples.
#[derive(Debug, Default)]
pub struct Recorder {
    pub(super) focus: Focus,
    /// When the first sample was taken, in seconds since 1970.
    begun_unix: Option<f64>,
    /// Seconds since the first sample.
    pub(super) now: f64,
    pub(super) samples: u64,
    sequence: u64,
    pub(super) curves: BTreeMap<Key, Curve>,
    pub(super) curves_left_out: u64,
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) subjects: Subjects,
    pub(super) training: Training,
    pub(super) marks: Vec<Mark>,
    kills: Option<f64>,
    /// The number of the newest end that was looked at.
    last_end: u64,
    /// The newest sample.
    pub(super) last: NodeView,
    /// How the selected workload ended; absent where that is not known.
    pub(super) end: Option<Arc<End>>,
    /// The ends of its processes that were no success.
    pub(super) failures: Vec<Arc<End>>,
    /// Whether a process of it was killed, and why is not stated yet.
    awaits_kill: bool,
    /// CPU seconds of each workload: first and current value.
    pub(super) cpu: BTreeMap<String, (f64, f64)>,
}

type Values<T, const N: usize> = [(&'static str, fn(&T) -> Option<f64>); N];

/// What is collected of the host, by key.
const OF_HOST: Values<Host, 6> = [
    ("total_bytes", |host| host.total),
    ("used_bytes", |host| host.used),
    ("anonymous_bytes", |host| host.anonymous),
    ("shared_bytes", |host| host.shared),
    ("cached_bytes", |host| host.cached),
    ("swap_used_bytes", |host| host.swap_used),
];
/// The same of a GPU.
const OF_GPU: Values<Gpu, 3> = [
    ("used_bytes", |gpu| gpu.used),
    ("free_bytes", |gpu| gpu.free),
    ("utilization_ratio", |gpu| gpu.utilization),
];
/// The same of a workload.
const OF_WORKLOAD: Values<Workload, 11> = [
    ("memory_bytes", |own| own.memory),
    ("resident_bytes", |own| own.rss),
    // Pages that processes share since a fork are no more than all of them have together.
    ("anonymous_bytes", |own| own.anonymous.map(|sum| own.memory.map_or(sum, |all| sum.min(all)))),
    ("file_bytes", |own| own.file),
    ("shared_bytes", |own| own.shared),
    ("swap_bytes", |own| own.swap),
    ("gpu_bytes", |own| own.gpu_memory),
    ("processes", |own| own.process_count),
    ("process_peak_bytes", |own| own.process_peak),
    ("exited", |own| own.exited),
    ("exited_peak_bytes", |own| own.exited_peak),
];

impl Recorder {
    /// Creates an empty recorder for a selection.
    pub fn new(focus: Focus) -> Self {
        Self { focus, ..Self::default() }
    }

    /// Adds a sample, whose names must be printable; returns whether it was new.
    pub fn take(&mut self, view: NodeView) -> bool {
        if self.begun_unix.is_some() && view.sequence == self.sequence {
            return false;
        }
        self.focus.learn(&view);
        let begun = *self.begun_unix.get_or_insert(view.unix_seconds);
        self.now = (view.unix_seconds - begun).max(self.now);
        (self.samples, self.sequence) = (self.samples + 1, view.sequence);
        self.curves(&view);
        self.processes(&view);
        self.training.take(&view, &self.focus, self.now);
        self.marks.extend(self.subjects.take(&view, &self.focus, self.now, begun));
        // Kills of other jobs are no alarm of the selected workloads: only a cgroup that is a workload's own counts its kills alone.
        let kills = if self.focus.is_narrow() {
            let own = view.workloads.iter().filter(|own| self.focus.has_workload(&own.name));
            own.filter_map(|own| own.oom_kills).reduce(|one, next| one + next)
        } else {
            view.host.oom_kills
        };
        if let (Some(before), Some(now)) = (self.kills, kills)
            && now > before
        {
            let text = format!("{} by the kernel", format::counted(whole(now - before), "OOM kill"));
            self.marks.push(Mark { t_s: self.now, text, alarm: true });
        }
        self.kills = kills.or(self.kills);
        self.marks.truncate(MOST_MARKS);
        self.last = view;
        true
    }

    /// Records the ends of processes of the selected workloads, and marks those that the kernel log says were killed for lack of
    /// memory, each once.
    pub fn record_ends(&mut self, outlook: &Outlook) {
        self.awaits_kill = outlook.awaits_kills.iter().any(|name| self.focus.has_workload(name.as_str()));
        let ends = &outlook.ends;
        let new = ends.iter().filter(|end| end.number > self.last_end);
        for end in new.filter(|end| self.focus.has_workload(end.workload.as_str())) {
            if end.is_failure_of_part() {
                if self.failures.len() >= MOST_MARKS {
                    self.failures.remove(0);
                }
                self.failures.push(Arc::clone(end));
            }
            if end.evidence.iter().any(|seen| matches!(seen, EndEvidence::KernelLog(_))) {
                let text = format!("OOM kill of process {} by the kernel", end.pid);
                self.marks.push(Mark { t_s: self.now, text, alarm: true });
            }
        }
        self.marks.truncate(MOST_MARKS);
        self.last_end = ends.last().map_or(self.last_end, |end| end.number.max(self.last_end));
    }

    /// Takes the end of the selected workload from those that are known, or that of its first process, the `command`: children can
    /// outlive it.
    pub fn explain(&mut self, ends: &[Arc<End>], command: u32) {
        let is_it = |end: &&Arc<End>| {
            self.focus.has_workload(end.workload.as_str()) && (end.is_whole || end.pid == command)
        };
        let own = ends.iter().rev().find(is_it);
        self.end = own.cloned().or(self.end.take());
    }

    /// Takes the last failure of a process of the selected workload, if it was lately, where no end of the workload is known.
    pub fn explain_by_failure(&mut self) {
        /// Seconds in which a program fails because a process of it did.
        const LATELY: f64 = 60.0;
        let oldest = self.last.unix_seconds - LATELY;
        let last = self.failures.last().filter(|end| end.unix_seconds >= oldest);
        self.end = self.end.take().or_else(|| last.cloned());
    }

    /// Whether a process of a workload was killed, and why is not stated yet.
    pub const fn awaits_kill(&self) -> bool {
        self.awaits_kill
    }

    /// How the selected workload ended; absent where that is not known.
    pub fn end(&self) -> Option<&Arc<End>> {
        self.end.as_ref()
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Whether a sample has had the selected workload.
    pub fn has_workload(&self) -> bool {
        self.curves.keys().any(|(kind, ..)| *kind == Kind::Workload)
    }

    /// Whether any rank reported training data.
    pub fn trained(&self) -> bool {
        self.training.seen()
    }

    /// Adds how the ranks ended; returns whether that is known for all observed ranks.
    pub fn ended(&mut self, timeline: &Timeline) -> bool {
        self.training.ended(timeline)
    }

    /// Seconds from the first to the newest sample.
    pub fn seconds(&self) -> f64 {
        self.now
    }

    /// Time of the first sample, in seconds since 1970; absent before it.
    pub fn started(&self) -> Option<f64> {
        self.begun_unix
    }

    /// The name of the host, if known.
    pub(super) fn host(&self) -> &str {
        &self.last.node
    }

    pub(super) fn curve(&self, kind: Kind, of: &str, key: &'static str) -> Option<&Curve> {
        self.curves.get(&(kind, of.to_owned(), key))
    }

    pub(super) fn statistics(&self, kind: Kind, of: &str, key: &'static str) -> Option<Statistics> {
        self.curve(kind, of, key)?.statistics()
    }

    /// The newest value of a series.
    pub(super) fn newest(&self, kind: Kind, of: &str, key: &'static str) -> Option<f64> {
        Some(self.curve(kind, of, key)?.last()?.1)
    }

    /// All observed names of a type.
    pub(super) fn all(&self, kind: Kind) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.curves.keys().filter(|key| key.0 == kind).map(|key| key.1.as_str()).collect();
        names.dedup();
        names
    }

    fn put(&mut self, key: Key, value: f64) {
        if !self.curves.contains_key(&key) && self.curves.len() >= MOST_CURVES {
            self.curves_left_out += 1;
            return;
        }
        self.curves.entry(key).or_default().push(self.now, value);
    }

    fn put_all<T, const N: usize>(&mut self, kind: Kind, name: &str, of: &T, values: &Values<T, N>) {
        for (key, value) in values.iter().filter_map(|(key, value)| Some((*key, value(of)?))) {
            self.put((kind, name.to_owned(), key), value);
        }
    }

    fn curves(&mut self, view: &NodeView) {
        self.put_all(Kind::Host, "", &view.host, &OF_HOST);
        for gpu in
            view.gpus.iter().filter(|gpu| self.focus.has_gpu(&gpu.index, &gpu.uuid)).collect::<Vec<_>>()
        {
            self.put_all(Kind::Gpu, &gpu.index, gpu, &OF_GPU);
        }
        for own in view.workloads.iter().filter(|own| self.focus.has_workload(&own.name)).collect::<Vec<_>>()
        {
            // A workload that has only processes that are exiting has no memory any more.
            if own.rss != Some(0.0) {
                self.put_all(Kind::Workload, &own.name, own, &OF_WORKLOAD);
            }
            let is_known = self.cpu.len() < MOST_CURVES || self.cpu.contains_key(&own.name);
            if let Some(seconds) = own.cpu_seconds.filter(|_| is_known) {
                self.cpu.entry(own.name.clone()).or_insert((seconds, seconds)).1 = seconds;
            }
        }
        for zone in &view.host.zones {
            for (order, share) in &zone.unusable {
                let of = format!("{} {} {order}", zone.node, zone.zone);
                self.put((Kind::Zone, of, UNUSABLE), *share);
            }
        }
    }

    fn processes(&mut self, view: &NodeView) {
        for (workload, own) in view.processes() {
            let Ok(pid) = own.pid.parse() else { continue };
            let (true, Some(rss)) = (self.focus.has_workload(workload), own.rss) else { continue };
            let process = self.processes.entry(pid).or_insert_with(|| Process {
                pid,
                workload: workload.to_owned(),
                comm: own.name.clone(),
                peak: 0.0,
                peak_at: self.now,
                current: 0.0,
                seen: self.now,
            });
            // A process may join a workload, or execute another program.
            workload.clone_into(&mut process.workload);
            own.name.clone_into(&mut process.comm);
            (process.current, process.seen) = (rss, self.now);
            if rss > process.peak {
                (process.peak, process.peak_at) = (rss, self.now);
            }
        }
        while self.processes.len() > MOST_PROCESSES {
            let smallest = self.processes.iter().min_by(|a, b| a.1.peak.total_cmp(&b.1.peak));
            let Some(pid) = smallest.map(|(pid, _)| *pid) else { break };
            self.processes.remove(&pid);
        }
    }
}
