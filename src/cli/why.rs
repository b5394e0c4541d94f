//! `memwarden why`: how processes ended on this node, and why.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use super::fetch::{self, ANSWER_TIMEOUT, Fetcher, LARGEST};
use super::out;
use super::output::{Format, Output};
use crate::host::clock;
use crate::model::ends::{End, ShownEnds};
use crate::node_view::ends::{remarks, sentence};
use crate::report::ends_text;

/// Say how a process, job or run ended on this node, and why.
///
/// The daemon keeps the last 256 ends of workloads, of their ranks, and of processes that a signal ended or the OOM killer killed. A user
/// sees its own, and root all. Without a name, the last end that was no success is explained. Exit codes: 0 it ended with
/// success, or for a reason for which starting it again may help; 1 an error; 2 starting it again without a change cannot help;
/// 3 it is not known why it ended, or no such end is known.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden why
  memwarden why 4711
  memwarden why slurm-17 --format json
  memwarden why --all
  memwarden why --follow --format json")]
pub(super) struct Args {
    /// A pid, the name of a workload, the ID of a Slurm job, or the name of a run.
    #[arg(value_name = "PID|WORKLOAD|JOB|RUN", conflicts_with = "all")]
    name: Option<String>,
    /// List all ends that are kept.
    #[arg(long)]
    all: bool,
    /// Print each further end about 2 s after it, until interrupted; in JSON, one object a line with `text` and `end`.
    #[arg(long, conflicts_with = "output")]
    follow: bool,
    /// Address of the daemon, in place of its socket on this node.
    #[arg(long, value_name = "URL", default_value_t = fetch::local())]
    url: String,
    #[command(flatten)]
    output: Output<Format>,
}

/// Most ends of processes of a workload that are shown with its own.
const MOST_PARTS: usize = 16;
/// Ends are stated about 2 s after they occur.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let fetcher = Fetcher::new(&self.url, LARGEST, ANSWER_TIMEOUT)?;
        let runtime = fetch::runtime()?;
        let ask = || -> anyhow::Result<ShownEnds> {
            let mut shown: ShownEnds = runtime.block_on(fetcher.json("/api/v1/ends"))?;
            shown.ends.retain(|end| match &self.name {
                Some(name) => is_named(end, name),
                None => self.all || end.is_abnormal(),
            });
            Ok(shown)
        };
        if self.follow {
            return self.follow_on(ask);
        }
        let mut shown = ask()?;
        if !self.all {
            let is_part = |end: &&End| {
                end.is_failure_of_part() && !end.is_whole && end.workload == shown.ends[0].workload
            };
            let parts = shown.ends.iter().skip(1).take_while(is_part).take(MOST_PARTS).count();
            shown.ends.truncate(if self.name.is_some() { 1 + parts } else { 1 });
        }
        self.output.report(|page| ends_text(&shown, self.all, page), &shown)?;
        Ok(if self.all { ExitCode::SUCCESS } else { code(shown.ends.first()) })
    }

    /// Prints each end that comes from now on; returns where standard output is closed.
    fn follow_on(&self, ask: impl Fn() -> anyhow::Result<ShownEnds>) -> anyhow::Result<ExitCode> {
        let began = clock::now().unix().as_secs_f64();
        // The number of an end can change when the daemon starts again.
        let mut printed: HashSet<(u32, u64)> = HashSet::new();
        let mut is_reached = true;
        loop {
            match ask() {
                Ok(shown) => {
                    is_reached = true;
                    for end in shown.ends.iter().rev().filter(|end| end.unix_seconds >= began) {
                        if printed.insert((end.pid, end.unix_seconds.to_bits())) {
                            self.follow_one(end, shown.schema_version)?;
                        }
                    }
                }
                // The daemon may be restarted; it keeps its ends.
                Err(error) => {
                    if std::mem::take(&mut is_reached) {
                        out::complain(&error);
                    }
                }
            }
            std::thread::sleep(FOLLOW_INTERVAL);
        }
    }

    fn follow_one(&self, end: &End, schema_version: u32) -> anyhow::Result<()> {
        match self.output.format() {
            Format::Text => {
                let one = ShownEnds { ends: vec![end.clone()], schema_version };
                self.output.colored(&ends_text(&one, false, self.output.page()))
            }
            Format::Json => {
                let text = [vec![sentence(end)], remarks(end)].concat().join(" ");
                let line = serde_json::json!({ "text": text, "end": end });
                self.output.json(&format!("{line}\n"))
            }
        }
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
