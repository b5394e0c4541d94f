//! The values of one job from sample to sample.

use std::collections::BTreeMap;

use super::{JobGpu, JobMemory, JobState, JobSummary, LimitState, PeakBasis, request};
use crate::model::facts::OomVictim;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, whole};

/// GPUs kept of one job: 16 with 7 MIG devices each.
const MOST_GPUS: usize = 112;
/// Cgroups of one job whose OOM kills are kept.
const MOST_CGROUPS: usize = 256;

/// The values of one job at one sample; absent where they were not measured.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) workload: Option<Label>,
    /// The name of `user_id`.
    pub(super) user: Option<Label>,
    pub(super) user_id: Option<u32>,
    pub(super) account: Label,
    pub(super) partition: Label,
    pub(super) cgroup: Label,
    pub(super) start: Option<f64>,
    pub(super) cpu: Option<f64>,
    pub(super) rss: Option<f64>,
    pub(super) anonymous: Option<f64>,
    pub(super) process_peak: Option<f64>,
    /// Values of the job's cgroup.
    pub(super) working_set: Option<f64>,
    pub(super) cgroup_anonymous: Option<f64>,
    pub(super) charged: Option<f64>,
    pub(super) limit: Option<f64>,
    /// OOM kills so far, by cgroup: that of the job, and those below it.
    pub(super) oom_kills: BTreeMap<Label, f64>,
    /// By UUID, or by index where the UUID is not known.
    pub(super) gpus: BTreeMap<Label, GpuSample>,
}

/// One GPU of a job at one sample.
#[derive(Debug, Default)]
pub(super) struct GpuSample {
    pub(super) gpu: Label,
    pub(super) uuid: Label,
    pub(super) held: bool,
    pub(super) used: bool,
    pub(super) memory: Option<f64>,
    pub(super) total: Option<f64>,
    pub(super) utilization: Option<f64>,
}

/// What is kept of one job.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) summary: JobSummary,
    pub(super) last: Timestamp,
    cpu_before: f64,
    oom_kills: BTreeMap<Label, f64>,
    victims: u64,
    resident_peak: Option<u64>,
    working_set_peak: Option<u64>,
    /// Number of samples that had the working set.
    working_set_samples: u64,
    gpus: BTreeMap<Label, (JobGpu, Utilization)>,
}

/// Sum of a GPU's utilization over time.
#[derive(Debug, Default)]
struct Utilization {
    weighted: f64,
    seconds: f64,
}

impl Record {
    pub(super) fn new(job: &Label, node: &str, at: Timestamp) -> Self {
        let now = at.unix().as_secs_f64();
        let summary = JobSummary {
            job: job.to_string(),
            node: node.to_owned(),
            start_timestamp_seconds: now,
            first_sample_timestamp_seconds: now,
            ..JobSummary::default()
        };
        Self {
            summary,
            last: at,
            cpu_before: 0.0,
            oom_kills: BTreeMap::new(),
            victims: 0,
            resident_peak: None,
            working_set_peak: None,
            working_set_samples: 0,
            gpus: BTreeMap::new(),
        }
    }

    /// Adds a sample. `hierarchical` is whether a cgroup's count of OOM kills has those of the cgroups below it.
    pub(super) fn add(&mut self, sample: Sample, at: Timestamp, hierarchical: bool) {
        let seconds =
            if self.summary.state == JobState::Running { at.since(self.last).as_secs_f64() } else { 0.0 };
        self.identify(&sample, at);
        self.add_memory(&sample);
        if let Some(cpu) = sample.cpu {
            // A counter that decreased belongs to a workload that is counted anew.
            let more = if cpu >= self.cpu_before { cpu - self.cpu_before } else { cpu };
            self.summary.cpu_seconds = Some(self.summary.cpu_seconds.unwrap_or(0.0) + more);
            self.cpu_before = cpu;
        }
        self.add_kills(&sample, hierarchical);
        for (key, gpu) in sample.gpus {
            if self.gpus.len() < MOST_GPUS || self.gpus.contains_key(&key) {
                let (known, utilization) = self.gpus.entry(key).or_default();
                add_gpu(known, utilization, &gpu, seconds);
            }
        }
    }

    fn identify(&mut self, sample: &Sample, at: Timestamp) {
        let now = at.unix().as_secs_f64();
        let summary = &mut self.summary;
        summary.state = JobState::Running;
        summary.samples = summary.samples.saturating_add(1);
        summary.last_sample_timestamp_seconds = now;
        if let Some(start) = sample.start {
            summary.start_timestamp_seconds = summary.start_timestamp_seconds.min(start);
        }
        self.last = at;
        if let Some(workload) = &sample.workload {
            summary.workload = workload.to_string();
        }
        // Before its first task, a job has processes of root only.
        let by_root = sample.user_id.is_none_or(|user| user == 0);
        let known_name = summary.user_id == sample.user_id && !summary.user.is_empty();
        if !by_root || summary.user_id.is_none() {
            summary.user_id = sample.user_id.or(summary.user_id);
            let shown = || summary.user_id.map(|user| user.to_string()).unwrap_or_default();
            let named = sample.user.as_ref().map(ToString::to_string);
            summary.user = named.or_else(|| known_name.then(|| summary.user.clone())).unwrap_or_else(shown);
        }
        for (text, now) in [
            (&mut summary.account, &sample.account),
            (&mut summary.partition, &sample.partition),
            (&mut summary.cgroup, &sample.cgroup),
        ] {
            if !now.is_empty() && text.as_str() != now.as_str() {
                *text = now.to_string();
            }
        }
    }

    fn add_memory(&mut self, sample: &Sample) {
        largest(&mut self.resident_peak, sample.rss);
        // Anonymous memory cannot be dropped, whatever the two counters of the working set say at different instants.
        largest(&mut self.working_set_peak, sample.working_set);
        largest(&mut self.working_set_peak, sample.cgroup_anonymous);
        let memory = &mut self.summary.memory;
        largest(&mut memory.anonymous_peak_bytes, sample.cgroup_anonymous.or(sample.anonymous));
        largest(&mut memory.charged_peak_bytes, sample.charged);
        largest(&mut memory.largest_process_peak_bytes, sample.process_peak);
        if sample.working_set.is_some() {
            self.working_set_samples = self.working_set_samples.saturating_add(1);
            // Slurm may change the limit of a running job: the last one counts.
            memory.limit_bytes = sample.limit.map(rounded);
            memory.limit = if sample.limit.is_some() { LimitState::Set } else { LimitState::None };
        }
    }

    fn add_kills(&mut self, sample: &Sample, hierarchical: bool) {
        for (cgroup, kills) in &sample.oom_kills {
            if self.oom_kills.len() < MOST_CGROUPS || self.oom_kills.contains_key(cgroup) {
                let most = self.oom_kills.entry(cgroup.clone()).or_default();
                *most = most.max(*kills);
            }
        }
        let counts = self.oom_kills.values().copied();
        let counted = if hierarchical { counts.fold(0.0, f64::max) } else { counts.sum() };
        let memory = &mut self.summary.memory;
        memory.oom_kills = memory.oom_kills.max(rounded(counted));
    }

    /// Counts a process of it that the kernel's OOM killer killed, and what that held then: it may have grown from nothing since the
    /// last sample.
    pub(super) fn add_victim(&mut self, victim: &OomVictim) {
        self.victims = self.victims.saturating_add(1);
        let memory = &mut self.summary.memory;
        memory.oom_kills = memory.oom_kills.max(self.victims);
        let held: Bytes = victim.resident.iter().copied().flatten().sum();
        let held = (held > Bytes::ZERO).then(|| held.get());
        memory.largest_process_peak_bytes = memory.largest_process_peak_bytes.max(held);
    }

    /// Marks the job as ended.
    pub(super) fn end(&mut self) {
        self.summary.state = JobState::Ended;
    }

    /// The summary, with the values that are computed from others.
    pub(super) fn summary(&self, other_jobs_of_user: u64) -> JobSummary {
        let memory = &self.summary.memory;
        let (bytes, basis) = self.peak();
        let memory = JobMemory { peak_bytes: bytes, peak_basis: basis, ..memory.clone() };
        let suggested_request_bytes = request::suggested(&memory);
        let gpus = self.gpus.values().map(|(gpu, utilization)| JobGpu {
            mean_utilization_ratio: (utilization.seconds > 0.0)
                .then(|| utilization.weighted / utilization.seconds),
            ..gpu.clone()
        });
        JobSummary {
            other_jobs_of_user,
            memory: JobMemory { suggested_request_bytes, ..memory },
            gpus: gpus.collect(),
            ..self.summary.clone()
        }
    }

    /// The memory that the job needed at once: the largest working set of the samples; the largest resident memory, where
    /// the cgroup was found late or not at all; or the peak of the largest process, where that is larger, because it includes
    /// what was used between two samples. Never more than the kernel charged to the job.
    fn peak(&self) -> (Option<u64>, PeakBasis) {
        let memory = &self.summary.memory;
        let charged = memory.charged_peak_bytes.unwrap_or(u64::MAX);
        let complete = self.working_set_samples.saturating_mul(10) >= self.summary.samples.saturating_mul(9);
        let resident = self.resident_peak.map(|bytes| bytes.min(charged));
        let resident =
            resident.filter(|bytes| !complete && self.working_set_peak.is_none_or(|set| *bytes > set));
        let (sampled, basis) = match (resident, self.working_set_peak) {
            (Some(bytes), _) => (Some(bytes), PeakBasis::ResidentMemory),
            (None, Some(bytes)) => (Some(bytes), PeakBasis::WorkingSet),
            (None, None) => (None, PeakBasis::Unknown),
        };
        match memory.largest_process_peak_bytes.map(|bytes| bytes.min(charged)) {
            Some(process) if sampled.is_none_or(|sampled| process > sampled) => {
                (Some(process), PeakBasis::LargestProcess)
            }
            _ => (sampled, basis),
        }
    }
}

fn add_gpu(known: &mut JobGpu, utilization: &mut Utilization, now: &GpuSample, seconds: f64) {
    (known.gpu, known.uuid) = (now.gpu.to_string(), now.uuid.to_string());
    if now.held {
        known.held_seconds = Some(known.held_seconds.unwrap_or(0.0) + seconds);
    }
    if now.used {
        known.used_seconds += seconds;
    }
    largest(&mut known.memory_peak_bytes, now.memory);
    known.memory_total_bytes = now.total.map(rounded).or(known.memory_total_bytes);
    if let Some(ratio) = now.utilization {
        utilization.weighted += ratio * seconds;
        utilization.seconds += seconds;
    }
}

fn largest(most: &mut Option<u64>, now: Option<f64>) {
    *most = (*most).max(now.map(rounded));
}

/// A count of bytes or events, which points hold as floating-point numbers.
fn rounded(value: f64) -> u64 {
    whole(value.round())
}
