//! GPUs that Slurm allocated to jobs, also to those that have no process.
//!
//! A node knows which job holds a GPU only from the files that a prolog writes (`holders`). A thread reads them, so that
//! no file system delays a sample. Job IDs come from these files of root and from the cgroups of jobs, never from the
//! environment of a job.

pub(crate) mod holders;
pub mod metrics;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use self::holders::{Device, Holders};
use crate::host::background::Background;
use crate::model::analyzer::View;
use crate::model::facts::{self, SlurmGpu, Workload};
use crate::model::ids::{Anchor, ProcessKey};
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag};
use crate::sources::Registration;
use crate::sources::gpu::metrics as gpu;

crate::options! {
    /// The options of the source.
    struct Options {
        /// Folder with a file for each allocated GPU, named for its index or UUID, that contains the ID of the job and of
        /// its user. Written by the prolog in deploy/slurm, by that of jobstats, and for dcgm-exporter. The folder and
        /// its files must belong to root.
        gpu_jobs: PathBuf = "/run/gpustat";
        /// Time between two reads of the folder.
        interval: Duration = 2s in 1s..=1h;
    }
}

/// The source of the GPUs of Slurm jobs.
pub static REGISTRATION: Registration = Registration {
    name: "slurm",
    about: "GPUs that Slurm allocated to jobs, from the files that a prolog writes. Unavailable on a node without these files.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings, _| {
        Box::new(Slurm { options: Options::read(settings), background: None })
    })
};

/// The result of the last read; nothing before the first one.
type World = Option<Result<Arc<Holders>, SourceError>>;

fn look(folder: &Path) -> Result<Arc<Holders>, SourceError> {
    holders::read(folder).map(Arc::new).map_err(|error| {
        let what = format!("cannot read the jobs of GPUs in {}", folder.display());
        SourceError::io_or_absent(what, &error)
    })
}

struct Slurm {
    options: Options,
    background: Option<Background<Mutex<World>>>,
}

impl Source for Slurm {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let options = self.options.clone();
        let world = Background::of(&mut self.background, "reads the jobs of GPUs", |world, stopped| {
            thread::Builder::new().name("slurm".to_owned()).spawn(move || {
                loop {
                    let read = look(&options.gpu_jobs);
                    *lock(&world) = Some(read);
                    if !stopped.pause(options.interval) {
                        return;
                    }
                }
            })
        })?;
        // Held only while a pointer is copied.
        let world = lock(world).clone();
        put(world, out)
    }

    fn finish(&mut self) {
        self.background = None;
    }
}

/// Puts what is known, and the reason for what is not.
fn put(world: World, out: &mut Batch) -> Result<(), SourceError> {
    let unread = || Err(SourceError::unavailable("the jobs of GPUs have not been read yet"));
    let holders = world.unwrap_or_else(unread)?;
    let found = held(&holders, out);
    for held in &found {
        let workload = workload(&held.job, out);
        let count = processes(held, workload.as_deref(), out);
        let SlurmGpu { job, user, gpu, uuid } = held;
        let user = user.map_or_else(Label::default, Label::from);
        let name = workload.as_ref().map_or_else(Label::default, |workload| workload.name.clone());
        let labels = [gpu.clone(), uuid.clone(), job.clone(), user, name.clone()];
        out.put(&metrics::GPU_JOB, &labels, Flag(true));
        let labels = [gpu.clone(), uuid.clone(), job.clone(), name];
        out.put_some(&metrics::GPU_PROCESSES, &labels, count.map(Count));
    }
    out.facts.slurm_gpus = found;
    match &holders.refused {
        None => Ok(()),
        Some(why) => Err(SourceError::failed(Failure::Permission, format!("cannot use {why}"))),
    }
}

/// The allocated GPUs, each with its index and UUID where the driver reports them. A GPU that has a file for its index and
/// one for its UUID is in the list once.
fn held(holders: &Holders, out: &Batch) -> Vec<SlurmGpu> {
    let mut uuids: HashMap<&str, &Label> = HashMap::new();
    let mut indexes: HashMap<&str, &Label> = HashMap::new();
    let view = View::new(out.families());
    for point in view.points(&gpu::INFO) {
        uuids.insert(point.labels[0].as_str(), &point.labels[1]);
        indexes.insert(point.labels[1].as_str(), &point.labels[0]);
    }
    for point in view.points(&gpu::MIG_INFO) {
        indexes.insert(point.labels[1].as_str(), &point.labels[0]);
    }
    let mut users: BTreeMap<[Label; 3], Option<u32>> = BTreeMap::new();
    for (device, jobs) in &holders.jobs {
        let (gpu, uuid) = match device {
            Device::Index(gpu) => (Some(gpu), uuids.get(gpu.as_str()).copied()),
            Device::Uuid(uuid) => (indexes.get(uuid.as_str()).copied(), Some(uuid)),
        };
        let known = |label: Option<&Label>| label.cloned().unwrap_or_default();
        for job in jobs {
            // Of two files of one GPU, one may not have the user.
            let user = users.entry([known(gpu), known(uuid), job.id.clone()]).or_default();
            *user = (*user).max(job.user);
        }
    }
    users.into_iter().map(|([gpu, uuid, job], user)| SlurmGpu { job, user, gpu, uuid }).collect()
}

/// The workload of the cgroup of a job, if the job has processes on this node.
fn workload(job: &Label, out: &Batch) -> Option<Arc<Workload>> {
    let plain = format!("slurm-{job}");
    let is_jobs = |workload: &&Arc<Workload>| {
        workload.plain.as_str() == plain
            && workload.key.user.is_none()
            && matches!(workload.key.anchor, Anchor::Group(_))
    };
    out.facts.workload_of.iter().map(|member| &member.workload).find(is_jobs).cloned()
}

/// The number of processes of the job on the GPU; nothing where the processes of the GPU are not known.
fn processes(held: &SlurmGpu, workload: Option<&Workload>, out: &Batch) -> Option<u64> {
    let mut listed = View::new(out.families()).points(&gpu::PROCESSES).iter();
    listed.find(|point| !held.uuid.is_empty() && point.labels[1] == held.uuid)?;
    let Some(workload) = workload else { return Some(0) };
    let members = &out.facts.workload_of;
    let is_member = |pid: u32| {
        let member = facts::member_of(members, pid)?;
        (member.workload.key == workload.key).then_some(member.process)
    };
    let on_gpu = out.facts.gpu_processes.iter().filter(|process| process.uuid == held.uuid);
    let pids: BTreeSet<ProcessKey> = on_gpu.filter_map(|process| is_member(process.pid)).collect();
    Some(pids.len() as u64)
}

#[cfg(test)]
mod tests;
