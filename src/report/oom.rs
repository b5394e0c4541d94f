//! `oom`: which resources are exhausted when, with which probability, and what to do.

use serde_json::json;

use super::subjects::Limited;
use super::text::table;
use super::unseen;
use super::{About, Body, Named, Page, Recorder, leak};
use crate::model::finding::Subject;
use crate::model::format::{duration, elapsed};
use crate::model::health::Health;
use crate::model::outlook::{self, Forecast};
use crate::node_view::Gpu;
use crate::node_view::conclusion_tables::forecast_table;
use crate::plot::Fan;
use crate::plot::report::{self as plotted, Report, Series};

/// Maximum number of listed resources; those with the highest risk come first.
const SHOWN: usize = 20;
/// Maximum number of resources in the plot.
const DRAWN: usize = 3;

/// A selected resource with its newest forecast.
type Ranked<'r> = (&'r Subject, &'r Limited, &'r Forecast);

/// The resources by health, then by probability, then by used share.
fn ranked<'r>(recorder: &'r Recorder, unseen: &[&Gpu]) -> Vec<Ranked<'r>> {
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

pub(super) fn body(recorder: &Recorder, about: &About, page: Page, unseen: &[&Gpu]) -> Body {
    let all = ranked(recorder, unseen);
    let above = |forecast: &Forecast, share: f64| {
        forecast.used_share() > share || forecast.within(3600.0).is_some_and(|p| p > share)
    };
    let health = health(&all);
    let alarm = match about.threshold {
        Some(share) => all.iter().any(|(.., forecast)| above(forecast, share)),
        None => health >= Health::Warning,
    };
    let mut text = String::new();
    let shown = all.iter().take(SHOWN).map(|(subject, _, forecast)| (*subject, *forecast));
    table(&mut text, &forecast_table(shown), page);
    if all.len() > SHOWN {
        text.push_str(&format!("  and {} more, of no worse health\n", all.len() - SHOWN));
    }
    let mut details = String::new();
    let problems = all.iter().filter(|(.., forecast)| forecast.health() >= Health::Warning);
    for (subject, resource, forecast) in problems.take(SHOWN) {
        let word = page.painted(forecast.health(), forecast.health().label());
        let sure = forecast.confidence().map_or_else(String::new, |sure| format!(" (confidence {sure:.2})"));
        details.push_str(&format!("  {subject}: {word}, because {}{sure}.\n", forecast.why()));
        details.push_str(&leak::grown(recorder, subject));
        details.push_str(&format!("    {}\n", resource.advice));
    }
    for (subject, resource, forecast) in &all {
        let (worst, at) = (resource.worst_health, resource.worst_at);
        if worst > forecast.health() && worst == Health::Critical {
            details.push_str(&format!(
                "  {subject}: was {} at {}.\n",
                page.painted(worst, worst.label()),
                elapsed(at)
            ));
            details.push_str(&leak::grown(recorder, subject));
        }
    }
    Body {
        text,
        result: Some((health, verdict(&all, recorder, !unseen.is_empty()))),
        details,
        json: json!({ "resources": all.iter().map(row).collect::<Vec<_>>() }),
        plot: plot(&all, recorder.now),
        alarm,
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
        Some(tte) => {
            format!("Memory of {subject:#} runs out in {} at its current growth.", duration(tte.p50))
        }
        None if forecast.health() >= Health::Warning => {
            let far = forecast.growth().is_some_and(|growth| growth > 0.0) && forecast.used_share() < 0.9;
            let later = if far {
                " The time to exhaustion is too long to forecast from so short an observation."
            } else {
                ""
            };
            let (health, rule) = (forecast.health().label(), forecast.why());
            format!("Memory of {subject:#} is {health}: {rule}.{later}")
        }
        None if in_part => "No exhaustion is predicted for what could be measured.".to_owned(),
        None => "No exhaustion is predicted.".to_owned(),
    }
}

fn row<'a>((subject, resource, forecast): &Ranked<'a>) -> Named<'a, Limited> {
    let recommendation = match forecast.health() {
        Health::Warning | Health::Critical => resource.advice,
        Health::Ok => "No action required.",
        Health::Unknown => "Observe for longer.",
    };
    Named { subject, name: subject.to_string(), health: forecast.health(), recommendation, known: resource }
}

/// Plots the resources with the worst health, each with its limit, and the first forecast.
fn plot(all: &[Ranked<'_>], now: f64) -> Report {
    let series = all.iter().take(DRAWN).map(|(subject, resource, forecast)| Series {
        name: format!("{subject} used"),
        unit: "bytes".to_owned(),
        points: resource.used.points(),
        limit_bytes: Some(forecast.limit_bytes),
    });
    let forecast = all.iter().take(DRAWN).find_map(|(subject, resource, forecast)| {
        let (at_s, limit) = (now.min(resource.seen), forecast.limit_bytes);
        // A chart begins it at the series.
        let fan = Fan { at_s, from: 0.0, limit, tte: forecast.stated()? };
        Some(plotted::Forecast { fan, series: Some(format!("{subject} used")) })
    });
    Report { series: series.collect(), forecast, ..Report::default() }
}
