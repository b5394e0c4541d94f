//! `memwarden check`: the health of this node from its daemon, for schedulers and Node Problem Detector.

use std::process::ExitCode;
use std::time::Duration;

use super::fetch;
use crate::cli::out;
use crate::cli::output::{self, Format};
use crate::cli::report::{standard_output_page, within};
use crate::model::health::Health;
use crate::report::{CheckReport, Scope};

/// Print the health of this node in one line of at most 80 bytes, by the running daemon.
///
/// Exit codes: 0 ok, 1 a problem: the health is as bad as --severity or worse, 2 unknown: the daemon does not answer, has no
/// fresh sample, or cannot measure something that the node has. A GPU that hangs is a problem. The exit codes are those of a
/// custom plugin of Kubernetes' Node Problem Detector. The worst problem comes first. By default only conditions of the node
/// count: its own memory, devices that do not respond, and what cannot be measured; a job that fills its own limit is none.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden check
  memwarden check --scope all --severity warning --format json
  line=$(memwarden check); test $? -ne 1 ||
    scontrol update nodename=$(hostname -s) state=drain reason=\"$line\"")]
pub(super) struct Args {
    /// Address of the daemon, in place of its socket on this node.
    #[arg(long, value_name = "URL", default_value_t = fetch::local())]
    url: String,
    /// Whose problems count.
    #[arg(long, value_enum, default_value_t = Whose::Node)]
    scope: Whose,
    /// Lowest health that is a problem.
    #[arg(long, value_enum, default_value_t = Lowest::Critical)]
    severity: Lowest,
    /// Time in seconds after which a daemon that has not answered is unknown, 0.1 to 60.
    #[arg(long, value_name = "SECONDS", value_parser = timeout, default_value = "3")]
    timeout: Duration,
    /// Format of the answer.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Whose {
    /// Conditions of the node.
    Node,
    /// Conditions of the node and of its jobs.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Lowest {
    /// What requires attention is a problem.
    Warning,
    /// Only what requires action now is a problem.
    Critical,
}

/// The time limit of a request, in seconds.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.strip_suffix('s').unwrap_or(text).parse().map_err(|_| "is not a number")?;
    within(seconds, 0.1..=60.0, "is not between 0.1 and 60 seconds").map(Duration::from_secs_f64)
}

impl Args {
    #[expect(clippy::unnecessary_wraps, reason = "the signature of every command")]
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let severity = match self.severity {
            Lowest::Warning => Health::Warning,
            Lowest::Critical => Health::Critical,
        };
        let scope = match self.scope {
            Whose::Node => Scope::Node,
            Whose::All => Scope::All,
        };
        let checked = match fetch::json(&self.url, "/api/v1/node", self.timeout) {
            Ok(node) => CheckReport::of(&node, scope, severity),
            // Without an answer nothing is known, which is not an error of this command.
            Err(error) => {
                let why = error.root_cause().to_string();
                // The text of an unsuccessful response is more specific than its status.
                let why = why
                    .strip_prefix("it answers ")
                    .and_then(|rest| rest.split_once(": "))
                    .map_or(&*why, |(_, message)| message);
                // The line is short: what is wrong comes first, and neither the layer nor the number of the error.
                let refused =
                    why.strip_prefix("tcp connect error: ").and_then(|why| why.split(" (os error").next());
                match refused {
                    Some(refused) => {
                        CheckReport::blind(scope, &format!("the daemon does not answer: {refused}"))
                    }
                    None => CheckReport::blind(scope, why),
                }
            }
        };
        let text = match self.format {
            Format::Text => format!("{}\n", checked.shown(standard_output_page())),
            Format::Json => output::pretty(&checked).unwrap_or_default(),
        };
        // The exit code is the answer, even if the line cannot be written.
        let _ = out::colored_text(&text);
        Ok(ExitCode::from(checked.exit_code()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_bounds() {
        assert_eq!(timeout("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(timeout("2s"), Ok(Duration::from_secs(2)));
        for refused in ["0", "-1", "61", "x", "", "nan", "inf"] {
            assert!(timeout(refused).is_err(), "{refused}");
        }
    }
}
