//! The source of frames: an engine in this process, or a daemon.

use std::time::Duration;

use anyhow::Context as _;

use super::options::Options;
use crate::app::serve;
use crate::cli::fetch::{self, Fetcher, LARGEST};
use crate::engine::Engine;
use crate::host::clock;
use crate::model::finding::Subject;
use crate::node_view::NodeView;
use crate::plot::report::Named;
use crate::report::{self, Focus};

/// Time limit of a request to a daemon.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) enum FrameSource {
    Own(Box<Engine>),
    Daemon(Box<Fetcher>),
}

impl FrameSource {
    /// Opens the daemon at `url`, or an engine for this node, and returns the selection of the report.
    pub(super) fn open(options: &Options, url: Option<&str>) -> anyhow::Result<(Self, Focus)> {
        if let Some(url) = url {
            let daemon = Fetcher::new(url, LARGEST, REQUEST_TIMEOUT).context("--url")?;
            return Ok((Self::Daemon(Box::new(daemon)), options.focus(&[])));
        }
        let (config, trees) = options.config()?;
        Ok((Self::Own(Box::new(serve::own_engine(&config))), options.focus(&trees)))
    }

    /// What a daemon keeps of the host, the GPUs and the workloads: the name of each subject, with times in
    /// seconds since 1970 and the largest values in bytes. Of the last two hours in steps of 10 s, of a day before that
    /// in steps of 60 s. Nothing where this process samples, and of subjects that are new.
    pub(super) async fn kept(&mut self) -> Vec<Named> {
        let Ok(node) = self.look().await else { return Vec::new() };
        let Self::Daemon(daemon) = self else { return Vec::new() };
        let host = (Subject::host(), "subject=host".to_owned());
        let gpus = node.gpus.iter().map(|gpu| {
            let subject = Subject::gpu(&gpu.index.as_str().into(), &gpu.uuid.as_str().into());
            (subject, format!("subject=gpu&gpu={}", fetch::encoded(&gpu.index)))
        });
        let workloads = node.workloads.iter().map(|own| {
            let subject = Subject::workload(&own.name.as_str().into());
            (subject, format!("subject=workload&workload={}", fetch::encoded(&own.name)))
        });
        let mut all = Vec::new();
        for (subject, query) in std::iter::once(host).chain(gpus).chain(workloads) {
            let mut points: Vec<(f64, Option<f64>)> = Vec::new();
            for range in ["2h", "24h"] {
                let Ok(history) = daemon.history(&format!("{query}&range={range}")).await else { continue };
                let first = points.first().map_or(f64::INFINITY, |(at, _)| *at);
                let steps = history.series.into_iter().next().map(|series| series.points).unwrap_or_default();
                let older = steps.into_iter().skip_while(|(_, _, largest)| largest.is_none());
                let older = older.map(|(at, _, largest)| (at, largest)).take_while(|(at, _)| *at < first);
                points = older.chain(points.iter().copied()).collect();
            }
            all.push((subject.to_string(), points));
        }
        all
    }

    pub(super) async fn look(&mut self) -> anyhow::Result<NodeView> {
        match self {
            Self::Own(engine) => Ok(report::sample(&engine.tick(clock::now()))),
            Self::Daemon(daemon) => Ok(daemon.json::<NodeView>("/api/v1/node").await?.printable()),
        }
    }
}
