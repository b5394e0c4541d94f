//! Where the data is from: a daemon, an engine of this process, or a Prometheus-compatible server.

use std::time::Duration;

use anyhow::Context as _;

use crate::app::serve;
use crate::cli::cluster;
use crate::cli::fetch::{self, Fetcher, History};
use crate::config::{self, Config};
use crate::engine::Engine;
use crate::history::recent::Subject;
use crate::host::{clock, local_socket};
use crate::node_view::events::{Event, Recorder};
use crate::node_view::{NodeView, Situation};
use crate::top::{Data, NodeData, Past, Update};

/// Time limit of a request to a daemon.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// Seconds between two requests of the events.
const EVENTS: f64 = 5.0;
/// Maximum number of workloads whose past is asked for at the start.
const MOST_PASTS: usize = 20;
/// An engine that has no new sample after this many intervals is stuck.
const STALE: f64 = 10.0;

/// Gives updates.
pub(super) enum Source {
    Daemon(Box<Daemon>),
    Own(Box<Own>),
    Cluster(Box<Server>),
}

/// A daemon by its address.
pub(super) struct Daemon {
    fetcher: Fetcher,
    events: Vec<Event>,
    /// When the events were last asked for, in seconds since 1970.
    asked: Option<f64>,
    runtime: tokio::runtime::Runtime,
}

/// An engine of this process.
pub(super) struct Own {
    engine: Engine,
    recorder: Recorder,
    interval: f64,
}

/// A Prometheus-compatible server.
pub(super) struct Server {
    fetcher: Fetcher,
    runtime: tokio::runtime::Runtime,
}

/// Whether something listens on the socket of the daemon of this node.
pub(super) fn has_daemon() -> bool {
    local_socket::is_served(&config::default_socket())
}

impl Source {
    pub(super) fn daemon(url: &str) -> anyhow::Result<Self> {
        let fetcher = Fetcher::new(url, fetch::LARGEST, REQUEST_TIMEOUT).context("--url")?;
        let runtime = fetch::runtime()?;
        Ok(Self::Daemon(Box::new(Daemon { fetcher, events: Vec::new(), asked: None, runtime })))
    }

    /// An engine in this process.
    pub(super) fn own(config: &Config, interval: f64) -> Self {
        let engine = serve::own_engine(config);
        Self::Own(Box::new(Own { engine, recorder: Recorder::default(), interval }))
    }

    /// The server at `url`.
    pub(super) fn cluster(url: &str) -> anyhow::Result<Self> {
        let fetcher = Fetcher::new(url, cluster::LARGEST, cluster::QUERY_TIMEOUT).context("--prometheus")?;
        Ok(Self::Cluster(Box::new(Server { fetcher, runtime: fetch::runtime()? })))
    }

    /// The newest data; waits for an answer or a sample.
    pub(super) fn next(&mut self) -> Update {
        let result = match self {
            Self::Daemon(daemon) => daemon.next(),
            Self::Own(own) => Ok(own.next()),
            Self::Cluster(server) => {
                let cluster = server.runtime.block_on(cluster::read(&server.fetcher, None));
                cluster.map(|cluster| Update::Data(Data::Cluster(Box::new(cluster)), Vec::new()))
            }
        };
        result.unwrap_or_else(|error| Update::Failed(format!("{error:#}")))
    }
}

impl Own {
    fn next(&mut self) -> Update {
        let frame = self.engine.tick(clock::now());
        self.recorder.record(&frame);
        let situation = Situation {
            stale_after: self.interval * STALE,
            last_holders: Some(&self.recorder.last_holders),
            ..Situation::default()
        };
        let view = NodeView::of(Some(&frame), &situation);
        let events = self.recorder.events().cloned().collect();
        Update::Data(Data::Node(Box::new(NodeData { view, events })), Vec::new())
    }
}

impl Daemon {
    fn next(&mut self) -> anyhow::Result<Update> {
        let Self { fetcher, events, asked, runtime } = self;
        runtime.block_on(async {
            let view: NodeView = fetcher.json("/api/v1/node").await?;
            let mut pasts = Vec::new();
            let now = clock::now().unix().as_secs_f64();
            if asked.is_none_or(|asked| (now - asked).abs() >= EVENTS) {
                let is_first = asked.is_none();
                // A daemon without a sample yet has no history.
                if let Ok(history) = fetcher.history("subject=node").await {
                    *asked = Some(now);
                    if is_first {
                        pasts.extend(past(Subject::Host, &history));
                        pasts.extend(all_pasts(fetcher, &view).await);
                    }
                    *events = history.events;
                }
            }
            Ok(Update::Data(Data::Node(Box::new(NodeData { view, events: events.clone() })), pasts))
        })
    }
}

/// The past of the GPUs and of the first workloads; that of some is not kept.
async fn all_pasts(fetcher: &Fetcher, view: &NodeView) -> Vec<(Subject, Past)> {
    let gpus = view.gpus.iter().map(|gpu| {
        let query = format!("subject=gpu&gpu={}", fetch::encoded(&gpu.index));
        (Subject::Gpu(gpu.uuid.as_str().into()), query)
    });
    let workloads = view.workloads.iter().take(MOST_PASTS).map(|workload| {
        let query = format!("subject=workload&workload={}", fetch::encoded(&workload.name));
        (Subject::Workload(workload.name.as_str().into()), query)
    });
    let mut all = Vec::new();
    for (subject, query) in gpus.chain(workloads) {
        if let Ok(history) = fetcher.history(&query).await {
            all.extend(past(subject, &history));
        }
    }
    all
}

fn past(subject: Subject, history: &History) -> Option<(Subject, Past)> {
    let points = &history.series.first()?.points;
    Some((subject, points.iter().map(|(at, _, most)| (*at, *most)).collect()))
}
