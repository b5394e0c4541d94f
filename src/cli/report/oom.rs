//! `memwarden oom`: which resources run out of memory, and when.

use std::process::ExitCode;

use super::options::Options;
use super::watch;
use crate::report::Kind;

/// Report which resources will exhaust their memory, when, with what probability, and what to do.
///
/// Resources are the host, each cgroup with a limit, each GPU, and each workload with the limit that applies to it.
/// A forecast requires 60 samples. Exit codes: 0 nothing is wrong, 1 an error, 2 the health of a resource is warning or
/// critical (with --threshold: the share in use, or the probability of exhaustion within 1 hour, exceeds it), 3 a
/// selected GPU or daemon does not respond or no resource can be read, so that the state is unknown. A selected GPU that
/// does not exist is an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden oom --duration 60 --plot oom.svg
  memwarden oom --url unix:/run/memwarden/api.sock --duration 5 --threshold 80%
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
