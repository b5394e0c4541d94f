//! `memwarden fragment`: fragmentation.

use std::process::ExitCode;

use super::options::Options;
use super::watch;
use crate::report::Kind;

/// Tell how much of the free memory of the host is in blocks too small for large requests, and its trend.
///
/// The memory of a GPU is cut up by its allocator, which cannot be seen from outside: see `memwarden snapshot`.
/// Exit codes: 0 fine, 1 an error, 2 a larger share than --threshold cannot hold a huge page (order 9), 3 a
/// GPU that was asked for does not answer, so that nothing is known of it. A GPU that is not there is an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden fragment --duration 10
  memwarden fragment --threshold 95% --output fragment.json --plot fragment.png")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    options: Options,
}

impl Args {
    pub(in crate::cli) fn run(self) -> anyhow::Result<ExitCode> {
        watch::run(Kind::Fragment, &self.options)
    }
}
