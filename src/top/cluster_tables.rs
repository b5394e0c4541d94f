//! The verdict and the tables of a cluster.

use super::state::{Screen, Tab};
use super::table::{Cell, Row, Table, number, text};
use crate::cluster::{Alert, Cluster, Node, NodeState, Risk, Run};
use crate::node_view::Health;
use crate::node_view::format;

/// How a node of a cluster is: one that is not seen completely, or whose risk is not known, is never ok.
pub(super) fn node_health(node: &Node) -> Health {
    match (node.risk, node.state) {
        (Some(Risk::Critical | Risk::High), _) => Health::Critical,
        (Some(Risk::Medium), _) => Health::Warning,
        (Some(Risk::Low), NodeState::Complete) => Health::Ok,
        (Some(Risk::Low) | None, _) => Health::Unknown,
    }
}

/// How an alert is.
fn alert_health(alert: &Alert) -> Health {
    match alert.severity.as_str() {
        "critical" => Health::Critical,
        "info" => Health::Ok,
        _ => Health::Warning,
    }
}

fn run_health(run: &Run) -> Health {
    if run.is_stalled() {
        Health::Critical
    } else if run.missing().is_none_or(|missing| missing > 0.0) {
        Health::Unknown
    } else if run.first.is_some() {
        Health::Warning
    } else {
        Health::Ok
    }
}

/// The health of a cluster and the sentence about it: the same limits as the exit code of `memwarden cluster`.
pub(super) fn verdict(cluster: &Cluster) -> (Health, String) {
    let health = match (cluster.is_alarming(), cluster.is_incomplete()) {
        (true, _) => Health::Critical,
        (false, true) => Health::Unknown,
        (false, false) => Health::Ok,
    };
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut parts = vec![counted(cluster.nodes.len(), "node"), counted(cluster.runs.len(), "run")];
    let risky = cluster.nodes.iter().filter(|node| node_health(node) == Health::Critical).count();
    let stalled = cluster.runs.iter().filter(|run| run.is_stalled()).count();
    if risky > 0 {
        parts.push(format!("{} with a high risk", counted(risky, "node")));
    }
    if stalled > 0 {
        parts.push(format!("{} stalled", counted(stalled, "run")));
    }
    for state in [NodeState::Down, NodeState::Stale, NodeState::Hung, NodeState::Blind] {
        let count = cluster.nodes.iter().filter(|node| node.state == state).count();
        if count > 0 {
            parts.push(format!("{count} {}", state.word()));
        }
    }
    let critical = cluster.alerts.iter().flatten().filter(|alert| alert.severity == "critical").count();
    if critical > 0 {
        parts.push(format!("{} critical", counted(critical, "alert")));
    }
    (health, format!("{}.", parts.join(", ")))
}

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
        health: node_health(node),
        cells: vec![
            Cell::text(&node.instance),
            Cell::text(node.state.word()),
            Cell { text: node.risk.map_or("unknown", Risk::word).to_owned(), number: None },
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
            text("risk", 10, 0),
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
        let what = first.map_or_else(String::new, |first| {
            format!("{} {} of {}", first.resource, first.gpu, first.instance).replace("  ", " ")
        });
        Row {
            id: format!("{}\0{}", run.job, run.run),
            health: run_health(run),
            cells: vec![
                Cell::text(&run.run),
                Cell::text(&run.user),
                Cell { text: format!("{:.0}{world}", run.ranks), number: Some(run.ranks) },
                Cell::text(match (run.step_age_ratio, run.is_stalled()) {
                    (None, _) => "",
                    (Some(_), true) => "stalled",
                    (Some(_), false) => "progressing",
                }),
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
        health: alert_health(alert),
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
