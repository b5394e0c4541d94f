//! A workload: its memory, ranks and processes, and how it is protected.

use std::fmt::Write as _;

use super::chart::{Chart, Curve};
use super::html::{self, Anchor, Escaped, Tag, shown};
use super::{Content, gpu, lists, node};
use crate::history::recent::{Quantity, Subject};
use crate::model::format;
use crate::node_view::{Link, Rank, Workload};

pub(super) fn write(out: &mut String, content: &Content<'_>, name: &str, rank: Option<&str>) -> bool {
    let Some(workload) = content.node.workload(name) else {
        let _ = write!(
            out,
            "<section><h2 class=\"title\">{}</h2><p>No workload of this name is running now.</p></section>",
            Escaped(name)
        );
        lists::events(out, content, 20, |event| event.workload == name);
        return false;
    };
    let _ = write!(out, "<h2 class=\"title\">{} <small>workload{}</small></h2>", Escaped(name), by(workload));
    if let Some(rank) = rank {
        return of_rank(out, content, workload, rank);
    }
    let about = |problem: &&crate::node_view::Problem| problem.workload.as_deref() == Some(name);
    let problems: Vec<_> = content.node.problems.iter().filter(about).cloned().collect();
    node::problems(out, &problems, content.node.unix_seconds);
    memory(out, content, workload);
    let ranks: Vec<(&str, &Rank)> = workload.ranks.iter().map(|rank| (name, rank)).collect();
    lists::ranks(out, content, &ranks, "Ranks");
    lists::processes(out, "Processes", &workload.processes, workload.rss, workload.other_processes);
    lists::protection(out, &content.node.protection, Some(name));
    lists::events(out, content, 20, |event| event.workload == name);
    lists::job_events(out, content.node, |event| event.workload == name);
    true
}

fn by(workload: &Workload) -> String {
    let mut text = String::new();
    if !workload.run.is_empty() {
        let _ = write!(text, ", run <b>{}</b>", Escaped(&workload.run));
    }
    if !workload.user.is_empty() {
        let _ = write!(text, ", user <b>{}</b>", Escaped(&workload.user));
    }
    text
}

fn memory(out: &mut String, content: &Content<'_>, workload: &Workload) {
    let subject = Subject::Workload(workload.name.as_str().into());
    html::section(out, "memory", "Memory");
    content.ranges(out, "");
    let _ = write!(
        out,
        "<p class=\"figure\">{} <b>{}</b> of host memory (RSS), <b>{}</b> on GPUs, outlook: {}</p>",
        Tag(workload.health, workload.health.word()),
        shown(workload.rss, format::bytes),
        shown(workload.gpu_memory, format::bytes),
        Escaped(&lists::outlook(content.node, workload)),
    );
    let recent = &content.recorder.recent;
    let chart = |title, name, quantity, forecast| Chart {
        title,
        range: content.range,
        curves: vec![Curve { name, steps: content.steps(&subject, quantity) }],
        limit: None,
        forecast,
        marks: content.marks(|event| event.workload == workload.name),
        now: recent.newest(),
        unix: content.recorder.unix(0.0),
        interval: content.interval(),
    };
    out.push_str("<div class=\"charts\">");
    let limit =
        workload.forecast.as_ref().and_then(|forecast| Some(forecast.headroom_bytes() + workload.rss?));
    let host = chart("Resident memory of the workload", "RSS", Quantity::Used, workload.forecast.as_ref());
    Chart {
        limit: limit.filter(|_| workload.forecast.as_ref().is_some_and(|own| own.stated().is_some())),
        ..host
    }
    .write(out);
    if workload.gpu_memory.is_some() {
        chart("GPU memory of the workload", "memory on GPUs", Quantity::Second, None).write(out);
    }
    out.push_str("</div>");
    let gpus: Vec<String> = workload
        .gpus
        .iter()
        .map(|(gpu, memory)| {
            let link = Anchor(&Link::Gpu(gpu.clone()), &format!("GPU {gpu}")).to_string();
            format!("{link} {}", shown(*memory, format::bytes))
        })
        .collect();
    let now = content.node.unix_seconds;
    html::facts(
        out,
        &[
            ("anonymous", shown(workload.anonymous, format::bytes)),
            ("shared", shown(workload.shared, format::bytes)),
            ("swap", shown(workload.swap, format::bytes)),
            ("GPUs", gpus.join(", ")),
            ("processes", shown(workload.process_count, |count| format!("{count:.0}"))),
            ("started", shown(workload.started, |started| format::clock(started, now))),
            ("kind", Escaped(&workload.kind).to_string()),
            ("cgroup", Escaped(&workload.cgroup).to_string()),
        ],
    );
    out.push_str("</section>");
}

fn of_rank(out: &mut String, content: &Content<'_>, workload: &Workload, name: &str) -> bool {
    let Some(rank) = workload.ranks.iter().find(|rank| rank.rank == name) else {
        let _ = write!(
            out,
            "<section><h2>Rank {}</h2><p>This workload has no such rank now: {}</p></section>",
            Escaped(name),
            html::workload(&workload.name)
        );
        return false;
    };
    let subject = Subject::Rank(workload.name.as_str().into(), name.into());
    let world = if rank.world.is_empty() { String::new() } else { format!(" of {}", Escaped(&rank.world)) };
    let _ = write!(
        out,
        "<section id=\"rank\"><h2>Rank {}{world}</h2><p>Part of {}</p>",
        Escaped(name),
        html::workload(&workload.name)
    );
    content.ranges(out, &format!("&amp;rank={}", html::segment(name)));
    Chart {
        title: "Allocated memory of the rank",
        range: content.range,
        curves: vec![
            Curve { name: "allocated", steps: content.steps(&subject, Quantity::Used) },
            Curve { name: "reserved", steps: content.steps(&subject, Quantity::Second) },
        ],
        limit: rank.allocators.first().and_then(|own| own.device_total),
        forecast: rank.forecast.as_ref(),
        marks: content.marks(|event| event.workload == workload.name),
        now: content.recorder.recent.newest(),
        unix: content.recorder.unix(0.0),
        interval: content.interval(),
    }
    .write(out);
    let now = content.node.unix_seconds;
    html::facts(
        out,
        &[
            (
                "GPU",
                if rank.gpu.is_empty() {
                    String::new()
                } else {
                    Anchor(&Link::Gpu(rank.gpu.clone()), &rank.gpu).to_string()
                },
            ),
            ("pid", Escaped(&rank.pid).to_string()),
            ("framework", Escaped(&rank.framework).to_string()),
            ("step", shown(rank.step, |step| format!("{step:.0}"))),
            ("seconds per step", shown(rank.step_seconds, |seconds| format!("{seconds:.3}"))),
            ("tokens per second", shown(rank.tokens_per_second, |tokens| format!("{tokens:.0}"))),
            ("loss", shown(rank.loss, |loss| format!("{loss:.4}"))),
            ("MFU", shown(rank.mfu, format::percent)),
            ("last message", shown(rank.message_age, |age| format!("{} ago", format::duration(age)))),
            ("last checkpoint", shown(rank.checkpoint_saved, |saved| format::clock(saved, now))),
        ],
    );
    out.push_str("</section>");
    rank.allocators.iter().for_each(|allocator| gpu::allocator(out, rank, allocator));
    let own: Vec<_> = workload.processes.iter().filter(|process| process.pid == rank.pid).cloned().collect();
    lists::processes(out, "Its process", &own, workload.rss, None);
    lists::job_events(out, content.node, |event| event.workload == workload.name && event.rank == name);
    true
}
