//! Pushing over OTLP beside the daemon: started, restarted on reload, ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Config;
use crate::engine::Frames;
use crate::events::Events;
use crate::otlp::{self, LogTap};

/// The pusher, if pushing is configured.
#[derive(Debug)]
pub struct Push {
    pusher: Option<otlp::Pusher>,
    logs: LogTap,
    instance: String,
}

impl Push {
    /// Starts pushing if the configuration or the environment enables it. A failure is logged and does not end the daemon.
    /// `bound` are the addresses of the listener, `logs` passes events of the log on.
    pub fn start(
        config: &Config,
        frames: &Frames,
        events: &Arc<Events>,
        logs: LogTap,
        bound: &[SocketAddr],
    ) -> Self {
        // An address that is bound later identifies the daemon too.
        let configured = config.web.listen().first().copied();
        let instance = bound.first().copied().or(configured).map_or_else(String::new, instance);
        let pusher = begin(config, frames, events, &logs, &instance).unwrap_or_else(|error| {
            events.otlp_not_started(&error);
            None
        });
        Self { pusher, logs, instance }
    }

    /// Starts a pusher for the new configuration, then ends the old one in the background.
    ///
    /// # Errors
    /// The reason why the new one cannot start; the old one continues.
    pub fn restart(&mut self, config: &Config, frames: &Frames, events: &Arc<Events>) -> Result<(), String> {
        let new = begin(config, frames, events, &self.logs, &self.instance)?;
        if let Some(old) = std::mem::replace(&mut self.pusher, new) {
            tokio::task::spawn_blocking(move || old.shutdown(Duration::from_secs(2)));
        }
        Ok(())
    }

    /// Sends the last frame and ends, within `deadline`.
    pub fn stop(self, deadline: Duration) {
        if let Some(pusher) = self.pusher {
            pusher.shutdown(deadline);
        }
    }
}

/// The identity of this node's pushes: the address of the listener, or the host name where that is a loopback address.
fn instance(address: SocketAddr) -> String {
    let everywhere = address.ip().is_loopback() || address.ip().is_unspecified();
    match sysinfo::System::host_name().filter(|_| everywhere) {
        Some(host) => format!("{host}:{}", address.port()),
        None => address.to_string(),
    }
}

fn begin(
    config: &Config,
    frames: &Frames,
    events: &Arc<Events>,
    logs: &LogTap,
    instance: &str,
) -> Result<Option<otlp::Pusher>, String> {
    otlp::start(otlp::Setup {
        config: &config.otlp,
        env: &|name| std::env::var(name).ok(),
        catalog: crate::catalog::all().collect(),
        frames: frames.clone(),
        events: Arc::clone(events),
        runtime: tokio::runtime::Handle::current(),
        logs: logs.clone(),
        instance: instance.to_owned(),
    })
    .map_err(|error| format!("pushing over OTLP cannot start: {:#}", anyhow::Error::new(error)))
}
