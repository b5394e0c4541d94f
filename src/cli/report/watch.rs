//! One report from its first sample to its exit code; the same for all of them.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::future::{join_all, select_all};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::node::Node;
use super::options::Options;
use super::screen::{Screen, bar};
use crate::cli::output::Format;
use crate::cli::{fetch, out, picture};
use crate::host::clock;
use crate::plot::together;
use crate::report::{Kind, Page, Paint, REPORTS_SCHEMA, ReportOutput};

/// The exit code if the threshold is exceeded.
const ABOVE: u8 = 2;
/// The exit code if the threshold is not exceeded, and part of the selection is not visible.
const UNSEEN: u8 = 3;

/// Samples for the duration, prints the report, and returns the exit code.
pub(in crate::cli) fn run(kind: Kind, options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(why) = options.too_short(kind) {
        out::note(&format!("note: {why}\n"));
    }
    let mut nodes = fetch::runtime()?.block_on(watch(kind, options))?;
    if nodes.len() == 1 {
        return one(nodes.remove(0).finish(kind, options)?, kind, options);
    }
    several(nodes, kind, options)
}

/// Prints the report of one node.
fn one(report: ReportOutput, kind: Kind, options: &Options) -> anyhow::Result<ExitCode> {
    options.output.report(|_| report.text.clone(), &report.json)?;
    if let Some(path) = &options.plot {
        picture::chart(&report.plot.chart(), path)?;
    }
    Ok(exit(report.alarm, is_unseen(&report, kind)))
}

/// Prints the reports of several nodes, and which of them have none.
///
/// # Errors
/// Output that cannot be written, or no report of any node.
fn several(nodes: Vec<Node>, kind: Kind, options: &Options) -> anyhow::Result<ExitCode> {
    let count = nodes.len();
    let paint = options.output.page().paint;
    let (mut reports, mut failed) = (Vec::new(), Vec::new());
    let (mut text, mut list) = (Vec::new(), Vec::new());
    for node in nodes {
        let url = node.about.daemon.clone();
        match node.finish(kind, options) {
            Ok(report) => {
                text.push(report.text.clone());
                list.push(report.json.clone());
                reports.push(report);
            }
            Err(error) => {
                text.push(format!("{}\n", without_report(paint, &url, &error)));
                list.push(json!({"daemon": url, "error": format!("{error:#}")}));
                failed.push(format!("{url}: {error:#}"));
            }
        }
    }
    if reports.is_empty() {
        bail!("no report of any of {count} nodes: {}", failed.join("; "));
    }
    match options.output.format() {
        Format::Text => {
            if !failed.is_empty() {
                text.insert(0, format!("No report of {} of {count} nodes.\n", failed.len()));
            }
            options.output.colored(&text.join("\n"))?;
        }
        Format::Json => options.output.value(&json!({"schema": REPORTS_SCHEMA, "nodes": list}))?,
    }
    if let Some(path) = &options.plot {
        picture::chart(&together(reports.iter().map(|report| report.plot.chart()).collect()), path)?;
    }
    let alarm = reports.iter().any(|report| report.alarm);
    let unseen = !failed.is_empty() || reports.iter().any(|report| is_unseen(report, kind));
    Ok(exit(alarm, unseen))
}

/// The line of a node that has no report.
fn without_report(paint: Paint, url: &str, error: &anyhow::Error) -> String {
    format!("{}: {error:#}", paint.heading(url))
}

/// Whether part of the selection is not visible; a host without data is not healthy.
fn is_unseen(report: &ReportOutput, kind: Kind) -> bool {
    report.unseen || (!report.found && matches!(kind, Kind::Oom | Kind::Profile))
}

fn exit(alarm: bool, unseen: bool) -> ExitCode {
    match (alarm, unseen) {
        (true, _) => ExitCode::from(ABOVE),
        (false, true) => ExitCode::from(UNSEEN),
        (false, false) => ExitCode::SUCCESS,
    }
}

async fn watch(kind: Kind, options: &Options) -> anyhow::Result<Vec<Node>> {
    let mut nodes = Node::open(options)?;
    let single = nodes.len() == 1;
    let interval = Duration::from_secs_f64(options.interval());
    let duration = options.duration(kind);
    let ends = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let signals: std::io::Result<Vec<Signal>> = ends.into_iter().map(signal).collect();
    let mut signals = signals.context("cannot listen for signals")?;
    let mut screen = Screen::new();
    // If standard error is not a terminal.
    let mut lines = vec![String::new(); nodes.len()];
    let begun = clock::now();
    let mut due = begun;
    loop {
        let passed = clock::now().since(begun).as_secs_f64();
        join_all(nodes.iter_mut().map(|node| node.look(passed))).await;
        if single && nodes.iter().any(|node| node.problem().is_some()) {
            screen.clear();
            return Ok(nodes);
        }
        let passed = clock::now().since(begun).as_secs_f64();
        if screen.is_live() {
            screen.show(&shown(&nodes, kind, screen.page()), &progress(options, duration, passed));
        } else if options.monitor {
            for (node, last) in nodes.iter().zip(&mut lines).filter(|(node, _)| node.problem().is_none()) {
                let name = if single { "" } else { &node.about.daemon };
                write_line(last, name, &node.report(kind, Page::default()), node.recorder.seconds());
            }
        }
        let over = !options.monitor && passed >= duration;
        if over || nodes.iter().all(Node::is_over) {
            break;
        }
        due = due.plus(interval);
        let mut left = due.since(clock::now());
        if left.is_zero() {
            // Missed samples are skipped.
            due = clock::now();
            left = Duration::from_millis(1);
        }
        let until_end = Duration::from_secs_f64((duration - passed).max(0.001));
        let wait = if options.monitor { left } else { left.min(until_end) };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = received(&mut signals) => {
                if !options.monitor {
                    let remark = format!("ended early, after {passed:.0} s of {duration:.0} s");
                    nodes.iter_mut().for_each(|node| node.about.remarks.push(remark.clone()));
                }
                break;
            }
        }
    }
    screen.clear();
    if options.plot.is_some() && matches!(kind, Kind::Oom | Kind::Leak) {
        join_all(nodes.iter_mut().map(Node::remember)).await;
    }
    Ok(nodes)
}

/// The reports of the samples until now.
fn shown(nodes: &[Node], kind: Kind, page: Page) -> String {
    let texts = nodes.iter().map(|node| match node.problem() {
        Some(error) => format!("{}\n", without_report(page.paint, &node.about.daemon, error)),
        None => node.report(kind, page).text,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn progress(options: &Options, duration: f64, passed: f64) -> String {
    if options.monitor {
        return format!("{passed:.0} s; Ctrl-C ends it");
    }
    let share = if duration > 0.0 { passed / duration } else { 1.0 };
    format!("{} {passed:.0} s of {duration:.0} s; Ctrl-C ends it early", bar(share))
}

/// Writes a line of a report without end if its verdict is not `last`, with the name of the node if it has one.
fn write_line(last: &mut String, name: &str, report: &ReportOutput, seconds: f64) {
    // The numbers in a verdict change with each sample; only its words are compared.
    let words: String = report.plot.subtitle.chars().filter(|letter| !letter.is_ascii_digit()).collect();
    if words != *last {
        *last = words;
        let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
        out::note(&format!("{seconds:.0} s: {name}{}\n", report.plot.subtitle));
    }
}

/// Waits for one of the signals, which end a report early.
async fn received(signals: &mut [Signal]) {
    select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
}
