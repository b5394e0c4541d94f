//! `memwarden compare`: how the memory of two past runs differs, for regression tests.

use std::process::ExitCode;

use anyhow::Context as _;

use super::fetch::{self, ANSWER_TIMEOUT};
use super::output::{Format, Output};
use super::report::within;
use super::{history, out};
use crate::past_runs::ShownRuns;
use crate::report::RunComparison;

/// Compare the memory of two past runs of this node: the peak of each phase, and the memory for each token.
///
/// `memwarden history` lists the runs with their numbers. Exit codes: 0 the second run takes no more than the first one and the
/// tolerance, 1 it takes more in a phase that both have measured or over the whole run, or it ended for lack of memory and the
/// first one did not, 2 they cannot be compared: a run is not known, the second one did not measure a phase that the first one
/// measured, nothing was measured in both, or the daemon does not answer.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden compare 17 18
  memwarden compare 17 18 --tolerance 2% --format json")]
pub(super) struct Args {
    /// Number of the run to compare with.
    #[arg(value_parser = number)]
    before: u64,
    /// Number of the run that is compared.
    #[arg(value_parser = number)]
    after: u64,
    /// How much more the second run may take.
    #[arg(long, value_name = "PERCENT", value_parser = tolerance, default_value = "5%")]
    tolerance: f64,
    /// Address of the daemon, in place of its socket on this node.
    #[arg(long, value_name = "URL", default_value_t = fetch::local())]
    url: String,
    #[command(flatten)]
    output: Output<Format>,
}

/// The exit code where the runs cannot be compared.
const UNKNOWN: u8 = 2;

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "is not the number of a run, as `memwarden history` lists them".to_owned())
}

fn tolerance(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').ok_or("has no percent sign, as in 5%")?;
    let percent: f64 = number.parse().map_err(|_| "is not a percentage")?;
    Ok(within(percent, 0.0..=1_000.0, "must be from 0% to 1000%")? / 100.0)
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let compared = match self.compared() {
            Ok(compared) => compared,
            Err(error) => {
                out::complain(&error);
                return Ok(ExitCode::from(UNKNOWN));
            }
        };
        self.output.report(|page| compared.text(page), &compared)?;
        Ok(ExitCode::from(compared.exit_code()))
    }

    fn compared(&self) -> anyhow::Result<RunComparison> {
        let shown: ShownRuns = fetch::json(&self.url, history::PATH, ANSWER_TIMEOUT)?;
        let run = |number: u64| {
            let found = shown.runs.iter().find(|run| run.past.number == number);
            found.with_context(|| format!("the daemon knows no run {number} of yours"))
        };
        Ok(RunComparison::of(run(self.before)?, run(self.after)?, self.tolerance))
    }
}
