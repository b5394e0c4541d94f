//! What is measured. One folder a source, one line each in [`REGISTRY`].
//!
//! A source's config key, its line in the default file, its metrics
//! reference and its lint follow from its [`Registration`]. Sources never
//! import each other; what one tells another goes through
//! [`crate::model::facts`], in the registry's order.

use std::sync::Arc;

use crate::host::child::WorkerCommand;
use crate::host::roots::Roots;
use crate::model::checkpoint::Checkpoints;
use crate::model::desc::Desc;
use crate::model::setting::{Opt, Settings};
use crate::model::source::Source;

pub mod buddyinfo;
pub mod cgroup;
pub mod daemon;
#[cfg(feature = "gpu")]
pub mod gpu;
/// The declarations only: a build without the source reads what other daemons expose.
#[cfg(not(feature = "gpu"))]
pub mod gpu {
    pub mod metrics;
}
pub mod kmsg;
pub mod logs;
pub mod memory;
#[cfg(feature = "otlp")]
pub mod otlp;
pub mod perf;
pub mod pressure;
pub mod process;
pub mod snapshots;
#[cfg(test)]
pub(crate) mod testing;
pub mod training;
pub mod vmstat;
pub mod workload;

/// Every source there is, in the order they are sampled.
pub static REGISTRY: &[&Registration] = &[
    &kmsg::REGISTRATION,
    &memory::REGISTRATION,
    &pressure::REGISTRATION,
    &vmstat::REGISTRATION,
    &buddyinfo::REGISTRATION,
    #[cfg(feature = "gpu")]
    &gpu::REGISTRATION,
    &process::REGISTRATION,
    &cgroup::REGISTRATION,
    &workload::REGISTRATION,
    &snapshots::REGISTRATION,
    &training::REGISTRATION,
    #[cfg(feature = "otlp")]
    &otlp::REGISTRATION,
    &logs::REGISTRATION,
    &perf::REGISTRATION,
    &daemon::REGISTRATION,
];

/// What the rest of memwarden needs to know of a source.
#[derive(Debug)]
pub struct Registration {
    /// The config key under `sources`, and the value of the `source` label.
    pub name: &'static str,
    /// What it measures, and from where: one sentence.
    pub about: &'static str,
    /// Whether it runs when the configuration is silent.
    pub on_by_default: bool,
    /// Its own config keys.
    pub options: &'static [&'static Opt],
    /// Every metric it can put.
    pub metrics: &'static [&'static Desc],
    /// The sources that must run beside it.
    pub needs: &'static [&'static str],
    /// What is wrong with settings whose values are each right: a key within its section and a sentence.
    pub check: fn(&Settings) -> Vec<(String, String)>,
    /// Builds it. Opens nothing that can fail: what is missing shows at the first sample.
    pub build: fn(&Settings, &Context) -> Box<dyn Source>,
}

/// What a source is built with beside its settings.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where the kernel's files are.
    pub roots: Arc<Roots>,
    /// How to start the worker that talks to a device driver; absent where no process may be started.
    pub worker: Option<WorkerCommand>,
    /// Where the source that receives checkpoint acknowledgements puts them, for readers that must not wait.
    pub checkpoints: Arc<Checkpoints>,
}
