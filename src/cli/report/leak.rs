//! `memwarden leak`: workloads and processes that leak memory.

use std::process::ExitCode;

use super::options::Options;
use super::watch;
use crate::report::Kind;

/// Report memory leaks of workloads, their largest processes, and processes on GPUs, with the evidence.
///
/// A verdict requires 60 samples; a slow leak takes longer to be distinguished from a warm-up. Exit codes:
/// 0 no leak, 1 an error, 2 a leak (with --threshold: only with a higher confidence), 3 a selected GPU or daemon does
/// not respond, so that its state is unknown. A selected GPU that does not exist is an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden leak --pid 4711 --duration 5m --plot leak.svg
  memwarden leak --url unix:/run/memwarden/api.sock --duration 5 --workload slurm-17")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    options: Options,
}

impl Args {
    pub(in crate::cli) fn run(self) -> anyhow::Result<ExitCode> {
        watch::run(Kind::Leak, &self.options)
    }
}
