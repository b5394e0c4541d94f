//! `memwarden profile`: current and peak memory usage.

use std::process::ExitCode;

use super::options::Options;
use super::watch;
use crate::report::Kind;

/// Report the current and the peak memory usage, by kind of memory, GPU, workload and process.
///
/// Exit codes: 0 success, 1 an error, 2 the peak usage of the host or a GPU exceeded --threshold, 3 a selected GPU or daemon
/// does not respond or the host cannot be read, so that its state is unknown. A selected GPU that does not exist is an
/// error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden profile --duration 10
  memwarden profile --pid 4711 --duration 5m --output profile.json --plot profile.svg
  memwarden profile --threshold 90% || echo \"above 90 %\"")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    options: Options,
}

impl Args {
    pub(in crate::cli) fn run(self) -> anyhow::Result<ExitCode> {
        watch::run(Kind::Profile, &self.options)
    }
}
