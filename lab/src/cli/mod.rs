//! The command line: one file per subcommand. `memwarden` executes this program with its own arguments.

mod plot;
mod replay;
mod snapshot;
mod snapshot_digest;
mod what_if;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use memwarden::cli::{self, RELEASE, VERSION};

/// Analyzes recordings, records of runs and allocator snapshots; `memwarden` executes this program.
#[derive(Debug, Parser)]
#[command(name = "memwarden-lab", version = VERSION, about, max_term_width = 100)]
pub struct Cli {
    /// The version of the program that executes this one.
    #[arg(long, hide = true)]
    release: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Plot(plot::Args),
    Replay(replay::Args),
    Snapshot(snapshot::Args),
    /// Read an allocator snapshot; started by the daemon only.
    #[command(hide = true)]
    SnapshotDigest(snapshot_digest::Args),
    WhatIf(what_if::Args),
}

/// The command line of `memwarden` with the commands of this program.
pub fn whole() -> clap::Command {
    cli::Cli::command().subcommands(Cli::command().get_subcommands().cloned())
}

/// Runs the command of the command line.
///
/// # Errors
/// Those of the command, and where the program that executes this one is of another version, whose arguments can differ.
pub fn run() -> anyhow::Result<ExitCode> {
    let first = std::env::args().nth(1).unwrap_or_default();
    if let Some(theirs) = first.strip_prefix("--release=").filter(|theirs| *theirs != RELEASE) {
        anyhow::bail!(
            "memwarden is of version {theirs} and memwarden-lab of {RELEASE}: install both of the same one"
        );
    }
    let parsed: Cli = match cli::parsed(Cli::command()) {
        Ok(parsed) => parsed,
        Err(code) => return Ok(code),
    };
    match parsed.command {
        Command::Plot(args) => args.run(),
        Command::Replay(args) => args.run(),
        Command::Snapshot(args) => args.run(),
        Command::SnapshotDigest(args) => args.run(),
        Command::WhatIf(args) => args.run(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn memwarden_lists_every_command_which_shows_an_example() {
        let own = super::Cli::command();
        own.clone().debug_assert();
        let mut known = Vec::new();
        for command in own.get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{} has no example:\n{help}", command.get_name());
            known.push((command.get_name(), command.get_about().unwrap().to_string()));
        }
        known.sort();
        assert_eq!(memwarden::cli::LAB.map(|(name, about)| (name, about.to_owned())).to_vec(), known);
    }
}
