//! `oom`: which resources are exhausted when, with which probability, and what to do.

use serde::Serialize;
use serde_json::json;

use super::resource::{Resource, Tte, rank};
use super::text::{UNKNOWN, bytes, clock, or_unknown, percent, rate, table, time};
use super::unseen::{self, Unseen};
use super::verdict::VerdictLevel;
use super::{About, Body, Page, Recorder};
use crate::model::finding::Subject;
use crate::plot::report::{Forecast, Report, Series};

/// Maximum number of listed resources; those with the highest risk come first.
const SHOWN: usize = 20;
/// Columns omitted on a narrow page, in this order: p10 to p90, P(15 min), used, P(60 min), limit, growth.
const SPARE: [usize; 6] = [6, 7, 1, 8, 2, 4];
/// Maximum number of resources in the plot.
const DRAWN: usize = 3;
/// The rank of `high`, the lowest level for which a report without a threshold warns.
const HIGH: usize = 2;
/// The rank of `critical`.
const CRITICAL: usize = 3;
/// A median time to exhaustion below this also warns, in seconds, although the risk level of a short observation is
/// low.
const SOON: f64 = 900.0;

#[derive(Serialize)]
struct Row<'a> {
    subject: &'a Subject,
    name: String,
    used_bytes: Option<f64>,
    peak_used_bytes: Option<f64>,
    limit_bytes: f64,
    headroom_bytes: Option<f64>,
    used_ratio: Option<f64>,
    growth_bytes_per_second: Option<f64>,
    time_to_exhaustion: Option<Tte>,
    exhaustion_probability_within_1m_ratio: Option<f64>,
    exhaustion_probability_within_5m_ratio: Option<f64>,
    exhaustion_probability_within_15m_ratio: Option<f64>,
    exhaustion_probability_within_60m_ratio: Option<f64>,
    risk_level: Option<&'a str>,
    risk_rule: Option<&'a str>,
    confidence_ratio: Option<f64>,
    worst_risk_level: Option<&'a str>,
    worst_risk_at_seconds: Option<f64>,
    recommendation: Option<&'a str>,
}

/// The resources by risk, then by used share.
fn ranked<'r>(recorder: &'r Recorder, unseen: &[Unseen]) -> Vec<(&'r Subject, &'r Resource)> {
    let all = recorder.resources.all.iter();
    let mut all: Vec<_> = all.filter(|(subject, _)| !unseen::is_on(subject, unseen)).collect();
    let soon = |resource: &Resource| resource.within.get("60m").copied().unwrap_or(0.0);
    all.sort_by(|(_, a), (_, b)| {
        let level = rank(b.level.as_deref()).cmp(&rank(a.level.as_deref()));
        let within = || soon(b).total_cmp(&soon(a));
        level.then_with(within).then_with(|| b.share().unwrap_or(0.0).total_cmp(&a.share().unwrap_or(0.0)))
    });
    all
}

pub(super) fn body(recorder: &Recorder, about: &About, page: Page, unseen: &[Unseen]) -> Body {
    let (all, paint) = (ranked(recorder, unseen), page.paint);
    let above = |resource: &Resource| match about.threshold {
        Some(share) => {
            resource.share().is_some_and(|used| used > share)
                || resource.within.get("60m").is_some_and(|p| *p > share)
        }
        None => {
            let median = resource.tte.and_then(|tte| tte.p50_seconds);
            rank(resource.level.as_deref()) >= HIGH || median.is_some_and(|median| median < SOON)
        }
    };
    let alarm = all.iter().any(|(_, resource)| above(resource));
    let mut text = String::new();
    let head = [
        "",
        "used",
        "limit",
        "share",
        "growth",
        "runs out in",
        "p10 to p90",
        "P(15 min)",
        "P(60 min)",
        "risk",
    ];
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).into()];
    for (subject, resource) in all.iter().take(SHOWN) {
        let tte = resource.tte.unwrap_or_default();
        let range = tte.p10_seconds.map(|p10| {
            format!("{} to {}", time(p10), tte.p90_seconds.map_or_else(|| "never".to_owned(), time))
        });
        rows.push(vec![
            subject.to_string(),
            or_unknown(resource.used.last().map(|(_, used)| used), bytes),
            bytes(resource.limit),
            or_unknown(resource.share(), percent),
            or_unknown(resource.growth, rate),
            or_unknown(tte.p50_seconds, time),
            range.unwrap_or_else(|| UNKNOWN.to_owned()),
            or_unknown(resource.within.get("15m").copied(), percent),
            or_unknown(resource.within.get("60m").copied(), percent),
            resource.level.clone().unwrap_or_else(|| UNKNOWN.to_owned()),
        ]);
    }
    table(&mut text, &rows, page, &SPARE);
    unseen::rows(&mut text, unseen);
    if all.len() > SHOWN {
        text.push_str(&format!("  and {} more, with no higher risk\n", all.len() - SHOWN));
    }
    let verdict = unseen::beside(verdict(&all, !unseen.is_empty()), unseen);
    let level = level(&all).in_part(!unseen.is_empty());
    text.push_str(&format!("{}\n", level.marked(&verdict, page)));
    for (subject, resource) in
        all.iter().filter(|(_, resource)| rank(resource.level.as_deref()) > 0).take(SHOWN)
    {
        let word = paint.word(resource.level.as_deref().unwrap_or_default());
        let rule = resource.rule.as_deref().unwrap_or_default();
        let sure = resource.confidence().map_or_else(String::new, |sure| format!(" (confidence {sure:.2})"));
        text.push_str(&format!("  {subject}: {word}, because {rule}{sure}.\n"));
        if let Some(advice) = resource.advice.as_deref().filter(|advice| !advice.is_empty()) {
            text.push_str(&format!("    {advice}\n"));
        }
    }
    for (subject, resource) in &all {
        if let Some((worst, at)) = resource.worst.as_ref()
            && rank(Some(worst)) > rank(resource.level.as_deref())
            && rank(Some(worst)) >= HIGH
        {
            text.push_str(&format!("  {subject}: was {} at {}.\n", paint.word(worst), clock(*at)));
        }
    }
    if let Some(share) = about.threshold.filter(|_| alarm) {
        text.push_str(&format!("  above the threshold of {}\n", percent(share)));
    }
    Body {
        text,
        json: json!({ "resources": all.iter().map(|(subject, resource)| row(subject, resource)).collect::<Vec<_>>() }),
        plot: plot(&all, verdict, recorder.now),
        alarm,
        found: !all.is_empty(),
    }
}

/// The severity of the result: that of the finding about the first resource, and at least a warning if it has a time to
/// exhaustion.
fn level(all: &[(&Subject, &Resource)]) -> VerdictLevel {
    let Some((_, first)) = all.first() else { return VerdictLevel::Unknown };
    match (rank(first.level.as_deref()), first.tte) {
        (CRITICAL, _) => VerdictLevel::Critical,
        (1.., _) | (_, Some(_)) => VerdictLevel::Warning,
        _ if all.iter().all(|(_, resource)| resource.within.is_empty()) => VerdictLevel::Unknown,
        _ => VerdictLevel::Ok,
    }
}

/// The result in one sentence.
fn verdict(all: &[(&Subject, &Resource)], in_part: bool) -> String {
    let Some((subject, resource)) = all.first() else {
        return "No resource with a limit was found.".to_owned();
    };
    if all.iter().all(|(_, resource)| resource.within.is_empty() && rank(resource.level.as_deref()) == 0) {
        return "Too few samples for a forecast: 60 are required. Observe for longer, or at a shorter interval."
            .to_owned();
    }
    match resource.tte {
        Some(Tte { p50_seconds: Some(p50), .. }) => {
            format!("Memory of {subject} runs out in {} at its current growth.", time(p50))
        }
        _ if rank(resource.level.as_deref()) > 0 => {
            let far = resource.growth.is_some_and(|growth| growth > 0.0)
                && resource.share().is_some_and(|used| used < 0.9);
            let later = if far {
                " The time to exhaustion is too long to forecast from so short an observation."
            } else {
                ""
            };
            let rule = resource.rule.as_deref().map_or_else(String::new, |rule| format!(": {rule}"));
            format!(
                "The risk of {subject} is {}{rule}.{later}",
                resource.level.as_deref().unwrap_or_default()
            )
        }
        _ if in_part => "No exhaustion is predicted for what could be measured.".to_owned(),
        _ => "No exhaustion is predicted.".to_owned(),
    }
}

fn row<'a>(subject: &'a Subject, resource: &'a Resource) -> Row<'a> {
    let within = |horizon: &str| resource.within.get(horizon).copied();
    let used = resource.used.last().map(|(_, used)| used);
    let low = (resource.level.as_deref() == Some("low")).then_some("no rule holds");
    Row {
        subject,
        name: subject.to_string(),
        used_bytes: used,
        peak_used_bytes: resource.used.peak().map(|(_, peak)| peak),
        limit_bytes: resource.limit,
        headroom_bytes: used.map(|used| (resource.limit - used).max(0.0)),
        used_ratio: resource.share(),
        growth_bytes_per_second: resource.growth,
        time_to_exhaustion: resource.tte,
        exhaustion_probability_within_1m_ratio: within("1m"),
        exhaustion_probability_within_5m_ratio: within("5m"),
        exhaustion_probability_within_15m_ratio: within("15m"),
        exhaustion_probability_within_60m_ratio: within("60m"),
        risk_level: resource.level.as_deref(),
        risk_rule: resource.rule.as_deref().or(low),
        confidence_ratio: resource.confidence(),
        worst_risk_level: resource.worst.as_ref().map(|worst| worst.0.as_str()),
        worst_risk_at_seconds: resource.worst.as_ref().map(|worst| worst.1),
        recommendation: resource.advice.as_deref().or(low.map(|_| "No action required.")),
    }
}

/// Plots the resources with the highest risk, each with its limit, and the first forecast.
fn plot(all: &[(&Subject, &Resource)], subtitle: String, now: f64) -> Report {
    let series = all.iter().take(DRAWN).map(|(subject, resource)| Series {
        name: format!("{subject} used"),
        unit: "bytes".to_owned(),
        points: resource.used.points(),
        limit_bytes: Some(resource.limit),
    });
    let forecast = all.iter().take(DRAWN).find_map(|(subject, resource)| {
        let tte = resource.tte?;
        Some(Forecast {
            t_s: now.min(resource.seen),
            tte_p10_s: tte.p10_seconds,
            tte_p50_s: tte.p50_seconds,
            tte_p90_s: tte.p90_seconds,
            limit_bytes: resource.limit,
            series: Some(format!("{subject} used")),
        })
    });
    Report { subtitle, series: series.collect(), forecast, ..Report::default() }
}
