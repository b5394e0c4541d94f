//! What the report commands say: from frames to a table for people, JSON for programs, and a picture.
//!
//! Pure: a [`Recorder`] takes one [`FrameView`] after the other, and [`build`] says what came of it. Which of a
//! frame's metrics are told is in `frame_view`; one file a report says how. The JSON is a superset of what
//! [`crate::plot::report`] reads, so that `memwarden plot` draws each report.

mod curve;
mod focus;
mod fragment;
mod frame_view;
mod growth;
mod leak;
mod oom;
mod profile;
mod record;
mod resource;
mod run;
#[cfg(test)]
mod tests;
mod text;
mod training;
mod unseen;

pub use curve::{Curve, Statistics};
pub use focus::Focus;
pub use frame_view::FrameView;
pub use record::Recorder;
pub use run::Ended;
pub use text::{Page, Paint};

use serde::Serialize;

use self::unseen::Unseen;

use super::plot::report::{self as plotted, Clock};

/// Name and version of the JSON; the number grows when a key changes its meaning or goes.
pub const SCHEMA: &str = "memwarden.report/1";

/// Which report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// What is used, by what.
    Profile,
    /// What runs out, and when.
    Oom,
    /// What leaks.
    Leak,
    /// How much free memory is of use.
    Fragment,
}

/// What a report says beside what was seen.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Who sampled: empty for this process, else the daemon's address.
    pub daemon: String,
    /// Seconds from one sample to the next.
    pub interval_seconds: f64,
    /// The share above which a report warns.
    pub threshold: Option<f64>,
    /// What people should know of how the report came about.
    pub remarks: Vec<String>,
}

/// A report.
#[derive(Debug)]
pub struct ReportOutput {
    /// For people.
    pub text: String,
    /// For programs, and for `memwarden plot`.
    pub json: serde_json::Value,
    /// For the eye.
    pub plot: plotted::Report,
    /// Whether something is above the threshold.
    pub alarm: bool,
    /// Whether what was asked for was there at all.
    pub found: bool,
    /// Whether something that was asked for, and is there, cannot be seen.
    pub unseen: bool,
}

/// What every report's JSON begins with.
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
    /// GPUs that do not answer.
    unseen: &'a [Unseen],
    remarks: &'a [String],
}

/// What one kind of report adds to the head.
struct Body {
    text: String,
    json: serde_json::Value,
    plot: plotted::Report,
    alarm: bool,
    found: bool,
}

/// What came of what was seen.
pub fn build(kind: Kind, recorder: &Recorder, about: &About, page: impl Into<Page>) -> ReportOutput {
    let (page, unseen) = (page.into(), unseen::gpus(recorder));
    let (name, body) = match kind {
        Kind::Profile => ("profile", profile::body(recorder, about, page, &unseen)),
        Kind::Oom => ("oom", oom::body(recorder, about, page, &unseen)),
        Kind::Leak => ("leak", leak::body(recorder, about, page, &unseen)),
        Kind::Fragment => ("fragment", fragment::body(recorder, about, page, &unseen)),
    };
    whole(name, recorder, about, page, body, &unseen)
}

/// What came of a command that was run; its workload is the recorder's focus.
pub fn build_run(ended: &Ended, recorder: &Recorder, about: &About, page: impl Into<Page>) -> ReportOutput {
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
        text.push_str(&format!(", {} sample{plural} in {}", recorder.samples, text::time(recorder.now)));
        if !about.daemon.is_empty() {
            text.push_str(&format!(", from {}", about.daemon));
        }
    }
    text.push('\n');
    text.push_str(&body.text);
    let no_gpus = unseen::no_gpus(recorder);
    // A command that was run did not ask for GPUs.
    if let Some((line, _)) = no_gpus.as_ref().filter(|_| name != "run") {
        text.push_str(&format!("{line}\n"));
    }
    for remark in &about.remarks {
        text.push_str(&format!("note: {remark}\n"));
    }
    let unseen = !unseen.is_empty() || no_gpus.is_some_and(|(_, blind)| blind);
    ReportOutput { text, json, plot, alarm: body.alarm, found: body.found, unseen }
}
