//! The source of frames: an engine in this process, or a daemon.

use std::time::Duration;

use anyhow::Context as _;

use super::options::Options;
use crate::app::serve;
use crate::cli::fetch::{Fetcher, LARGEST_NODE};
use crate::engine::Engine;
use crate::host::clock;
use crate::node_view::NodeView;
use crate::report::{self, Focus};

/// Time limit of a request to a daemon.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) enum FrameSource {
    Own(Box<Engine>),
    Daemon(Box<Fetcher>),
}

impl FrameSource {
    /// Opens the daemon at `url`, or an engine for this node, and returns the selection of the report.
    pub(super) fn open(options: &Options, url: Option<&str>) -> anyhow::Result<(Self, Focus)> {
        if let Some(url) = url {
            let daemon = Fetcher::new(url, LARGEST_NODE, PATIENCE).context("--url")?;
            return Ok((Self::Daemon(Box::new(daemon)), options.focus(&[])));
        }
        let (config, trees) = options.config()?;
        Ok((Self::Own(Box::new(serve::own_engine(&config))), options.focus(&trees)))
    }

    pub(super) async fn look(&mut self) -> anyhow::Result<NodeView> {
        match self {
            Self::Own(engine) => Ok(report::sample(&engine.tick(clock::now()))),
            Self::Daemon(daemon) => Ok(daemon.json::<NodeView>("/api/v1/node").await?.printable()),
        }
    }
}
