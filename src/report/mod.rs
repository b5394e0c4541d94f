//! The reports of the report commands: from frames to text, JSON and a plot.
//!
//! Pure: a [`Recorder`] collects one [`NodeView`] after the other, and [`build`] creates the
//! report. Each report has its own file. The JSON is a superset of what [`crate::plot::report`] reads, so that `memwarden plot`
//! can draw each report.

mod check;
mod cluster;
mod curve;
mod focus;
mod fragmentation;
pub mod job_summary;
mod leak;
mod oom;
pub(crate) mod params;
mod profile;
mod record;
pub(crate) mod replay;
mod run;
mod run_progress;
pub(crate) mod snapshot;
mod subjects;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod training;
mod unseen;
pub(crate) mod verdict;

pub use check::{CheckReport, Scope};
pub use cluster::{CLUSTER_SCHEMA, ClusterJson, cluster_chart, cluster_json, cluster_text};
pub use curve::{Curve, Statistics};
pub use focus::Focus;
pub use record::Recorder;
pub use run::CommandEnd;
pub use run_progress::RunProgress;
pub use text::{Page, Paint};

use serde::Serialize;

use self::unseen::Unseen;
use crate::model::frame::Frame;
use crate::node_view::{NodeView, Situation};

use super::plot::report::{self as plotted, Clock};
use crate::model::format;

/// Name and version of the JSON; the version is incremented when a key changes its meaning or is removed.
pub const SCHEMA: &str = "memwarden.report/1";

/// Name and version of the JSON of the reports of several nodes: `nodes` has a report, or `daemon` and `error`, for each.
pub const REPORTS_SCHEMA: &str = "memwarden.reports/1";

/// Samples that an assessment requires.
const NEEDED: u32 = 60;

/// Type of a report.
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

/// A report.
#[derive(Debug)]
pub struct ReportOutput {
    /// The report as text.
    pub text: String,
    /// The report as JSON, also for `memwarden plot`.
    pub json: serde_json::Value,
    /// The plot of the report.
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
    unseen: &'a [Unseen],
    remarks: &'a [String],
}

/// The part of a report that depends on its type.
struct Body {
    text: String,
    json: serde_json::Value,
    plot: plotted::Report,
    alarm: bool,
    /// Whether the health of all that was selected is unknown.
    is_unknown: bool,
    found: bool,
}

/// Says that there are too few samples, and for how long to observe.
fn too_few_samples(what: &str, recorder: &Recorder) -> String {
    let steps = u32::try_from(recorder.samples.saturating_sub(1)).unwrap_or(u32::MAX);
    let interval = if steps > 0 { recorder.now / f64::from(steps) } else { 1.0 };
    let needed = (f64::from(NEEDED) * interval * 1.1).ceil();
    format!(
        "Too few samples for a {what}: {NEEDED} in a row are required, after the first ones; {} were taken. Observe for at least {needed:.0} s (--duration), or at a shorter interval.",
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
        Kind::Fragmentation => ("fragmentation", fragmentation::body(recorder, about, page, &unseen)),
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
    whole("run", recorder, about, page, run::body(ended, recorder, page, &unseen), &unseen)
}

fn whole(
    name: &'static str,
    recorder: &Recorder,
    about: &About,
    page: Page,
    body: Body,
    unseen: &[Unseen],
) -> ReportOutput {
    let mut plot = body.plot;
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
        remarks: &about.remarks,
    };
    let mut json = serde_json::to_value(head).unwrap_or_default();
    if let (Some(all), serde_json::Value::Object(own)) = (json.as_object_mut(), body.json) {
        all.extend(own);
    }
    let mut text = page.paint.heading(&plot.title);
    if name != "run" {
        let plural = if recorder.samples == 1 { "" } else { "s" };
        text.push_str(&format!(
            ", {} sample{plural} in {}",
            recorder.samples,
            format::duration(recorder.now)
        ));
        if !about.daemon.is_empty() {
            text.push_str(&format!(", from {}", about.daemon));
        }
    }
    text.push('\n');
    text.push_str(&body.text);
    let no_gpus = unseen::no_gpus(recorder);
    // The report of a command does not select GPUs.
    if let Some((line, _)) = no_gpus.as_ref().filter(|_| name != "run") {
        text.push_str(&format!("{line}\n"));
    }
    for remark in &about.remarks {
        text.push_str(&format!("note: {remark}\n"));
    }
    let unseen = !unseen.is_empty() || body.is_unknown || no_gpus.is_some_and(|(_, blind)| blind);
    ReportOutput { text, json, plot, alarm: body.alarm, found: body.found, unseen }
}
