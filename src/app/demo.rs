//! `memwarden demo`: a simulated node in the engine, the server and the views of the daemon.
//!
//! Nothing is read of this machine but the time, nothing is written, and no process is signalled: no guard runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use super::problems::Operators;
use super::serve::{ReloadRequests, context};
use crate::analyzers;
use crate::config::{self, Config};
use crate::engine::{Engine, Registries};
use crate::events::Events;
use crate::host::clock;
use crate::job_summary::Ledger;
use crate::model::frame::Frame;
use crate::node_view::events::{Event, Recorder};
use crate::node_view::{NodeView, Situation};
use crate::protection::guard::alert_receiver::AlertReceiver;
use crate::protection::guard::run_receiver::RunReceiver;
use crate::protection::guard::run_requests::RunRequests;
use crate::serve::http;
use crate::simulate;

/// The length of the scene in simulated seconds.
pub const SECONDS: u32 = simulate::SECONDS;
/// Simulated time from one sample to the next.
const INTERVAL: Duration = Duration::from_secs(1);
/// A server whose newest sample is older than this, in real time, says that sampling has stalled.
const STALE_AFTER: Duration = Duration::from_secs(5);

/// What the demo says while it runs.
#[derive(Clone, Debug)]
pub enum Said {
    /// It serves on this address.
    Serving(SocketAddr),
    /// Something changed on the node, at this simulated time in seconds since 1970.
    Event(f64, Event),
    /// The scene is over, and this is the node at its end.
    Over(Box<NodeView>),
}

/// Plays the scene `speed` times as fast as real time, and serves its end until a signal comes.
///
/// # Errors
/// The address cannot be bound, or a thread cannot be started.
pub fn run(
    listen: SocketAddr,
    speed: u32,
    mut say: impl FnMut(Said) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let text =
        serde_json::json!({ "web": { "listen_addresses": [listen.to_string()], "socket": "" } }).to_string();
    let config = config::parse_str(&text, "demo".as_ref(), &super::schema(), &[])?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let outcome = runtime.block_on(serve(&config, speed, &mut say));
    runtime.shutdown_background();
    outcome
}

async fn serve(
    config: &Config,
    speed: u32,
    say: &mut impl FnMut(Said) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let events = Arc::new(Events::new());
    let (publish, frames) = watch::channel(None);
    let (stop, stopped) = watch::channel(false);
    let (_incidents, incidents) = watch::channel(None);
    let (freshness, stale_after) = watch::channel(STALE_AFTER);
    let server = http::Server::bind(http::Setup {
        web: config.web.clone(),
        compatibility: config.compatibility,
        frames,
        events: Arc::clone(&events),
        reload: Box::new(ReloadRequests(mpsc::channel(1).0)),
        acknowledge: Box::new(Operators(std::sync::mpsc::channel().0)),
        alerts: Arc::<AlertReceiver>::default(),
        run_requests: Arc::new(RunReceiver::new(Arc::new(RunRequests::new(clock::now())))),
        host_name: None,
        incidents,
        jobs: Arc::new(Ledger::new(None)),
        past_runs: Arc::default(),
        stale_after,
        retries_bind: false,
        proc: config.paths.proc.clone(),
    })
    .map_err(|error| match error {
        http::ServeError::Listen { address, source } => anyhow::Error::new(source).context(format!(
            "--listen: cannot listen on {address}; without the option, a free port is taken"
        )),
        error => error.into(),
    })?;
    let mut signals = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    server.addresses().into_iter().try_for_each(|address| say(Said::Serving(address)))?;
    let serving = tokio::spawn(server.run(stopped));
    let registries = Registries { sources: simulate::REGISTRY, analyzers: analyzers::REGISTRY };
    let context = context(&config.paths, Arc::default(), Arc::default());
    let engine = Engine::new(registries, config, context, events);
    let (send, mut said) = mpsc::channel(16);
    std::thread::Builder::new()
        .name("sampler".to_owned())
        .spawn(move || play(engine, speed, &publish, &send))?;
    loop {
        let next = tokio::select! {
            _ = signals.0.recv() => break,
            _ = signals.1.recv() => break,
            Some(next) = said.recv() => next,
        };
        if matches!(next, Said::Over(_)) {
            // The node at the end of the scene is shown as it is.
            freshness.send_replace(Duration::MAX);
        }
        say(next)?;
    }
    // The receiver is closed only if the server has ended.
    let _ = stop.send(true);
    let _ = serving.await;
    Ok(())
}

/// Takes the samples of the whole scene, each as its second comes.
fn play(
    mut engine: Engine,
    speed: u32,
    publish: &watch::Sender<Option<Arc<Frame>>>,
    send: &mpsc::Sender<Said>,
) {
    let begun = clock::now();
    let mut narrator = Narrator::default();
    for second in 0..=SECONDS {
        let passed = INTERVAL * second;
        std::thread::sleep(begun.plus(passed / speed).since(clock::now()));
        let frame = engine.tick(begun.plus(passed));
        publish.send_replace(Some(Arc::clone(&frame)));
        let unix = frame.at.unix().as_secs_f64();
        for event in narrator.look(&frame) {
            if send.blocking_send(Said::Event(unix, event)).is_err() {
                return;
            }
        }
        if send.is_closed() {
            return;
        }
        if second == SECONDS {
            // Nobody waits for it if a signal came.
            let _ = send.blocking_send(Said::Over(Box::new(view(&frame))));
        }
    }
}

fn view(frame: &Frame) -> NodeView {
    NodeView::of(Some(frame), &Situation { stale_after: INTERVAL.as_secs_f64(), ..Situation::default() })
}

/// Finds what is new in a frame.
#[derive(Debug, Default)]
struct Narrator {
    recorder: Recorder,
    told: Vec<Event>,
    /// The number of the last event of a job.
    last: u64,
}

impl Narrator {
    fn look(&mut self, frame: &Frame) -> Vec<Event> {
        self.recorder.record(frame);
        let mut new: Vec<Event> =
            self.recorder.events().filter(|event| !self.told.contains(event)).cloned().collect();
        self.told.extend_from_slice(&new);
        let newest = frame.timeline.entries.last().map_or(0, |entry| entry.sequence);
        let count = usize::try_from(newest - self.last).unwrap_or(usize::MAX);
        self.last = newest;
        if count > 0 {
            let of_jobs = view(frame).job_events;
            // All ranks of a run report the same.
            let first = of_jobs.iter().take(count).rev().filter(|event| event.rank == "0");
            new.extend(first.map(|event| Event {
                unix_seconds: event.unix_seconds,
                health: event.health(),
                text: format!("{} rank {}: {}.", event.workload, event.rank, event.what),
                gpu: String::new(),
                workload: event.workload.clone(),
            }));
        }
        new
    }
}
