//! Pushing over OTLP, by gRPC or HTTP.
//!
//! `resolve` decides from configuration and environment, `stream` and
//! `instruments` make the catalog's instruments, `exporter` bounds and counts
//! a push that `transport` (and `client` for HTTP) carries, `watch` keeps it
//! alive and ends it. A collector that is down costs its own threads only.

mod answer;
mod client;
mod env;
mod exporter;
mod instruments;
mod remark;
mod resolve;
mod resource;
mod stream;
#[cfg(test)]
mod tests;
mod transport;
mod trust;
mod watch;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::Handle;

use self::exporter::{Exporter, Pulse};
use self::instruments::Plan;
use self::resolve::Resolved;
use self::watch::{End, Watch};
use super::Frames;
use crate::config::{Otlp, OtlpProtocol};
use crate::events::Events;
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
    /// Where connections are served; it must outlive the pusher.
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
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A file has none of what it should have.
    #[error("{} holds no {what} in PEM form", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// An `https` endpoint cannot be verified.
    #[error("no authorities to verify the collector by: set otlp.certificate; tried {tried:?}")]
    NoAuthorities {
        /// Where the distributions keep them.
        tried: Vec<PathBuf>,
    },
    /// The client certificate does not go with its key.
    #[error("cannot set up TLS for the collector")]
    Tls(#[source] tokio_rustls::rustls::Error),
    /// tonic refused the endpoint or its TLS settings.
    #[error("cannot set up gRPC for the collector")]
    Channel(#[source] tonic::transport::Error),
    /// The exporter refused its settings.
    #[error("cannot build the OTLP exporter")]
    Build(#[source] opentelemetry_otlp::ExporterBuildError),
    /// The operating system gave no thread.
    #[error("cannot start a thread to push from")]
    Thread(#[source] std::io::Error),
}

/// Pushes until it is shut down or dropped.
#[derive(Debug)]
pub struct Pusher {
    requests: mpsc::Sender<End>,
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
    resolved.map(|resolved| pusher(setup, Arc::new(resolved))).transpose()
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

fn pusher(setup: Setup<'_>, resolved: Arc<Resolved>) -> Result<Pusher, OtlpError> {
    let Setup { catalog, frames, events, runtime, instance, .. } = setup;
    let pulse = Arc::new(Pulse::default());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let plan = Plan {
        catalog,
        names: resolved.names,
        frames,
        interval: resolved.interval,
        resource: resource::resource(&resolved.resource, instance),
        pulse: Arc::clone(&pulse),
    };
    let start = {
        let (resolved, events, pulse) = (Arc::clone(&resolved), Arc::clone(&events), Arc::clone(&pulse));
        move || {
            let (resolved, events, pulse) = (Arc::clone(&resolved), Arc::clone(&events), Arc::clone(&pulse));
            let exporter = Exporter::new(resolved, runtime.clone(), events, pulse, stopped.clone())?;
            Ok(plan.start(exporter))
        }
    };
    let provider = start()?;
    events.otlp_started(
        &resolved.shown(),
        match resolved.protocol {
            OtlpProtocol::Grpc => "grpc",
            OtlpProtocol::HttpProtobuf => "http/protobuf",
        },
    );
    let (interval, limit) = (resolved.interval, resolved.timeout);
    let watch =
        Watch { start: Box::new(start), provider, events, pulse, stop: stop.clone(), interval, limit };
    watched(watch, stop)
}

fn watched(watch: Watch, stop: tokio::sync::watch::Sender<bool>) -> Result<Pusher, OtlpError> {
    let (requests, asked) = mpsc::channel();
    std::thread::Builder::new()
        .name("otlp-watch".to_owned())
        .spawn(move || watch.run(&asked))
        .map_err(OtlpError::Thread)?;
    Ok(Pusher { requests, stop })
}

impl Pusher {
    /// Pushes what is newest once more and ends; after `deadline` a push that still runs is given up.
    ///
    /// Blocks, so it is not for a thread of the runtime, and never longer than `deadline`.
    pub fn shutdown(self, deadline: Duration) {
        let (done, answer) = mpsc::channel();
        if self.requests.send(End(done)).is_ok() {
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
}

/// Reads the environment, for fuzzing.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_environment(config: &Otlp, env: &dyn Fn(&str) -> Option<String>) {
    let _ = resolve::resolve(config, env);
}
