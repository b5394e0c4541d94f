//! Exports metrics over OTLP, by gRPC or HTTP, and events of the log, by HTTP.
//!
//! `resolve` combines configuration and environment, `stream` maps the catalog's metrics to names, `containers` identifies
//! containers, `body` encodes a frame, `framing` creates requests and interprets responses, `client` sends them, `pushing` does so each interval.
//! `logs` exports events of the log through the SDK. An unreachable collector costs one task.

mod answer;
mod body;
mod client;
mod containers;
mod env;
mod framing;
mod logs;
mod pushing;
mod resolve;
mod resource;
mod stream;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::Handle;

use self::body::Encoder;
use self::logs::LogExport;
pub use self::logs::LogTap;
use self::pushing::{End, Pushing, Sender};
use self::resolve::Resolved;
use crate::config::{Otlp, OtlpProtocol};
use crate::engine::Frames;
use crate::events::Events;
use crate::host::clock;
use crate::host::http_client::HttpError;
use crate::model::desc::Desc;

/// Dependencies of the export.
pub struct Setup<'a> {
    /// The `otlp` section.
    pub config: &'a Otlp,
    /// The environment variables, by name.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// All declared metrics.
    pub catalog: Vec<&'static Desc>,
    /// Receives the newest frame.
    pub frames: Frames,
    /// Counts exports.
    pub events: Arc<Events>,
    /// The runtime of the export task; it must outlive the pusher.
    pub runtime: Handle,
    /// What passes events of the log on.
    pub logs: LogTap,
    /// `host:port` of the HTTP server, so that `instance` is equal for scrapes and OTLP.
    pub instance: String,
}

impl fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// Why the export cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint in the configuration file is invalid.
    #[error("otlp.endpoint `{endpoint}` {why}")]
    Endpoint {
        /// As written, without a password.
        endpoint: String,
        why: String,
    },
    /// A certificate or a key cannot be read or used.
    #[error(transparent)]
    Client(#[from] HttpError),
}

/// Exports until it is shut down or dropped.
#[derive(Debug)]
pub struct Pusher {
    ends: tokio::sync::mpsc::UnboundedSender<End>,
    stop: tokio::sync::watch::Sender<bool>,
    logs: Option<LogExport>,
}

/// Starts the export if the configuration or the environment enables it; otherwise returns nothing.
///
/// # Errors
/// A setting in the configuration cannot be used. An unreachable collector is not an error: the failure is counted,
/// and the export retried each interval.
pub fn start(setup: Setup<'_>) -> Result<Option<Pusher>, OtlpError> {
    let (resolved, warnings) = resolve::resolve(setup.config, setup.env)?;
    for warning in warnings {
        tracing::warn!("{warning}.");
    }
    let Some(resolved) = resolved else {
        setup.logs.start(None, &setup.events, &setup.runtime, &setup.instance);
        return Ok(None);
    };
    pusher(setup, resolved).map(Some)
}

/// Checks the `otlp` section and the files it names, without the environment.
///
/// # Errors
/// As for [`start`]; warnings are returned as texts.
pub fn check(config: &Otlp) -> Result<Vec<String>, OtlpError> {
    let (resolved, warnings) = resolve::resolve(config, &|_| None)?;
    if let Some(resolved) = resolved {
        client::Client::new(&resolved)?;
    }
    Ok(warnings)
}

fn pusher(setup: Setup<'_>, resolved: Resolved) -> Result<Pusher, OtlpError> {
    let Setup { config, catalog, frames, events, runtime, instance, logs, .. } = setup;
    let encoder = Encoder::new(
        stream::streams(&catalog, resolved.names),
        &resource::resource(&resolved.resource, instance.clone()),
        resolved.delta,
        clock::now(),
    );
    let resolved = Arc::new(resolved);
    let sender = Arc::new(Sender::new(Arc::clone(&resolved), frames, encoder)?);
    events.otlp_started(
        &resolved.shown(),
        match resolved.protocol {
            OtlpProtocol::Grpc => "grpc",
            OtlpProtocol::HttpProtobuf => "http/protobuf",
        },
    );
    if config.logs && resolved.logs.is_none() && resolved.protocol == OtlpProtocol::Grpc {
        tracing::info!("OTLP log records are sent by HTTP only; with gRPC as protocol, none are sent.");
    }
    let push = move || {
        let sender = Arc::clone(&sender);
        async move { sender.push().await }
    };
    let logs = logs.start(Some(&resolved), &events, &runtime, &instance);
    Ok(Pusher { logs, ..begin(push, resolved, events, &runtime) })
}

/// Starts the export task with `push` on the runtime.
fn begin<F>(
    push: impl Fn() -> F + Send + Sync + 'static,
    resolved: Arc<Resolved>,
    events: Arc<Events>,
    runtime: &Handle,
) -> Pusher
where
    F: Future<Output = Option<framing::Verdict>> + Send + 'static,
{
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let (ends, requests) = tokio::sync::mpsc::unbounded_channel();
    runtime.spawn(Pushing { push, resolved, events, stop: stopped }.run(requests));
    Pusher { ends, stop, logs: None }
}

impl Pusher {
    /// Exports the newest frame once more and ends; an export that still runs after `deadline` is aborted.
    ///
    /// Blocks for at most `deadline`; must not be called on a thread of the runtime.
    pub fn shutdown(self, deadline: Duration) {
        let began = clock::now();
        let (done, answer) = mpsc::channel();
        let is_pushing = self.ends.send(done).is_ok();
        // Metrics and log records are sent at the same time.
        if let Some(logs) = self.logs {
            logs.shutdown(deadline);
        }
        if is_pushing {
            let _ = answer.recv_timeout(deadline.saturating_sub(clock::now().since(began)));
        }
        self.stop.send_replace(true);
    }
}

/// Parses the response of a collector, for fuzzing.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_answer(body: &[u8]) {
    let _ = answer::taken(body);
    let _ = answer::refused(body);
    let _ = answer::retry_delay(body);
}

/// Reads the environment, for fuzzing.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_environment(config: &Otlp, env: &dyn Fn(&str) -> Option<String>) {
    let _ = resolve::resolve(config, env);
}
