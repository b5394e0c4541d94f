//! The node: its problems, host, GPUs, workloads, protection, events and sources.

use std::fmt::Write as _;

use super::chart::{Chart, Curve};
use super::html::{self, Anchor, Bar, Escaped, Tag, shown};
use super::{Content, lists};
use crate::history::recent::{Quantity, Subject};
use crate::model::format::{self, UNKNOWN};
use crate::node_view::forecast::time_left;
use crate::node_view::{Gpu, Health, Link, NodeView, Problem};

/// Maximum number of workloads on the page of the node.
const MOST_WORKLOADS: usize = 60;
/// Maximum number of problems on the page of the node.
const MOST_PROBLEMS: usize = 20;
/// Maximum number of events on the page of the node.
const MOST_EVENTS: usize = 12;

pub(super) fn write(out: &mut String, content: &Content<'_>) {
    let node = content.node;
    problems(out, &node.problems, node.unix_seconds);
    gpus(out, content);
    host(out, content);
    html::section(out, "workloads", "Workloads");
    lists::workloads(out, content, MOST_WORKLOADS);
    out.push_str("</section>");
    lists::protection(out, &node.protection, None);
    lists::events(out, content, MOST_EVENTS, |_| true);
    sources(out, node);
}

/// The problems, worst first.
pub(super) fn problems(out: &mut String, problems: &[Problem], now: f64) {
    if problems.is_empty() {
        return;
    }
    html::section(out, "problems", "Problems");
    out.push_str("<ol class=\"problems\">");
    for problem in problems.iter().take(MOST_PROBLEMS) {
        let _ = write!(
            out,
            "<li class=\"{}\">{} <div><p><strong><a href=\"{}\">{}</a></strong>",
            html::class(problem.health),
            Tag(problem.health, problem.health.word()),
            html::path(&problem.link),
            Escaped(&problem.what),
        );
        if !problem.because.is_empty() {
            let _ = write!(out, ": {}", Escaped(&problem.because));
        }
        out.push_str("</p><p>");
        if let Some(owner) = &problem.owner {
            let last = if problem.owner_is_last_known { "last used by " } else { "" };
            let _ = write!(out, "{last}{} ", html::owner(owner));
        }
        // Most sentences have it.
        let clock = |since: f64| format!("since {}", format::clock(since, now));
        let is_told = |told: &str| problem.what.contains(told) || problem.because.contains(told);
        if let Some(since) = problem.since.map(clock).filter(|told| !is_told(told)) {
            let _ = write!(out, "<small>{since}</small>");
        }
        out.push_str("</p>");
        if !problem.advice.is_empty() {
            let _ = write!(out, "<p class=\"advice\">{}</p>", Escaped(&problem.advice));
        }
        out.push_str("</div></li>");
    }
    out.push_str("</ol>");
    if problems.len() > MOST_PROBLEMS {
        let _ = write!(
            out,
            "<p class=\"quiet\">{} more are at /api/v1/node.</p>",
            problems.len() - MOST_PROBLEMS
        );
    }
    out.push_str("</section>");
}

fn host(out: &mut String, content: &Content<'_>) {
    let host = &content.node.host;
    html::section(out, "host", "Host memory");
    content.ranges(out, "");
    let _ = write!(
        out,
        "<p class=\"figure\">{} <b>{}</b> of {} used{}{}</p>",
        Tag(host.health, host.health.word()),
        shown(host.used, format::bytes),
        shown(host.total, format::bytes),
        host.share().map_or_else(String::new, |share| format!(" ({})", format::percent(share))),
        host.forecast
            .as_ref()
            .and_then(time_left)
            .map_or_else(String::new, |left| format!(", full in {left}")),
    );
    let recent = &content.recorder.recent;
    Chart {
        title: "Memory of the host",
        range: content.range,
        curves: vec![
            Curve { name: "used", steps: content.steps(&Subject::Host, Quantity::Used) },
            Curve { name: "swap", steps: content.steps(&Subject::Host, Quantity::Second) },
        ],
        limit: host.total,
        forecast: host.forecast.as_ref(),
        marks: content.marks(|event| event.gpu.is_empty() && event.workload.is_empty()),
        now: recent.newest(),
        unix: content.recorder.unix(0.0),
        interval: content.interval(),
    }
    .write(out);
    let swap = match (host.swap_used, host.swap_total) {
        (Some(used), Some(total)) if total > 0.0 => {
            format!("{} of {}", format::bytes(used), format::bytes(total))
        }
        (_, Some(_)) => "none".to_owned(),
        _ => UNKNOWN.to_owned(),
    };
    html::facts(
        out,
        &[
            ("anonymous", shown(host.anonymous, format::bytes)),
            ("page cache", shown(host.cached, format::bytes)),
            ("shared, tmpfs", shown(host.shared, format::bytes)),
            ("swap", swap),
            ("OOM kills since boot", shown(host.oom_kills, |kills| format!("{kills:.0}"))),
            ("kernel", Escaped(&host.kernel).to_string()),
            ("system", Escaped(&host.os).to_string()),
        ],
    );
    out.push_str("</section>");
}

fn gpus(out: &mut String, content: &Content<'_>) {
    let node = content.node;
    html::section(out, "gpus", "GPUs");
    if let Some(why) = &node.gpus_unseen {
        let _ = write!(out, "<p>{} {}</p>", Tag(Health::Unknown, "unknown"), Escaped(why));
    }
    if node.gpus.is_empty() {
        if node.gpus_unseen.is_none() {
            out.push_str("<p class=\"quiet\">No GPU was found.</p>");
        }
        out.push_str("</section>");
        return;
    }
    let columns = [
        ("GPU", ""),
        ("memory", ""),
        ("last 10 min", "wide"),
        ("time left", ""),
        ("held by", ""),
        ("busy", "number wide"),
        ("°C", "number wide"),
        ("power", "number widest"),
        ("notes", "widest"),
    ];
    html::table(out, "GPUs", &columns);
    for gpu in &node.gpus {
        row(out, content, gpu);
    }
    html::end_table(out);
    out.push_str("</section>");
}

/// What is remarkable about a GPU, in few words.
pub(super) fn notes(gpu: &Gpu) -> String {
    let mut notes: Vec<String> =
        gpu.xids.iter().map(|xid| format!("XID {} ×{:.0}", xid.xid, xid.count)).collect();
    if gpu.uncorrected_ecc.is_some_and(|errors| errors > 0.0) {
        notes.push("uncorrected ECC errors".to_owned());
    }
    if !gpu.throttled.is_empty() {
        notes.push(format!("throttled: {}", gpu.throttled.join(", ")));
    }
    if !gpu.mig.is_empty() {
        notes.push(format!("{} MIG instances", gpu.mig.len()));
    }
    notes.join("; ")
}

fn row(out: &mut String, content: &Content<'_>, gpu: &Gpu) {
    let subject = Subject::Gpu(gpu.uuid.as_str().into());
    let whole = match (gpu.used, gpu.free) {
        (Some(used), Some(free)) => Some(used + free),
        _ => gpu.total,
    };
    let status = match (gpu.answers(), gpu.health) {
        (false, health) => {
            Tag(health, if gpu.status.is_empty() { "unknown" } else { &gpu.status }).to_string()
        }
        (true, health) => Tag(health, health.word()).to_string(),
    };
    let memory = match gpu.used {
        Some(used) if gpu.answers() => {
            format!(
                "{} <span class=\"nowrap\">{} of {}</span>",
                Bar(gpu.share(), gpu.health),
                format::bytes(used),
                shown(whole, format::bytes)
            )
        }
        _ => "unknown".to_owned(),
    };
    let first = gpu.holders.first().map(|holder| html::owner(&holder.owner));
    let others = gpu.holders.len().saturating_sub(1);
    let held = first.map_or_else(
        || if gpu.answers() { "nobody".to_owned() } else { "unknown".to_owned() },
        |first| {
            let last = if gpu.holders_are_last_known { "last: " } else { "" };
            let others = if others > 0 { format!(" and {others} more") } else { String::new() };
            format!("{last}{first}{others}")
        },
    );
    let _ = write!(
        out,
        "<tr><th scope=\"row\">{} {status}</th><td>{memory}</td><td class=\"wide\">{}</td><td>{}</td><td>{held}</td>\
         <td class=\"number wide\">{}</td><td class=\"number wide\">{}</td><td class=\"number widest\">{}</td><td class=\"widest\">{}</td></tr>",
        Anchor(&Link::Gpu(gpu.index.clone()), &format!("GPU {}", gpu.index)),
        content.spark(&subject, Quantity::Used, whole, "memory of the last 10 minutes"),
        Escaped(&gpu.time_left),
        shown(gpu.utilization, format::percent),
        shown(gpu.temperature, |celsius| format!("{celsius:.0}")),
        shown(gpu.power, |watts| format!("{watts:.0} W")),
        Escaped(&notes(gpu)),
    );
}

fn sources(out: &mut String, node: &NodeView) {
    let failing = node.sources.iter().filter(|source| source.fails()).count();
    html::section(out, "sources", "Sources");
    let open = if failing > 0 { " open" } else { "" };
    let summary = match failing {
        0 => format!("{} sources, none fails", node.sources.len()),
        1 => "1 source fails".to_owned(),
        failing => format!("{failing} sources fail"),
    };
    let _ = write!(out, "<details{open}><summary>{summary}</summary>");
    html::table(
        out,
        "Sources",
        &[("source", ""), ("status", ""), ("last complete sample", "number wide"), ("reason", "text")],
    );
    for source in &node.sources {
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"number wide\">{}</td><td class=\"text\">{}</td></tr>",
            Escaped(&source.name),
            Tag(source.measured(), &source.status),
            shown(source.age_seconds, |age| format!("{} ago", format::duration(age))),
            Escaped(&source.why),
        );
    }
    html::end_table(out);
    out.push_str("</details></section>");
}
