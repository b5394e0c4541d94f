//! `memwarden cluster`: the nodes and the training runs in a Prometheus-compatible server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::fetch::{self, Fetcher};
use super::out;
use super::output::{Format, Output};
use super::picture;
use super::report::{Screen, seconds, within};
use crate::cluster::{self, Answers, Cluster, PAST_QUERIES, Past, PastAnswers, QUERIES};
use crate::report::{cluster_chart, cluster_json, cluster_text};

/// Report all nodes and training runs, by a Prometheus-compatible server that scrapes them.
///
/// Nodes that are not seen come first, then those where memory runs out first. The server must have loaded the rules in
/// alerts/. Exit codes: 0 nothing is wrong; 2 something is: memory that is likely to run out, a GPU that hangs, a run that
/// is stalled or will not fit, or an alert whose severity is not info; 3 nothing that is seen is wrong, and a node is down, stale
/// or blind, its memory is not known, or ranks of a run are not seen; 1 an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden cluster --prometheus http://prometheus:9090
  memwarden cluster --prometheus http://prometheus:9090 --run slurm-4711 --format json
  memwarden cluster --prometheus http://prometheus:9090 --plot cluster.svg --range 6h
  memwarden cluster --prometheus https://mimir/prometheus --monitor")]
pub(super) struct Args {
    /// URL of the server: Prometheus, VictoriaMetrics, Thanos, Mimir, with the prefix of its API if it has one.
    #[arg(long, value_name = "URL")]
    prometheus: String,
    /// Report only this run.
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Maximum number of rows of each table.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// Report again at each interval until interrupted.
    #[arg(long, conflicts_with = "output")]
    monitor: bool,
    /// Interval of --monitor in seconds, 1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    #[command(flatten)]
    output: Output<Format>,
    /// File for a chart of the last --range: the fullest nodes, and the time left of the nodes and runs that run out first;
    /// .svg or .png. With --monitor, it is written again at each interval.
    #[arg(long, value_name = "FILE", value_parser = picture::drawable)]
    plot: Option<PathBuf>,
    /// Time range of the chart: 6h, or a number of seconds, 5 minutes to 31 days.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = range, requires = "plot")]
    range: f64,
}

/// Largest answer that is read, in bytes: several times the series of 10,000 nodes.
pub(super) const LARGEST: usize = 64 << 20;
/// Time limit of one query.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of points of a line in the chart, and the shortest time between two, in seconds.
const POINTS: f64 = 240.0;
const SHORTEST_STEP: f64 = 15.0;
/// Largest number of lines of a panel.
const LINES: usize = 8;

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = fetch::runtime()?;
        let fetcher = Fetcher::new(&self.prometheus, LARGEST, QUERY_TIMEOUT)?;
        let mut screen = Screen::new();
        let mut has_answered = false;
        loop {
            match runtime.block_on(read(&fetcher, self.run.as_deref())) {
                Ok(cluster) => {
                    has_answered = true;
                    if let Some(path) = &self.plot {
                        let step = (self.range / POINTS).max(SHORTEST_STEP);
                        let drawn = runtime
                            .block_on(past(&fetcher, &cluster, self.range, step))
                            .and_then(|past| picture::chart(&cluster_chart(&cluster, &past, step), path));
                        match drawn {
                            Err(error) if self.monitor => out::complain(&error),
                            drawn => drawn?,
                        }
                    }
                    let text = |page| cluster_text(&cluster, self.top, page);
                    if self.monitor && screen.is_live() {
                        screen.show(&text(screen.page()), "Ctrl-C ends it");
                    } else {
                        self.output.report(text, &cluster_json(&cluster))?;
                    }
                    if !self.monitor {
                        return Ok(ExitCode::from(cluster.health().report_code()));
                    }
                }
                // A server that restarts does not end the monitoring.
                Err(error) if self.monitor && has_answered => {
                    screen.clear();
                    out::complain(&error);
                }
                Err(error) => return Err(error),
            }
            std::thread::sleep(Duration::from_secs(self.interval));
        }
    }
}

/// Asks the server for its nodes and runs; for one run only, if it is named.
///
/// # Errors
/// A query that fails, a server without the recording rules, or no such run.
pub(super) async fn read(fetcher: &Fetcher, run: Option<&str>) -> anyhow::Result<Cluster> {
    let base = &fetcher.url;
    let mut answers = Answers::default();
    for (query, answer) in QUERIES.iter().zip(&mut answers) {
        let body = fetcher.get(&format!("/api/v1/query?query={}", fetch::encoded(query))).await?;
        *answer = cluster::samples(&body).with_context(|| format!("{base}, {query}"))?;
    }
    if answers[0].is_empty() {
        bail!(
            "{base} has no series {}: load alerts/memwarden.recording.rules.yaml and alerts/memwarden.rules.yaml \
             there, and scrape memwarden",
            QUERIES[0]
        );
    }
    // VictoriaMetrics evaluates alerts in a process of its own, and answers nothing or an error here.
    let body = fetcher.get("/api/v1/alerts").await.ok();
    let alerts = body.and_then(|body| cluster::alerts(&body, &is_ours).ok());
    let mut cluster = Cluster::new(&answers, alerts);
    if let Some(run) = run {
        cluster.narrow(run);
        if cluster.runs.is_empty() {
            bail!("{base} knows no run {run}");
        }
    }
    Ok(cluster)
}

/// Asks for the recent past of the nodes and runs of a cluster: `range` seconds, with points `step` seconds apart.
async fn past(fetcher: &Fetcher, cluster: &Cluster, range: f64, step: f64) -> anyhow::Result<Past> {
    let base = &fetcher.url;
    // The server's clock: that of this machine may differ by minutes.
    let body = fetcher.get("/api/v1/query?query=time()").await?;
    let end = cluster::server_time(&body).with_context(|| format!("{base}, time()"))?;
    let start = end - range;
    let mut answers = PastAnswers::default();
    for (query, answer) in PAST_QUERIES.iter().zip(&mut answers) {
        let query_text = fetch::encoded(query);
        let path = format!("/api/v1/query_range?query={query_text}&start={start}&end={end}&step={step}");
        let body = fetcher.get(&path).await?;
        *answer = cluster::ranges(&body).with_context(|| format!("{base}, {query}"))?;
    }
    Ok(Past::new(cluster, answers, LINES))
}

/// A time range of 5 minutes to 31 days, in seconds.
fn range(text: &str) -> Result<f64, String> {
    within(seconds(text)?, 300.0..=2_678_400.0, "must be from 5m to 31d")
}

/// Whether an alert is one of memwarden's rules.
fn is_ours(name: &str) -> bool {
    const RULES: &str = include_str!("../../alerts/memwarden.rules.yaml");
    RULES.lines().any(|line| line.trim().strip_prefix("- alert: ") == Some(name))
}
