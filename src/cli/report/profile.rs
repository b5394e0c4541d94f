//! `memwarden profile`: what memory is used for now and at most.

use std::process::ExitCode;

use super::options::Options;
use super::watch;
use crate::report::Kind;

/// Tell what memory is used, now and at most: by kind, GPU, workload and process.
///
/// Exit codes: 0 fine, 1 an error, 2 the host or a GPU used more than --threshold at its peak, 3 a GPU
/// that was asked for does not answer, so that nothing is known of it, or the host could not be seen. A GPU that is not
/// there is an error.
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
