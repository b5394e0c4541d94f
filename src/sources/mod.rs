//! The sources of measurements: one folder per source, and one line each in [`REGISTRY`].
//!
//! A source's configuration key, its line in the default configuration file, its
//! metrics reference and its lint are derived from its [`Registration`]. Sources
//! never import each other; they exchange data through [`crate::model::facts`],
//! in the order of the registry.

use std::sync::Arc;

use crate::host::child::WorkerCommand;
use crate::host::roots::Roots;
use crate::model::checkpoint::Checkpoints;
use crate::model::desc::Desc;
use crate::model::setting::{Opt, Settings};
use crate::model::source::Source;
use crate::past_runs::PastRuns;

pub mod buddyinfo;
pub mod cgroup;
pub mod daemon;
pub mod drm;
pub mod exits;
pub mod gpu;
pub mod huge_pages;
pub mod kmsg;
pub mod kubernetes;
pub mod logs;
pub mod memory;
pub mod numa;
pub mod perf;
pub mod pressure;
pub mod process;
pub mod slurm;
pub mod snapshots;
#[cfg(test)]
pub(crate) mod testing;
pub mod tmpfs;
pub mod training;
pub mod vmstat;
pub mod workload;

/// Every source, in the order in which they are sampled.
///
/// The kernel log after the processes: what it says of one that has ended is known when its end is.
pub static REGISTRY: &[&Registration] = &[
    &process::REGISTRATION,
    &exits::REGISTRATION,
    &kmsg::REGISTRATION,
    &memory::REGISTRATION,
    &numa::REGISTRATION,
    &huge_pages::REGISTRATION,
    &pressure::REGISTRATION,
    &vmstat::REGISTRATION,
    &buddyinfo::REGISTRATION,
    &gpu::REGISTRATION,
    &drm::REGISTRATION,
    &cgroup::REGISTRATION,
    &kubernetes::REGISTRATION,
    &workload::REGISTRATION,
    &slurm::REGISTRATION,
    &tmpfs::REGISTRATION,
    &snapshots::REGISTRATION,
    &training::REGISTRATION,
    &logs::REGISTRATION,
    &perf::REGISTRATION,
    &daemon::REGISTRATION,
];

/// The declaration of a source.
#[derive(Debug)]
pub struct Registration {
    /// The configuration key under `sources`, and the value of the `source` label.
    pub name: &'static str,
    /// What it measures, and from where, in one sentence.
    pub about: &'static str,
    /// Whether it runs if the configuration does not mention it.
    pub on_by_default: bool,
    /// Its own configuration keys.
    pub options: &'static [Opt],
    /// Every metric that it can expose.
    pub metrics: &'static [&'static Desc],
    /// The sources that it requires.
    pub needs: &'static [&'static str],
    /// Errors in settings whose values are each valid: a key within the section and a sentence.
    pub check: fn(&Settings) -> Vec<(String, String)>,
    /// Builds the source. It opens nothing that can fail: errors are reported by the first sample.
    pub build: fn(&Settings, &Context) -> Box<dyn Source>,
}

impl Registration {
    /// What most sources have in common: on by default, without own configuration keys and requirements.
    const fn built_by(build: fn(&Settings, &Context) -> Box<dyn Source>) -> Self {
        let (options, metrics, needs): (_, _, &[_]) = (&[], &[], &[]);
        Self {
            name: "",
            about: "",
            on_by_default: true,
            options,
            metrics,
            needs,
            check: |_| Vec::new(),
            build,
        }
    }
}

/// What a source is built from, in addition to its settings.
#[derive(Clone, Debug)]
pub struct Context {
    /// Paths of the kernel's file systems.
    pub roots: Arc<Roots>,
    /// How to start worker processes; absent if no process may be started.
    pub worker: Option<WorkerCommand>,
    /// Where checkpoint acknowledgements are stored for readers that must not wait.
    pub checkpoints: Arc<Checkpoints>,
    /// The memory of past runs of commands.
    pub past_runs: Arc<PastRuns>,
}
