//! Incidents: the list, and the report of one.

use maud::{Markup, PreEscaped, html};

use super::render::{self, Name, segment};
use super::{Content, moment};
use crate::model::ends::End;
use crate::model::format;
use crate::node_view::ends::sentence;
use crate::node_view::sheet::{Facts, Section};
use crate::node_view::table::{Cell, Row, Table};
use crate::node_view::{Health, Link};
use crate::protection::types::incident::Incident;
use crate::protection::types::incidents::Entry;

#[derive(Debug, Default)]
pub enum IncidentsShown {
    /// Nothing: the view needs none.
    #[default]
    Unasked,
    /// The client is not authenticated.
    Refused,
    /// They cannot be read.
    Unreadable,
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

/// How the process ended that another program killed, otherwise the summary.
fn sentence_of(end: Option<&End>, summary: Option<&str>) -> String {
    end.map_or_else(|| summary.unwrap_or("Its record cannot be read.").to_owned(), sentence)
}

fn row_of(entry: &Entry) -> Row {
    let lasted = match (entry.began_unix_seconds, entry.ended_unix_seconds) {
        (Some(began), Some(ended)) => format::duration((ended - began).max(0.0)),
        (Some(_), None) => "in progress".to_owned(),
        _ => String::new(),
    };
    let began = entry.began_unix_seconds.map_or_else(|| entry.id.clone(), moment);
    Row::new(&*entry.id, Health::Ok)
        .text("began", 0, Cell::text(began).to(Link::Incident(entry.id.clone())))
        .text("target", 0, entry.target.as_deref().unwrap_or_default())
        .text("mode", 3, entry.mode.as_deref().unwrap_or_default())
        .number("lasted", 3, lasted)
        .number("steps", 4, entry.steps.map_or_else(String::new, |steps| steps.to_string()))
        .prose("summary", sentence_of(entry.end.as_deref(), entry.summary.as_deref()))
}

pub(super) fn list(content: &Content<'_>) -> Markup {
    let body = match &content.incidents {
        IncidentsShown::List(entries) => {
            let table = Table::new("Incidents", entries.iter().map(row_of), "No incident is recorded.");
            render::table(content, &table)
        }
        IncidentsShown::Refused => PreEscaped(REFUSED.to_owned()),
        _ => html! { p { "The incidents cannot be read; the log says why." } },
    };
    html! { section #incidents aria-labelledby="incidents-title" { h2 #incidents-title { "Incidents" } (body) } }
}

pub(super) fn one(content: &Content<'_>, id: &str) -> (Markup, bool) {
    let incident = match &content.incidents {
        IncidentsShown::Record(Some(incident)) => incident,
        IncidentsShown::Refused => {
            return (html! { section { h2 { "Incident" } (PreEscaped(REFUSED)) } }, true);
        }
        IncidentsShown::List(_) | IncidentsShown::Record(None) => {
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
            p.figure { (render::tag(Health::Warning, mode)) " " b { (Name(&sentence_of(incident.end.as_deref(), Some(&incident.summary)))) } }
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
    let rows = incident.moves.iter().map(|step| {
        Row::new("", Health::Ok)
            .text("at", 0, after(incident, step.unix_seconds))
            .text("from", 0, step.from.label())
            .text("to", 0, step.to.label())
            .prose("because", step.reason.to_string())
    });
    Table::new("Transitions", rows, "No transition is recorded.")
}

fn steps(incident: &Incident) -> Table {
    let rows = incident.steps.iter().map(|step| {
        let end = step.end.as_ref();
        let outcome = end.map(|end| end.outcome.map_or_else(|| "failed".to_owned(), |it| it.to_string()));
        let processes = end.and_then(|end| end.processes);
        let error = end.and_then(|end| end.error.as_ref());
        Row::new("", Health::Ok)
            .text("at", 0, after(incident, step.unix_seconds))
            .text("step", 0, step.step.work.label())
            .text("outcome", 0, outcome.unwrap_or_default())
            .number("processes", 0, processes.map_or_else(String::new, |processes| processes.to_string()))
            .prose("error", error.map_or_else(String::new, ToString::to_string))
    });
    Table::new("Steps", rows, "No step was taken.")
}
