//! The jobs of this node, running and recently ended, in bounded memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::Duration;

use super::record::{GpuSample, Record, Sample};
use super::{JobState, JobSummary};
use crate::catalog::{cgroup, gpu, workload};
use crate::model::desc::Desc;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::Reporter;
use crate::model::time::Timestamp;

/// Jobs kept at once. A record has about 1 KiB; the oldest ended one makes room.
const MOST: usize = 1024;
/// Time for which an ended job is kept.
const RETENTION: Duration = Duration::from_secs(24 * 3600);
/// A job that is seen again after a longer time without processes and GPUs was requeued: it begins anew.
const REQUEUED: Duration = Duration::from_secs(60);

/// Follows the Slurm jobs of this node.
#[derive(Debug)]
pub struct Ledger {
    node: String,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    jobs: BTreeMap<Label, Record>,
}

impl Ledger {
    /// No jobs yet; `node` is the name of this node.
    pub fn new(node: Option<&str>) -> Self {
        let short = node.and_then(|name| name.split('.').next()).unwrap_or_default();
        Self { node: short.to_owned(), book: Mutex::default() }
    }

    /// What is known of the job with this ID; nothing if it was not seen, or ended more than a day ago.
    pub fn summary(&self, job: &str) -> Option<JobSummary> {
        let book = lock(&self.book);
        let record = book.jobs.get(&Label::from(job))?;
        let others = book.jobs.iter().filter(|(id, other)| {
            id.as_str() != job
                && other.summary.state == JobState::Running
                && other.summary.user_id.is_some()
                && other.summary.user_id == record.summary.user_id
        });
        Some(record.summary(others.count() as u64))
    }
}

impl Reporter for Ledger {
    fn report(&self, at: Timestamp, out: &mut Batch) {
        lock(&self.book).turn(&self.node, at, out);
    }
}

impl Book {
    fn turn(&mut self, node: &str, at: Timestamp, out: &Batch) {
        let mut now = Now::default();
        now.find(out);
        if now.jobs.is_empty() && self.jobs.is_empty() {
            return;
        }
        now.read(out);
        let hierarchical =
            !points(out, &cgroup::HIERARCHY.desc).any(|(labels, _)| labels[0].as_str() == "v1");
        for (job, record) in &mut self.jobs {
            if !now.jobs.contains_key(job) {
                record.end();
            }
        }
        self.jobs.retain(|_, record| at.since(record.last) <= RETENTION);
        for (job, sample) in now.jobs {
            let ended = |record: &Record| record.summary.state == JobState::Ended;
            if self.jobs.get(&job).is_some_and(|known| ended(known) && at.since(known.last) > REQUEUED) {
                self.jobs.remove(&job);
            }
            if !self.jobs.contains_key(&job) && self.jobs.len() >= MOST {
                let oldest = self.jobs.iter().filter(|(_, record)| ended(record));
                let oldest =
                    oldest.min_by_key(|(_, record)| record.last.monotonic()).map(|(job, _)| job.clone());
                let Some(oldest) = oldest else { continue };
                self.jobs.remove(&oldest);
            }
            let record = self.jobs.entry(job.clone()).or_insert_with(|| Record::new(&job, node, at));
            record.add(sample, at, hierarchical);
        }
        for victim in &out.facts.oom_victims {
            // The last processes of a job can end with the victim.
            let lately = self.jobs.values_mut().filter(|record| at.since(record.last) <= REQUEUED);
            for record in lately {
                let summary = &record.summary;
                let by_name = !victim.workload.is_empty() && summary.workload == victim.workload.as_str();
                if by_name || below(&victim.cgroup, &summary.cgroup).is_some() {
                    record.add_victim(victim);
                }
            }
        }
    }
}

/// The jobs of one sample.
#[derive(Debug, Default)]
struct Now {
    jobs: BTreeMap<Label, Sample>,
}

impl Now {
    /// Finds the jobs: those with a workload, and those that hold a GPU.
    fn find(&mut self, out: &Batch) {
        for (labels, _) in points(out, &workload::INFO.desc) {
            let [name, kind, user, group, job, _, account, partition, ..] = labels else { continue };
            if kind.as_str() != "slurm" || job.is_empty() {
                continue;
            }
            let sample = self.jobs.entry(job.clone()).or_default();
            // A node that runs several slurmd has several workloads of one job: the first one counts.
            if sample.workload.is_none() {
                sample.workload = Some(name.clone());
                sample.user = Some(user.clone());
                (sample.account, sample.partition) = (account.clone(), partition.clone());
                sample.cgroup = group.clone();
            }
        }
        for held in &out.facts.slurm_gpus {
            let sample = self.jobs.entry(held.job.clone()).or_default();
            sample.user_id = sample.user_id.or(held.user);
            let gpu = gpu_of(sample, &held.gpu, &held.uuid);
            gpu.held = true;
        }
        if self.jobs.is_empty() {
            return;
        }
        let users: HashMap<&Label, u32> =
            out.facts.workloads.iter().map(|workload| (&workload.name, workload.user)).collect();
        for sample in self.jobs.values_mut() {
            let user = sample.workload.as_ref().and_then(|name| users.get(name).copied());
            // Before the first task of a job and after the last one, its processes belong to root.
            let by_process = user.filter(|user| *user != 0);
            if by_process.is_none() && sample.user_id.is_some() {
                sample.user = None;
            }
            sample.user_id = by_process.or(sample.user_id).or(user);
        }
    }

    /// Reads the values of the jobs that were found.
    fn read(&mut self, out: &Batch) {
        self.read_workloads(out);
        self.read_cgroups(out);
        self.read_gpus(out);
    }

    fn read_workloads(&mut self, out: &Batch) {
        let mut samples: HashMap<Label, &mut Sample> =
            self.jobs.values_mut().filter_map(|sample| Some((sample.workload.clone()?, sample))).collect();
        let mut each = |desc, set: Set| fill(&mut samples, out, desc, set);
        each(&workload::START.desc, |sample, _, value| sample.start = Some(value));
        each(&workload::CPU.desc, |sample, _, value| sample.cpu = Some(value));
        each(&workload::RSS.desc, |sample, _, value| sample.rss = Some(value));
        each(&workload::ANON.desc, |sample, _, value| sample.anonymous = Some(value));
        for peak in [&workload::PROCESS_PEAK.desc, &workload::EXITED_PEAK.desc] {
            each(peak, |sample, _, value| {
                sample.process_peak = Some(sample.process_peak.map_or(value, |before| before.max(value)));
            });
        }
        each(&workload::GPU_PROCESSES.desc, |sample, labels, value| {
            gpu_of(sample, &labels[1], &labels[2]).used = value > 0.0
        });
        each(&workload::GPU_MEMORY.desc, |sample, labels, value| {
            gpu_of(sample, &labels[1], &labels[2]).memory = Some(value)
        });
    }

    fn read_cgroups(&mut self, out: &Batch) {
        let named = self.jobs.values_mut().filter(|sample| !sample.cgroup.is_empty());
        let mut samples: HashMap<Label, &mut Sample> =
            named.map(|sample| (sample.cgroup.clone(), sample)).collect();
        if samples.is_empty() {
            return;
        }
        let mut each = |desc, set: Set| fill(&mut samples, out, desc, set);
        each(&cgroup::WORKING_SET.desc, |sample, _, value| sample.working_set = Some(value));
        each(&cgroup::ANON.desc, |sample, _, value| sample.cgroup_anonymous = Some(value));
        each(&cgroup::LIMIT.desc, |sample, _, value| sample.limit = Some(value));
        for charged in [&cgroup::USAGE.desc, &cgroup::PEAK.desc] {
            each(charged, |sample, _, value| {
                sample.charged = Some(sample.charged.map_or(value, |before| before.max(value)));
            });
        }
        for (labels, value) in points(out, &cgroup::EVENTS.desc) {
            if labels[1].as_str() != "oom_kill" || value <= 0.0 {
                continue;
            }
            for (path, sample) in &mut samples {
                if below(&labels[0], path.as_str()).is_some() {
                    sample.oom_kills.insert(labels[0].clone(), value);
                }
            }
        }
    }

    fn read_gpus(&mut self, out: &Batch) {
        let of_gpu = |desc: &'static Desc| -> HashMap<&Label, f64> {
            points(out, desc).map(|(labels, value)| (&labels[1], value)).collect()
        };
        if self.jobs.values().all(|sample| sample.gpus.is_empty()) {
            return;
        }
        let totals = of_gpu(&gpu::MEMORY_TOTAL.desc);
        let instances = of_gpu(&gpu::MIG_TOTAL.desc);
        let utilizations = of_gpu(&gpu::UTILIZATION.desc);
        for gpu in self.jobs.values_mut().flat_map(|sample| sample.gpus.values_mut()) {
            gpu.total = instances.get(&gpu.uuid).or_else(|| totals.get(&gpu.uuid)).copied();
            gpu.utilization = utilizations.get(&gpu.uuid).copied();
        }
    }
}

/// Sets a value of a sample from the labels and the value of a point.
type Set = fn(&mut Sample, &[Label], f64);

/// Sets a value of each sample, which the first label of the metric names.
fn fill(samples: &mut HashMap<Label, &mut Sample>, out: &Batch, desc: &'static Desc, set: Set) {
    for (labels, value) in points(out, desc) {
        if let Some(sample) = samples.get_mut(&labels[0]) {
            set(sample, labels, value);
        }
    }
}

/// The GPU of a job, by its UUID, or by its index where the UUID is not known.
fn gpu_of<'s>(sample: &'s mut Sample, gpu: &Label, uuid: &Label) -> &'s mut GpuSample {
    let key = if uuid.is_empty() { gpu.clone() } else { uuid.clone() };
    sample.gpus.entry(key).or_insert_with(|| GpuSample {
        gpu: gpu.clone(),
        uuid: uuid.clone(),
        ..GpuSample::default()
    })
}

/// The points of a metric, in the order of its labels.
fn points<'b>(out: &'b Batch, desc: &'static Desc) -> impl Iterator<Item = (&'b [Label], f64)> {
    let family = out.families().iter().find(|family| std::ptr::eq(family.desc, desc));
    family.into_iter().flat_map(|family| &family.points).map(|point| (&*point.labels, point.value))
}

/// The rest of a cgroup path below another; nothing if it is not below it.
fn below<'p>(path: &'p Label, above: &str) -> Option<&'p str> {
    if above.is_empty() {
        return None;
    }
    let rest = path.as_str().strip_prefix(above)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

#[cfg(test)]
mod tests;
