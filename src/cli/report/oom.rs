//! `memwarden oom`: what runs out of memory and when.

use std::process::ExitCode;

use super::options::Options;
use super::watch;
use crate::report::Kind;

/// Tell what runs out of memory, when, how likely that is, and what to do.
///
/// Resources are the host, each cgroup with a limit, each GPU, and each workload against what would stop it.
/// A forecast takes 60 samples. Exit codes: 0 fine, 1 an error, 2 a risk is high or critical or the median of
/// a forecast is within 15 minutes; with --threshold, 2 where more than that share is used, or exhaustion
/// within the hour is more probable than that; 3 a GPU that was asked for does not answer, so that nothing is known of
/// it, or nothing at all could be seen. A GPU that is not there is an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden oom --duration 60 --plot oom.svg
  memwarden oom --url http://127.0.0.1:10636 --duration 5 --threshold 80%
  memwarden oom --pid 4711 --monitor")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    options: Options,
}

impl Args {
    pub(in crate::cli) fn run(self) -> anyhow::Result<ExitCode> {
        watch::run(Kind::Oom, &self.options)
    }
}
