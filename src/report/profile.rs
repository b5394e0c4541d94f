//! `profile`: current and peak memory use by type, GPU, workload and process.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use super::curve::Statistics;
use super::record::{Kind, Process};
use super::subjects::Limited;
use super::text;
use super::{About, Body, Page, Recorder};
use crate::model::finding::Subject;
use crate::model::format::{bytes, elapsed, percent};
use crate::model::outlook::Forecast;
use crate::node_view;
use crate::node_view::table::{Cell, Row};
use crate::plot::report::{Report, Series};

/// Maximum number of listed processes.
const PROCESSES: usize = 10;
/// Maximum number of workloads in the plot, largest first.
const DRAWN: usize = 4;

/// What is reported of the host: name in the text, and key.
const HOST: [(&str, &str); 5] = [
    ("host used", "used_bytes"),
    ("  anonymous", "anonymous_bytes"),
    ("  shared", "shared_bytes"),
    ("  file cache", "cached_bytes"),
    ("swap used", "swap_used_bytes"),
];
/// What is reported of a workload: name in the text, and key.
pub(super) const WORKLOAD: [(&str, &str); 7] = [
    ("memory", "memory_bytes"),
    ("resident", "resident_bytes"),
    ("anonymous", "anonymous_bytes"),
    ("file", "file_bytes"),
    ("shared", "shared_bytes"),
    ("swap", "swap_bytes"),
    ("GPU", "gpu_bytes"),
];

#[derive(Serialize)]
struct Gpu<'a> {
    gpu: &'a str,
    uuid: String,
    name: String,
    used_bytes: Option<Statistics>,
    limit_bytes: Option<f64>,
    used_ratio: Option<f64>,
    peak_used_ratio: Option<f64>,
    utilization_ratio: Option<Statistics>,
}

pub(super) fn body(recorder: &Recorder, about: &About, page: Page, unseen: &[&node_view::Gpu]) -> Body {
    let (narrow, mut out, mut over) = (recorder.focus.is_narrow(), String::new(), Vec::new());
    let total = recorder.newest(Kind::Host, "", "total_bytes");
    let mut rows = Vec::new();
    for (name, metric) in HOST.iter().filter(|_| !narrow) {
        rows.extend(recorder.statistics(Kind::Host, "", metric).map(|found| line(name, &found, bytes)));
    }
    let used = recorder.statistics(Kind::Host, "", "used_bytes");
    if let (Some(used), Some(total), false) = (used, total, narrow) {
        rows.push(line("used share", &scaled(&used, 1.0 / total), percent));
        over.extend(above(about, used.max / total).then(|| format!("host: {}", percent(used.max / total))));
    }
    let gpus = gpus(recorder);
    for gpu in &gpus {
        let name = format!("gpu {}", gpu.gpu);
        rows.extend(gpu.used_bytes.map(|found| line(&format!("{name} used"), &found, bytes)));
        rows.extend(gpu.utilization_ratio.map(|found| line(&format!("{name} busy"), &found, percent)));
        if let Some(share) = gpu.peak_used_ratio.filter(|share| above(about, *share)) {
            over.push(format!("{name}: {}", percent(share)));
        }
    }
    let workloads = workloads(recorder);
    for name in &workloads {
        for (kind, metric) in WORKLOAD {
            let found = recorder.statistics(Kind::Workload, name, metric).filter(|found| found.max > 0.0);
            rows.extend(found.map(|found| line(&format!("{name} {kind}"), &found, bytes)));
        }
    }
    for (subject, own) in tmpfs(recorder) {
        rows.extend(own.used.statistics().map(|found| line(&subject.to_string(), &found, bytes)));
    }
    text::rows(&mut out, rows, page);
    let mut details = String::new();
    if let (Some(used), Some(total), false) = (used, total, narrow) {
        details.push_str(&format!("Host: {} of {} used.\n", bytes(used.current), bytes(total)));
    }
    let seen = gpus.iter().filter(|gpu| !unseen.iter().any(|own| own.index == gpu.gpu));
    for Gpu { gpu, name, used_bytes, limit_bytes, used_ratio, .. } in seen {
        if let (Some(used), Some(limit), Some(share)) = (used_bytes, limit_bytes, used_ratio) {
            let (used, limit, share) = (bytes(used.current), bytes(*limit), percent(*share));
            details.push_str(&format!("GPU {gpu}: {used} of {limit} used, {share}{}.\n", of_model(name)));
        }
    }
    for (subject, own) in tmpfs(recorder) {
        let Forecast { used_bytes, limit_bytes, .. } = own.forecast;
        let share = percent(own.forecast.used_share());
        details.push_str(&format!(
            "{subject}: {} of {} used, {share}.\n",
            bytes(used_bytes),
            bytes(limit_bytes)
        ));
    }
    let processes = largest(recorder);
    if !processes.is_empty() {
        details.push_str("Largest processes\n");
        let rows = processes.iter().map(|process| {
            let current = Cell::number(Some(process.current), bytes);
            Row::default()
                .text("", 0, format!("{} {}", process.comm, process.pid))
                .text("workload", 1, &process.workload)
                .number("current", 0, if process.seen < recorder.now { "ended".into() } else { current })
                .bytes("peak", 0, Some(process.peak))
                .value("peak at", 2, Some(process.peak_at), elapsed)
        });
        text::rows(&mut details, rows, page);
    }
    if !over.is_empty() {
        details.push_str(&format!("Highest use: {}\n", over.join(", ")));
    }
    let plot = plot(recorder, &workloads, total);
    Body {
        text: out,
        result: None,
        details,
        json: json(recorder, total, &gpus, &workloads, &processes),
        plot,
        alarm: !over.is_empty(),
        found: used.is_some() && (!narrow || !workloads.is_empty()),
    }
}

fn of_model(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" ({name})") }
}

fn above(about: &About, share: f64) -> bool {
    about.threshold.is_some_and(|threshold| share > threshold)
}

fn line(name: &str, found: &Statistics, show: fn(f64) -> String) -> Row {
    Row::default()
        .text("", 0, name)
        .value("current", 0, Some(found.current), show)
        .value("min", 2, Some(found.min), show)
        .value("mean", 3, Some(found.mean), show)
        .value("p95", 4, Some(found.p95), show)
        .value("peak", 0, Some(found.max), show)
        .value("peak at", 1, Some(found.max_at_seconds), elapsed)
}

fn scaled(found: &Statistics, by: f64) -> Statistics {
    let Statistics { current, min, mean, p95, max, max_at_seconds } = *found;
    let [current, min, mean, p95, max] = [current, min, mean, p95, max].map(|value| value * by);
    Statistics { current, min, mean, p95, max, max_at_seconds }
}

fn gpus(recorder: &Recorder) -> Vec<Gpu<'_>> {
    let of = |gpu| {
        let known = recorder.last.gpu(gpu);
        let used_bytes = recorder.statistics(Kind::Gpu, gpu, "used_bytes");
        let last = |metric| recorder.newest(Kind::Gpu, gpu, metric);
        let limit = last("used_bytes").zip(last("free_bytes")).map(|(used, free)| used + free);
        let share =
            |bytes: Option<f64>| bytes.zip(limit.filter(|limit| *limit > 0.0)).map(|(b, limit)| b / limit);
        Gpu {
            gpu,
            uuid: known.map_or_else(String::new, |known| known.uuid.clone()),
            name: known.map_or_else(String::new, |known| known.name.clone()),
            used_bytes,
            limit_bytes: limit,
            used_ratio: share(used_bytes.map(|used| used.current)),
            peak_used_ratio: share(used_bytes.map(|used| used.max)),
            utilization_ratio: recorder.statistics(Kind::Gpu, gpu, "utilization_ratio"),
        }
    };
    recorder.all(Kind::Gpu).into_iter().map(of).collect()
}

/// Each tmpfs with a size limit.
fn tmpfs(recorder: &Recorder) -> impl Iterator<Item = (&Subject, &Limited)> {
    recorder.subjects.limited.iter().filter(|(subject, _)| subject.resource.as_str() == "tmpfs")
}

/// The workloads by peak memory, largest first.
fn workloads(recorder: &Recorder) -> Vec<&str> {
    let peak =
        |name: &str| recorder.statistics(Kind::Workload, name, "resident_bytes").map_or(0.0, |s| s.max);
    let mut names = recorder.all(Kind::Workload);
    names.sort_by(|a, b| peak(b).total_cmp(&peak(a)));
    names
}

/// The processes with the largest peaks.
pub(super) fn largest(recorder: &Recorder) -> Vec<&Process> {
    let mut all: Vec<_> = recorder.processes.values().collect();
    all.sort_by(|a, b| b.peak.total_cmp(&a.peak));
    all.truncate(PROCESSES);
    all
}

/// The statistics of a workload by type of memory, by key of the JSON.
pub(super) fn kinds(recorder: &Recorder, name: &str) -> BTreeMap<&'static str, Statistics> {
    let found = |(_, key): (&str, &'static str)| Some((key, recorder.statistics(Kind::Workload, name, key)?));
    WORKLOAD.into_iter().filter_map(found).collect()
}

fn json(
    recorder: &Recorder,
    total: Option<f64>,
    gpus: &[Gpu<'_>],
    workloads: &[&str],
    processes: &[&Process],
) -> serde_json::Value {
    let used = recorder.statistics(Kind::Host, "", "used_bytes");
    let mut host: BTreeMap<&str, serde_json::Value> = HOST
        .iter()
        .filter_map(|(_, key)| Some((*key, json!(recorder.statistics(Kind::Host, "", key)?))))
        .collect();
    host.insert("total_bytes", json!(total));
    host.insert("current_memory_bytes", json!(used.map(|used| used.current)));
    host.insert("peak_memory_bytes", json!(used.map(|used| used.max)));
    let ratio = used.zip(total.filter(|total| *total > 0.0)).map(|(used, total)| scaled(&used, 1.0 / total));
    host.insert("used_ratio", json!(ratio));
    let tmpfs = tmpfs(recorder).map(|(subject, own)| {
        json!({
            "workload": subject.workload,
            "mount": subject.mount,
            "used_bytes": own.used.statistics(),
            "size_bytes": own.forecast.limit_bytes,
        })
    });
    let workloads = workloads.iter().map(|name| json!({ "workload": name, "memory": kinds(recorder, name) }));
    json!({
        "host_memory": host,
        "gpus": gpus,
        "workloads": workloads.collect::<Vec<_>>(),
        "tmpfs": tmpfs.collect::<Vec<_>>(),
        "largest_processes": processes,
    })
}

fn plot(recorder: &Recorder, workloads: &[&str], total: Option<f64>) -> Report {
    let mut series = Vec::new();
    let mut add = |kind, of: &str, metric, name: String, limit| {
        if let Some(curve) = recorder.curve(kind, of, metric) {
            let points = curve.points();
            series.push(Series { name, unit: "bytes".to_owned(), points, limit_bytes: limit });
        }
    };
    if !recorder.focus.is_narrow() {
        add(Kind::Host, "", "used_bytes", "host used".to_owned(), total);
    }
    for gpu in gpus(recorder) {
        add(Kind::Gpu, gpu.gpu, "used_bytes", format!("GPU {}", gpu.gpu), gpu.limit_bytes);
    }
    for name in workloads.iter().take(DRAWN) {
        add(Kind::Workload, name, "resident_bytes", format!("{name} resident"), None);
    }
    let used = recorder.statistics(Kind::Host, "", "used_bytes").zip(total);
    let subtitle = used.map(|(used, total)| {
        format!("host: {} of {}, peak {}", bytes(used.current), bytes(total), bytes(used.max))
    });
    Report { subtitle: subtitle.unwrap_or_default(), series, ..Report::default() }
}
