//! `memwarden gpu`: makes the running daemon unload NVML, or load it again.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::host::{clock, signal};

/// Make the running daemon release the GPU driver, so that the driver can be unloaded, or acquire it again.
///
/// `release` returns when no process of the daemon uses NVML. Exit codes: 0 success, 1 an error.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Example:\n  memwarden gpu release && rmmod nvidia_uvm nvidia && modprobe nvidia && \
                             memwarden gpu acquire"
)]
pub(super) struct Args {
    /// Action of the daemon.
    #[arg(value_enum)]
    action: Action,
    /// Process ID of the daemon; required only if several daemons run.
    #[arg(long)]
    pid: Option<u32>,
    /// Mount point of the process file system.
    #[arg(long, default_value = "/proc", hide = true)]
    proc: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Action {
    /// Shut down NVML and end the GPU worker process.
    Release,
    /// Initialize NVML again.
    Acquire,
}

/// A worker that hangs in the driver is killed after 2 s; one that cannot be killed stays.
const WORKER_TIMEOUT: Duration = Duration::from_secs(10);

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let pid = self.daemon()?;
        signal::ask_gpu(pid, self.action == Action::Release)
            .with_context(|| format!("cannot signal {pid}"))?;
        if self.action == Action::Release {
            let begun = clock::now();
            while self.peers()?.iter().any(|peer| peer.parent == pid && peer.command == "gpu-worker") {
                if clock::now().since(begun) > WORKER_TIMEOUT {
                    bail!("the GPU worker of {pid} still runs; it hangs in the driver");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    fn peers(&self) -> anyhow::Result<Vec<signal::Peer>> {
        let program = signal::own_program().context("the path of this program is not known")?;
        signal::peers(&self.proc, &program, self.pid)
            .with_context(|| format!("cannot list {}", self.proc.display()))
    }

    fn daemon(&self) -> anyhow::Result<u32> {
        let mut daemons = self.peers()?;
        daemons.retain(|peer| peer.command == "serve" && self.pid.is_none_or(|pid| pid == peer.pid));
        match daemons.as_slice() {
            [daemon] => Ok(daemon.pid),
            [] => match self.pid {
                Some(pid) => bail!(
                    "--pid {pid}: that process is no `memwarden serve`; leave the option out to find it"
                ),
                None => bail!("no `memwarden serve` runs on this node"),
            },
            several => {
                let pids: Vec<String> = several.iter().map(|daemon| daemon.pid.to_string()).collect();
                bail!("several are serving; name one with --pid: {}", pids.join(", "))
            }
        }
    }
}
