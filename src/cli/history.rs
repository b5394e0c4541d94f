//! `memwarden history`: the past runs of commands on this node, and how they ended.

use std::process::ExitCode;

use super::fetch::{self, ANSWER_TIMEOUT};
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
    #[arg(long, value_name = "UID", value_parser = user)]
    user: Option<u32>,
    /// Address of the daemon, in place of its socket on this node.
    #[arg(long, value_name = "URL", default_value_t = fetch::local())]
    url: String,
    #[command(flatten)]
    output: Output<Format>,
}

fn user(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("is not the ID of a user; `id -u {text}` prints it"))
}

/// The path of the past runs that the daemon shows to a user.
pub(super) const PATH: &str = "/api/v1/past-runs";

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut shown: ShownRuns = fetch::json(&self.url, PATH, ANSWER_TIMEOUT)?;
        shown.runs.retain(|run| self.user.is_none_or(|user| run.command.user_id == user));
        self.output.report(|page| past_runs_text(&shown, page), &shown)?;
        Ok(ExitCode::SUCCESS)
    }
}
