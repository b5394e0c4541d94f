//! The page of the node, and the views that it leads to: HTML from [`NodeView`] and the recent past.
//!
//! Works without scripts; [`SCRIPT`] replaces what has changed while the page is visible. The style sheet is in the
//! document, so that nothing else is needed before it is drawn; its hash is in [`CONTENT_SECURITY_POLICY`].

mod chart;
mod gpu;
mod html;
mod incidents;
mod lists;
mod node;
mod workload;

use std::fmt::Write as _;
use std::time::Duration;

use crate::history::recent::{Quantity, Subject};
use crate::history::rings::Range;
use crate::model::format;
use crate::node_view::events::{Event, Recorder};
use crate::node_view::{Health, NodeView};
use chart::{Mark, Steps};
use html::Escaped;
pub use incidents::{IncidentsShown, Shown};

/// The style sheet.
const STYLE: &str = include_str!("page.css");
/// The script that updates the page, served as [`SCRIPT_PATH`].
pub const SCRIPT: &str = include_str!("page.js");
/// Where the script is.
pub const SCRIPT_PATH: &str = "/page.js";
/// The icon, in the color of nothing.
pub const ICON: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\"><rect width=\"16\" height=\"16\" rx=\"3\" \
    fill=\"#4b5563\"/><path d=\"M3 12V8h2v4zM7 12V4h2v8zM11 12V6h2v6z\" fill=\"#fff\"/></svg>";

/// Allows the page's own style sheet and script, and requests to this server; nothing else.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; \
     style-src 'sha256-lKdeTFldlrdIOrPVix6hp4+PSu/dHnqBqi9Bj2tyKUI='; \
     script-src 'self'; connect-src 'self'; img-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// For answers that are no page: no resources and no scripts.
pub const NOTHING_ALLOWED: &str =
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What a page is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum View {
    /// The node.
    Node,
    /// A GPU, by its index.
    Gpu(String),
    /// All workloads.
    Workloads,
    /// A workload by its name, and one of its ranks.
    Workload(String, Option<String>),
    /// Protection.
    Protection,
    /// Events.
    Events,
    /// Incidents.
    Incidents,
    /// One incident, by its id.
    Incident(String),
}

impl View {
    /// The view of a path with its query; absent where there is none.
    pub fn of(path: &str, query: &str) -> Option<Self> {
        let decoded = |text: &str| {
            let decoded = percent_encoding::percent_decode_str(text).decode_utf8().ok()?.into_owned();
            Some(decoded).filter(|name| !name.is_empty())
        };
        Some(match path {
            "/" => Self::Node,
            "/workloads" => Self::Workloads,
            "/protection" => Self::Protection,
            "/events" => Self::Events,
            "/incidents" => Self::Incidents,
            path => match path.strip_prefix('/')?.split_once('/')? {
                ("gpus", index) => Self::Gpu(decoded(index)?),
                ("workloads", name) => {
                    Self::Workload(decoded(name)?, parameter(query, "rank").filter(|rank| !rank.is_empty()))
                }
                ("incidents", id) => Self::Incident(decoded(id)?),
                _ => return None,
            },
        })
    }

    /// Whether it needs the records of protection.
    pub const fn needs_incidents(&self) -> bool {
        matches!(self, Self::Incidents | Self::Incident(_))
    }
}

/// The decoded value of a query's parameter; absent where it is not there or not UTF-8.
pub(super) fn parameter(query: &str, name: &str) -> Option<String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(own, _)| *own == name).map(|(_, value)| value).next()?;
    Some(percent_encoding::percent_decode_str(&value.replace('+', " ")).decode_utf8().ok()?.into_owned())
}

/// The range of the charts that a query asks for; 10 minutes where it asks for none.
pub fn range(query: &str) -> Range {
    parameter(query, "range").and_then(|word| Range::of(&word)).unwrap_or(Range::Minutes)
}

/// What a page is made from.
#[derive(Debug)]
pub struct Content<'a> {
    /// The node.
    pub node: &'a NodeView,
    /// The recent past.
    pub recorder: &'a Recorder,
    /// The range of its charts.
    pub range: Range,
    /// Time since the daemon began to serve.
    pub uptime: Duration,
    /// The incidents, for the views that show them.
    pub incidents: IncidentsShown,
}

/// A page, and whether what it is about exists.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    /// The HTML document.
    pub html: String,
    /// Whether there is such a thing; the document says so where not.
    pub found: bool,
}

/// Renders a view.
pub fn page(view: &View, content: &Content<'_>) -> Page {
    let mut out = String::with_capacity(32 * 1024);
    let node = content.node;
    begin(&mut out, view, content);
    let found = match view {
        View::Node => {
            node::write(&mut out, content);
            true
        }
        View::Gpu(index) => gpu::write(&mut out, content, index),
        View::Workloads => {
            html::section(&mut out, "workloads", "Workloads");
            lists::workloads(&mut out, content, usize::MAX);
            out.push_str("</section>");
            true
        }
        View::Workload(name, rank) => workload::write(&mut out, content, name, rank.as_deref()),
        View::Protection => {
            lists::protection(&mut out, &node.protection, None);
            true
        }
        View::Events => {
            lists::events(&mut out, content, usize::MAX, |_| true);
            lists::job_events(&mut out, node, |_| true);
            true
        }
        View::Incidents => {
            incidents::list(&mut out, &content.incidents);
            true
        }
        View::Incident(id) => incidents::one(&mut out, content, id),
    };
    end(&mut out, content);
    Page { html: out, found }
}

fn begin(out: &mut String, view: &View, content: &Content<'_>) {
    let node = content.node;
    let name = if node.node.is_empty() { "memwarden" } else { &node.node };
    let verdict = &node.verdict;
    let about = match view {
        View::Node => String::new(),
        View::Gpu(index) => format!("GPU {index} · "),
        View::Workload(name, _) => format!("{} · ", format::short(name, 40)),
        View::Workloads => "Workloads · ".to_owned(),
        View::Protection => "Protection · ".to_owned(),
        View::Events => "Events · ".to_owned(),
        View::Incidents | View::Incident(_) => "Incidents · ".to_owned(),
    };
    let sign = match verdict.health {
        Health::Ok => "",
        Health::Unknown => "? ",
        Health::Warning => "! ",
        Health::Critical => "!! ",
    };
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\
         <title>{sign}{about}{name}: {}</title><link rel=\"icon\" href=\"/icon.svg\"><style>{STYLE}</style>\
         <script src=\"{SCRIPT_PATH}\" defer></script></head>\n<body data-sequence=\"{}\">\
         <a class=\"skip\" href=\"#main\">To the content</a>\n<header><div class=\"top\"><h1 class=\"node\"><a href=\"/\">{name}</a></h1><nav aria-label=\"Views\">",
        Escaped(&format::short(&verdict.sentence, 80)),
        node.sequence,
        about = Escaped(&about),
        name = Escaped(name),
    );
    let entries = [
        ("/", "Node", *view == View::Node),
        ("/workloads", "Workloads", matches!(view, View::Workloads | View::Workload(..))),
        ("/protection", "Protection", *view == View::Protection),
        ("/incidents", "Incidents", view.needs_incidents()),
        ("/events", "Events", *view == View::Events),
    ];
    for (path, title, current) in entries {
        let current = if current { " aria-current=\"page\"" } else { "" };
        let _ = write!(out, "<a href=\"{path}\"{current}>{title}</a>");
    }
    let more = match (verdict.more, view) {
        (0, _) => String::new(),
        (1, _) => " <a href=\"/#problems\">1 more problem</a>".to_owned(),
        (more, _) => format!(" <a href=\"/#problems\">{more} more problems</a>"),
    };
    let _ = write!(
        out,
        "</nav></div><div class=\"verdict {class}\" id=\"verdict\" role=\"status\" aria-live=\"polite\"><span class=\"tag {class}\">{class}</span> \
         <strong>{}</strong>{more}</div></header>\n<main id=\"main\">",
        Escaped(&verdict.sentence),
        class = html::class(verdict.health),
    );
}

fn end(out: &mut String, content: &Content<'_>) {
    let node = content.node;
    let sampled = node.age_seconds.map_or_else(
        || "no sample yet".to_owned(),
        |_| {
            let at = format::timestamp(node.unix_seconds);
            format!(
                "sample {} of <time datetime=\"{at}\">{}</time>",
                node.sequence,
                at.replace('T', " ").replace('Z', " UTC")
            )
        },
    );
    let omitted = match content.recorder.recent.omitted() {
        0 => String::new(),
        omitted => format!(" · {omitted} series have no history, because its memory is used up"),
    };
    let _ = write!(
        out,
        "</main>\n<footer><p>memwarden {} · up {} · <span id=\"sampled\">{sampled}</span>{omitted}</p><p><a href=\"/metrics\">Metrics</a> \
         <a href=\"/api/v1/node\">This page as JSON</a> <a href=\"/api/v1/history\">History</a> <a href=\"/api/v1/frame\">Frame</a> \
         <a href=\"/api/v1/findings\">Findings</a> <a href=\"/-/healthy\">Health</a> <a href=\"/-/ready\">Readiness</a></p></footer>\
         </body></html>\n",
        env!("CARGO_PKG_VERSION"),
        format::duration(content.uptime.as_secs_f64()),
    );
}

impl Content<'_> {
    /// The steps of a series in the range of the page.
    fn steps(&self, subject: &Subject, quantity: Quantity) -> Steps {
        self.steps_of(subject, quantity, self.range)
    }

    fn steps_of(&self, subject: &Subject, quantity: Quantity, range: Range) -> Steps {
        self.recorder.recent.rings(subject, quantity).map_or_else(Steps::new, |rings| rings.steps(range))
    }

    /// A small chart of the last 10 minutes.
    fn spark(&self, subject: &Subject, quantity: Quantity, limit: Option<f64>, what: &str) -> String {
        let recent = &self.recorder.recent;
        let steps = self.steps_of(subject, quantity, Range::Minutes);
        chart::spark(&steps, Range::Minutes, limit, recent.newest(), self.interval(), what)
    }

    /// Seconds between two ticks.
    fn interval(&self) -> f64 {
        self.recorder.recent.interval().unwrap_or(1.0)
    }

    /// The events that `wanted` accepts as marks of a chart.
    fn marks(&self, wanted: impl Fn(&Event) -> bool) -> Vec<Mark> {
        let origin = self.recorder.unix(0.0);
        let events = self.recorder.events().filter(|event| event.health != Health::Ok && wanted(event));
        let mark = |event: &Event| Mark {
            at: event.unix_seconds - origin,
            health: event.health,
            text: event.text.clone(),
        };
        events.map(mark).collect()
    }

    /// Links to the same page with another range.
    fn ranges(&self, out: &mut String, query: &str) {
        out.push_str("<p class=\"ranges\" role=\"group\" aria-label=\"Range of the charts\">");
        for range in Range::ALL {
            let current = if range == self.range { " aria-current=\"true\"" } else { "" };
            let _ = write!(out, "<a href=\"?range={0}{query}\"{current}>{0}</a>", range.word());
        }
        out.push_str("</p>");
    }
}

#[cfg(test)]
mod tests;
