//! The HTTP server: routes, limits, TLS and users.
//!
//! `routes` answers requests, `connection` says who asks. Connections, their limits and deadlines, users and TLS are those
//! of the crate `memwarden_exporter`. Every wait has a time limit, so that no client can block another.

mod acknowledge;
mod alerts;
mod connection;
mod ends;
mod freshness;
mod incidents;
mod jobs;
mod listen;
mod past_runs;
mod route;
mod routes;
mod run_requests;
#[cfg(test)]
pub(crate) mod tests;
mod views;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

pub use acknowledge::{Acknowledge, Acknowledging};
use memwarden_exporter::{answer, auth, connections, gate, meter, web_config};
#[cfg(any(fuzzing, test))]
pub(crate) use memwarden_exporter::{auth::fuzz_authorization, web_config::fuzz_document};
pub use web_config::{WebConfigError, check_web_config};

use crate::config::{Compatibility, Web};
use crate::engine::Frames;
use crate::events::Events;
use crate::host::local_socket::Bound;
use crate::job_summary::Ledger;
use crate::past_runs::PastRuns;
use crate::protection::types::alert::ReceiveAlerts;
use crate::protection::types::incidents::Incidents;
use crate::protection::types::run_request::ReceiveRunRequests;
use listen::Listener;
use memwarden_exporter::connection::Shared;
use routes::Routes;
use web_config::WebConfig;

/// Requests a reload from the application.
pub trait Reload: Send + Sync {
    /// Requests a reload. The receiver gets the result; an error is a sentence for the client.
    fn request(&self) -> oneshot::Receiver<Result<(), String>>;
}

/// Dependencies of a server.
pub struct Setup {
    /// Addresses, limits and switches.
    pub web: Web,
    /// Which names of other exporters are exposed.
    pub compatibility: Compatibility,
    /// Receives the frames to serve.
    pub frames: Frames,
    /// Counts responses and reached limits.
    pub events: Arc<Events>,
    /// Called by `/-/reload`.
    pub reload: Box<dyn Reload>,
    /// Called by `/api/v1/acknowledge`.
    pub acknowledge: Box<dyn Acknowledge>,
    /// Receives the alerts that are posted to `/api/v1/alerts`.
    pub alerts: Arc<dyn ReceiveAlerts>,
    /// Receives the requests of other nodes of runs.
    pub run_requests: Arc<dyn ReceiveRunRequests>,
    /// The host's own name, accepted in `Host`; absent where it is unknown.
    pub host_name: Option<String>,
    /// The store of incidents; absent where none are kept.
    pub incidents: watch::Receiver<Option<Arc<dyn Incidents>>>,
    /// The Slurm jobs of this node.
    pub jobs: Arc<Ledger>,
    /// The memory of past runs.
    pub past_runs: Arc<PastRuns>,
    /// Age of the newest frame above which `/-/ready` responds 503.
    pub stale_after: watch::Receiver<Duration>,
    /// Whether an address that is in use is bound later, when it is free. Any user can bind the port of a daemon that is
    /// not running, and must not keep its protection from starting.
    pub retries_bind: bool,
    /// The folder `/proc`, in which the user of such an address is found.
    pub proc: PathBuf,
}

impl std::fmt::Debug for Setup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Setup").field("web", &self.web).finish_non_exhaustive()
    }
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}{}", hint(*.address, .source))]
    Listen { address: SocketAddr, source: std::io::Error },
    /// The web-config file is wrong.
    #[error("cannot use the web-config file {}", .path.display())]
    WebConfig { path: PathBuf, source: WebConfigError },
}

fn hint(address: SocketAddr, source: &std::io::Error) -> String {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            format!("; port {} is in use, set web.listen_addresses to another port", address.port())
        }
        _ => String::new(),
    }
}

/// A server whose addresses are bound; it responds while [`Server::run`] is awaited.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<std::net::TcpListener>,
    /// The addresses that are in use and bound later.
    in_use: Vec<SocketAddr>,
    /// The socket of commands on this node, and its listener if it could be created.
    local: Option<(PathBuf, Option<Bound>)>,
    shared: Arc<Shared<Routes>>,
    frames: Frames,
}

/// Time for requests in flight to finish after the shutdown; the caller may rely on 2 s in total.
const DRAIN: Duration = Duration::from_millis(1_800);

impl Server {
    /// Binds every address and reads the web-config file.
    ///
    /// # Errors
    /// [`ServeError`] for the first address that cannot be bound, now or later, or for an invalid web-config file.
    pub fn bind(setup: Setup) -> Result<Self, ServeError> {
        let web_config = match &setup.web.config_file {
            Some(path) => WebConfig::read(path)
                .map_err(|source| ServeError::WebConfig { path: path.clone(), source })?,
            None => WebConfig::none(),
        };
        let (mut listeners, mut in_use) = (Vec::new(), Vec::new());
        for address in setup.web.listen() {
            match listen::bind(address) {
                Ok(listener) => listeners.push(listener),
                Err(error) if setup.retries_bind && error.kind() == std::io::ErrorKind::AddrInUse => {
                    let user = listen::user(&setup.proc, address);
                    let user = user.map_or_else(|| "an unknown user".into(), |uid| format!("user {uid}"));
                    tracing::error!(
                        %address,
                        "Cannot listen: the address is in use by {user}. Protection runs, and listening is tried every {} s.",
                        listen::RETRY_INTERVAL.as_secs()
                    );
                    in_use.push(address);
                }
                Err(source) => return Err(ServeError::Listen { address, source }),
            }
        }
        let local = setup.web.socket.clone().map(|path| {
            let bound = listen::bind_local(&path).inspect_err(|error| {
                tracing::warn!(
                    "Commands on this node cannot reach the daemon by its socket, web.socket: {error}. It is tried every {} s.",
                    listen::RETRY_INTERVAL.as_secs()
                );
            });
            (path, bound.ok())
        });
        let frames = setup.frames.clone();
        let web = &setup.web;
        let times =
            meter::Times { header: web.header_timeout, request: web.request_timeout, idle: web.idle_timeout };
        let connections = connections::Connections::new(web.max_connections);
        let shared = Shared { times, connections, service: Routes::new(setup, web_config) };
        Ok(Self { listeners, in_use, local, shared: Arc::new(shared), frames })
    }

    /// The bound addresses, with the actual port in place of port 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }

    /// Serves until `shutdown` is true or its sender is dropped; then requests in flight have less than 2 s to
    /// finish.
    pub async fn run(self, shutdown: watch::Receiver<bool>) {
        let Self { listeners, in_use, local, shared, mut frames } = self;
        let mut acceptors = JoinSet::new();
        for listener in listeners {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => {
                    acceptors.spawn(accept(Listener::Tcp(listener), Arc::clone(&shared), shutdown.clone()));
                }
                Err(error) => tracing::error!(error = %error, "A listening socket cannot be used."),
            }
        }
        for address in in_use {
            acceptors.spawn(accept_later(address, Arc::clone(&shared), shutdown.clone()));
        }
        if let Some((path, bound)) = local {
            acceptors.spawn(accept_local(path, bound, Arc::clone(&shared), shutdown));
        }
        let watch = async {
            loop {
                // Each frame is noted as it arrives, so that `/-/ready` is correct even if there were no requests for
                // a long time.
                let frame = frames.borrow_and_update().clone();
                shared.service.note(frame.as_ref()).await;
                if frames.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = watch => {}
            () = async { while acceptors.join_next().await.is_some() {} } => {}
        }
    }
}

/// Binds an address once it is free, and accepts on it until the shutdown.
async fn accept_later(address: SocketAddr, shared: Arc<Shared<Routes>>, mut shutdown: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(listen::RETRY_INTERVAL) => {}
            _ = shutdown.wait_for(|stop| *stop) => return,
        }
        let bound = listen::bind(address).and_then(tokio::net::TcpListener::from_std);
        if let Ok(listener) = bound {
            tracing::info!(%address, "The address is free: memwarden is serving on it.");
            return accept(Listener::Tcp(listener), shared, shutdown).await;
        }
    }
}

/// Accepts on the socket of commands until the shutdown; creates it again where it could not be created or was removed.
async fn accept_local(
    path: PathBuf,
    mut bound: Option<Bound>,
    shared: Arc<Shared<Routes>>,
    mut shutdown: watch::Receiver<bool>,
) {
    loop {
        let listener = bound.as_ref().and_then(|bound| bound.listener.try_clone().ok());
        if let (Some(bound), Some(listener)) =
            (&bound, listener.and_then(|own| UnixListener::from_std(own).ok()))
        {
            let removed = async {
                while bound.in_place() {
                    tokio::time::sleep(listen::RETRY_INTERVAL).await;
                }
            };
            tokio::select! {
                () = accept(Listener::Local(listener), Arc::clone(&shared), shutdown.clone()) => return,
                () = removed => {}
            }
        } else {
            tokio::select! {
                () = tokio::time::sleep(listen::RETRY_INTERVAL) => {}
                _ = shutdown.wait_for(|stop| *stop) => return,
            }
        }
        // The old one has been removed, or there is none.
        bound = listen::bind_local(&path).ok();
    }
}

/// Accepts on one socket until the shutdown, then waits for its connections.
async fn accept(listener: Listener, shared: Arc<Shared<Routes>>, mut shutdown: watch::Receiver<bool>) {
    /// Long enough for a descriptor to be released, short enough for a scrape to wait.
    const PAUSE: Duration = Duration::from_millis(50);
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            shared.connections.room().await;
            listener.accept().await
        };
        tokio::select! {
            accepted = next => match accepted {
                Ok(stream) => {
                    // What has ended holds memory until it is joined.
                    while connections.try_join_next().is_some() {}
                    if let Some(admitted) = connection::owner(&stream).and_then(|owner| shared.admit(owner)) {
                        connections.spawn(connection::serve(stream, admitted, Arc::clone(&shared), shutdown.clone()));
                    }
                }
                Err(error) if connection_error(&error) => {}
                Err(error) => {
                    tracing::warn!(error = %error, "A connection could not be accepted.");
                    shared.make_room();
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = connection::stopped(&mut shutdown) => break,
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    // Connections that are still open after that are aborted with the set.
    let _ = tokio::time::timeout(DRAIN, finished).await;
}

/// Errors of one connection that was reset before it was accepted; the socket itself is fine.
fn connection_error(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
