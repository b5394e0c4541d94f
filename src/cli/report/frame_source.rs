//! The source of frames: an engine in this process, or a daemon.

use std::sync::Arc;

use super::daemon::{Daemon, History};
use super::options::Options;
use crate::app::serve;
use crate::engine::{EVERYTHING, Engine};
use crate::events::Events;
use crate::host::clock;
use crate::node_view::NodeView;
use crate::report::{self, Focus};

pub(super) enum FrameSource {
    Own(Box<Engine>),
    Daemon(Box<Daemon>),
}

impl FrameSource {
    /// Opens the daemon at `url`, or an engine for this node, and returns the selection of the report.
    pub(super) fn open(options: &Options, url: Option<&str>) -> anyhow::Result<(Self, Focus)> {
        if let Some(url) = url {
            return Ok((Self::Daemon(Box::new(Daemon::at(url)?)), options.focus(&[])));
        }
        let (config, trees) = options.config()?;
        let context = serve::context(&config.paths, Arc::default());
        let engine = Engine::new(EVERYTHING, &config, context, Arc::new(Events::new()));
        Ok((Self::Own(Box::new(engine)), options.focus(&trees)))
    }

    /// What a daemon keeps; nothing where this process samples, and where the daemon does not answer.
    pub(super) async fn history(&self) -> History {
        match self {
            Self::Own(_) => History::new(),
            Self::Daemon(daemon) => daemon.history().await.unwrap_or_default(),
        }
    }

    pub(super) async fn look(&mut self) -> anyhow::Result<NodeView> {
        match self {
            Self::Own(engine) => Ok(report::sample(&engine.tick(clock::now()))),
            Self::Daemon(daemon) => daemon.look().await,
        }
    }
}
