//! `fragment`: how much of the free memory is of use for large blocks.
//!
//! Of a GPU nothing can be said from outside: the driver shows what an allocator reserved, not the holes in it.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use super::curve::Statistics;
use super::record::Kind;
use super::sight;
use super::text::{Paint, bytes, or_unknown, percent, table};
use super::{About, Body, Recorder};
use crate::exposition::plot::report::{Report, Series};

/// The order of a huge page of 2 MiB where pages have 4 KiB: what training nodes want large blocks for.
const HUGE: u32 = 9;
/// Orders in the table for people.
const SHOWN: [u32; 5] = [0, 3, 6, HUGE, 10];
/// A change of the index by less than this between the halves of the watch is none.
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

const GPU_NOTE: &str = "GPUs: from outside of a job the holes in its memory cannot be seen; it takes the allocator's own \
    figures, or a snapshot (torch.cuda.memory._dump_snapshot), which `memwarden snapshot FILE` reads.";

pub(super) fn body(recorder: &Recorder, about: &About, paint: Paint) -> Body {
    let zones = zones(recorder);
    let mut text = String::new();
    let mut rows = vec![vec![String::new(), "free".to_owned()]];
    rows[0].extend(SHOWN.map(|order| format!("order {order}")));
    rows[0].push("trend".to_owned());
    for zone in &zones {
        let mut row = vec![format!("node {} {}", zone.node, zone.zone), or_unknown(zone.free_bytes, bytes)];
        for order in SHOWN {
            let now = zone.unusable_free_ratio.get(&order).map(|found| found.current);
            row.push(or_unknown(now, percent));
        }
        row.push(trend(zone));
        rows.push(row);
    }
    text.push_str("Share of the free memory that is in blocks too small for one of 2^order pages\n");
    table(&mut text, &rows, paint);
    let threshold = about.threshold;
    let largest = largest(&zones);
    let worst = largest.and_then(|zone| zone.unusable_free_ratio.get(&HUGE).map(|found| (zone, found)));
    let alarm = threshold.is_some_and(|share| worst.is_some_and(|(_, found)| found.current > share));
    let verdict = match worst {
        Some((zone, found)) => format!(
            "Of the free memory of node {} {}, {} cannot hold a huge page (order {HUGE}); {}.",
            zone.node,
            zone.zone,
            percent(found.current),
            trend(zone)
        ),
        None => "The kernel tells nothing of its free blocks here.".to_owned(),
    };
    text.push_str(&format!("{verdict}\n"));
    if worst.is_some_and(|(_, found)| found.current > 0.5) {
        text.push_str(
            "  Huge pages and large network buffers may not be had at once: sysctl vm.compact_memory=1 compacts, \
             and a larger vm.min_free_kbytes keeps more in large blocks.\n",
        );
    }
    if let Some(share) = threshold.filter(|_| alarm) {
        text.push_str(&format!("  above the threshold of {}\n", percent(share)));
    }
    let stated: Vec<_> =
        recorder.last.findings.iter().filter(|stated| stated.analyzer == "fragmentation").collect();
    for finding in &stated {
        text.push_str(&format!("  {} ({})\n", finding.summary, paint.word(&finding.state)));
        if !finding.advice.is_empty() {
            text.push_str(&format!("    {}\n", finding.advice));
        }
    }
    if stated.is_empty() {
        text.push_str(&format!("{GPU_NOTE}\n"));
    }
    let findings: Vec<_> = stated
        .iter()
        .map(|stated| {
            json!({ "subject": stated.subject, "state": stated.state, "summary": stated.summary,
                "recommendation": stated.advice })
        })
        .collect();
    Body {
        json: json!({ "zones": zones, "page_order_of_huge_pages": HUGE, "findings": findings, "gpus": GPU_NOTE }),
        plot: plot(recorder, largest, verdict),
        text,
        alarm,
        found: !zones.is_empty(),
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
        let labels = [("node", node), ("zone", zone)];
        let entry = all.entry((node, zone)).or_insert_with(|| Zone {
            node,
            zone,
            free_bytes: recorder.last.value(sight::HOST_ZONE_FREE, &labels),
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

#[expect(clippy::cast_precision_loss, reason = "a few thousand")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The zone with the most free memory: the others are small on purpose.
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

fn plot(recorder: &Recorder, zone: Option<&Zone<'_>>, subtitle: String) -> Report {
    let series = zone.into_iter().flat_map(|zone| {
        SHOWN.iter().skip(1).filter_map(move |order| {
            let of = format!("{} {} {order}", zone.node, zone.zone);
            let points = recorder.curve(Kind::Zone, &of, sight::HOST_UNUSABLE)?.points();
            let name = format!("node {} {}, order {order}", zone.node, zone.zone);
            Some(Series { name, unit: "ratio".to_owned(), points, limit_bytes: None })
        })
    });
    Report { subtitle, series: series.collect(), ..Report::default() }
}
