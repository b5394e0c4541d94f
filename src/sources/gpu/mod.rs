//! NVIDIA GPUs, through NVML in a worker process.
//!
//! A driver call can hang indefinitely, so this process makes none. The worker
//! writes lines, a thread keeps the newest sample of each GPU, and `sample`
//! reports what is there without waiting.

pub mod convert;
pub mod field;
pub mod keeper;
pub mod metrics;
pub mod options;
mod owners;
mod parts;
mod plausible;
pub mod protocol;
pub mod report;
pub mod state;
pub mod supervisor;
#[cfg(test)]
mod tests;

mod unlisted;
pub mod unplaced;
pub mod unwrapped;
pub mod worker;
pub mod xid;

use std::path::PathBuf;

use self::keeper::{Keeper, WorkerState};
use self::options::Options;
use self::owners::Owners;
use crate::host::child::WorkerCommand;
use crate::model::facts::KernelLog;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::source::{Control, Source, SourceError};
use crate::model::time::Timestamp;
use crate::sources::Registration;

/// Samples between two checks whether a driver is loaded.
const DRIVER_EVERY: u64 = 5;

/// The source of NVIDIA GPU metrics.
pub static REGISTRATION: Registration = Registration {
    name: "gpu",
    about: "NVIDIA GPUs, their processes and errors, from NVML, which runs in a separate process.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings, context| {
        let shared = match &context.worker {
            Some(command) => WorkerState::of(command, &context.roots.proc),
            None => WorkerState::default(),
        };
        Box::new(Gpus {
            options: Options::read(settings),
            command: context.worker.clone(),
            proc: context.roots.proc.clone(),
            sys: context.roots.sys.clone(),
            owners: Owners::new(context.roots.proc.clone()),
            shared,
            keeper: None,
            wanted: true,
            samples: 0,
            driver: false,
        })
    })
};

struct Gpus {
    options: Options,
    command: Option<WorkerCommand>,
    proc: PathBuf,
    sys: PathBuf,
    owners: Owners,
    shared: WorkerState,
    keeper: Option<Keeper>,
    /// Whether a worker should run.
    wanted: bool,
    samples: u64,
    /// Whether a driver was loaded at the last check.
    driver: bool,
}

impl Gpus {
    fn keep(&mut self) -> Result<(), SourceError> {
        if self.keeper.is_some() {
            return Ok(());
        }
        let command = self
            .command
            .clone()
            .ok_or_else(|| SourceError::unavailable("the GPU worker is disabled in this process"))?;
        let (options, proc) = (self.options.clone(), self.proc.clone());
        let keeper = Keeper::start(&self.shared, command, options, proc, self.wanted);
        let failed = |error| SourceError::io("cannot create the thread of the GPU worker", &error);
        self.keeper = Some(keeper.map_err(failed)?);
        Ok(())
    }
}

impl Source for Gpus {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        self.keep()?;
        // A driver is not loaded and unloaded within seconds, so it is checked rarely.
        if self.samples.is_multiple_of(DRIVER_EVERY) {
            self.driver = self.proc.join("driver/nvidia/version").exists();
            let present = unlisted::present(&self.sys, &self.proc);
            lock(&self.shared.world).present = present;
        }
        self.samples += 1;
        let kernel = std::mem::take(&mut out.facts.kernel_xids);
        let mut world = lock(&self.shared.world);
        world.reads_log = out.facts.kernel_log != KernelLog::Unread;
        world.take_kernel(at, &kernel);
        self.owners.prove(&mut world.gpus, out.facts.processes.as_deref());
        let result = report::put(&world, at, self.options.interval, self.driver, out);
        world.peaks_exposed();
        drop(world);
        out.facts.kernel_xids = kernel;
        result
    }

    fn control(&mut self, request: Control) {
        self.wanted = request == Control::AcquireGpu;
        if let Some(keeper) = &self.keeper {
            keeper.want(self.wanted);
        }
    }

    fn finish(&mut self) {
        if let Some(keeper) = self.keeper.take() {
            keeper.finish();
        }
    }
}
