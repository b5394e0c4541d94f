//! `memwarden history`: the past runs of commands on this node, and how they ended.

use std::process::ExitCode;
use std::time::Duration;

use super::fetch::{self, Fetcher};
use super::output::{Format, Output};
use crate::past_runs::ShownRuns;
use crate::report::past_runs_text;

/// List the past training runs of this node: what they used, and how they ended.
///
/// The daemon remembers the last 8 runs of each command, of runs that report over the job socket. A user sees its own runs, and
/// root all. The number of a run is for `memwarden compare`. Exit codes: 0 success, 1 an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden history
  memwarden history --user 1000 --format json")]
pub(super) struct Args {
    /// ID of the user whose runs are listed.
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// Address of the daemon, in place of its socket on this node.
    #[arg(long, value_name = "URL", default_value_t = fetch::local())]
    url: String,
    #[command(flatten)]
    output: Output<Format>,
}

/// The daemon answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read, in bytes: that of 2,048 runs.
const LARGEST: usize = 16 << 20;

/// The past runs that the daemon shows to this user.
///
/// # Errors
/// A daemon that does not answer.
pub(super) fn past_runs(url: &str) -> anyhow::Result<ShownRuns> {
    let fetcher = Fetcher::new(url, LARGEST, ANSWER_TIMEOUT)?;
    fetch::runtime()?.block_on(fetcher.json("/api/v1/past-runs"))
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut shown = past_runs(&self.url)?;
        shown.runs.retain(|run| self.user.is_none_or(|user| run.command.user_id == user));
        match self.output.format() {
            Format::Text => self.output.colored(&past_runs_text(&shown, self.output.page()))?,
            Format::Json => self.output.value(&shown)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
