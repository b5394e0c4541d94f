//! `memwarden fragmentation`: fragmentation of the host's memory.

use std::process::ExitCode;

use super::options::Options;
use super::watch;
use crate::report::Kind;

/// Report the share of the host's free memory in blocks too small for large requests, and its trend.
///
/// Fragmentation of GPU memory happens inside the allocator of a job; see `memwarden snapshot`.
/// Exit codes: 0 success, 1 an error, 2 the share unusable for a huge page (order 9) exceeds --threshold, 3 a selected
/// GPU or daemon does not respond, so that its state is unknown. A selected GPU that does not exist is an error.
/// --devices, --pid and --workload select allocators of jobs, and need --url.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden fragmentation --duration 10
  memwarden fragmentation --threshold 95% --output fragmentation.json --plot fragmentation.png")]
#[command(mut_arg("devices", |own| own.requires("url")), mut_arg("pid", |own| own.requires("url")))]
#[command(mut_arg("workload", |own| own.requires("url")))]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    options: Options,
}

impl Args {
    pub(in crate::cli) fn run(self) -> anyhow::Result<ExitCode> {
        watch::run(Kind::Fragmentation, &self.options)
    }
}
