//! `memwarden gpu-worker`: the process that `serve` starts to call NVML.
//!
//! It lives as long as the daemon and should be small, so its argument does not
//! go through the parser of all commands, which takes two megabytes with all help.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::sources::gpu::options::Options;
use crate::sources::gpu::worker;

/// The name of the command; `serve` writes it, and nobody else.
pub(super) const NAME: &str = "gpu-worker";

/// Runs the worker until its input ends.
///
/// # Errors
/// The argument is not the document of [`Options`].
pub(super) fn run(mut arguments: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let document = arguments.next().unwrap_or_default();
    let options = serde_json::from_slice::<Options>(document.as_encoded_bytes());
    let options = options
        .with_context(|| format!("{document:?} is not the options of {NAME}, which only serve starts"))?;
    Ok(worker::run(&options))
}
