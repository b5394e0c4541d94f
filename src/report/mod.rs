//! The reports of the report commands: from frames to text, JSON and a plot.
//!
//! Pure: a [`Recorder`] collects one [`NodeView`] after the other, and [`build`] creates the
//! report. Each report has its own file. The JSON is a superset of what [`crate::plot::report`] reads, so that `memwarden plot`
//! can draw each report.

mod check;
mod cluster;
mod curve;
mod ends;
mod focus;
mod fragmentation;
pub mod incident;
pub mod job_summary;
mod leak;
mod oom;
mod past_runs;
mod profile;
mod record;
mod run;
mod run_progress;
mod subjects;
#[cfg(test)]
mod tests;
pub mod text;
mod training;
mod unseen;

pub use check::{CheckReport, Scope};
pub use cluster::{CLUSTER_SCHEMA, ClusterJson, cluster_chart, cluster_json, cluster_text};
pub use curve::{Curve, Statistics};
pub use ends::ends_text;
pub use focus::Focus;
pub use past_runs::{RunComparison, past_runs_text};
pub use record::Recorder;
pub use run::CommandEnd;
pub use run_progress::RunProgress;
pub use text::{Page, Paint};

use serde::Serialize;

use crate::model::finding::Subject;
use crate::model::frame::Frame;
use crate::model::health::Health;
use crate::node_view::{Gpu, NodeView, Situation};

use super::plot::report::{self as plotted, Clock};
use crate::model::format;

/// Name and version of the JSON; `docs/api.md` says what a version promises.
pub const SCHEMA: &str = "memwarden.report/1";

/// Name and version of the JSON of the reports of several nodes: `nodes` has a report, or `daemon` and `error`, for each.
pub const REPORTS_SCHEMA: &str = "memwarden.reports/1";

/// Samples that an assessment requires.
const NEEDED: u32 = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Memory use.
    Profile,
    /// Forecast of exhaustion.
    Oom,
    /// Memory leaks.
    Leak,
    /// Fragmentation of free memory.
    Fragmentation,
}

/// Parameters of a report.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Origin of the samples: empty for this process, else the daemon's address.
    pub daemon: String,
    /// Seconds between two samples.
    pub interval_seconds: f64,
    /// Share above which the report warns.
    pub threshold: Option<f64>,
    /// Notes on how the report was created.
    pub remarks: Vec<String>,
}

#[derive(Debug)]
pub struct ReportOutput {
    pub text: String,
    /// The report as JSON, also for `memwarden plot`.
    pub json: serde_json::Value,
    pub plot: plotted::Report,
    /// Whether something is above the threshold.
    pub alarm: bool,
    /// Whether anything in the selection was found.
    pub found: bool,
    /// Whether a selected, existing subject has no data.
    pub unseen: bool,
}

/// Common first keys of the JSON of all reports.
#[derive(Debug, Serialize)]
struct Head<'a> {
    #[serde(flatten)]
    plot: &'a plotted::Report,
    kind: &'static str,
    host: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    daemon: &'a str,
    started_unix_seconds: Option<f64>,
    observed_seconds: f64,
    samples: u64,
    interval_seconds: f64,
    threshold_ratio: Option<f64>,
    above_threshold: bool,
    /// GPUs that do not respond.
    unseen: &'a [&'a Gpu],
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<Health>,
    remarks: &'a [String],
}

/// The part of a report that depends on its type.
struct Body {
    text: String,
    /// The health of the selection and the result in a sentence; absent where a report judges nothing.
    result: Option<(Health, String)>,
    /// The text after the result.
    details: String,
    json: serde_json::Value,
    plot: plotted::Report,
    alarm: bool,
    found: bool,
}

/// A subject in JSON, with what was observed of it.
#[derive(Serialize)]
struct Named<'a, T> {
    subject: &'a Subject,
    name: String,
    health: Health,
    recommendation: &'static str,
    #[serde(flatten)]
    known: &'a T,
}

/// Says that there are too few samples, and for how long to observe.
fn too_few_samples(what: &str, recorder: &Recorder) -> String {
    let steps = u32::try_from(recorder.samples.saturating_sub(1)).unwrap_or(u32::MAX);
    let interval = if steps > 0 { recorder.now / f64::from(steps) } else { 1.0 };
    let needed = (f64::from(NEEDED) * interval * 1.1).ceil();
    format!(
        "Too few samples for a {what}: {NEEDED} in a row are required, after the first ones; {} were taken. Observe for at least {needed:.0} s (--duration) or at a shorter interval; with --url, ask again when the daemon has run for longer.",
        recorder.samples
    )
}

/// A sample of this process for a report: the view of a frame, with its names escaped.
pub fn sample(frame: &Frame) -> NodeView {
    NodeView::of(Some(frame), &Situation { stale_after: f64::INFINITY, ..Situation::default() }).printable()
}

/// Creates a report from the collected samples.
pub fn build(kind: Kind, recorder: &Recorder, about: &About, page: impl Into<Page>) -> ReportOutput {
    let (page, unseen) = (page.into(), unseen::gpus(recorder));
    let (name, body) = match kind {
        Kind::Profile => ("profile", profile::body(recorder, about, page, &unseen)),
        Kind::Oom => ("oom", oom::body(recorder, about, page, &unseen)),
        Kind::Leak => ("leak", leak::body(recorder, about, page, &unseen)),
        Kind::Fragmentation => ("fragmentation", fragmentation::body(recorder, about, page)),
    };
    whole(name, recorder, about, page, body, &unseen)
}

/// Creates the report of an executed command, whose workload is the recorder's selection.
pub fn build_run(
    ended: &CommandEnd,
    recorder: &Recorder,
    about: &About,
    page: impl Into<Page>,
) -> ReportOutput {
    let (page, unseen) = (page.into(), unseen::gpus(recorder));
    whole("run", recorder, about, page, run::body(ended, recorder, page), &unseen)
}

fn whole(
    name: &'static str,
    recorder: &Recorder,
    about: &About,
    page: Page,
    body: Body,
    unseen: &[&Gpu],
) -> ReportOutput {
    let mut plot = body.plot;
    let result =
        body.result.map(|(health, said)| (health.in_part(!unseen.is_empty()), unseen::beside(said, unseen)));
    if let Some((_, said)) = result.as_ref().filter(|_| plot.subtitle.is_empty()) {
        plot.subtitle.clone_from(said);
    }
    plot.schema = SCHEMA.into();
    plot.time = Some(Clock::Elapsed);
    if plot.title.is_empty() {
        plot.title = if recorder.host().is_empty() {
            format!("memwarden {name}")
        } else {
            format!("memwarden {name}: {}", recorder.host())
        };
    }
    plot.events.extend(recorder.marks.iter().cloned());
    let head = Head {
        plot: &plot,
        kind: name,
        host: recorder.host(),
        daemon: &about.daemon,
        started_unix_seconds: recorder.started(),
        observed_seconds: recorder.now,
        samples: recorder.samples,
        interval_seconds: about.interval_seconds,
        threshold_ratio: about.threshold,
        above_threshold: body.alarm,
        unseen,
        health: result.as_ref().map(|(health, _)| *health),
        remarks: &about.remarks,
    };
    let mut json = serde_json::to_value(head).unwrap_or_default();
    if let (Some(all), serde_json::Value::Object(own)) = (json.as_object_mut(), body.json) {
        all.extend(own);
    }
    let mut text = page.paint.heading(&plot.title);
    if name != "run" {
        let samples = format::counted(recorder.samples, "sample");
        text.push_str(&format!(", {samples} in {}", format::duration(recorder.now)));
        if !about.daemon.is_empty() {
            text.push_str(&format!(", from {}", about.daemon));
        }
    }
    text.push('\n');
    text.push_str(&body.text);
    unseen::rows(&mut text, unseen);
    if let Some((health, said)) = &result {
        text.push_str(&format!("{}\n", page.marked(*health, said)));
    }
    text.push_str(&body.details);
    if let Some(share) = about.threshold.filter(|_| body.alarm) {
        text.push_str(&format!("  above the threshold of {}\n", format::percent(share)));
    }
    // The report of a command does not select GPUs.
    if let Some(line) = unseen::no_gpus(recorder).filter(|_| name != "run") {
        text.push_str(&format!("{line}\n"));
    }
    for remark in &about.remarks {
        text.push_str(&format!("note: {remark}\n"));
    }
    let is_unknown = matches!(result, Some((Health::Unknown, _))) && matches!(name, "oom" | "leak");
    let unseen = !unseen.is_empty() || is_unknown || recorder.last.gpus_unseen.is_some();
    ReportOutput { text, json, plot, alarm: body.alarm, found: body.found, unseen }
}
