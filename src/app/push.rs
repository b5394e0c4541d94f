//! Pushing over OTLP beside the daemon: started, restarted on reload, ended.

use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::events::Events;
use crate::exposition::{Frames, otlp};

/// The pusher, where there is one.
#[derive(Debug)]
pub struct Push {
    pusher: Option<otlp::Pusher>,
    instance: String,
}

impl Push {
    /// Starts pushing where the configuration or the environment asks for it; what stops that is logged, never fatal.
    pub fn start(config: &Config, frames: &Frames, events: &Arc<Events>, instance: String) -> Self {
        let mut push = Self { pusher: None, instance };
        push.begin(config, frames, events);
        push
    }

    /// Ends the pusher in the background and starts one for the new configuration.
    pub fn restart(&mut self, config: &Config, frames: &Frames, events: &Arc<Events>) {
        if let Some(old) = self.pusher.take() {
            tokio::task::spawn_blocking(move || old.shutdown(Duration::from_secs(2)));
        }
        self.begin(config, frames, events);
    }

    /// Sends what is left and ends, within `deadline`.
    pub fn stop(self, deadline: Duration) {
        if let Some(pusher) = self.pusher {
            pusher.shutdown(deadline);
        }
    }

    fn begin(&mut self, config: &Config, frames: &Frames, events: &Arc<Events>) {
        let setup = otlp::Setup {
            config: &config.otlp,
            env: &|name| std::env::var(name).ok(),
            catalog: crate::catalog::all().collect(),
            frames: frames.clone(),
            events: Arc::clone(events),
            runtime: tokio::runtime::Handle::current(),
            instance: self.instance.clone(),
        };
        match otlp::start(setup) {
            Ok(pusher) => self.pusher = pusher,
            Err(error) => {
                let error = anyhow::Error::new(error);
                tracing::error!(error = format!("{error:#}"), "Pushing over OTLP could not be started.");
            }
        }
    }
}
