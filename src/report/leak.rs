//! `leak`: what grows, how fast, since when, the evidence, and what to do.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::json;

use super::subjects::Growing;
use super::text::table;
use super::unseen;
use super::{About, Body, Named, Page, Recorder};
use crate::model::finding::Subject;
use crate::model::format::{bytes, duration};
use crate::model::health::Health;
use crate::model::outlook::LeakState;
use crate::node_view::Gpu;
use crate::node_view::conclusion_tables::growth_table;
use crate::plot::report::{Band, Report, Series};

/// Maximum number of listed subjects.
const SHOWN: usize = 20;
/// Maximum number of subjects in the plot.
const DRAWN: usize = 5;

/// The subjects: leaks first, then workloads before their parts, then by growth.
pub(super) fn ranked(recorder: &Recorder) -> Vec<(&Subject, &Growing)> {
    let mut all: Vec<_> = recorder.subjects.growing.iter().collect();
    all.sort_by(|(one, a), (two, b)| {
        let pace = |growth: &Growing| growth.known.bytes_per_second().unwrap_or(0.0);
        b.state()
            .cmp(&a.state())
            .then(is_part(one).cmp(&is_part(two)))
            .then_with(|| pace(b).total_cmp(&pace(a)))
    });
    all
}

fn is_part(subject: &Subject) -> bool {
    subject.resource.as_str() == "process"
}

pub(super) fn body(recorder: &Recorder, about: &About, page: Page, unseen: &[&Gpu]) -> Body {
    let mut all = ranked(recorder);
    all.retain(|(subject, _)| !unseen::is_on(subject, unseen));
    let sure = |growth: &Growing| {
        about.threshold.is_none_or(|share| growth.known.confidence.is_some_and(|c| c > share))
    };
    let alarm = all.iter().any(|(_, growth)| growth.known.leaks() && sure(growth));
    let mut text = String::new();
    let shown = all.iter().take(SHOWN).map(|(subject, growth)| (named(subject, growth), &growth.known));
    table(&mut text, &growth_table(shown, recorder.last.unix_seconds), page);
    if all.len() > SHOWN {
        text.push_str(&format!("  and {} more that grow no faster\n", all.len() - SHOWN));
    }
    let mut details = String::new();
    for (subject, growth) in all.iter().filter(|(_, growth)| growth.known.grows()).take(SHOWN) {
        explain(&mut details, subject, growth, recorder.last.unix_seconds, page);
    }
    inside(&mut details, &all, recorder);
    Body {
        text,
        result: Some((level(&all), verdict(&all, recorder, !unseen.is_empty()))),
        details,
        json: json!({ "subjects": rows(&all) }),
        plot: plot(&all),
        alarm,
        found: !all.is_empty(),
    }
}

/// The subject, with the name of the program if known.
pub(super) fn named(subject: &Subject, growth: &Growing) -> String {
    if growth.comm.is_empty() { subject.to_string() } else { format!("{subject} ({})", growth.comm) }
}

/// Writes the state of one subject with its evidence and advice, at `now` in seconds since 1970.
pub(super) fn explain(text: &mut String, subject: &Subject, growth: &Growing, now: f64, page: Page) {
    let (known, state) = (&growth.known, growth.state());
    let pace = known.pace(", ");
    let since = if known.grows() { known.since(", ", now) } else { String::new() };
    let word = page.painted(state.into(), state.label());
    text.push_str(&format!("  {}: {word}{pace}{since}.\n", named(subject, growth)));
    if is_part(subject) {
        // The same evidence and advice as that of its workload.
        return;
    }
    if let Some(seen) = growth.known.evidence {
        text.push_str(&format!(
            "    Evidence: a rise of {} in {}; slopes in standard errors: floor {:.1}, center {:.1}, peak {:.1}.\n",
            bytes(seen.rise_bytes),
            duration(seen.window_seconds),
            seen.floor_standard_errors,
            seen.center_standard_errors,
            seen.peak_standard_errors,
        ));
    }
    if let Some(stated) = growth.known.stated {
        let (kind, advice) = (stated.memory.words(), stated.memory.advice());
        text.push_str(&format!("    What grows: {kind}.\n    {advice}\n"));
    }
}

/// What grows in a resource that runs short: its own memory, or the workload in it that grows fastest. One that has ended is
/// named where none grows now. Empty where nothing grows, otherwise lines of a report.
pub(super) fn grown(recorder: &Recorder, resource: &Subject) -> String {
    let all = &recorder.subjects.growing;
    let own = all.get_key_value(resource).filter(|(_, growth)| growth.known.stated.is_some());
    let is_inside = |growth: &Growing| match resource.resource.as_str() {
        "host" => true,
        "cgroup" => Path::new(&growth.cgroup).starts_with(resource.cgroup.as_str()),
        _ => false,
    };
    let others = all.iter().filter(|(subject, growth)| {
        subject.resource.as_str() == "workload" && growth.known.stated.is_some() && is_inside(growth)
    });
    let is_current = |growth: &Growing| growth.seen >= recorder.now;
    let pace = |growth: &Growing| growth.known.bytes_per_second().unwrap_or(0.0);
    let fastest = || {
        others.max_by(|(_, one), (_, other)| {
            is_current(one).cmp(&is_current(other)).then(pace(one).total_cmp(&pace(other)))
        })
    };
    let Some((subject, growth)) = own.or_else(fastest) else { return String::new() };
    let Some(memory) = growth.known.stated.map(|stated| stated.memory) else { return String::new() };
    let verb = if is_current(growth) { "grows" } else { "grew" };
    let of = if subject == resource { String::new() } else { format!(" of {}", named(subject, growth)) };
    let speed = growth.known.pace(", ");
    format!("    What {verb}: {}{of}{speed}.\n    {}\n", memory.words(), memory.advice())
}

/// Writes what grows inside the programs whose workloads grow, as their clients counted last.
pub(super) fn inside(text: &mut String, all: &[(&Subject, &Growing)], recorder: &Recorder) {
    let mut known = BTreeSet::new();
    for event in recorder.last.job_events.iter().filter(|event| event.grown) {
        let grows = |(subject, growth): &(&Subject, &Growing)| {
            subject.workload.as_str() == event.workload && growth.known.grows()
        };
        if all.iter().any(grows) && known.insert((&event.workload, &event.rank)) {
            let name = if event.workload.is_empty() { "a program" } else { &event.workload };
            text.push_str(&format!("  {name}, rank {}, {}.\n", event.rank, event.what));
        }
    }
}

/// The severity of the result.
fn level(all: &[(&Subject, &Growing)]) -> Health {
    let states = || all.iter().map(|(_, growth)| growth.state());
    match states().max() {
        // What has begun to run a moment ago does not make the whole selection unknown.
        Some(worst) if worst > LeakState::Insufficient => worst.into(),
        _ => Health::Unknown,
    }
}

fn verdict(all: &[(&Subject, &Growing)], recorder: &Recorder, in_part: bool) -> String {
    let Some((subject, first)) = all.first() else {
        return "No workload was found; select processes with --pid.".to_owned();
    };
    let pace = first.known.pace(" ");
    match first.state() {
        LeakState::Leaking => format!("{} leaks{pace}.", named(subject, first)),
        LeakState::Growing => {
            format!("No leak so far; {} grows{pace}, and the growth may still end.", named(subject, first))
        }
        LeakState::Insufficient => super::too_few_samples("verdict", recorder),
        _ if in_part => "No leak was found in what could be measured.".to_owned(),
        _ => "No leak was found.".to_owned(),
    }
}

pub(super) fn rows<'a>(all: &[(&'a Subject, &'a Growing)]) -> Vec<Named<'a, Growing>> {
    let row = |(subject, growth): &(&'a Subject, &'a Growing)| {
        let stated = growth.known.stated;
        let recommendation = stated.map_or("No action required.", |stated| stated.memory.advice());
        let health = growth.state().into();
        Named { subject, name: named(subject, growth), health, recommendation, known: *growth }
    };
    all.iter().map(row).collect()
}

/// The time span of the growth, for the plot.
pub(super) fn stretch(subject: &Subject, growth: &Growing) -> Option<Band> {
    let leaking = growth.known.leaks();
    let text = if leaking { format!("{subject} leaks") } else { format!("{subject} grows") };
    let from_s = growth.since?.max(0.0);
    (growth.known.grows()).then_some(Band { from_s, to_s: None, text, alarm: leaking })
}

fn plot(all: &[(&Subject, &Growing)]) -> Report {
    let series = all.iter().take(DRAWN).map(|(subject, growth)| Series {
        name: named(subject, growth),
        unit: "bytes".to_owned(),
        points: growth.used.points(),
        limit_bytes: None,
    });
    let bands = all.first().and_then(|(subject, growth)| stretch(subject, growth));
    Report { series: series.collect(), bands: bands.into_iter().collect(), ..Report::default() }
}
