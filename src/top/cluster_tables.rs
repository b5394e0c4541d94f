//! The tables of a cluster.

use super::state::{Screen, Tab};
use super::table::{Cell, Row, Table, number, text};
use crate::cluster::{Cluster, Run};
use crate::model::format;

/// The table of a tab.
pub(super) fn table(cluster: &Cluster, tab: Tab) -> Table {
    match tab {
        Tab::Runs => runs(cluster),
        Tab::Alerts => alerts(cluster),
        _ => nodes(cluster),
    }
}

fn left(seconds: Option<f64>) -> Cell {
    let shown = Cell::number(seconds, format::duration);
    Cell { number: shown.number.map(|seconds| -seconds), ..shown }
}

fn counted(value: Option<f64>) -> Cell {
    Cell::number(value, |value| format!("{value:.0}"))
}

fn nodes(cluster: &Cluster) -> Table {
    let rows = cluster.nodes.iter().map(|node| Row {
        id: format!("{}\0{}", node.job, node.instance),
        health: node.health(),
        cells: vec![
            Cell::text(&node.instance),
            Cell::text(node.state.word()),
            Cell { text: node.memory.word().to_owned(), number: None },
            left(node.time_to_exhaustion_seconds),
            Cell::number(node.exhaustion_probability_15m_ratio, format::percent),
            counted(node.leaks),
            counted(node.critical_findings),
        ],
        opens: Some(Screen::Node(node.job.clone(), node.instance.clone())),
    });
    Table {
        columns: vec![
            text("node", 48, 0),
            text("state", 10, 0),
            text("memory", 10, 0),
            number("time left", 0),
            number("P(15 min)", 2),
            number("leaks", 1),
            number("critical findings", 3),
        ],
        rows: rows.collect(),
        empty: "The server knows no node.".to_owned(),
    }
}

fn runs(cluster: &Cluster) -> Table {
    let row = |run: &Run| {
        let world = run.world_size.map_or_else(String::new, |world| format!(" of {world:.0}"));
        let first = run.first.as_ref();
        let what = run.first_resource().unwrap_or_default();
        Row {
            id: format!("{}\0{}", run.job, run.run),
            health: run.health(),
            cells: vec![
                Cell::text(&run.run),
                Cell::text(&run.user),
                Cell { text: format!("{:.0}{world}", run.ranks), number: Some(run.ranks) },
                Cell::text(run.progress().unwrap_or_default()),
                left(first.map(|first| first.time_to_exhaustion_seconds)),
                Cell::number(run.slowest.as_ref().map(|rank| rank.step_time_ratio), format::percent),
                Cell::number(run.tokens_per_second, |tokens| format!("{tokens:.0}")),
                Cell::text(&what),
            ],
            opens: Some(Screen::Run(run.job.clone(), run.run.clone())),
        }
    };
    Table {
        columns: vec![
            text("run", 32, 0),
            text("user", 16, 2),
            number("ranks", 0),
            text("state", 12, 1),
            number("time left", 0),
            number("slowest / median", 4),
            number("tokens/s", 3),
            text("first to run out", 60, 0),
        ],
        rows: cluster.runs.iter().map(row).collect(),
        empty: "No run is known.".to_owned(),
    }
}

fn alerts(cluster: &Cluster) -> Table {
    let rows = cluster.alerts.iter().flatten().enumerate().map(|(place, alert)| Row {
        id: format!("{}\0{:?}", alert.name, alert.labels),
        health: alert.health(),
        cells: vec![Cell::text(&alert.severity), Cell::text(&alert.name), Cell::text(&alert.text)],
        opens: Some(Screen::Alert(place)),
    });
    Table {
        columns: vec![text("severity", 10, 1), text("alert", 32, 0), text("description", 400, 0)],
        rows: rows.collect(),
        empty: match cluster.alerts {
            Some(_) => "No alert fires.",
            None => "The server evaluates no alerts.",
        }
        .to_owned(),
    }
}
