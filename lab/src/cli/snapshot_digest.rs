//! `memwarden-lab snapshot-digest`: reads one snapshot for the daemon, in a process with its own memory limit.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crate::files::pickle::Limits;
use crate::files::snapshot::{self, decode};
use memwarden::formats::snapshot_digest::Digest;
use memwarden::host::{child, user_files};
use memwarden::sources::snapshots::Request;

/// The command line, written by the daemon only.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A [`Request`] as JSON.
    request: String,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let Request { file, owner, max_memory, proc } = serde_json::from_str(&self.request)?;
        child::die_with_parent();
        child::step_back(&proc);
        let digest = digest(&file, owner, max_memory);
        std::io::stdout().lock().write_all(serde_json::to_string(&digest)?.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The content of a file, or the reason why it cannot be read.
fn digest(file: &Path, owner: Option<u32>, max_memory: u64) -> Result<Digest, String> {
    let largest = Limits::for_file(0, max_memory).file_bytes;
    let bytes = user_files::read(file, owner, largest).map_err(|error| error.to_string())?;
    let limits = Limits::for_file(bytes.len() as u64, max_memory);
    let digest = decode(&bytes, &limits).and_then(|snapshot| snapshot::digest(&snapshot));
    digest.map_err(|error| format!("{:#}", anyhow::Error::new(error)))
}
