//! `memwarden why`: how processes ended on this node, and why.

use std::process::ExitCode;
use std::time::Duration;

use super::fetch::{self, Fetcher};
use super::output::{Format, Output};
use crate::model::ends::{End, ShownEnds};
use crate::report::ends_text;

/// Say how a process, job or run ended on this node, and why.
///
/// The daemon keeps the last 256 ends of workloads, of their ranks, and of processes that a signal ended. A user sees those of its
/// own workloads, and root all. Without a name, the last end that was no success is explained. Exit codes: 0 it ended with
/// success, or for a reason for which starting it again may help; 1 an error; 2 starting it again without a change cannot help;
/// 3 it is not known why it ended, or no such end is known.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden why
  memwarden why 4711
  memwarden why slurm-17 --format json
  memwarden why --all")]
pub(super) struct Args {
    /// A pid, the name of a workload, the ID of a Slurm job, or the name of a run.
    #[arg(value_name = "PID|WORKLOAD|JOB|RUN", conflicts_with = "all")]
    name: Option<String>,
    /// List all ends that are kept.
    #[arg(long)]
    all: bool,
    /// Address of the daemon, in place of its socket on this node.
    #[arg(long, value_name = "URL", default_value_t = fetch::local())]
    url: String,
    #[command(flatten)]
    output: Output<Format>,
}

/// The daemon answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read, in bytes: that of 256 ends with their curves.
const LARGEST: usize = 16 << 20;

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let fetcher = Fetcher::new(&self.url, LARGEST, ANSWER_TIMEOUT)?;
        let mut shown: ShownEnds = fetch::runtime()?.block_on(fetcher.json("/api/v1/ends"))?;
        if !self.all {
            let is_wanted = |end: &End| match &self.name {
                Some(name) => is_named(end, name),
                None => end.is_abnormal(),
            };
            shown.ends.retain(is_wanted);
            shown.ends.truncate(1);
        }
        match self.output.format() {
            Format::Text => self.output.colored(&ends_text(&shown, self.all, self.output.page()))?,
            Format::Json => self.output.value(&shown)?,
        }
        Ok(if self.all { ExitCode::SUCCESS } else { code(shown.ends.first()) })
    }
}

fn is_named(end: &End, name: &str) -> bool {
    let job = || end.workload.as_str().strip_prefix("slurm-").is_some_and(|job| job == name);
    end.pid.to_string() == name || end.workload.as_str() == name || end.run.as_str() == name || job()
}

/// The exit code for the end that is explained.
fn code(end: Option<&End>) -> ExitCode {
    use crate::model::ends::{EndCause, Retry};
    match end {
        Some(end) if end.retry == Retry::CannotHelp => ExitCode::from(2),
        Some(end) if end.cause != EndCause::Unknown => ExitCode::SUCCESS,
        _ => ExitCode::from(3),
    }
}
