//! Requests the newest frame of a running daemon.

use std::time::Duration;

use anyhow::Context as _;
use http::Uri;

use crate::cli::fetch::{self, Fetcher};
use crate::report::FrameView;

/// The largest answer that is read, in bytes: 40 times the frame of a busy node.
const LARGEST: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon by its address.
pub(super) struct Daemon {
    frame: Uri,
    fetcher: Fetcher,
}

impl Daemon {
    /// One at `http://host:port` or `https://host:port`, with or without a path before `/api`.
    pub(super) fn at(url: &str) -> anyhow::Result<Self> {
        let base = url.trim_end_matches('/');
        let frame = fetch::address(&format!("{base}/api/v1/frame")).context("--url")?;
        let fetcher = Fetcher::new(&frame, LARGEST, PATIENCE)?;
        Ok(Self { frame, fetcher })
    }

    /// The newest frame.
    pub(super) async fn look(&self) -> anyhow::Result<FrameView> {
        let body = self.fetcher.get(&self.frame).await?;
        FrameView::read(&body).with_context(|| format!("{} is not a frame of memwarden", self.frame))
    }
}
