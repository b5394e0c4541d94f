//! What one report command samples: this node, or a node whose daemon it queries.

use anyhow::bail;

use super::frame_source::FrameSource;
use super::options::Options;
use crate::plot::report::Named;
use crate::report::{About, Kind, Page, Recorder, ReportOutput, build};

/// The number of consecutive failed requests after which no more are made.
const FAILURES: u32 = 5;

/// One node and what was sampled of it.
pub(super) struct Node {
    source: FrameSource,
    pub(super) recorder: Recorder,
    pub(super) about: About,
    /// Consecutive failed requests.
    failures: u32,
    /// What the daemon keeps, for the chart.
    kept: Vec<Named>,
    /// Why nothing was sampled, or why the selection cannot be reported.
    problem: Option<anyhow::Error>,
}

impl Node {
    /// The nodes that the options select: those of all `--url`, or this one.
    pub(super) fn open(options: &Options) -> anyhow::Result<Vec<Self>> {
        let urls: Vec<Option<&str>> = match options.url.as_slice() {
            [] => vec![None],
            urls => urls.iter().map(|url| Some(url.as_str())).collect(),
        };
        let open = |url: Option<&str>| {
            let (source, focus) = FrameSource::open(options, url)?;
            let about = About {
                daemon: url.unwrap_or_default().to_owned(),
                interval_seconds: options.interval(),
                threshold: options.threshold,
                remarks: Vec::new(),
            };
            Ok(Self {
                source,
                recorder: Recorder::new(focus),
                about,
                failures: 0,
                kept: Vec::new(),
                problem: None,
            })
        };
        urls.into_iter().map(open).collect()
    }

    /// Takes a sample, `passed` seconds after the begin.
    pub(super) async fn look(&mut self, passed: f64) {
        if self.is_over() {
            return;
        }
        match self.source.look().await {
            Ok(frame) => {
                self.recorder.take(frame);
                self.failures = 0;
                self.problem = self.recorder.absent_devices(false).map(anyhow::Error::msg);
            }
            Err(error) if self.recorder.samples() == 0 => {
                self.failures += 1;
                self.problem = Some(error);
            }
            Err(error) => {
                self.failures += 1;
                self.about.remarks.retain(|remark| !remark.starts_with("after "));
                self.about.remarks.push(format!("after {passed:.0} s: {error:#}"));
            }
        }
    }

    /// Asks the daemon for what it keeps.
    pub(super) async fn remember(&mut self) {
        self.kept = self.source.kept().await;
    }

    /// Whether no more samples are taken.
    pub(super) fn is_over(&self) -> bool {
        self.failures >= FAILURES || (self.problem.is_some() && self.recorder.samples() > 0)
    }

    /// Why there is no report yet.
    pub(super) fn problem(&self) -> Option<&anyhow::Error> {
        self.problem.as_ref()
    }

    /// The report of the samples until now.
    pub(super) fn report(&self, kind: Kind, page: Page) -> ReportOutput {
        build(kind, &self.recorder, &self.about, page)
    }

    /// The report at the end.
    ///
    /// # Errors
    /// Why there is none: no daemon answered, or nothing of the selection exists.
    pub(super) fn finish(mut self, kind: Kind, options: &Options) -> anyhow::Result<ReportOutput> {
        if let Some(problem) = self.problem.take() {
            return Err(problem);
        }
        if let Some(problem) = self.recorder.absent_devices(true) {
            bail!(problem);
        }
        let mut report = self.report(kind, options.output.page());
        let started = self.recorder.started().unwrap_or(0.0);
        report.plot.precede(started, &self.kept);
        if !report.found && options.is_narrow(kind) {
            bail!("nothing was seen of {}", options.selection());
        }
        Ok(report)
    }
}
