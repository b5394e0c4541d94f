//! Requests what a running daemon says of its node.

use std::time::Duration;

use anyhow::Context as _;

use crate::cli::fetch::Fetcher;
use crate::node_view::NodeView;

/// The largest answer that is read, in bytes: 40 times the view of a busy node.
const LARGEST: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon by its address.
pub(super) struct Daemon {
    fetcher: Fetcher,
}

impl Daemon {
    pub(super) fn at(url: &str) -> anyhow::Result<Self> {
        let fetcher = Fetcher::new(url, LARGEST, PATIENCE).context("--url")?;
        Ok(Self { fetcher })
    }

    /// The newest view of the node, with its names escaped.
    pub(super) async fn look(&self) -> anyhow::Result<NodeView> {
        let body = self.fetcher.get("/api/v1/node").await?;
        let view: NodeView = serde_json::from_slice(&body)
            .with_context(|| format!("{} is not a node of memwarden", self.fetcher.url))?;
        Ok(view.printable())
    }
}
