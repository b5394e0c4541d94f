//! Incidents: the list, and the report of one.

use std::fmt::Write as _;

use super::html::{self, Escaped, Tag};
use super::{Content, lists};
use crate::model::format::{self, UNKNOWN};
use crate::node_view::Health;
use crate::protection::words::incident::Incident;
use crate::protection::words::incidents::Entry;

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

pub(super) fn list(out: &mut String, shown: &IncidentsShown) {
    html::section(out, "incidents", "Incidents");
    match shown {
        IncidentsShown::Known(Shown::List(entries)) if entries.is_empty() => {
            out.push_str("<p class=\"quiet\">No incident is recorded.</p>");
        }
        IncidentsShown::Known(Shown::List(entries)) => {
            let columns = [
                ("began", ""),
                ("target", ""),
                ("summary", "text"),
                ("mode", "wide"),
                ("lasted", "number wide"),
                ("steps", "number wide"),
            ];
            html::table(out, "Incidents", &columns);
            for entry in entries {
                let lasted = match (entry.began_unix_seconds, entry.ended_unix_seconds) {
                    (Some(began), Some(ended)) => format::duration((ended - began).max(0.0)),
                    (Some(_), None) => "in progress".to_owned(),
                    _ => UNKNOWN.to_owned(),
                };
                let began = entry
                    .began_unix_seconds
                    .map(|began| format::timestamp(began).replace('T', " ").replace('Z', " UTC"));
                let _ = write!(
                    out,
                    "<tr><th scope=\"row\"><a href=\"/incidents/{}\">{}</a></th><td>{}</td><td class=\"text\">{}</td><td class=\"wide\">{}</td>\
                     <td class=\"number wide\">{lasted}</td><td class=\"number wide\">{}</td></tr>",
                    html::segment(&entry.id),
                    Escaped(began.as_deref().unwrap_or(&entry.id)),
                    Escaped(entry.target.as_deref().unwrap_or(UNKNOWN)),
                    Escaped(entry.summary.as_deref().unwrap_or("Its record cannot be read.")),
                    Escaped(entry.mode.as_deref().unwrap_or(UNKNOWN)),
                    entry.steps.map_or_else(|| UNKNOWN.to_owned(), |steps| steps.to_string()),
                );
            }
            html::end_table(out);
        }
        IncidentsShown::Refused => out.push_str(REFUSED),
        _ => out.push_str("<p>The incidents cannot be read; the log says why.</p>"),
    }
    out.push_str("</section>");
}

pub(super) fn one(out: &mut String, content: &Content<'_>, id: &str) -> bool {
    let incident = match &content.incidents {
        IncidentsShown::Known(Shown::Record(Some(incident))) => incident,
        IncidentsShown::Refused => {
            let _ = write!(out, "<section><h2>Incident</h2>{REFUSED}</section>");
            return true;
        }
        IncidentsShown::Known(_) => {
            let _ = write!(
                out,
                "<section><h2>Incident {}</h2><p>There is no such incident.</p></section>",
                Escaped(id)
            );
            return false;
        }
        _ => {
            out.push_str(
                "<section><h2>Incident</h2><p>The incident cannot be read; the log says why.</p></section>",
            );
            return true;
        }
    };
    let at = |unix: f64| format::timestamp(unix).replace('T', " ").replace('Z', " UTC");
    let _ = write!(
        out,
        "<section id=\"incident\"><h2 class=\"title\">Incident <small>{}</small></h2><p class=\"figure\">{} <b>{}</b></p>",
        Escaped(&incident.id),
        Tag(Health::Warning, if incident.mode.is_empty() { incident.cause.label() } else { &incident.mode }),
        Escaped(&incident.summary),
    );
    html::facts(
        out,
        &[
            ("target", Escaped(&incident.target).to_string()),
            ("began", at(incident.began_unix_seconds)),
            ("ended", incident.ended_unix_seconds.map_or_else(|| "in progress".to_owned(), at)),
            ("policy", Escaped(&incident.policy).to_string()),
        ],
    );
    let id = html::segment(&incident.id);
    let _ = write!(
        out,
        "<p><a href=\"/api/v1/incidents/{id}/report.md\">Report</a> <a href=\"/api/v1/incidents/{id}/memory.svg\">Chart</a> \
         <a href=\"/api/v1/incidents/{id}\">Record as JSON</a></p></section>"
    );
    html::section(out, "transitions", "Transitions");
    html::table(out, "Transitions", &[("at", ""), ("from", ""), ("to", ""), ("because", "text")]);
    for step in &incident.moves {
        let after = format::duration((step.unix_seconds - incident.began_unix_seconds).max(0.0));
        let _ = write!(
            out,
            "<tr><th scope=\"row\">+{after}</th><td>{}</td><td>{}</td><td class=\"text\">{}</td></tr>",
            Escaped(&step.from),
            Escaped(&step.to),
            Escaped(&step.reason),
        );
    }
    html::end_table(out);
    out.push_str("</section>");
    html::section(out, "steps", "Steps");
    html::table(
        out,
        "Steps",
        &[("at", ""), ("step", ""), ("outcome", ""), ("processes", "number"), ("error", "text")],
    );
    for step in &incident.steps {
        let after = format::duration((step.unix_seconds - incident.began_unix_seconds).max(0.0));
        let verb = step.step.get("do").and_then(serde_json::Value::as_str).unwrap_or(UNKNOWN);
        let outcome = step.outcome.as_str().map_or_else(|| step.outcome.to_string(), str::to_owned);
        let _ = write!(
            out,
            "<tr><th scope=\"row\">+{after}</th><td>{}</td><td>{}</td><td class=\"number\">{}</td><td class=\"text\">{}</td></tr>",
            Escaped(verb),
            Escaped(&outcome),
            step.processes.map_or_else(|| UNKNOWN.to_owned(), |processes| processes.to_string()),
            Escaped(step.error.as_deref().unwrap_or_default()),
        );
    }
    html::end_table(out);
    out.push_str("</section>");
    // What jobs reported meanwhile, with the paths of the allocator snapshots that they wrote.
    let from = incident.began_unix_seconds - REPORTED_AROUND;
    let until = incident.ended_unix_seconds.map_or(f64::INFINITY, |ended| ended + REPORTED_AROUND);
    lists::job_events(out, content.node, |event| (from..=until).contains(&event.unix_seconds));
    true
}
