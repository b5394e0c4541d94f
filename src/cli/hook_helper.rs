//! `memwarden hook-helper`: the process that `serve` starts to run hooks.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::protection::enforce::hooks;

/// The helper's command line, written by `serve` only.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Mount point of the process file system.
    #[arg(long)]
    proc: PathBuf,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        hooks::run(&self.proc).context("the hook helper cannot talk to the daemon")?;
        Ok(ExitCode::SUCCESS)
    }
}
