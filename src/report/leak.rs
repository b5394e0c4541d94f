//! `leak`: what grows, how fast, since when, the evidence, and what to do.

use serde::Serialize;
use serde_json::json;

use super::growth::{Growth, rank};
use super::text::{Paint, UNKNOWN, bytes, clock, or_unknown, rate, table, time};
use super::unseen::{self, Unseen};
use super::verdict::VerdictLevel;
use super::{About, Body, Page, Recorder};
use crate::model::finding::Subject;
use crate::plot::report::{Report, Series, Stretch};

/// Maximum number of listed subjects.
const SHOWN: usize = 20;
/// Columns omitted on a narrow page, in this order: window, rise, since, memory.
const SPARE: [usize; 4] = [7, 6, 4, 2];
/// Maximum number of subjects in the plot.
const DRAWN: usize = 5;
const GROWING: usize = 3;
const LEAKING: usize = 4;

#[derive(Serialize)]
pub(super) struct Row<'a> {
    subject: &'a Subject,
    name: String,
    comm: &'a str,
    state: &'a str,
    watched_bytes: Option<f64>,
    peak_watched_bytes: Option<f64>,
    growth_bytes_per_second: Option<f64>,
    growth_bytes_per_hour: Option<f64>,
    since_seconds: Option<f64>,
    confidence_ratio: Option<f64>,
    rise_bytes: Option<f64>,
    window_seconds: Option<f64>,
    floor_standard_errors: Option<f64>,
    center_standard_errors: Option<f64>,
    peak_standard_errors: Option<f64>,
    kind: Option<&'a str>,
    recommendation: Option<&'a str>,
}

/// The subjects: leaks first, then workloads before their parts, then by growth.
pub(super) fn ranked(recorder: &Recorder) -> Vec<(&Subject, &Growth)> {
    let mut all: Vec<_> = recorder.growths.all.iter().collect();
    all.sort_by(|(one, a), (two, b)| {
        let pace = |growth: &Growth| growth.per_second.unwrap_or(0.0);
        rank(&b.state)
            .cmp(&rank(&a.state))
            .then(is_part(one).cmp(&is_part(two)))
            .then_with(|| pace(b).total_cmp(&pace(a)))
    });
    all
}

fn is_part(subject: &Subject) -> bool {
    subject.resource.as_str() == "process"
}

pub(super) fn body(recorder: &Recorder, about: &About, page: Page, unseen: &[Unseen]) -> Body {
    let (mut all, paint) = (ranked(recorder), page.paint);
    all.retain(|(subject, _)| !unseen::is_on(subject, unseen));
    let sure =
        |growth: &Growth| about.threshold.is_none_or(|share| growth.confidence.is_some_and(|c| c > share));
    let alarm = all.iter().any(|(_, growth)| rank(&growth.state) == LEAKING && sure(growth));
    let mut text = String::new();
    let head = ["", "state", "memory", "growth", "since", "confidence", "rise", "window"];
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).into()];
    rows.extend(all.iter().take(SHOWN).map(|(subject, growth)| columns(subject, growth)));
    table(&mut text, &rows, page, &SPARE);
    unseen::rows(&mut text, unseen);
    if all.len() > SHOWN {
        text.push_str(&format!("  and {} more that grow no faster\n", all.len() - SHOWN));
    }
    let verdict = unseen::beside(verdict(&all, !unseen.is_empty()), unseen);
    let level = level(&all).in_part(!unseen.is_empty());
    text.push_str(&format!("{}\n", level.marked(&verdict, page)));
    for (subject, growth) in all.iter().filter(|(_, growth)| rank(&growth.state) >= GROWING).take(SHOWN) {
        explain(&mut text, subject, growth, paint);
    }
    Body {
        text,
        json: json!({ "subjects": all.iter().map(|(subject, growth)| row(subject, growth)).collect::<Vec<_>>() }),
        plot: plot(&all, verdict),
        alarm,
        found: !all.is_empty(),
    }
}

fn columns(subject: &Subject, growth: &Growth) -> Vec<String> {
    vec![
        named(subject, growth),
        growth.state.clone(),
        or_unknown(growth.used.last().map(|(_, used)| used), bytes),
        or_unknown(growth.per_second, rate),
        growth.since.map_or_else(|| UNKNOWN.to_owned(), |since| began(growth, since)),
        or_unknown(growth.confidence, |confidence| format!("{confidence:.2}")),
        or_unknown(growth.rise, bytes),
        or_unknown(growth.window, time),
    ]
}

/// When growth began: the time since the start of the observation, or how long ago if it began before.
fn began(growth: &Growth, since: f64) -> String {
    if since < 0.0 { format!("{} ago", time(growth.seen - since)) } else { clock(since) }
}

/// The subject, with the name of the program if known.
pub(super) fn named(subject: &Subject, growth: &Growth) -> String {
    if growth.comm.is_empty() { subject.to_string() } else { format!("{subject} ({})", growth.comm) }
}

/// Writes the state of one subject with its evidence and advice.
pub(super) fn explain(text: &mut String, subject: &Subject, growth: &Growth, paint: Paint) {
    let pace = or_unknown(growth.per_second.map(|pace| pace * 3600.0), bytes);
    text.push_str(&format!("  {}: {}, {pace} an hour", named(subject, growth), paint.word(&growth.state)));
    if let Some(since) = growth.since {
        let word = if since < 0.0 { "began" } else { "since" };
        text.push_str(&format!(", {word} {}", began(growth, since)));
    }
    text.push_str(".\n");
    if is_part(subject) {
        // The same evidence and advice as that of its workload.
        return;
    }
    if let (Some(rise), Some(window)) = (growth.rise, growth.window) {
        let score =
            |envelope: &str| growth.scores.get(envelope).map_or(UNKNOWN.to_owned(), |z| format!("{z:.1}"));
        text.push_str(&format!(
            "    Evidence: a rise of {} in {}; slopes in standard errors: floor {}, center {}, peak {}.\n",
            bytes(rise),
            time(window),
            score("floor"),
            score("center"),
            score("peak"),
        ));
    }
    if let Some(kind) = kind(growth) {
        text.push_str(&format!("    What grows: {kind}.\n"));
    }
    if let Some(advice) = growth.advice.as_deref().filter(|advice| !advice.is_empty()) {
        text.push_str(&format!("    {advice}\n"));
    }
}

/// The type of memory that grows, taken from the summary of the finding ("The TYPE of SUBJECT ...").
pub(super) fn kind(growth: &Growth) -> Option<&str> {
    let rest = growth.summary.as_deref()?.strip_prefix("The ")?;
    rest.split_once(" of ").map(|(kind, _)| kind)
}

/// The severity of the result.
fn level(all: &[(&Subject, &Growth)]) -> VerdictLevel {
    match all.first().map(|(_, first)| rank(&first.state)) {
        Some(LEAKING | GROWING) => VerdictLevel::Warning,
        Some(_) if all.iter().any(|(_, growth)| rank(&growth.state) > 0) => VerdictLevel::Ok,
        _ => VerdictLevel::Unknown,
    }
}

fn verdict(all: &[(&Subject, &Growth)], in_part: bool) -> String {
    let count = |state: usize| all.iter().filter(|(_, growth)| rank(&growth.state) == state).count();
    let Some((subject, first)) = all.first() else {
        return "No workload was found; select processes with --pid.".to_owned();
    };
    let pace =
        first.per_second.map_or_else(String::new, |pace| format!(" by {} an hour", bytes(pace * 3600.0)));
    match rank(&first.state) {
        LEAKING => format!("{} leaks{pace}.", named(subject, first)),
        GROWING => {
            format!("No leak so far; {} grows{pace}, and the growth may still end.", named(subject, first))
        }
        _ if count(0) == all.len() => {
            "Too few samples for a verdict: 60 are required. Observe for longer, or at a shorter interval."
                .to_owned()
        }
        _ if in_part => "No leak was found in what could be measured.".to_owned(),
        _ => "No leak was found.".to_owned(),
    }
}

pub(super) fn row<'a>(subject: &'a Subject, growth: &'a Growth) -> Row<'a> {
    let score = |envelope: &str| growth.scores.get(envelope).copied();
    Row {
        subject,
        name: named(subject, growth),
        comm: &growth.comm,
        state: &growth.state,
        watched_bytes: growth.used.last().map(|(_, used)| used),
        peak_watched_bytes: growth.used.peak().map(|(_, peak)| peak),
        growth_bytes_per_second: growth.per_second,
        growth_bytes_per_hour: growth.per_second.map(|pace| pace * 3600.0),
        since_seconds: growth.since,
        confidence_ratio: growth.confidence,
        rise_bytes: growth.rise,
        window_seconds: growth.window,
        floor_standard_errors: score("floor"),
        center_standard_errors: score("center"),
        peak_standard_errors: score("peak"),
        kind: kind(growth),
        recommendation: growth
            .advice
            .as_deref()
            .or((rank(&growth.state) < GROWING).then_some("No action required.")),
    }
}

/// The time span of the growth, for the plot.
pub(super) fn stretch(subject: &Subject, growth: &Growth) -> Option<Stretch> {
    let leaking = rank(&growth.state) == LEAKING;
    let text = if leaking { format!("{subject} leaks") } else { format!("{subject} grows") };
    let from_s = growth.since?.max(0.0);
    (rank(&growth.state) >= GROWING).then_some(Stretch { from_s, to_s: None, text, alarm: leaking })
}

fn plot(all: &[(&Subject, &Growth)], subtitle: String) -> Report {
    let series = all.iter().take(DRAWN).map(|(subject, growth)| Series {
        name: named(subject, growth),
        unit: "bytes".to_owned(),
        points: growth.used.points(),
        limit_bytes: None,
    });
    let bands = all.first().and_then(|(subject, growth)| stretch(subject, growth));
    Report { subtitle, series: series.collect(), bands: bands.into_iter().collect(), ..Report::default() }
}
