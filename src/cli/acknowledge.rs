//! `memwarden acknowledge`: says that somebody looks after a problem.

use std::process::ExitCode;

use anyhow::bail;

use super::fetch::{self, ANSWER_TIMEOUT, Fetcher, LARGEST};
use super::out;
use crate::model::printable::escaped;
use crate::node_view::NodeView;
use crate::serve::http::Acknowledging;

/// Acknowledge a problem of this node.
///
/// It stays in the list of problems as acknowledged, with who did it and when, and no longer counts for the health of the node
/// and the exit code of `memwarden check`. It counts again when it gets worse or, for an XID error, happens again. The
/// acknowledgement is forgotten two minutes after the problem has ended, and at a restart of the node, not at one of the daemon.
/// The alert on an XID error ends; silence other alerts in Alertmanager. Only root can do it, over the socket of the daemon. Exit
/// codes: 0 success, 1 an error, such as a problem that does not exist.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  memwarden acknowledge xid/gpu/3 --by alice")]
pub(super) struct Args {
    /// Name of the problem, as the page, `top` and /api/v1/node have it.
    problem: String,
    /// Who acknowledges it [default: the user who called sudo, else root].
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Socket of the daemon, unix:/PATH.
    #[arg(long, value_name = "URL", default_value_t = fetch::local())]
    url: String,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let by = self.by.or_else(|| std::env::var("SUDO_USER").ok()).unwrap_or_else(|| "root".to_owned());
        let fetcher = Fetcher::new(&self.url, LARGEST, ANSWER_TIMEOUT)?;
        let runtime = fetch::runtime()?;
        let node: NodeView = runtime.block_on(fetcher.json("/api/v1/node"))?;
        let names: Vec<&str> = node.problems.iter().map(|problem| &*problem.name).collect();
        if !names.contains(&&*self.problem) {
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            bail!("the node has no problem `{}`; it has {}", escaped(&self.problem), escaped(&has));
        }
        let told = format!(
            "{} is acknowledged by {} from the next sample on.\n",
            escaped(&self.problem),
            escaped(&by)
        );
        let request = serde_json::to_vec(&Acknowledging { problem: self.problem, by })?;
        runtime.block_on(fetcher.post("/api/v1/acknowledge", request))?;
        out::text(&told)?;
        Ok(ExitCode::SUCCESS)
    }
}
