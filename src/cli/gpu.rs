//! `memwarden gpu`: asks the running daemon to let go of the GPU driver, or to take it up again.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::host::{clock, signal};

/// Let the running daemon release the GPU driver, so that it can be unloaded, or take it up again.
///
/// `release` returns once no process of the daemon uses NVML any more.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Example:\n  memwarden gpu release && rmmod nvidia_uvm nvidia && modprobe nvidia && \
                             memwarden gpu acquire"
)]
pub(super) struct Args {
    /// What to ask for.
    #[arg(value_enum)]
    action: Action,
    /// The daemon's pid, where several run.
    #[arg(long)]
    pid: Option<u32>,
    /// The process file system.
    #[arg(long, default_value = "/proc", hide = true)]
    proc: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Action {
    /// Shut NVML down.
    Release,
    /// Take NVML up again.
    Acquire,
}

/// A worker that hangs in the driver is killed after 2 s; one that cannot be killed stays.
const PATIENCE: Duration = Duration::from_secs(10);

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let pid = self.daemon()?;
        signal::ask_gpu(pid, self.action == Action::Release)
            .with_context(|| format!("cannot signal {pid}"))?;
        if self.action == Action::Release {
            let begun = clock::now();
            while self.peers()?.iter().any(|peer| peer.parent == pid && peer.command == "gpu-worker") {
                if clock::now().since(begun) > PATIENCE {
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
            [] => bail!("no memwarden is serving"),
            several => {
                let pids: Vec<String> = several.iter().map(|daemon| daemon.pid.to_string()).collect();
                bail!("several are serving; name one with --pid: {}", pids.join(", "))
            }
        }
    }
}
