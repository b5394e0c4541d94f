//! `oom`: which resources are exhausted when, with which probability, and what to do.

use serde::Serialize;
use serde_json::json;

use super::subjects::Limited;
use super::text::table;
use super::unseen::{self, Unseen};
use super::verdict::Shown as _;
use super::{About, Body, Page, Recorder};
use crate::model::finding::Subject;
use crate::model::format::{duration, elapsed, percent};
use crate::model::health::Health;
use crate::model::outlook::{self, Forecast};
use crate::node_view::conclusion_tables::forecast_table;
use crate::plot::report::{self as plotted, Report, Series};

/// Maximum number of listed resources; those with the highest risk come first.
const SHOWN: usize = 20;
/// Maximum number of resources in the plot.
const DRAWN: usize = 3;

#[derive(Serialize)]
struct Row<'a> {
    subject: &'a Subject,
    name: String,
    health: Health,
    peak_used_bytes: Option<f64>,
    headroom_bytes: f64,
    used_ratio: f64,
    rule_text: &'static str,
    confidence_ratio: Option<f64>,
    worst_health: Health,
    worst_health_at_seconds: f64,
    recommendation: &'static str,
    #[serde(flatten)]
    forecast: &'a Forecast,
}

/// A selected resource with its newest forecast.
type Ranked<'r> = (&'r Subject, &'r Limited, &'r Forecast);

/// The resources by health, then by probability, then by used share.
fn ranked<'r>(recorder: &'r Recorder, unseen: &[Unseen]) -> Vec<Ranked<'r>> {
    let all = recorder.subjects.limited.iter();
    let mut all: Vec<Ranked<'_>> = all
        .filter(|(subject, _)| !unseen::is_on(subject, unseen))
        .map(|(subject, resource)| (subject, resource, &resource.forecast))
        .collect();
    let soon = |forecast: &Forecast| forecast.within(3600.0).unwrap_or(0.0);
    all.sort_by(|(.., a), (.., b)| {
        let health = b.health().cmp(&a.health());
        health
            .then_with(|| soon(b).total_cmp(&soon(a)))
            .then_with(|| b.used_share().total_cmp(&a.used_share()))
    });
    all
}

pub(super) fn body(recorder: &Recorder, about: &About, page: Page, unseen: &[Unseen]) -> Body {
    let all = ranked(recorder, unseen);
    let above = |forecast: &Forecast, share: f64| {
        forecast.used_share() > share || forecast.within(3600.0).is_some_and(|p| p > share)
    };
    let health = health(&all).in_part(!unseen.is_empty());
    let alarm = match about.threshold {
        Some(share) => all.iter().any(|(.., forecast)| above(forecast, share)),
        None => health >= Health::Warning,
    };
    let mut text = String::new();
    let shown = all.iter().take(SHOWN).map(|(subject, _, forecast)| (*subject, *forecast));
    table(&mut text, &forecast_table(shown), page);
    unseen::rows(&mut text, unseen);
    if all.len() > SHOWN {
        text.push_str(&format!("  and {} more, of no worse health\n", all.len() - SHOWN));
    }
    let verdict = unseen::beside(verdict(&all, recorder, !unseen.is_empty()), unseen);
    text.push_str(&format!("{}\n", health.marked(&verdict, page)));
    let problems = all.iter().filter(|(.., forecast)| forecast.health() >= Health::Warning);
    for (subject, resource, forecast) in problems.take(SHOWN) {
        let word = forecast.health().painted(forecast.health().word(), page);
        let sure = forecast.confidence().map_or_else(String::new, |sure| format!(" (confidence {sure:.2})"));
        text.push_str(&format!("  {subject}: {word}, because {}{sure}.\n", forecast.rule.text()));
        text.push_str(&format!("    {}\n", resource.advice));
    }
    for (subject, resource, forecast) in &all {
        let (worst, at) = resource.worst;
        if worst > forecast.health() && worst == Health::Critical {
            text.push_str(&format!(
                "  {subject}: was {} at {}.\n",
                worst.painted(worst.word(), page),
                elapsed(at)
            ));
        }
    }
    if let Some(share) = about.threshold.filter(|_| alarm) {
        text.push_str(&format!("  above the threshold of {}\n", percent(share)));
    }
    Body {
        text,
        json: json!({ "health": health, "resources": all.iter().map(row).collect::<Vec<_>>() }),
        plot: plot(&all, verdict, recorder.now),
        alarm,
        is_unknown: health == Health::Unknown,
        found: !all.is_empty(),
    }
}

fn health(all: &[Ranked<'_>]) -> Health {
    outlook::overall(all.iter().map(|(subject, _, forecast)| (*subject, *forecast)))
}

/// The result in one sentence.
fn verdict(all: &[Ranked<'_>], recorder: &Recorder, in_part: bool) -> String {
    let Some((subject, _, forecast)) = all.first() else {
        return "No resource with a limit was found.".to_owned();
    };
    if health(all) == Health::Unknown {
        return super::too_few_samples("forecast", recorder);
    }
    match forecast.stated() {
        Some(tte) => format!("Memory of {subject} runs out in {} at its current growth.", duration(tte.p50)),
        None if forecast.health() >= Health::Warning => {
            let far = forecast.growth().is_some_and(|growth| growth > 0.0) && forecast.used_share() < 0.9;
            let later = if far {
                " The time to exhaustion is too long to forecast from so short an observation."
            } else {
                ""
            };
            let (health, rule) = (forecast.health().word(), forecast.rule.text());
            format!("Memory of {subject} is {health}: {rule}.{later}")
        }
        None if in_part => "No exhaustion is predicted for what could be measured.".to_owned(),
        None => "No exhaustion is predicted.".to_owned(),
    }
}

fn row<'a>((subject, resource, forecast): &Ranked<'a>) -> Row<'a> {
    Row {
        subject,
        name: subject.to_string(),
        health: forecast.health(),
        peak_used_bytes: resource.used.peak().map(|(_, peak)| peak),
        headroom_bytes: forecast.headroom_bytes(),
        used_ratio: forecast.used_share(),
        rule_text: forecast.rule.text(),
        confidence_ratio: forecast.confidence(),
        worst_health: resource.worst.0,
        worst_health_at_seconds: resource.worst.1,
        recommendation: match forecast.health() {
            Health::Warning | Health::Critical => resource.advice,
            Health::Ok => "No action required.",
            Health::Unknown => "Observe for longer.",
        },
        forecast,
    }
}

/// Plots the resources with the worst health, each with its limit, and the first forecast.
fn plot(all: &[Ranked<'_>], subtitle: String, now: f64) -> Report {
    let series = all.iter().take(DRAWN).map(|(subject, resource, forecast)| Series {
        name: format!("{subject} used"),
        unit: "bytes".to_owned(),
        points: resource.used.points(),
        limit_bytes: Some(forecast.limit_bytes),
    });
    let forecast = all.iter().take(DRAWN).find_map(|(subject, resource, forecast)| {
        let tte = forecast.stated()?;
        Some(plotted::Forecast {
            t_s: now.min(resource.seen),
            tte_p10_s: Some(tte.p10),
            tte_p50_s: Some(tte.p50),
            tte_p90_s: tte.p90,
            limit_bytes: forecast.limit_bytes,
            series: Some(format!("{subject} used")),
        })
    });
    Report { subtitle, series: series.collect(), forecast, ..Report::default() }
}
