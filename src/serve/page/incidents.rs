//! Incidents: the list, and the report of one.

use maud::{Markup, PreEscaped, html};

use super::render::{self, Name, segment};
use super::{Content, moment};
use crate::model::format::{self, UNKNOWN};
use crate::node_view::sheet::{Facts, Section};
use crate::node_view::table::{Cell, Row, Table, number, prose, text};
use crate::node_view::{Health, Link};
use crate::protection::types::incident::Incident;
use crate::protection::types::incidents::Entry;

/// What may be shown of the incidents.
#[derive(Debug, Default)]
pub enum IncidentsShown {
    /// Nothing: the view needs none.
    #[default]
    Unasked,
    /// The client is not authenticated.
    Refused,
    /// They cannot be read.
    Unreadable,
    /// What was asked for.
    Known(Shown),
}

/// Incidents that were read.
#[derive(Debug)]
pub enum Shown {
    /// All, newest first.
    List(Vec<Entry>),
    /// The record of one; absent where there is none.
    Record(Option<Box<Incident>>),
}

/// Reports of jobs are shown with an incident from so many seconds before it until as many after it.
const REPORTED_AROUND: f64 = 60.0;

const REFUSED: &str = "<p>Incidents contain the output of hooks and are shown to authenticated clients only: list \
    <code>basic_auth_users</code>, or require client certificates, in the file of <code>web.config_file</code>. \
    <code>memwarden incidents</code> on this host shows them to root.</p>";

fn row(id: impl Into<String>, cells: Vec<Cell>) -> Row {
    Row { id: id.into(), health: Health::Ok, cells, link: None }
}

fn row_of(entry: &Entry) -> Row {
    let lasted = match (entry.began_unix_seconds, entry.ended_unix_seconds) {
        (Some(began), Some(ended)) => format::duration((ended - began).max(0.0)),
        (Some(_), None) => "in progress".to_owned(),
        _ => String::new(),
    };
    let began = entry.began_unix_seconds.map_or_else(|| entry.id.clone(), moment);
    let cells = vec![
        Cell::text(began).to(Link::Incident(entry.id.clone())),
        Cell::text(entry.target.as_deref().unwrap_or_default()),
        Cell::text(entry.mode.as_deref().unwrap_or_default()),
        Cell::text(lasted),
        Cell::text(entry.steps.map_or_else(String::new, |steps| steps.to_string())),
        Cell::text(entry.summary.as_deref().unwrap_or("Its record cannot be read.")),
    ];
    row(&*entry.id, cells)
}

pub(super) fn list(content: &Content<'_>) -> Markup {
    let body = match &content.incidents {
        IncidentsShown::Known(Shown::List(entries)) => {
            let table = Table {
                name: "Incidents",
                columns: vec![
                    text("began", 0),
                    text("target", 0),
                    text("mode", 3),
                    number("lasted", 3),
                    number("steps", 4),
                    prose("summary"),
                ],
                rows: entries.iter().map(row_of).collect(),
                empty: "No incident is recorded.".to_owned(),
                ..Table::default()
            };
            render::table(content, &table)
        }
        IncidentsShown::Refused => PreEscaped(REFUSED.to_owned()),
        _ => html! { p { "The incidents cannot be read; the log says why." } },
    };
    html! { section #incidents aria-labelledby="incidents-title" { h2 #incidents-title { "Incidents" } (body) } }
}

pub(super) fn one(content: &Content<'_>, id: &str) -> (Markup, bool) {
    let incident = match &content.incidents {
        IncidentsShown::Known(Shown::Record(Some(incident))) => incident,
        IncidentsShown::Refused => {
            return (html! { section { h2 { "Incident" } (PreEscaped(REFUSED)) } }, true);
        }
        IncidentsShown::Known(_) => {
            let none = html! {
                section { h2 { "Incident " (Name(id)) } p { "There is no such incident." } }
            };
            return (none, false);
        }
        _ => {
            let none = html! {
                section { h2 { "Incident" } p { "The incident cannot be read; the log says why." } }
            };
            return (none, true);
        }
    };
    let began = incident.began_unix_seconds;
    let facts = Facts::default()
        .text("target", &incident.target)
        .text("began", moment(began))
        .text("ended", incident.ended_unix_seconds.map_or_else(|| "in progress".to_owned(), moment))
        .text("policy", &incident.policy);
    // What jobs reported meanwhile, with the paths of the allocator snapshots that they wrote.
    let until = incident.ended_unix_seconds.map_or(f64::INFINITY, |ended| ended + REPORTED_AROUND);
    let around = began - REPORTED_AROUND..=until;
    let events = content.node.event_table([], |about| around.contains(&about.unix_seconds));
    let id = segment(&incident.id);
    let mode = if incident.mode.is_empty() { incident.cause.label() } else { &incident.mode };
    let link = Link::Incident(incident.id.clone());
    let section = |id, table| render::section(content, &Section::table(id, table), &link);
    let body = html! {
        section #incident {
            h2.title { "Incident " small { (Name(&incident.id)) } }
            p.figure { (render::tag(Health::Warning, mode)) " " b { (Name(&incident.summary)) } }
            (render::facts(&facts))
            p {
                a href={ "/api/v1/incidents/" (id) "/report.md" } { "Report" } " "
                a href={ "/api/v1/incidents/" (id) "/memory.svg" } { "Chart" } " "
                a href={ "/api/v1/incidents/" (id) } { "Record as JSON" }
            }
        }
        (section("transitions", transitions(incident)))
        (section("steps", steps(incident)))
        @if !events.rows.is_empty() { (section("job-events", events)) }
    };
    (body, true)
}

fn after(incident: &Incident, unix_seconds: f64) -> Cell {
    Cell::text(format!("+{}", format::duration((unix_seconds - incident.began_unix_seconds).max(0.0))))
}

fn transitions(incident: &Incident) -> Table {
    let of = |step: &crate::protection::types::incident::Move| {
        let cells = vec![
            after(incident, step.unix_seconds),
            Cell::text(&step.from),
            Cell::text(&step.to),
            Cell::text(&step.reason),
        ];
        row("", cells)
    };
    Table {
        name: "Transitions",
        columns: vec![text("at", 0), text("from", 0), text("to", 0), prose("because")],
        rows: incident.moves.iter().map(of).collect(),
        empty: "No transition is recorded.".to_owned(),
        ..Table::default()
    }
}

fn steps(incident: &Incident) -> Table {
    let rows = incident.steps.iter().map(|step| {
        let verb = step.step.get("do").and_then(serde_json::Value::as_str).unwrap_or(UNKNOWN);
        let outcome = step.outcome.as_str().map_or_else(|| step.outcome.to_string(), str::to_owned);
        let processes = step.processes.map_or_else(String::new, |processes| processes.to_string());
        let cells = vec![
            after(incident, step.unix_seconds),
            Cell::text(verb),
            Cell::text(outcome),
            Cell::text(processes),
            Cell::text(step.error.as_deref().unwrap_or_default()),
        ];
        row("", cells)
    });
    Table {
        name: "Steps",
        columns: vec![
            text("at", 0),
            text("step", 0),
            text("outcome", 0),
            number("processes", 0),
            prose("error"),
        ],
        rows: rows.collect(),
        empty: "No step was taken.".to_owned(),
        ..Table::default()
    }
}
