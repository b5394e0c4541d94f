//! Tables that several views have: workloads, protection, events, processes, ranks.

use std::fmt::Write as _;

use super::Content;
use super::html::{self, Bar, Escaped, Tag, shown};
use crate::history::recent::{Quantity, Subject};
use crate::model::format::{self, UNKNOWN};
use crate::node_view::events::Event;
use crate::node_view::forecast::time_left;
use crate::node_view::{Health, JobEvent, Link, NodeView, Process, Protection, Rank, Workload};

/// The time left and the growth of a workload.
pub(super) fn outlook(node: &NodeView, workload: &Workload) -> String {
    if let Some((_, left)) = node.first_to_run_out(workload) {
        return format!("full in {left}");
    }
    if let Some(gpu) = node.silent_gpu(workload) {
        return format!("unknown: GPU {gpu}");
    }
    let state = workload.state();
    if state == "fragmented" {
        return "allocator fragmented".to_owned();
    }
    let Some(growth) = &workload.growth else { return UNKNOWN.to_owned() };
    let rate = growth
        .bytes_per_second()
        .filter(|_| growth.grows())
        .map_or_else(String::new, |rate| format!(" {}", format::rate(rate)));
    match state {
        "insufficient" => "too few samples".to_owned(),
        state => format!("{state}{rate}"),
    }
}

/// The workloads, at most so many.
pub(super) fn workloads(out: &mut String, content: &Content<'_>, most: usize) {
    let node = content.node;
    if node.workloads.is_empty() {
        out.push_str("<p class=\"quiet\">No workload is running, or none could be identified.</p>");
        return;
    }
    let columns = [
        ("workload", ""),
        ("user", ""),
        ("run", "wide"),
        ("outlook", ""),
        ("RSS", "number"),
        ("last 10 min", "wide"),
        ("GPU memory", "number"),
        ("GPUs", "wide"),
        ("ranks", "number widest"),
        ("step", "number widest"),
        ("processes", "number widest"),
    ];
    html::table(out, "Workloads", &columns);
    for workload in node.workloads.iter().take(most) {
        let subject = Subject::Workload(workload.name.as_str().into());
        let step = workload.ranks.iter().filter_map(|rank| rank.step).reduce(f64::max);
        let gpus: Vec<String> = workload
            .gpus
            .iter()
            .map(|(gpu, _)| html::Anchor(&Link::Gpu(gpu.clone()), gpu).to_string())
            .collect();
        let flag = match workload.health {
            Health::Ok => String::new(),
            health => format!("{} ", Tag(health, health.word())),
        };
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{flag}{}</th><td>{}</td><td class=\"wide\">{}</td><td>{}</td><td class=\"number\">{}</td>\
             <td class=\"wide\">{}</td><td class=\"number\">{}</td><td class=\"wide\">{}</td><td class=\"number widest\">{}</td>\
             <td class=\"number widest\">{}</td><td class=\"number widest\">{}</td></tr>",
            html::workload(&workload.name),
            Escaped(if workload.user.is_empty() { UNKNOWN } else { &workload.user }),
            Escaped(if workload.run.is_empty() { UNKNOWN } else { &workload.run }),
            Escaped(&outlook(node, workload)),
            shown(workload.rss, format::bytes),
            content.spark(&subject, Quantity::Used, None, "RSS of the last 10 minutes"),
            shown(workload.gpu_memory, format::bytes),
            if gpus.is_empty() { UNKNOWN.to_owned() } else { gpus.join(" ") },
            if workload.ranks.is_empty() { UNKNOWN.to_owned() } else { workload.ranks.len().to_string() },
            shown(step, |step| format!("{step:.0}")),
            shown(workload.process_count, |count| format!("{count:.0}")),
        );
    }
    html::end_table(out);
    if node.workloads.len() > most {
        let _ = write!(out, "<p><a href=\"/workloads\">All {} workloads</a></p>", node.workloads.len());
    }
    if node.workloads_omitted > 0 {
        let _ = write!(
            out,
            "<p>{} {} more workloads are not tracked: sources.workload.max_workloads is reached.</p>",
            Tag(Health::Unknown, "unknown"),
            node.workloads_omitted
        );
    }
}

/// The protection of all targets, or of one workload.
pub(super) fn protection(out: &mut String, protection: &Protection, workload: Option<&str>) {
    let targets: Vec<_> = protection
        .targets
        .iter()
        .filter(|target| workload.is_none_or(|workload| target.workload == workload))
        .collect();
    html::section(out, "protection", "Protection");
    if targets.is_empty() {
        out.push_str(match (workload, protection.configured()) {
            (Some(_), true) => "<p class=\"quiet\">No protection target names this workload.</p></section>",
            _ => "<p class=\"quiet\">No protection target is configured: memwarden signals no process.</p></section>",
        });
        return;
    }
    let columns = [
        ("target", ""),
        ("workload", ""),
        ("mode", "wide"),
        ("state", ""),
        ("why it is there", ""),
        ("memory left", "wide"),
        ("processes", "number widest"),
        ("terminations left", "number widest"),
    ];
    html::table(out, "Protection targets", &columns);
    for target in targets {
        let members = shown(target.members, |members| format!("{members:.0}"));
        let left_out = target.left_out.filter(|count| *count > 0.0);
        let members =
            left_out.map_or_else(|| members.clone(), |count| format!("{members} ({count:.0} left out)"));
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"wide\">{}</td><td>{}</td><td class=\"text\">{}</td>\
             <td class=\"wide\">{}</td><td class=\"number widest\">{}</td><td class=\"number widest\">{}</td></tr>",
            Escaped(&target.target),
            if target.workload.is_empty() { UNKNOWN.to_owned() } else { html::workload(&target.workload) },
            Escaped(&target.mode),
            Tag(target.health, if target.state.is_empty() { "no workload" } else { &target.state }),
            Escaped(&target.why.join(" ")),
            Escaped(&target.headroom_text()),
            members,
            shown(target.terminations_left, |left| format!("{left:.0}")),
        );
    }
    html::end_table(out);
    if workload.is_none() {
        let age = shown(protection.round_age, |age| format!("{} ago", format::duration(age)));
        html::facts(
            out,
            &[
                ("last round of the guard", age),
                (
                    "terminations left on the host this hour",
                    shown(protection.terminations_left, |left| format!("{left:.0}")),
                ),
                ("workloads without a slot", shown(protection.unprotected, |count| format!("{count:.0}"))),
            ],
        );
    }
    out.push_str("</section>");
}

/// The newest events that `wanted` accepts, at most so many.
pub(super) fn events(out: &mut String, content: &Content<'_>, most: usize, wanted: impl Fn(&Event) -> bool) {
    html::section(out, "events", "Events");
    let mut newest = content.recorder.events().rev().filter(|event| wanted(event)).take(most).peekable();
    if newest.peek().is_none() {
        out.push_str("<p class=\"quiet\">Nothing changed since memwarden started.</p></section>");
        return;
    }
    out.push_str("<ol class=\"events\">");
    for event in newest {
        let at = format::timestamp(event.unix_seconds);
        let _ = write!(
            out,
            "<li><time datetime=\"{at}\">{}</time> {} <span>{}</span></li>",
            format::clock(event.unix_seconds, content.node.unix_seconds),
            Tag(event.health, if event.health == Health::Ok { "over" } else { event.health.word() }),
            Escaped(&event.text),
        );
    }
    out.push_str("</ol></section>");
}

/// The events that jobs reported and `wanted` accepts.
pub(super) fn job_events(out: &mut String, node: &NodeView, wanted: impl Fn(&JobEvent) -> bool) {
    let mut events = node.job_events.iter().filter(|event| wanted(event)).peekable();
    if events.peek().is_none() {
        return;
    }
    html::section(out, "job-events", "Events that jobs reported");
    out.push_str("<ol class=\"events\">");
    for event in events {
        let at = format::timestamp(event.unix_seconds);
        let tag = if event.failed { Tag(event.health(), "failed").to_string() } else { String::new() };
        let name = if event.workload.is_empty() { String::new() } else { html::workload(&event.workload) };
        let _ = write!(
            out,
            "<li><time datetime=\"{at}\">{}</time> {tag} <span>{name} rank {} {}</span></li>",
            format::clock(event.unix_seconds, node.unix_seconds),
            Escaped(&event.rank),
            Escaped(&event.what),
        );
    }
    out.push_str("</ol></section>");
}

/// Processes, largest first.
pub(super) fn processes(
    out: &mut String,
    title: &str,
    processes: &[Process],
    whole: Option<f64>,
    others: Option<f64>,
) {
    if processes.is_empty() {
        return;
    }
    html::section(out, "processes", title);
    let columns = [
        ("process", ""),
        ("pid", "number"),
        ("RSS", "number"),
        ("share", "wide"),
        ("GPU memory", ""),
        ("rank", "number"),
    ];
    html::table(out, title, &columns);
    for process in processes {
        let gpus: Vec<String> = process
            .gpus
            .iter()
            .map(|(gpu, memory)| format!("GPU {gpu}: {}", format::bytes(*memory)))
            .collect();
        let _ = write!(
            out,
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"wide\">{}</td>\
             <td>{}</td><td class=\"number\">{}</td></tr>",
            Escaped(&process.name),
            Escaped(&process.pid),
            shown(process.rss, format::bytes),
            Bar(format::share(process.rss, whole), Health::Ok),
            Escaped(&if gpus.is_empty() { UNKNOWN.to_owned() } else { gpus.join(", ") }),
            Escaped(if process.rank.is_empty() { UNKNOWN } else { &process.rank }),
        );
    }
    html::end_table(out);
    if let Some(others) = others.filter(|others| *others > 0.0) {
        let _ = write!(out, "<p class=\"quiet\">{others:.0} smaller processes are not listed.</p>");
    }
    out.push_str("</section>");
}

/// Ranks with their allocators.
pub(super) fn ranks(out: &mut String, content: &Content<'_>, ranks: &[(&str, &Rank)], title: &str) {
    if ranks.is_empty() {
        return;
    }
    html::section(out, "ranks", title);
    let columns = [
        ("rank", ""),
        ("GPU", "number"),
        ("allocator", ""),
        ("allocated", "number"),
        ("last 10 min", "wide"),
        ("reserved", "number"),
        ("cannot be released", "number wide"),
        ("outlook", ""),
        ("step", "number wide"),
        ("s per step", "number widest"),
        ("tokens/s", "number widest"),
        ("MFU", "number widest"),
        ("checkpoint", "widest"),
    ];
    html::table(out, title, &columns);
    for (workload, rank) in ranks {
        let subject = Subject::Rank((*workload).into(), rank.rank.as_str().into());
        let allocator = rank.allocators.first();
        let amount = |field: fn(&crate::node_view::Allocator) -> Option<f64>| {
            let known = rank.allocators.iter().filter_map(field).reduce(|one, next| one + next);
            shown(known, format::bytes)
        };
        let state_tag = match rank.allocator_state() {
            Some((state, Health::Ok)) => Escaped(state).to_string(),
            Some((state, health)) => Tag(health, state).to_string(),
            None => UNKNOWN.to_owned(),
        };
        let unreleasable = allocator.and_then(|own| own.unreleasable);
        let lost = unreleasable.map_or_else(
            || UNKNOWN.to_owned(),
            |lost| {
                let share = format::share(Some(lost), allocator.and_then(|own| own.reserved));
                format!(
                    "{}{}",
                    format::bytes(lost),
                    share.map_or_else(String::new, |share| format!(" ({})", format::percent(share)))
                )
            },
        );
        let outlook = rank.forecast.as_ref().and_then(time_left).map_or_else(
            || {
                rank.growth.as_ref().map_or_else(
                    || UNKNOWN.to_owned(),
                    |growth| {
                        let rate = growth.bytes_per_second().filter(|_| growth.grows()).map(format::rate);
                        let state = match growth.state.word() {
                            "insufficient" => "too few samples",
                            state => state,
                        };
                        format!("{state}{}", rate.map_or_else(String::new, |rate| format!(" {rate}")))
                    },
                )
            },
            |left| format!("full in {left}"),
        );
        let link = format!(
            "{}?rank={}",
            html::path(&Link::Workload((*workload).to_owned())),
            html::segment(&rank.rank)
        );
        let _ = write!(
            out,
            "<tr><th scope=\"row\"><a href=\"{link}\">{}</a></th><td class=\"number\">{}</td><td>{state_tag}</td><td class=\"number\">{}</td>\
             <td class=\"wide\">{}</td><td class=\"number\">{}</td><td class=\"number wide\">{lost}</td><td>{}</td><td class=\"number wide\">{}</td>\
             <td class=\"number widest\">{}</td><td class=\"number widest\">{}</td><td class=\"number widest\">{}</td><td class=\"widest\">{}</td></tr>",
            Escaped(&rank.rank),
            if rank.gpu.is_empty() {
                UNKNOWN.to_owned()
            } else {
                html::Anchor(&Link::Gpu(rank.gpu.clone()), &rank.gpu).to_string()
            },
            amount(|own| own.allocated),
            content.spark(
                &subject,
                Quantity::Used,
                allocator.and_then(|own| own.device_total),
                "allocated memory of the last 10 minutes"
            ),
            amount(|own| own.reserved),
            Escaped(&outlook),
            shown(rank.step, |step| format!("{step:.0}")),
            shown(rank.step_seconds, |seconds| format!("{seconds:.3}")),
            shown(rank.tokens_per_second, |tokens| format!("{tokens:.0}")),
            shown(rank.mfu, format::percent),
            Escaped(if rank.checkpoint.is_empty() { UNKNOWN } else { &rank.checkpoint }),
        );
    }
    html::end_table(out);
    out.push_str("</section>");
}
