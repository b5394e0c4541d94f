//! `memwarden gpu-worker`: the process that `serve` starts to talk to NVML.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::sources::gpu::options::Options;
use crate::sources::gpu::worker;

/// The worker's command line, written by `serve` and by nobody else.
#[derive(Clone, Debug, clap::Args)]
pub struct GpuWorkerArgs {
    /// The NVML library to load.
    #[arg(long)]
    pub library: Option<PathBuf>,
    /// A folder below which the driver's libraries are.
    #[arg(long)]
    pub driver_root: Option<PathBuf>,
    /// Milliseconds between two samples of a GPU.
    #[arg(long, default_value_t = 1000)]
    pub interval_ms: u64,
    /// Do not list processes.
    #[arg(long)]
    pub no_processes: bool,
    /// Do not read numbered fields.
    #[arg(long)]
    pub no_field_values: bool,
}

/// Runs the worker until its input ends.
pub fn run(arguments: GpuWorkerArgs) -> ExitCode {
    worker::run(&Options {
        library: arguments.library,
        driver_root: arguments.driver_root,
        interval: Duration::from_millis(arguments.interval_ms),
        processes: !arguments.no_processes,
        field_values: !arguments.no_field_values,
    })
}
