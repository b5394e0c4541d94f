//! `memwarden leak`: what leaks.

use std::process::ExitCode;

use super::options::Options;
use super::watch;
use crate::report::Kind;

/// Tell what leaks: workloads, their largest processes, and processes on GPUs, with the evidence.
///
/// A verdict takes 60 samples, and a leak takes longer to be told from a warm-up the slower it is. Exit codes:
/// 0 fine, 1 an error, 2 something leaks (with --threshold: with more confidence than that), 3 a GPU that was asked for
/// does not answer, so that nothing is known of it. A GPU that is not there is an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden leak --pid 4711 --duration 5m --plot leak.svg
  memwarden leak --url http://127.0.0.1:10636 --duration 5 --workload slurm-17")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    options: Options,
}

impl Args {
    pub(in crate::cli) fn run(self) -> anyhow::Result<ExitCode> {
        watch::run(Kind::Leak, &self.options)
    }
}
