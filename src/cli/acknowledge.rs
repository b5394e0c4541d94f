//! `memwarden acknowledge`: acknowledges a problem of the node that stays until something was done about it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::app::state::{REFUSED, REQUEST, Request};
use crate::host::{clock, fs};
use crate::model::analyzer::Acknowledgement;
use crate::model::printable;

/// Acknowledge a problem of this node: an XID error of a GPU that needs an operator.
///
/// It is shown as acknowledged from then on, no longer counts as critical, and its alert ends. It is a problem again when the GPU
/// reports another such XID. Only the user of the daemon, root, can do it: the request is a file in the daemon's state folder,
/// and the state has who did it and when. Exit codes: 0 success, 1 an error, such as a problem that does not exist.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  memwarden acknowledge gpu/3 --by alice")]
pub(super) struct Args {
    /// Name of the problem, as its advice on the page and in `top` has it.
    problem: String,
    /// Who acknowledges it [default: the user who called sudo, else root].
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// State file of the daemon.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/memwarden/state.json")]
    state: PathBuf,
}

/// The daemon looks twice a second, and answers after its next sample.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let [path, refused] = [REQUEST, REFUSED].map(|name| self.state.with_file_name(name));
        let by = self.by.or_else(|| std::env::var("SUDO_USER").ok()).unwrap_or_else(|| "root".to_owned());
        let by = printable::escaped(&by).into_owned();
        let acknowledgement = Acknowledgement { by, unix_seconds: clock::now().unix().as_secs_f64() };
        if path.exists() {
            bail!("another request waits for the daemon: {}", path.display());
        }
        // The answer to an earlier request that was not waited for.
        let _ = std::fs::remove_file(&refused);
        let request = serde_json::to_vec(&Request { problem: self.problem, acknowledgement })?;
        fs::write_atomically(&path, |out| out.write_all(&request))
            .with_context(|| format!("cannot write {}", path.display()))?;
        let begun = clock::now();
        while path.exists() {
            if clock::now().since(begun) > ANSWER_TIMEOUT {
                // It must not be found later.
                let _ = std::fs::remove_file(&path);
                bail!("no daemon with the state file {} has answered", self.state.display());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if std::fs::remove_file(refused).is_ok() {
            bail!("the daemon has no such problem");
        }
        Ok(ExitCode::SUCCESS)
    }
}
