//! `fragmentation`: how much of the free memory is usable for large blocks.
//!
//! The fragmentation of GPU memory is not visible from outside a job: the driver reports the reserved memory, not the
//! gaps in it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use super::curve::Statistics;
use super::record::{Kind, UNUSABLE};
use super::text;
use super::{About, Body, Page, Recorder};
use crate::model::format::percent;
use crate::model::health::Health;
use crate::model::units::real;
use crate::node_view::table::Row;
use crate::node_view::{Stated, Workload};
use crate::plot::report::{Report, Series};

/// The order of a huge page of 2 MiB with pages of 4 KiB, the main use of large blocks on training nodes.
const HUGE: u32 = 9;
/// Orders in the plot.
const DRAWN: [u32; 4] = [3, 6, HUGE, 10];
/// Maximum number of listed allocators.
const ALLOCATORS: usize = 20;
/// A change of the index below this between the halves of the observation counts as steady.
const STEADY: f64 = 0.02;

#[derive(Serialize)]
struct Zone<'a> {
    node: &'a str,
    zone: &'a str,
    free_bytes: Option<f64>,
    /// By order: 2^order pages.
    unusable_free_ratio: BTreeMap<u32, Statistics>,
    /// By order: the change of the mean from the first half of the watch to the second.
    unusable_free_change_ratio: BTreeMap<u32, f64>,
}

/// The allocator of a rank on one device.
#[derive(Serialize)]
struct Allocator<'a> {
    workload: &'a str,
    rank: &'a str,
    device: &'a str,
    gpu: &'a str,
    state: &'a str,
    unreleasable_bytes: Option<f64>,
    unreleasable_ratio: Option<f64>,
}

const GPU_NOTE: &str = "GPUs: fragmentation inside an allocator is not visible from outside the job; it requires the statistics that the job \
    reports, or an allocator snapshot (torch.cuda.memory._dump_snapshot), which `memwarden snapshot FILE` reads.";

pub(super) fn body(recorder: &Recorder, about: &About, page: Page) -> Body {
    let narrow = recorder.focus.is_narrow() || recorder.focus.devices.is_some();
    let allocators = allocators(recorder);
    let mut text = String::new();
    allocator_table(&mut text, &allocators, page);
    if narrow {
        return narrowed(recorder, allocators, text);
    }
    let zones = zones(recorder);
    let rows = zones.iter().map(|zone| {
        let share = |order| zone.unusable_free_ratio.get(&order).map(|found| found.current);
        Row::default()
            .text("", 0, format!("node {} {}", zone.node, zone.zone))
            .bytes("free", 1, zone.free_bytes)
            .value("order 0", 4, share(0), percent)
            .value("order 3", 3, share(3), percent)
            .value("order 6", 2, share(6), percent)
            .value("order 9", 0, share(HUGE), percent)
            .value("order 10", 5, share(10), percent)
            .text("trend", 0, trend(zone))
    });
    text.push_str("Share of the free memory that is in blocks too small for one of 2^order pages\n");
    text::rows(&mut text, rows, page);
    let threshold = about.threshold;
    let largest = largest(&zones);
    let worst = largest.and_then(|zone| zone.unusable_free_ratio.get(&HUGE).map(|found| (zone, found)));
    let alarm = threshold.is_some_and(|share| worst.is_some_and(|(_, found)| found.current > share));
    let verdict = match worst {
        Some((zone, found)) => format!(
            "Of the free memory of node {} {}, {} is in blocks too small for a huge page (order {HUGE}); {}.",
            zone.node,
            zone.zone,
            percent(found.current),
            trend(zone)
        ),
        None => "The kernel reports no free blocks.".to_owned(),
    };
    let level = match worst {
        None => Health::Unknown,
        Some((_, found)) if alarm || found.current > 0.5 => Health::Warning,
        Some(_) => Health::Ok,
    };
    let mut details = String::new();
    if worst.is_some_and(|(_, found)| found.current > 0.5) {
        details.push_str(
            "  Allocations of huge pages and large network buffers may fail or wait: sysctl vm.compact_memory=1 compacts, \
             and a larger vm.min_free_kbytes keeps more free memory in large blocks.\n",
        );
    }
    let findings = findings(&mut details, recorder);
    if findings.is_empty() && allocators.is_empty() {
        details.push_str(&format!("{GPU_NOTE}\n"));
    }
    Body {
        json: json!({ "zones": zones, "page_order_of_huge_pages": HUGE, "allocators": allocators,
            "findings": findings, "gpus": GPU_NOTE }),
        plot: plot(recorder, largest),
        text,
        result: Some((level, verdict)),
        details,
        alarm,
        found: !zones.is_empty(),
    }
}

/// A report of selected allocators only, without the host's free memory, which belongs to no workload and no GPU.
fn narrowed(recorder: &Recorder, allocators: Vec<Allocator<'_>>, text: String) -> Body {
    let bad = allocators.iter().filter(|allocator| allocator.state != "fine").count();
    let verdict = match (allocators.len(), bad) {
        (0, _) => "No allocator statistics are available for the selection.".to_owned(),
        (_, 0) => "No allocator is fragmented.".to_owned(),
        (all, bad) => format!("{bad} of {all} allocators are fragmented or fragmenting."),
    };
    let level = match (allocators.len(), bad) {
        (0, _) => Health::Unknown,
        (_, 0) => Health::Ok,
        _ => Health::Warning,
    };
    let mut details = String::new();
    let findings = findings(&mut details, recorder);
    Body {
        json: json!({ "allocators": allocators, "findings": findings }),
        plot: Report::default(),
        text,
        result: Some((level, verdict)),
        details,
        alarm: false,
        found: !allocators.is_empty(),
    }
}

/// The findings about the selection, added to the text and returned as JSON.
fn findings(text: &mut String, recorder: &Recorder) -> Vec<serde_json::Value> {
    let stated = recorder.last.findings.iter();
    let stated =
        stated.filter(|stated| stated.analyzer == "fragmentation" && recorder.focus.has(&stated.subject));
    let tell = |finding: &Stated| {
        text.push_str(&format!("  {} ({})\n", finding.summary, finding.state));
        if !finding.advice.is_empty() {
            text.push_str(&format!("    {}\n", finding.advice));
        }
        json!({ "subject": finding.subject, "state": finding.state, "summary": finding.summary,
            "recommendation": finding.advice })
    };
    stated.map(tell).collect()
}

/// The selected allocators, those that are not fine first.
fn allocators(recorder: &Recorder) -> Vec<Allocator<'_>> {
    let is_selected = |own: &Workload, gpu: &str| {
        recorder.focus.has_workload(&own.name) && recorder.focus.has_gpu(gpu, gpu)
    };
    let all =
        recorder.last.ranks().flat_map(|(own, rank)| rank.allocators.iter().map(move |at| (own, rank, at)));
    let assessed = all.filter(|(own, _, at)| !at.state.is_empty() && is_selected(own, &at.gpu));
    let mut found: Vec<_> = assessed
        .map(|(own, rank, at)| Allocator {
            workload: &own.name,
            rank: &rank.rank,
            device: &at.device,
            gpu: &at.gpu,
            state: &at.state,
            unreleasable_bytes: at.unreleasable,
            unreleasable_ratio: at.unreleasable_ratio,
        })
        .collect();
    found.sort_by_key(|allocator| allocator.state == "fine");
    found
}

fn allocator_table(text: &mut String, allocators: &[Allocator<'_>], page: Page) {
    if allocators.is_empty() {
        return;
    }
    text.push_str("Allocators of jobs: free memory that cannot be released to the device\n");
    let rows = allocators.iter().take(ALLOCATORS).map(|own| {
        Row::default()
            .text("", 0, own.workload)
            .number("rank", 0, own.rank)
            .number("device", 2, own.device)
            .number("gpu", 1, own.gpu)
            .bytes("unreleasable", 0, own.unreleasable_bytes)
            .value("share", 0, own.unreleasable_ratio, percent)
            .text("state", 0, own.state)
    });
    text::rows(text, rows, page);
    if allocators.len() > ALLOCATORS {
        text.push_str(&format!("  and {} more in no worse state\n", allocators.len() - ALLOCATORS));
    }
}

fn zones(recorder: &Recorder) -> Vec<Zone<'_>> {
    let mut all: BTreeMap<(&str, &str), Zone<'_>> = BTreeMap::new();
    for ((kind, of, _), curve) in recorder.curves.range((Kind::Zone, String::new(), "")..) {
        let mut parts = of.split(' ');
        let (Some(node), Some(zone), Some(order)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (Kind::Zone, Ok(order), Some(found)) = (kind, order.parse(), curve.statistics()) else {
            continue;
        };
        let known = recorder.last.host.zones.iter().find(|own| own.node == node && own.zone == zone);
        let entry = all.entry((node, zone)).or_insert_with(|| Zone {
            node,
            zone,
            free_bytes: known.and_then(|own| own.free),
            unusable_free_ratio: BTreeMap::new(),
            unusable_free_change_ratio: BTreeMap::new(),
        });
        entry.unusable_free_ratio.insert(order, found);
        let values: Vec<f64> = curve.points().into_iter().filter_map(|point| point.1).collect();
        let (first, second) = values.split_at(values.len() / 2);
        if let (Some(first), Some(second)) = (mean(first), mean(second)) {
            entry.unusable_free_change_ratio.insert(order, second - first);
        }
    }
    all.into_values().collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / real(values.len() as u64))
}

/// The zone with the most free memory; the other zones are small by design.
fn largest<'z, 'a>(zones: &'z [Zone<'a>]) -> Option<&'z Zone<'a>> {
    zones.iter().max_by(|a, b| a.free_bytes.unwrap_or(0.0).total_cmp(&b.free_bytes.unwrap_or(0.0)))
}

fn trend(zone: &Zone<'_>) -> String {
    match zone.unusable_free_change_ratio.get(&HUGE) {
        Some(change) if *change > STEADY => "rising".to_owned(),
        Some(change) if *change < -STEADY => "falling".to_owned(),
        Some(_) => "steady".to_owned(),
        None => "not known".to_owned(),
    }
}

fn plot(recorder: &Recorder, zone: Option<&Zone<'_>>) -> Report {
    let series = zone.into_iter().flat_map(|zone| {
        DRAWN.iter().filter_map(move |order| {
            let of = format!("{} {} {order}", zone.node, zone.zone);
            let points = recorder.curve(Kind::Zone, &of, UNUSABLE)?.points();
            let name = format!("node {} {}, order {order}", zone.node, zone.zone);
            Some(Series { name, unit: "ratio".to_owned(), points, limit_bytes: None })
        })
    });
    Report { series: series.collect(), ..Report::default() }
}
