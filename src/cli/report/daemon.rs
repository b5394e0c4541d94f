//! Requests what a running daemon says of its node.

use std::time::Duration;

use anyhow::Context as _;
use http::Uri;

use crate::cli::fetch::{self, Fetcher};
use crate::model::finding::Subject;
use crate::node_view::NodeView;
use crate::plot::report::Named;

/// The largest answer that is read, in bytes: 40 times the view of a busy node.
const LARGEST: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// What a daemon keeps of each subject.
pub(super) type History = Vec<Named>;

/// The part of an answer of `/api/v1/history` that is read; the first series is memory in use.
#[derive(serde::Deserialize)]
struct Kept {
    series: Vec<Series>,
}

#[derive(serde::Deserialize)]
struct Series {
    points: Vec<(f64, Option<f64>, Option<f64>)>,
}

/// A daemon by its address.
pub(super) struct Daemon {
    node: Uri,
    fetcher: Fetcher,
}

impl Daemon {
    /// One at `http://host:port` or `https://host:port`, with or without a path before `/api`.
    pub(super) fn at(url: &str) -> anyhow::Result<Self> {
        let base = url.trim_end_matches('/');
        let node = fetch::address(&format!("{base}/api/v1/node")).context("--url")?;
        let fetcher = Fetcher::new(&node, LARGEST, PATIENCE)?;
        Ok(Self { node, fetcher })
    }

    /// What the daemon keeps of the host, the GPUs and the workloads: the name of each subject, with times in seconds since
    /// 1970 and the largest values in bytes. Of the last two hours in steps of 10 s, of a day before that in steps of 60 s.
    pub(super) async fn history(&self) -> anyhow::Result<History> {
        let node = self.look().await?;
        let host = (Subject::host(), "subject=host".to_owned());
        let gpus = node.gpus.iter().map(|gpu| {
            let subject = Subject::gpu(&gpu.index.as_str().into(), &gpu.uuid.as_str().into());
            (subject, format!("subject=gpu&gpu={}", fetch::encoded(&gpu.index)))
        });
        let workloads = node.workloads.iter().map(|own| {
            let subject = Subject::workload(&own.name.as_str().into());
            (subject, format!("subject=workload&workload={}", fetch::encoded(&own.name)))
        });
        let mut history = History::new();
        for (subject, query) in std::iter::once(host).chain(gpus).chain(workloads) {
            let mut points: Vec<(f64, Option<f64>)> = Vec::new();
            for range in ["2h", "24h"] {
                let address = self.node.to_string().replace("/api/v1/node", "/api/v1/history");
                let address = fetch::address(&format!("{address}?{query}&range={range}"))?;
                // There is none of a subject that is new.
                let Ok(body) = self.fetcher.get(&address).await else { continue };
                let kept: Kept = serde_json::from_slice(&body).with_context(|| address.to_string())?;
                let first = points.first().map_or(f64::INFINITY, |(at, _)| *at);
                let steps = kept.series.into_iter().next().map(|series| series.points).unwrap_or_default();
                let older = steps.into_iter().skip_while(|(_, _, max)| max.is_none());
                let older = older.map(|(at, _, max)| (at, max)).take_while(|(at, _)| *at < first);
                points = older.chain(points.iter().copied()).collect();
            }
            history.push((subject.to_string(), points));
        }
        Ok(history)
    }

    /// The newest view of the node, with its names escaped.
    pub(super) async fn look(&self) -> anyhow::Result<NodeView> {
        let body = self.fetcher.get(&self.node).await?;
        let view: NodeView = serde_json::from_slice(&body)
            .with_context(|| format!("{} is not a node of memwarden", self.node))?;
        Ok(view.printable())
    }
}
