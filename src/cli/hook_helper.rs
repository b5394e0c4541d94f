//! `memwarden hook-helper`: the process that `serve` starts to run hooks.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::protection::enforce::hooks;

/// The helper's command line, written by `serve` and by nobody else.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Where processes are listed.
    #[arg(long)]
    proc: PathBuf,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        hooks::run(&self.proc).context("the hook helper cannot talk to the daemon")?;
        Ok(ExitCode::SUCCESS)
    }
}
