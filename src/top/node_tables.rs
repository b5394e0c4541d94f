//! The tables of a node.

use super::data::NodeData;
use super::state::{Screen, Tab};
use super::table::{Cell, Row, Table, number, text};
use crate::model::format;
use crate::node_view::forecast::time_left;
use crate::node_view::{Gpu, Link, NodeView, Rank, Workload};

/// The screen that shows what a link is about; absent for the node itself.
pub(super) fn target(link: &Link) -> Option<Screen> {
    match link {
        Link::Node => None,
        Link::Gpu(index) => Some(Screen::Gpu(index.clone())),
        Link::Workload(name) => Some(Screen::Workload(name.clone())),
        Link::Protection => Some(Screen::Tab(Tab::Protection)),
    }
}

/// The table of a tab.
pub(super) fn table(data: &NodeData, tab: Tab) -> Table {
    let view = &data.view;
    match tab {
        Tab::Ranks => ranks(view),
        Tab::Gpus => gpus(view),
        Tab::Problems => problems(view),
        Tab::Events => events(data),
        Tab::Protection => protection(view),
        Tab::Sources => sources(view),
        _ => workloads(view),
    }
}

fn bytes(value: Option<f64>) -> Cell {
    Cell::number(value, format::bytes)
}

fn workloads(view: &NodeView) -> Table {
    let row = |own: &Workload| {
        let (left, shown) = view.first_to_run_out(own).unzip();
        let silent = || view.silent_gpu(own).map(|gpu| format!("unknown: GPU {gpu}"));
        let shown = shown.or_else(silent).unwrap_or_default();
        let growth = own.growth.as_ref().and_then(|growth| growth.bytes_per_second());
        let step = own
            .ranks
            .iter()
            .filter_map(|rank| rank.step)
            .fold(None, |most: Option<f64>, step| Some(most.map_or(step, |most| most.max(step))));
        Row {
            id: own.name.clone(),
            health: own.health,
            cells: vec![
                Cell::text(&own.name),
                Cell::text(&own.user),
                Cell::text(&own.run),
                bytes(own.gpu_memory),
                bytes(own.rss),
                Cell::number(growth, format::rate),
                Cell { text: Cell::text(&shown).text, number: left.map(|left| -left) },
                Cell::text(own.state()),
                Cell::number(step, |step| format!("{step:.0}")),
                Cell::number(Some(own.ranks.len()).filter(|ranks| *ranks > 0).map(count), |ranks| {
                    format!("{ranks:.0}")
                }),
                Cell::number(own.process_count, |processes| format!("{processes:.0}")),
            ],
            opens: Some(Screen::Workload(own.name.clone())),
        }
    };
    let omitted = match view.workloads_omitted {
        0 => "No workload is tracked.".to_owned(),
        omitted => format!("{omitted} workloads are not tracked because a limit is reached."),
    };
    Table {
        columns: vec![
            text("workload", 40, 0),
            text("user", 16, 2),
            text("run", 24, 6),
            number("GPU memory", 0),
            number("RSS", 0),
            number("growth", 3),
            number("time left", 1),
            text("state", 12, 5),
            number("step", 7),
            number("ranks", 4),
            number("processes", 8),
        ],
        rows: view.workloads.iter().map(row).collect(),
        empty: omitted,
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of rows")]
fn count(count: usize) -> f64 {
    count as f64
}

/// The sum of a figure of the rank's allocators.
pub(super) fn sum(rank: &Rank, of: impl Fn(&crate::node_view::Allocator) -> Option<f64>) -> Option<f64> {
    let known: Vec<f64> = rank.allocators.iter().filter_map(of).collect();
    (!known.is_empty()).then(|| known.iter().sum())
}

fn ranks(view: &NodeView) -> Table {
    let of = |workload: &Workload| {
        let row = |rank: &Rank| {
            let left = rank.forecast.as_ref().and_then(|forecast| forecast.stated()).map(|tte| tte.p50);
            let shown = rank.forecast.as_ref().and_then(time_left).unwrap_or_default();
            let state = rank.allocator_state().map_or("", |(state, _)| state);
            Row {
                id: format!("{}\0{}", workload.name, rank.rank),
                health: rank.health(),
                cells: vec![
                    Cell {
                        number: rank.rank.parse::<f64>().ok().map(|rank| -rank),
                        ..Cell::text(&rank.rank)
                    },
                    Cell::text(&workload.name),
                    Cell::text(&rank.gpu),
                    Cell::number(rank.step, |step| format!("{step:.0}")),
                    Cell::number(rank.step_seconds, |seconds| format!("{seconds:.2} s")),
                    Cell::number(rank.tokens_per_second, |tokens| format!("{tokens:.0}")),
                    bytes(sum(rank, |own| own.allocated)),
                    bytes(sum(rank, |own| own.reserved)),
                    Cell { text: Cell::text(&shown).text, number: left.map(|left| -left) },
                    Cell::number(rank.message_age, |age| format!("{} ago", format::duration(age))),
                    Cell::text(state),
                ],
                opens: Some(Screen::Rank(workload.name.clone(), rank.rank.clone())),
            }
        };
        workload.ranks.iter().map(row).collect::<Vec<_>>()
    };
    Table {
        columns: vec![
            number("rank", 0),
            text("workload", 32, 0),
            text("GPU", 4, 0),
            number("step", 1),
            number("step time", 3),
            number("tokens/s", 5),
            number("allocated", 0),
            number("reserved", 4),
            number("time left", 2),
            number("last message", 6),
            text("allocator", 12, 7),
        ],
        rows: view.workloads.iter().flat_map(of).collect(),
        empty: "No rank reports its steps.".to_owned(),
    }
}

/// Who holds the memory of a GPU, in few words.
pub(super) fn holders(gpu: &Gpu) -> String {
    let Some(first) = gpu.holders.first() else {
        return if gpu.answers() { "nobody".to_owned() } else { "unknown".to_owned() };
    };
    let last = if gpu.holders_are_last_known { "last: " } else { "" };
    let more = match gpu.holders.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{last}{}{more}", first.owner)
}

fn gpus(view: &NodeView) -> Table {
    let row = |gpu: &Gpu| {
        let answers = gpu.answers();
        let current = |value: Option<f64>| value.filter(|_| answers);
        let xids: f64 = gpu.xids.iter().map(|xid| xid.count).sum();
        Row {
            id: gpu.index.clone(),
            health: gpu.health,
            cells: vec![
                Cell { number: gpu.index.parse::<f64>().ok().map(|index| -index), ..Cell::text(&gpu.index) },
                Cell::text(&gpu.status),
                bytes(current(gpu.used)),
                bytes(current(gpu.free)),
                Cell::text(&gpu.time_left),
                Cell::number(current(gpu.utilization), format::percent),
                Cell::number(current(gpu.temperature), |celsius| format!("{celsius:.0} °C")),
                Cell::number(current(gpu.power), |watts| format!("{watts:.0} W")),
                Cell::number(Some(xids).filter(|xids| *xids > 0.0), |xids| format!("{xids:.0}")),
                Cell::text(&holders(gpu)),
            ],
            opens: Some(Screen::Gpu(gpu.index.clone())),
        }
    };
    Table {
        columns: vec![
            number("GPU", 0),
            text("status", 14, 0),
            number("used", 0),
            number("free", 2),
            text("time left", 24, 1),
            number("busy", 3),
            number("temperature", 5),
            number("power", 6),
            number("XIDs", 4),
            text("held by", 60, 0),
        ],
        rows: view.gpus.iter().map(row).collect(),
        empty: view.gpus_unseen.clone().unwrap_or_else(|| "No GPU was found.".to_owned()),
    }
}

fn problems(view: &NodeView) -> Table {
    let rows = view.problems.iter().enumerate().map(|(place, problem)| Row {
        id: format!("{}\0{:?}\0{place}", problem.what.split(" in ").next().unwrap_or_default(), problem.link),
        health: problem.health,
        cells: vec![
            Cell::number(problem.since, |since| format::clock(since, view.unix_seconds)),
            Cell::text(problem.sentence().trim_end_matches('.')),
        ],
        opens: Some(Screen::Problem(place)),
    });
    Table {
        columns: vec![number("since", 1), text("problem", 400, 0)],
        rows: rows.collect(),
        empty: view.no_problem().to_owned(),
    }
}

fn events(data: &NodeData) -> Table {
    let view = &data.view;
    let at = |unix: f64| Cell { text: format::clock(unix, view.unix_seconds), number: Some(unix) };
    let mut rows: Vec<(f64, Row)> = Vec::new();
    for event in &data.events {
        let opens = match (event.gpu.as_str(), event.workload.as_str()) {
            ("", "") => None,
            ("", workload) => Some(Screen::Workload(workload.to_owned())),
            (gpu, _) => Some(Screen::Gpu(gpu.to_owned())),
        };
        let id = format!("{}\0{}", event.unix_seconds, event.text);
        let cells = vec![at(event.unix_seconds), Cell::text(&event.text)];
        rows.push((event.unix_seconds, Row { id, health: event.health, cells, opens }));
    }
    for event in &view.job_events {
        let said = format!("{} rank {}: {}", event.workload, event.rank, event.what);
        let id = format!("{}\0{said}", event.unix_seconds);
        let cells = vec![at(event.unix_seconds), Cell::text(&said)];
        let opens = Some(Screen::Workload(event.workload.clone()));
        rows.push((event.unix_seconds, Row { id, health: event.health(), cells, opens }));
    }
    rows.sort_by(|(one, _), (next, _)| next.total_cmp(one));
    Table {
        columns: vec![number("time", 0), text("event", 400, 0)],
        rows: rows.into_iter().map(|(_, row)| row).collect(),
        empty: "No event is known.".to_owned(),
    }
}

fn protection(view: &NodeView) -> Table {
    let rows = view.protection.targets.iter().map(|target| Row {
        id: format!("{}\0{}", target.target, target.workload),
        health: target.health,
        cells: vec![
            Cell::text(&target.target),
            Cell::text(&target.mode),
            Cell::text(&target.workload),
            Cell::text(&target.state),
            Cell::text(&target.why.join(" ")),
        ],
        opens: Some(Screen::Target(target.target.clone(), target.workload.clone())),
    });
    Table {
        columns: vec![
            text("target", 16, 0),
            text("mode", 8, 1),
            text("workload", 24, 0),
            text("state", 12, 0),
            text("why", 400, 0),
        ],
        rows: rows.collect(),
        empty: "No protection target is configured.".to_owned(),
    }
}

fn sources(view: &NodeView) -> Table {
    let rows = view.sources.iter().map(|source| Row {
        id: source.name.clone(),
        health: source.measured(),
        cells: vec![
            Cell::text(&source.name),
            Cell::text(&source.status),
            Cell::number(source.age_seconds, |age| format!("{} ago", format::duration(age))),
            Cell::text(&source.why),
        ],
        opens: None,
    });
    Table {
        columns: vec![
            text("source", 16, 0),
            text("status", 12, 0),
            number("last complete sample", 1),
            text("reason", 400, 0),
        ],
        rows: rows.collect(),
        empty: "No source has been sampled.".to_owned(),
    }
}
