//! The server on real sockets, with limits short enough for a test.

mod auth;
pub(crate) mod client;
pub(crate) mod frames;
mod http2;
mod limits;
mod pages;
mod prometheus;
mod tls;
mod web_config;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::{Acknowledge, Reload, ServeError, Server, Setup};
use crate::config::{Compatibility, Web};
use crate::events::Events;
use crate::job_summary::Ledger;
use crate::model::acknowledged::{Acknowledgement, ProblemId};
use crate::model::frame::Frame;
use crate::model::health::Health;
use crate::model::point::Batch;
use crate::protection::types::alert::ReceiveAlerts;
use crate::protection::types::incidents::Incidents;
use crate::protection::types::run_request::{
    Credentials, ReceiveRunRequests, RunAnswer, RunOutcome, RunRequest,
};

/// Long for a machine under load, short for a test that waits for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A web section with everything on and port 0.
pub(super) fn web() -> Web {
    Web {
        listen_addresses: vec!["127.0.0.1:0".to_owned()],
        socket: None,
        enable_lifecycle: true,
        header_timeout: PATIENCE,
        request_timeout: PATIENCE,
        idle_timeout: PATIENCE,
        ..Web::default()
    }
}

struct Scripted(Mutex<Option<Result<(), String>>>);

impl Reload for Scripted {
    fn request(&self) -> oneshot::Receiver<Result<(), String>> {
        let (sender, receiver) = oneshot::channel();
        if let Some(outcome) = self.0.lock().unwrap().take() {
            sender.send(outcome).unwrap();
        }
        receiver
    }
}

/// Accepts no alert.
struct Deaf;

impl ReceiveAlerts for Deaf {
    fn token(&self) -> Result<Option<String>, String> {
        Ok(Some("s3cret".to_owned()))
    }

    fn receive(&self, _labels: std::collections::BTreeMap<String, String>, fires: bool) -> bool {
        fires
    }

    fn refused(&self) {}
}

impl Acknowledge for Deaf {
    fn acknowledge(&self, _id: ProblemId, _health: Health, _acknowledgement: Acknowledgement) {}
}

impl ReceiveRunRequests for Deaf {
    fn authorize(&self, request: Credentials<'_>) -> Result<(), &'static str> {
        if request.certificate || request.authorization == Some("s3cret") {
            Ok(())
        } else {
            Err("Unauthorized.")
        }
    }

    fn receive(&self, run: &str, _request: RunRequest) -> RunAnswer {
        RunAnswer { outcome: RunOutcome::NoJob, host: run.to_owned(), processes: 0 }
    }
}

/// Reloads that never end.
#[derive(Default)]
struct Hung(Mutex<Vec<oneshot::Sender<Result<(), String>>>>);

impl Reload for Hung {
    fn request(&self) -> oneshot::Receiver<Result<(), String>> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap().push(sender);
        receiver
    }
}

/// A server that runs until it is dropped or stopped.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) frames: watch::Sender<Option<Arc<Frame>>>,
    pub(super) events: Arc<Events>,
    shutdown: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Running {
    pub(super) fn start(web: Web) -> Self {
        Self::try_start(web, Some(frames::node()), Ok(()), PATIENCE).unwrap()
    }

    pub(super) fn with_web_config(path: PathBuf) -> Self {
        Self::start(Web { config_file: Some(path), ..web() })
    }

    pub(super) fn try_start(
        web: Web,
        frame: Option<Arc<Frame>>,
        reload: Result<(), String>,
        stale_after: Duration,
    ) -> Result<Self, ServeError> {
        Self::bind(web, frame, Box::new(Scripted(Mutex::new(Some(reload)))), stale_after)
    }

    /// A server whose reloads never end.
    pub(super) fn with_hung_reloads(web: Web) -> Self {
        Self::bind(web, Some(frames::node()), Box::<Hung>::default(), PATIENCE).unwrap()
    }

    fn bind(
        web: Web,
        frame: Option<Arc<Frame>>,
        reload: Box<dyn Reload>,
        stale_after: Duration,
    ) -> Result<Self, ServeError> {
        Self::bind_with(web, frame, reload, stale_after, None)
    }

    /// A server that has incidents.
    pub(super) fn with_incidents(store: Option<Arc<dyn Incidents>>, web: Web) -> Self {
        let reload = Box::<Hung>::default();
        Self::bind_with(web, Some(frames::node()), reload, PATIENCE, store).unwrap()
    }

    fn bind_with(
        web: Web,
        frame: Option<Arc<Frame>>,
        reload: Box<dyn Reload>,
        stale_after: Duration,
        incidents: Option<Arc<dyn Incidents>>,
    ) -> Result<Self, ServeError> {
        let (frames, receiver) = watch::channel(frame);
        let events = Arc::new(Events::new());
        let server = Server::bind(Setup {
            stale_after: tokio::sync::watch::channel(stale_after).1,
            web,
            compatibility: Compatibility::default(),
            frames: receiver,
            events: Arc::clone(&events),
            reload,
            acknowledge: Box::new(Deaf),
            alerts: Arc::new(Deaf),
            run_requests: Arc::new(Deaf),
            host_name: Some("test".to_owned()),
            incidents: watch::channel(incidents).1,
            jobs: Arc::new(Ledger::new(Some("test"))),
            past_runs: Arc::default(),
            retries_bind: false,
            proc: "/proc".into(),
        })?;
        let address = server.addresses()[0];
        let (shutdown, stop) = watch::channel(false);
        Ok(Self { address, frames, events, shutdown, task: tokio::spawn(server.run(stop)) })
    }

    /// Asks the server to end; awaiting the result waits for that.
    pub(super) fn stop(self) -> JoinHandle<()> {
        self.shutdown.send(true).unwrap();
        self.task
    }

    /// One of the server's own counters.
    pub(super) fn count(&self, name: &str, label: &str) -> f64 {
        let mut batch = Batch::new();
        self.events.put(std::iter::empty(), &mut batch);
        let family = batch.families().iter().find(|family| family.desc.name == name).unwrap();
        family.points.iter().find(|point| point.labels[0].as_str() == label).unwrap().value
    }

    pub(super) fn limited(&self, reason: &str) -> f64 {
        self.count("memwarden_http_limited_total", reason)
    }
}
