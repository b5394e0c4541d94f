//! Who looks: an engine in this process, or a daemon.

use std::sync::Arc;

use super::daemon::Daemon;
use super::options::Options;
use crate::app::serve;
use crate::engine::{EVERYTHING, Engine};
use crate::events::Events;
use crate::host::clock;
use crate::report::{Focus, FrameView};

/// Where sights come from.
pub(super) enum Eyes {
    Own(Box<Engine>),
    Daemon(Box<Daemon>),
}

impl Eyes {
    /// Opens what the options ask for, and says what the report is about.
    pub(super) fn open(options: &Options) -> anyhow::Result<(Self, Focus)> {
        if let Some(url) = &options.url {
            return Ok((Self::Daemon(Box::new(Daemon::at(url)?)), options.focus(&[])));
        }
        let (config, trees) = options.config()?;
        let context = serve::context(&config.paths, Arc::default());
        let engine = Engine::new(EVERYTHING, &config, context, Arc::new(Events::new()));
        Ok((Self::Own(Box::new(engine)), options.focus(&trees)))
    }

    pub(super) async fn look(&mut self) -> anyhow::Result<FrameView> {
        match self {
            Self::Own(engine) => Ok(FrameView::of(&engine.tick(clock::now()))),
            Self::Daemon(daemon) => daemon.look().await,
        }
    }
}
