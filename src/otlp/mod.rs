//! Pushing over OTLP, by gRPC or HTTP.
//!
//! `resolve` decides from configuration and environment, `stream` says under
//! which names the catalog's metrics go, `body` encodes a frame, `framing`
//! makes it a request that `client` carries and reads the answer, `pushing`
//! does so each interval. A collector that is down costs one task.

mod answer;
mod body;
mod client;
mod env;
mod framing;
mod pushing;
mod resolve;
mod resource;
mod stream;
#[cfg(test)]
mod tests;
mod trust;

use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::Handle;

use self::body::Encoder;
use self::pushing::{End, Pushing, Sender};
use self::resolve::Resolved;
use crate::config::{Otlp, OtlpProtocol};
use crate::engine::Frames;
use crate::events::Events;
use crate::host::clock;
use crate::model::desc::Desc;

/// What pushing is started with.
pub struct Setup<'a> {
    /// The `otlp` section.
    pub config: &'a Otlp,
    /// The environment, by name of variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// Every metric there can be.
    pub catalog: Vec<&'static Desc>,
    /// Where the newest frame is.
    pub frames: Frames,
    /// Where pushes are counted.
    pub events: Arc<Events>,
    /// What pushing runs on; it must outlive the pusher.
    pub runtime: Handle,
    /// `host:port` of the HTTP server, so that `instance` is the same by pull and by push.
    pub instance: String,
}

impl fmt::Debug for Setup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setup").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// Why pushing cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint of the configuration file is none.
    #[error("otlp.endpoint `{endpoint}` {why}")]
    Endpoint {
        /// As written, without a password.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// A certificate or key could not be read.
    #[error(transparent)]
    Trust(#[from] crate::host::tls::TrustError),
    /// The client certificate does not go with its key.
    #[error("cannot set up TLS for the collector")]
    Tls(#[source] tokio_rustls::rustls::Error),
}

/// Pushes until it is shut down or dropped.
#[derive(Debug)]
pub struct Pusher {
    ends: tokio::sync::mpsc::UnboundedSender<End>,
    stop: tokio::sync::watch::Sender<bool>,
}

/// Starts pushing where the configuration or the environment asks for it; nothing where neither does.
///
/// # Errors
/// What the configuration names cannot be used. A collector that does not
/// answer is no error: it is counted, and tried again each interval.
pub fn start(setup: Setup<'_>) -> Result<Option<Pusher>, OtlpError> {
    let (resolved, warnings) = resolve::resolve(setup.config, setup.env)?;
    for warning in warnings {
        tracing::warn!("{warning}.");
    }
    resolved.map(|resolved| pusher(setup, resolved)).transpose()
}

/// What a start would say of the `otlp` section and the files it names, the environment left aside.
///
/// # Errors
/// As [`start`]'s; what a start would only warn of is returned as texts.
pub fn check(config: &Otlp) -> Result<Vec<String>, OtlpError> {
    let (resolved, warnings) = resolve::resolve(config, &|_| None)?;
    if let Some(resolved) = resolved {
        trust::load(&resolved)?;
    }
    Ok(warnings)
}

fn pusher(setup: Setup<'_>, resolved: Resolved) -> Result<Pusher, OtlpError> {
    let Setup { catalog, frames, events, runtime, instance, .. } = setup;
    let encoder = Encoder::new(
        stream::streams(&catalog, resolved.names),
        &resource::resource(&resolved.resource, instance),
        resolved.temporality,
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
    let push = move || {
        let sender = Arc::clone(&sender);
        async move { sender.push().await }
    };
    Ok(begin(push, resolved, events, &runtime))
}

/// Pushes by `push` on the runtime.
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
    let (ends, asked) = tokio::sync::mpsc::unbounded_channel();
    runtime.spawn(Pushing { push, resolved, events, stop: stopped }.run(asked));
    Pusher { ends, stop }
}

impl Pusher {
    /// Pushes what is newest once more and ends; after `deadline` a push that still runs is given up.
    ///
    /// Blocks, so it is not for a thread of the runtime, and never longer than `deadline`.
    pub fn shutdown(self, deadline: Duration) {
        let (done, answer) = mpsc::channel();
        if self.ends.send(done).is_ok() {
            let _ = answer.recv_timeout(deadline);
        }
        self.stop.send_replace(true);
    }
}

/// Reads what a collector answers, for fuzzing.
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
