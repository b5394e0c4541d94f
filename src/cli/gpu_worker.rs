//! `memwarden gpu-worker`: the process that `serve` starts to call NVML.
//!
//! It lives as long as the daemon and should be small, so its arguments do not
//! go through the parser of all commands, which takes two megabytes with all help.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::sources::gpu::options::Options;
use crate::sources::gpu::worker;

/// The name of the command; `serve` writes it, and nobody else.
pub(super) const NAME: &str = "gpu-worker";

/// Runs the worker until its input ends.
///
/// # Errors
/// Arguments other than those of [`Options::arguments`].
pub(super) fn run(arguments: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let options = Options::of_arguments(arguments);
    let options = options.map_err(|argument| {
        anyhow::anyhow!("{argument:?} is not an argument of {NAME}, which only serve starts")
    })?;
    Ok(worker::run(&options))
}
