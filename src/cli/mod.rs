//! The command line: one file per subcommand; its types parse arguments and call other modules.

mod acknowledge;
mod check;
mod check_config;
mod cluster;
mod drill;
mod fetch;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(feature = "gpu")]
mod gpu_worker;
mod hook_helper;
mod incidents;
mod job_summary;
mod metrics;
mod out;
mod output;
mod params;
mod picture;
mod plot;
mod replay;
mod report;
mod run;
mod serve;
mod snapshot;
mod snapshot_digest;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::model::printable;

/// The output of `--version`: the version, and the commit that it was built from.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (revision ", env!("MEMWARDEN_COMMIT"), ")");

/// Monitors the memory of training nodes, forecasts its exhaustion, and protects jobs before it is exhausted.
#[derive(Debug, Parser)]
#[command(name = "memwarden", version = VERSION, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Run(run::Args),
    Top(top::Args),
    Profile(report::Profile),
    Oom(report::Oom),
    Leak(report::Leak),
    Fragmentation(report::Fragmentation),
    Check(check::Args),
    Acknowledge(acknowledge::Args),
    Cluster(cluster::Args),
    CheckConfig(check_config::Args),
    Metrics(metrics::Args),
    Plot(plot::Args),
    Snapshot(snapshot::Args),
    Params(params::Args),
    Replay(replay::Args),
    /// Read an allocator snapshot; started by the daemon only.
    #[command(hide = true)]
    SnapshotDigest(snapshot_digest::Args),
    Incidents(incidents::Args),
    JobSummary(job_summary::Args),
    Drill(drill::Args),
    #[cfg(feature = "gpu")]
    Gpu(gpu::Args),
    /// Run the hooks of protection; started by the daemon only.
    #[command(hide = true)]
    HookHelper(hook_helper::Args),
}

pub use out::complain;

/// Runs the command of the command line.
///
/// # Errors
/// The failure of the command with its causes.
pub fn run() -> anyhow::Result<ExitCode> {
    #[cfg(feature = "gpu")]
    if std::env::args_os().nth(1).is_some_and(|name| name == gpu_worker::NAME) {
        return gpu_worker::run(std::env::args_os().skip(2));
    }
    match Cli::try_parse() {
        Ok(cli) => cli.run(),
        // Help, and the version.
        Err(error) if !error.use_stderr() => error.exit(),
        Err(error) => {
            // An argument may be the name of a user's file: the message shows it escaped.
            let shown = std::env::args_os()
                .map(|argument| printable::escaped(&argument.to_string_lossy()).into_owned());
            let message = Cli::try_parse_from(shown).err().map(|error| error.render().to_string());
            out::note(&message.unwrap_or_else(|| "error: invalid arguments\n".to_owned()));
            Ok(ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)))
        }
    }
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// The failure of the command with its causes.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Serve(args) => args.run(),
            Command::Run(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Profile(args) => args.run(),
            Command::Oom(args) => args.run(),
            Command::Leak(args) => args.run(),
            Command::Fragmentation(args) => args.run(),
            Command::Check(args) => args.run(),
            Command::Acknowledge(args) => args.run(),
            Command::Cluster(args) => args.run(),
            Command::CheckConfig(args) => args.run(),
            Command::Metrics(args) => args.run(),
            Command::Plot(args) => args.run(),
            Command::Snapshot(args) => args.run(),
            Command::Params(args) => args.run(),
            Command::Replay(args) => args.run(),
            Command::SnapshotDigest(args) => args.run(),
            Command::Incidents(args) => args.run(),
            Command::JobSummary(args) => args.run(),
            Command::Drill(args) => args.run(),
            #[cfg(feature = "gpu")]
            Command::Gpu(args) => args.run(),
            Command::HookHelper(args) => args.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn every_command_shows_an_example() {
        let cli = super::Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{} has no example:\n{help}", command.get_name());
        }
    }
}
