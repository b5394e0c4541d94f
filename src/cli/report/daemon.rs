//! Requests what a running daemon says of its node.

use std::time::Duration;

use anyhow::Context as _;
use http::Uri;

use crate::cli::fetch::{self, Fetcher};
use crate::node_view::NodeView;

/// The largest answer that is read, in bytes: 40 times the view of a busy node.
const LARGEST: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon by its address.
pub(super) struct Daemon {
    node: Uri,
    fetcher: Fetcher,
}

impl Daemon {
    /// One at `http://host:port` or `https://host:port`, with or without a path before `/api`.
    pub(super) fn at(url: &str) -> anyhow::Result<Self> {
        let base = url.trim_end_matches('/');
        let node = fetch::address(&format!("{base}/api/v1/node")).context("--url")?;
        let fetcher = Fetcher::new(&node, LARGEST, PATIENCE)?;
        Ok(Self { node, fetcher })
    }

    /// The newest view of the node, with its names escaped.
    pub(super) async fn look(&self) -> anyhow::Result<NodeView> {
        let body = self.fetcher.get(&self.node).await?;
        let view: NodeView = serde_json::from_slice(&body)
            .with_context(|| format!("{} is not a node of memwarden", self.node))?;
        Ok(view.printable())
    }
}
