//! Collects all samples of a report in bounded memory.

use std::collections::BTreeMap;

use super::curve::{Curve, Statistics};
use super::focus::Focus;
use super::frame_view::{self, FrameView};
use super::growth::Growths;
use super::resource::Resources;
use super::training::Training;
use crate::model::timeline::Timeline;
use crate::plot::report::Mark;

/// Maximum number of series; further ones are counted.
const MOST_CURVES: usize = 2_000;
/// Maximum number of processes whose peaks are kept; the smallest are removed first.
const MOST_PROCESSES: usize = 1_000;
/// Maximum number of marks; later ones are dropped.
const MOST_MARKS: usize = 200;

/// Type of a series: host, GPU or workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Host,
    Gpu,
    Workload,
    Zone,
}

/// Key of one series: its type, the name of its subject, and the metric.
pub(super) type Key = (Kind, String, &'static str);

/// The peak of one process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) workload: String,
    pub(super) comm: String,
    pub(super) peak: f64,
    pub(super) peak_at: f64,
    pub(super) current: f64,
    /// When it was last seen.
    pub(super) seen: f64,
}

/// Collects samples.
#[derive(Debug, Default)]
pub struct Recorder {
    pub(super) focus: Focus,
    begun: Option<(f64, f64)>,
    /// Seconds since the first sample.
    pub(super) now: f64,
    pub(super) samples: u64,
    sequence: u64,
    pub(super) curves: BTreeMap<Key, Curve>,
    pub(super) curves_left_out: u64,
    pub(super) processes: BTreeMap<u32, Process>,
    pub(super) resources: Resources,
    pub(super) growths: Growths,
    pub(super) training: Training,
    pub(super) marks: Vec<Mark>,
    kills: Option<f64>,
    /// The newest sample.
    pub(super) last: FrameView,
    /// CPU seconds of each workload: first and current value.
    pub(super) cpu: BTreeMap<String, (f64, f64)>,
}

/// The metrics of a workload that are collected.
const OF_WORKLOAD: [&str; 8] = [
    frame_view::WORKLOAD_RSS,
    frame_view::WORKLOAD_ANON,
    frame_view::WORKLOAD_FILE,
    frame_view::WORKLOAD_SHARED,
    frame_view::WORKLOAD_SWAP,
    frame_view::WORKLOAD_PROCESS_PEAK,
    frame_view::WORKLOAD_EXITED_PEAK,
    frame_view::WORKLOAD_EXITED,
];
const OF_HOST: [&str; 6] = [
    frame_view::HOST_TOTAL,
    frame_view::HOST_USED,
    frame_view::HOST_ANON,
    frame_view::HOST_SHARED,
    frame_view::HOST_CACHED,
    frame_view::HOST_SWAP,
];

impl Recorder {
    /// Creates an empty recorder for a selection.
    pub fn new(focus: Focus) -> Self {
        Self { focus, ..Self::default() }
    }

    /// Adds a sample; returns whether it was new.
    pub fn take(&mut self, frame: FrameView) -> bool {
        if self.begun.is_some() && frame.sequence == self.sequence {
            return false;
        }
        self.focus.learn(&frame);
        let (begun, begun_unix) = *self.begun.get_or_insert((frame.seconds, frame.unix_seconds));
        self.now = (frame.seconds - begun).max(self.now);
        (self.samples, self.sequence) = (self.samples + 1, frame.sequence);
        self.curves(&frame);
        self.processes(&frame);
        self.training.take(&frame, &self.focus, self.now);
        let mut marks = self.resources.take(&frame, &self.focus, self.now);
        marks.extend(self.growths.take(&frame, &self.focus, self.now, begun_unix));
        let kills = frame.value(frame_view::OOM_KILLS, &[]);
        if let (Some(before), Some(now)) = (self.kills, kills)
            && now > before
        {
            marks.push(Mark { t_s: self.now, text: "OOM kill by the kernel".to_owned(), alarm: true });
        }
        self.kills = kills.or(self.kills);
        self.marks.extend(marks);
        self.marks.truncate(MOST_MARKS);
        self.last = frame;
        true
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
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
    pub(super) fn started(&self) -> Option<f64> {
        self.begun.map(|(_, unix)| unix)
    }

    /// The name of the host, if known.
    pub(super) fn host(&self) -> &str {
        self.last.rows(frame_view::HOST_INFO).first().map_or("", |row| row.label("hostname"))
    }

    pub(super) fn curve(&self, kind: Kind, of: &str, metric: &'static str) -> Option<&Curve> {
        self.curves.get(&(kind, of.to_owned(), metric))
    }

    pub(super) fn statistics(&self, kind: Kind, of: &str, metric: &'static str) -> Option<Statistics> {
        self.curve(kind, of, metric)?.statistics()
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

    fn curves(&mut self, frame: &FrameView) {
        for metric in OF_HOST {
            if let Some(value) = frame.value(metric, &[]) {
                self.put((Kind::Host, String::new(), metric), value);
            }
        }
        for metric in [frame_view::GPU_USED, frame_view::GPU_FREE, frame_view::GPU_UTILIZATION] {
            for row in frame.rows(metric) {
                let gpu = row.label("gpu");
                if self.focus.has_gpu(gpu, row.label("uuid")) {
                    self.put((Kind::Gpu, gpu.to_owned(), metric), row.value);
                }
            }
        }
        for metric in OF_WORKLOAD {
            for row in frame.rows(metric) {
                let name = row.label("workload");
                if self.focus.has_workload(name) {
                    self.put((Kind::Workload, name.to_owned(), metric), row.value);
                }
            }
        }
        let mut sums: BTreeMap<(&'static str, String), f64> = BTreeMap::new();
        for metric in [frame_view::WORKLOAD_GPU, frame_view::WORKLOAD_PROCESSES] {
            for row in frame.rows(metric).iter().filter(|row| self.focus.has_workload(row.label("workload")))
            {
                *sums.entry((metric, row.label("workload").to_owned())).or_default() += row.value;
            }
        }
        for ((metric, workload), sum) in sums {
            self.put((Kind::Workload, workload, metric), sum);
        }
        for row in frame.rows(frame_view::WORKLOAD_CPU) {
            let name = row.label("workload");
            if self.focus.has_workload(name) && (self.cpu.len() < MOST_CURVES || self.cpu.contains_key(name))
            {
                self.cpu.entry(name.to_owned()).or_insert((row.value, row.value)).1 = row.value;
            }
        }
        for row in frame.rows(frame_view::HOST_UNUSABLE) {
            let of = format!("{} {} {}", row.label("node"), row.label("zone"), row.label("order"));
            self.put((Kind::Zone, of, frame_view::HOST_UNUSABLE), row.value);
        }
    }

    fn processes(&mut self, frame: &FrameView) {
        for row in frame.rows(frame_view::PROCESS_RSS) {
            let workload = row.label("workload");
            let Ok(pid) = row.label("pid").parse() else { continue };
            if !self.focus.has_workload(workload) {
                continue;
            }
            let process = self.processes.entry(pid).or_insert_with(|| Process {
                workload: workload.to_owned(),
                comm: row.label("comm").to_owned(),
                peak: 0.0,
                peak_at: self.now,
                current: 0.0,
                seen: self.now,
            });
            // A process may join a workload, or execute another program.
            workload.clone_into(&mut process.workload);
            row.label("comm").clone_into(&mut process.comm);
            (process.current, process.seen) = (row.value, self.now);
            if row.value > process.peak {
                (process.peak, process.peak_at) = (row.value, self.now);
            }
        }
        while self.processes.len() > MOST_PROCESSES {
            let smallest = self.processes.iter().min_by(|a, b| a.1.peak.total_cmp(&b.1.peak));
            let Some(pid) = smallest.map(|(pid, _)| *pid) else { break };
            self.processes.remove(&pid);
        }
    }
}
