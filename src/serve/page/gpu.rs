//! A GPU: its memory, who holds it, their allocators, and what happened to it.

use std::fmt::Write as _;

use super::chart::{Chart, Curve};
use super::html::{self, Escaped, Tag, shown};
use super::{Content, lists, node};
use crate::history::recent::{Quantity, Subject};
use crate::model::format::{self, UNKNOWN};
use crate::node_view::{Allocator, Gpu, Health, Rank};

pub(super) fn write(out: &mut String, content: &Content<'_>, index: &str) -> bool {
    let Some(gpu) = content.node.gpu(index) else {
        let _ = write!(
            out,
            "<section><h2 class=\"title\">GPU {}</h2><p>There is no such GPU.</p></section>",
            Escaped(index)
        );
        return false;
    };
    let _ =
        write!(out, "<h2 class=\"title\">GPU {} <small>{}</small></h2>", Escaped(index), Escaped(&gpu.name));
    let about = |problem: &&crate::node_view::Problem| problem.gpu.as_deref() == Some(index);
    let problems: Vec<_> = content.node.problems.iter().filter(about).cloned().collect();
    node::problems(out, &problems, content.node.unix_seconds);
    memory(out, content, gpu);
    holders(out, gpu);
    let ranks: Vec<(&str, &Rank)> = content
        .node
        .workloads
        .iter()
        .flat_map(|workload| workload.ranks.iter().map(|rank| (workload.name.as_str(), rank)))
        .filter(|(_, rank)| rank.gpu == index)
        .collect();
    lists::ranks(out, content, &ranks, "Ranks on this GPU");
    for (_, rank) in &ranks {
        rank.allocators.iter().for_each(|allocator| self::allocator(out, rank, allocator));
    }
    device(out, gpu);
    lists::events(out, content, 20, |event| event.gpu == index);
    true
}

fn memory(out: &mut String, content: &Content<'_>, gpu: &Gpu) {
    let subject = Subject::Gpu(gpu.uuid.as_str().into());
    html::section(out, "memory", "Memory");
    content.ranges(out, "");
    let whole = match (gpu.used, gpu.free) {
        (Some(used), Some(free)) => Some(used + free),
        _ => gpu.total,
    };
    if gpu.answers() {
        let _ = write!(
            out,
            "<p class=\"figure\">{} <b>{}</b> of {} used{}, time left: {}</p>",
            Tag(gpu.health, gpu.health.word()),
            shown(gpu.used, format::bytes),
            shown(whole, format::bytes),
            gpu.share().map_or_else(String::new, |share| format!(" ({})", format::percent(share))),
            Escaped(&gpu.time_left),
        );
    } else {
        let _ = write!(
            out,
            "<p class=\"figure\">{} Its memory is unknown: {}. The last sample is {} old.</p>",
            Tag(gpu.health, &gpu.status),
            Escaped(gpu.status_words()),
            shown(gpu.sample_age, format::duration),
        );
    }
    Chart {
        title: "Memory of the GPU",
        range: content.range,
        curves: vec![Curve { name: "used", steps: content.steps(&subject, Quantity::Used) }],
        limit: whole,
        forecast: gpu.forecast.as_ref(),
        marks: content.marks(|event| event.gpu == gpu.index),
        now: content.recorder.recent.newest(),
        unix: content.recorder.unix(0.0),
        interval: content.interval(),
    }
    .write(out);
    let growth = gpu.forecast.as_ref().and_then(|forecast| forecast.growth());
    html::facts(
        out,
        &[
            ("free", shown(gpu.free, format::bytes)),
            ("growth", shown(growth, format::rate)),
            ("reserved by the driver", shown(gpu.reserved, format::bytes)),
            ("of no listed process", shown(gpu.unattributed, format::bytes)),
        ],
    );
    out.push_str("</section>");
}

fn holders(out: &mut String, gpu: &Gpu) {
    let title = if gpu.holders_are_last_known { "Who held it last" } else { "Who holds it" };
    html::section(out, "holders", title);
    if gpu.holders.is_empty() {
        let text =
            if gpu.answers() { "No workload uses this GPU." } else { "It is not known who uses this GPU." };
        let _ = write!(out, "<p class=\"quiet\">{text}</p></section>");
        return;
    }
    html::table(out, title, &[("workload", ""), ("memory", "number"), ("share", "wide"), ("ranks", "")]);
    for holder in &gpu.holders {
        let ranks = if holder.ranks.is_empty() { UNKNOWN.to_owned() } else { holder.ranks.join(", ") };
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"wide\">{}</td><td>{}</td></tr>",
            html::owner(&holder.owner),
            shown(holder.memory, format::bytes),
            html::Bar(format::share(holder.memory, gpu.total), Health::Ok),
            Escaped(&ranks),
        );
    }
    html::end_table(out);
    out.push_str("</section>");
}

/// How an allocator uses what it reserved, as one bar.
pub(super) fn allocator(out: &mut String, rank: &Rank, allocator: &Allocator) {
    let (Some(reserved), Some(allocated)) = (allocator.reserved, allocator.allocated) else { return };
    if reserved <= 0.0 {
        return;
    }
    let lost =
        allocator.unreleasable.or(allocator.inactive_split).unwrap_or(0.0).min(reserved - allocated).max(0.0);
    let share = |part: f64| (part / reserved * 100.0).clamp(0.0, 100.0);
    let (own, torn) = (share(allocated), share(lost));
    let _ = write!(
        out,
        "<section><h2>Allocator of rank {}{}</h2><figure><svg class=\"stack\" viewBox=\"0 0 100 8\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{} of the reserved memory is allocated, {} is free and cannot be released\">\
         <rect class=\"one\" width=\"{own:.2}\" height=\"8\"/><rect class=\"torn\" x=\"{own:.2}\" width=\"{torn:.2}\" height=\"8\"/></svg>\
         <figcaption><span class=\"key one\">allocated {}</span> <span class=\"key torn\">free, cannot be released {}</span> \
         <span class=\"key rest\">other free {}</span></figcaption></figure>",
        Escaped(&rank.rank),
        if allocator.gpu.is_empty() { String::new() } else { format!(" on GPU {}", Escaped(&allocator.gpu)) },
        format::percent(own / 100.0),
        format::percent(torn / 100.0),
        format::bytes(allocated),
        format::bytes(lost),
        format::bytes((reserved - allocated - lost).max(0.0)),
    );
    let count = |value: Option<f64>| shown(value, |count| format!("{count:.0}"));
    html::facts(
        out,
        &[
            ("reserved", format::bytes(reserved)),
            ("peak allocated", shown(allocator.allocated_peak, format::bytes)),
            ("inactive split", shown(allocator.inactive_split, format::bytes)),
            ("largest free block", shown(allocator.largest_free, format::bytes)),
            ("free on the device", shown(allocator.device_free, format::bytes)),
            ("retried allocations", count(allocator.retries)),
            ("failed allocations", count(allocator.ooms)),
            ("state", Escaped(&allocator.state).to_string()),
        ],
    );
    out.push_str("</section>");
}

fn device(out: &mut String, gpu: &Gpu) {
    html::section(out, "device", "Device");
    let watts = |value: Option<f64>| shown(value, |watts| format!("{watts:.0} W"));
    let mut facts = vec![
        ("busy", shown(gpu.utilization, format::percent)),
        ("temperature", shown(gpu.temperature, |celsius| format!("{celsius:.0} °C"))),
        ("power", watts(gpu.power)),
        ("power limit", watts(gpu.power_limit)),
        ("throttled", Escaped(&gpu.throttled.join(", ")).to_string()),
        ("uncorrected ECC errors", shown(gpu.uncorrected_ecc, |count| format!("{count:.0}"))),
        ("UUID", format!("<code>{}</code>", Escaped(&gpu.uuid))),
        ("PCI address", Escaped(&gpu.pci).to_string()),
    ];
    for mig in &gpu.mig {
        let (used, total) = (shown(mig.used, format::bytes), shown(mig.total, format::bytes));
        facts.push(("MIG instance", format!("{}: {used} of {total}", Escaped(&mig.instance))));
    }
    html::facts(out, &facts);
    if !gpu.xids.is_empty() {
        html::table(
            out,
            "XID errors",
            &[("XID", ""), ("severity", ""), ("count", "number"), ("meaning", "text")],
        );
        for xid in &gpu.xids {
            let _ = write!(
                out,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"number\">{:.0}</td><td class=\"text\">{}</td></tr>",
                Escaped(&xid.xid),
                Tag(xid.health(), &xid.severity),
                xid.count,
                Escaped(&xid.meaning),
            );
        }
        html::end_table(out);
    }
    out.push_str("</section>");
}
