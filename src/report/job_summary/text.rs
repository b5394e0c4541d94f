//! The summary as text.

use super::{Leftovers, NodeUse};
use crate::job_summary::{JobMemory, JobState, JobSummary, LimitState, PeakBasis};
use crate::model::format::{bytes, elapsed, percent};
use crate::model::health::Health;
use crate::model::printable::escaped;
use crate::model::units::real;
use crate::node_view::ends::{remarks, sentence};
use crate::node_view::table::{Cell, Row};
use crate::report::Page;
use crate::report::text as report_text;

/// What a job used on one node: a heading, and a line for each quantity.
pub(super) fn node(node: &NodeUse, page: Page) -> String {
    let summary = &node.summary;
    let mut rows = vec![row("run time", elapsed(summary.run_seconds()))];
    memory(&summary.memory, page, &mut rows);
    let cpu = summary.cpu_seconds.map_or_else(|| "unknown".to_owned(), elapsed);
    rows.push(row("CPU time", cpu));
    gpus(summary, &mut rows);
    if let Some(end) = node.end.as_ref().filter(|end| end.is_abnormal()) {
        rows.push(row(
            "end",
            page.marked(end.health(), &[vec![sentence(end)], remarks(end)].concat().join(" ")),
        ));
    }
    if let Some(leftovers) = &node.leftovers {
        left(leftovers, &mut rows);
    }
    let mut out = format!("{}\n", heading(summary));
    report_text::rows(&mut out, rows, page);
    out
}

fn heading(summary: &JobSummary) -> String {
    let JobSummary { job, node, user, account, partition, state, .. } = summary;
    let mut text = format!("Job {}", escaped(job));
    for (word, name) in [("of", user), ("on", node), ("partition", partition), ("account", account)] {
        if !name.is_empty() {
            text.push_str(&format!(" {word} {}", escaped(name)));
        }
    }
    let state = match state {
        JobState::Running => "running",
        JobState::Ended => "ended",
    };
    format!("{text}: {state}")
}

fn row(what: &str, value: impl Into<String>) -> Row {
    Row::default().text("", 0, Cell::plain(what)).prose("", value.into())
}

/// Share of the memory limit from which the peak requires attention: the next run may exceed the limit.
const NEAR_LIMIT: f64 = 0.9;

fn memory(memory: &JobMemory, page: Page, rows: &mut Vec<Row>) {
    let shown = |value: Option<u64>| value.map_or_else(|| "unknown".to_owned(), size);
    rows.push(row(
        "memory limit",
        match memory.limit {
            LimitState::Unknown => "unknown: the cgroup of the job was not read".to_owned(),
            LimitState::None => "none".to_owned(),
            LimitState::Set => shown(memory.limit_bytes),
        },
    ));
    let basis = match memory.peak_basis {
        PeakBasis::Unknown => "",
        PeakBasis::WorkingSet => ": working set of the cgroup",
        PeakBasis::ResidentMemory => ": sum of RSS of the processes",
        PeakBasis::LargestProcess => ": RSS of the largest process",
    };
    let share = memory.peak_bytes.zip(memory.limit_bytes).filter(|(_, limit)| *limit > 0);
    let share = share.map(|(peak, limit)| real(peak) / real(limit));
    let of_limit = share.map_or_else(String::new, |share| format!(" ({} of the limit)", percent(share)));
    let peak = format!("{}{of_limit}{basis}", shown(memory.peak_bytes));
    let peak = match (memory.peak_bytes, share) {
        (None, _) => page.marked(Health::Unknown, &peak),
        (_, Some(share)) if share >= NEAR_LIMIT => page.marked(Health::Warning, &peak),
        _ => peak,
    };
    rows.push(row("peak memory", peak));
    if let Some(bytes) = memory.charged_peak_bytes {
        rows.push(row("peak with page cache", size(bytes)));
    }
    let kills = if memory.oom_kills > 0 { Health::Critical } else { Health::Ok };
    rows.push(row("OOM kills", page.marked(kills, &memory.oom_kills.to_string())));
    if let Some(bytes) = memory.suggested_request_bytes {
        rows.push(row("suggested request", format!("--mem={}M", bytes.div_ceil(1 << 20))));
    }
}

fn gpus(summary: &JobSummary, rows: &mut Vec<Row>) {
    if summary.gpus.is_empty() {
        return;
    }
    let held = summary.gpu_held_seconds();
    let held = held.map_or_else(|| "allocation unknown".to_owned(), |held| format!("{} held", hours(held)));
    rows.push(row("GPU hours", format!("{held}, {} in use", hours(summary.gpu_used_seconds()))));
    for gpu in &summary.gpus {
        let name = if gpu.gpu.is_empty() { &gpu.uuid } else { &gpu.gpu };
        let mut parts = Vec::new();
        if gpu.used_seconds == 0.0 {
            parts.push("not used".to_owned());
        } else if let Some(peak) = gpu.memory_peak_bytes {
            let total = gpu.memory_total_bytes.map(|total| format!(" of {}", size(total)));
            parts.push(format!("peak memory {}{}", size(peak), total.unwrap_or_default()));
        } else {
            parts.push("peak memory unknown".to_owned());
        }
        if let Some(ratio) = gpu.mean_utilization_ratio {
            parts.push(format!("mean utilization {}", percent(ratio)));
        }
        rows.push(row(&format!("GPU {}", escaped(name)), parts.join(", ")));
    }
}

fn left(leftovers: &Leftovers, rows: &mut Vec<Row>) {
    let what = format!("left in {}", escaped(&leftovers.folder));
    let Some(found) = &leftovers.found else {
        let why = leftovers.unknown.as_deref().unwrap_or_default();
        return rows.push(row(&what, format!("unknown: {}", escaped(why))));
    };
    let least = if found.incomplete { "at least " } else { "" };
    rows.push(row(&what, format!("{least}{} files, {}", found.files, size(found.bytes))));
    for file in &found.largest {
        rows.push(row("", format!("{} {}", size(file.bytes), escaped(&file.name))));
    }
}

fn size(value: u64) -> String {
    bytes(real(value))
}

fn hours(seconds: f64) -> String {
    format!("{:.2}", seconds / 3600.0)
}
