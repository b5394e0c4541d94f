//! The page of the node, and the views that it leads to: HTML from [`NodeView`] and the recent past.
//!
//! Works without scripts; [`SCRIPT`] replaces what has changed while the page is visible. The style sheet is in the
//! document, so that nothing else is needed before it is drawn; its hash is in [`CONTENT_SECURITY_POLICY`].

mod chart;
mod incidents;
mod render;

use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::history::recent::{Quantity, Subject};
use crate::history::rings::Range;
use crate::model::format;
use crate::node_view::events::{Event, Recorder};
use crate::node_view::sheet::Section;
use crate::node_view::table::Trail;
use crate::node_view::{Health, Link, NodeView, Problem};
use crate::protection::types::incidents::is_plain;
use crate::serve::timeline::decoded;
use chart::{Curve, Mark};
pub use incidents::IncidentsShown;
use render::Name;

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
    Node,
    /// A GPU, by its index.
    Gpu(String),
    Workloads,
    /// A workload by its name, and one of its ranks.
    Workload(String, Option<String>),
    Protection,
    Events,
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
                ("incidents", id) => Self::Incident(decoded(id).filter(|id| is_plain(id))?),
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
    decoded(pairs.filter(|(own, _)| *own == name).map(|(_, value)| value).next()?)
}

/// The range of the charts that a query asks for; 10 minutes where it asks for none.
pub fn range(query: &str) -> Range {
    parameter(query, "range").and_then(|word| Range::of_label(&word)).unwrap_or(Range::Minutes)
}

/// What a page is made from.
#[derive(Debug)]
pub struct Content<'a> {
    pub node: &'a NodeView,
    /// The recent past.
    pub recorder: &'a Recorder,
    pub range: Range,
    /// Time since the daemon began to serve.
    pub uptime: Duration,
    /// The incidents, for the views that show them.
    pub incidents: IncidentsShown,
}

/// A page, and whether what it is about exists.
#[derive(Debug, PartialEq, Eq)]
pub struct Page {
    pub html: String,
    /// Whether there is such a thing; the document says so where not.
    pub found: bool,
}

/// Maximum number of workloads, problems and events on the page of the node.
const MOST_WORKLOADS: usize = 60;
const MOST_PROBLEMS: usize = 20;
const MOST_EVENTS: usize = 12;

pub fn page(view: &View, content: &Content<'_>) -> Page {
    let (body, found) = match view {
        View::Node => (node(content), true),
        View::Gpu(index) => about(content, &Link::Gpu(index.clone())),
        View::Workload(name, None) => about(content, &Link::Workload(name.clone())),
        View::Workload(name, Some(rank)) => about(content, &Link::Rank(name.clone(), rank.clone())),
        View::Workloads => (one(content, &Section::table("workloads", content.node.workload_table())), true),
        View::Protection => (one(content, &content.node.protection_section(None)), true),
        View::Events => {
            let table = content.node.event_table(content.recorder.events(), |_| true);
            (one(content, &Section::table("events", table)), true)
        }
        View::Incidents => (incidents::list(content), true),
        View::Incident(id) => incidents::one(content, id),
    };
    Page { html: document(view, content, &body).into_string(), found }
}

fn one(content: &Content<'_>, section: &Section) -> Markup {
    render::section(content, section, &Link::Node)
}

fn node(content: &Content<'_>) -> Markup {
    let node = content.node;
    let mut problems = node.problem_section(|_| true);
    let mut more_problems = node.problems_left_out;
    if let Some(Section { items, .. }) = &mut problems
        && let Some(crate::node_view::sheet::Item::Problems(all)) = items.first_mut()
    {
        more_problems += Problem::cut(all, MOST_PROBLEMS);
    }
    let mut workloads = node.workload_table();
    let more = workloads.rows.len() > MOST_WORKLOADS;
    workloads.rows.truncate(MOST_WORKLOADS);
    let mut events = node.event_table(content.recorder.events(), |_| true);
    events.truncate(MOST_EVENTS);
    let failing = node.sources.iter().filter(|source| source.fails()).count();
    html! {
        @if let Some(problems) = &problems { (one(content, problems)) }
        @if more_problems > 0 {
            p.quiet { (more_problems) " more are known; /api/v1/node has up to 200." }
        }
        @if let Some(why) = node.gpus_unseen.as_ref().filter(|_| !node.gpus.is_empty()) {
            p { (render::tag(Health::Unknown, "unknown")) " " (Name(why)) }
        }
        (one(content, &Section::table("gpus", node.gpu_table())))
        (one(content, &node.host_section()))
        (one(content, &Section::table("workloads", workloads)))
        @if more { p { a href="/workloads" { "All " (node.workloads.len()) " workloads" } } }
        @if node.workloads.is_empty() && !node.host.processes.is_empty() {
            (one(content, &Section::table("processes", node.process_table())))
        }
        @if node.workloads.is_empty() && !node.host.cgroups.is_empty() {
            (one(content, &Section::table("cgroups", node.cgroup_table())))
        }
        (one(content, &node.protection_section(None)))
        (one(content, &Section::table("events", events)))
        section #sources aria-labelledby="sources-title" {
            h2 #sources-title { "Sources" }
            details open[failing > 0] {
                summary {
                    (format::counted(node.sources.len(), "source")) ", "
                    @if failing == 0 { "none fails" } @else { (failing) " not sampled because of an error" }
                }
                (render::table(content, &node.source_table()))
            }
        }
    }
}

/// The page of what a link names; a sentence where there is no such thing now.
fn about(content: &Content<'_>, link: &Link) -> (Markup, bool) {
    if let Some(sheet) = content.node.sheet(link, content.recorder.events()) {
        return (render::sheet(content, &sheet, link), true);
    }
    let (title, text) = match link {
        Link::Gpu(index) => (format!("GPU {index}"), "There is no such GPU."),
        Link::Rank(name, rank) => (format!("Rank {rank} of {name}"), "There is no such rank now."),
        Link::Workload(name) => (name.clone(), "No workload of this name is running now."),
        _ => (String::new(), "There is no such page."),
    };
    let is_its = |about: &crate::node_view::About<'_>| match link {
        Link::Workload(name) | Link::Rank(name, _) => about.workload == name,
        _ => false,
    };
    let events = content.node.event_table(content.recorder.events(), is_its);
    let body = html! {
        section { h2.title { (Name(&title)) } p { (text) } }
        @if !events.rows.is_empty() { (one(content, &Section::table("events", events))) }
    };
    (body, false)
}

fn document(view: &View, content: &Content<'_>, body: &Markup) -> Markup {
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
        health => &format!("{} ", health.symbol()),
    };
    let title = format!("{sign}{about}{name}: {}", format::beginning(&verdict.sentence, 80));
    let entries = [
        ("/", "Node", *view == View::Node),
        ("/workloads", "Workloads", matches!(view, View::Workloads | View::Workload(..))),
        ("/protection", "Protection", *view == View::Protection),
        ("/incidents", "Incidents", view.needs_incidents()),
        ("/events", "Events", *view == View::Events),
    ];
    html! {
        (DOCTYPE) "\n"
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                noscript { meta http-equiv="refresh" content="5"; }
                title { (Name(&title)) }
                link rel="icon" href="/icon.svg";
                style { (PreEscaped(STYLE)) }
                script src=(SCRIPT_PATH) defer {}
            }
            "\n"
            body data-sequence=(node.sequence) {
                a.skip href="#main" { "To the content" }
                "\n"
                header {
                    div.top {
                        h1.node { a href="/" { (Name(name)) } }
                        nav aria-label="Views" {
                            @for (path, title, current) in entries {
                                a href=(path) aria-current=[current.then_some("page")] { (title) }
                            }
                        }
                    }
                    div class={ "verdict " (verdict.health.label()) } #verdict role="status" aria-live="polite" {
                        (render::tag(verdict.health, verdict.health.label())) " "
                        strong { (Name(&verdict.sentence)) }
                        @if verdict.more > 0 {
                            " " a href="/#problems" { (format::counted(verdict.more, "more problem")) }
                        }
                    }
                }
                "\n"
                main #main { (body) }
                "\n"
                (footer(content))
            }
        }
        "\n"
    }
}

fn footer(content: &Content<'_>) -> Markup {
    let node = content.node;
    let at = format::timestamp(node.unix_seconds);
    let omitted = content.recorder.recent.omitted();
    html! {
        footer {
            p {
                "memwarden " (env!("CARGO_PKG_VERSION")) " · up " (format::duration(content.uptime.as_secs_f64())) " · "
                span #sampled {
                    @if node.age_seconds.is_some() {
                        "sample " (node.sequence) " of " time datetime=(at) { (moment(node.unix_seconds)) }
                    } @else { "no sample yet" }
                }
                @if omitted > 0 { " · " (omitted) " series have no history, because its memory is used up" }
            }
            p {
                a href="/metrics" { "Metrics" } " "
                a href="/api/v1/node" { "This page as JSON" } " "
                a href="/api/v1/history" { "History" } " "
                a href="/api/v1/frame" { "Frame" } " "
                a href="/api/v1/findings" { "Findings" } " "
                a href="/-/healthy" { "Health" } " "
                a href="/-/ready" { "Readiness" }
            }
        }
    }
}

/// A moment in full, in UTC.
fn moment(unix_seconds: f64) -> String {
    format::timestamp(unix_seconds).replace('T', " ").replace('Z', " UTC")
}

impl Content<'_> {
    /// A curve in the range of the page.
    fn curve(&self, name: &'static str, subject: &Subject, quantity: Quantity) -> Curve {
        let rings = self.recorder.recent.rings(subject, quantity);
        Curve { name, steps: rings.map_or_else(Vec::new, |rings| rings.steps(self.range)) }
    }

    /// A small chart of the last 10 minutes.
    fn spark(&self, trail: &Trail) -> Markup {
        let recent = &self.recorder.recent;
        let rings = recent.rings(&trail.subject, trail.quantity);
        let steps = rings.map_or_else(Vec::new, |rings| rings.steps(Range::Minutes));
        let what = "memory of the last 10 minutes";
        let (now, interval) = (recent.newest(), self.interval());
        PreEscaped(chart::spark(&steps, Range::Minutes, trail.limit, now, interval, what))
    }

    /// Seconds between two ticks.
    fn interval(&self) -> f64 {
        self.recorder.recent.interval().unwrap_or(1.0)
    }

    /// The events about what a link names, as marks of a chart.
    fn marks(&self, link: &Link) -> Vec<Mark> {
        let wanted = |event: &&Event| match link {
            Link::Gpu(index) => event.gpu == *index,
            Link::Workload(name) | Link::Rank(name, _) => event.workload == *name,
            _ => event.gpu.is_empty() && event.workload.is_empty(),
        };
        let origin = self.recorder.unix(0.0);
        let events = self.recorder.events().filter(|event| event.health != Health::Ok).filter(wanted);
        let mark = |event: &Event| Mark {
            at: event.unix_seconds - origin,
            health: event.health,
            text: event.text.clone(),
        };
        events.map(mark).collect()
    }

    /// Links to the same page with another range.
    fn ranges(&self, link: &Link) -> Markup {
        let query = match link {
            Link::Rank(_, rank) => format!("&rank={}", render::segment(rank)),
            _ => String::new(),
        };
        html! {
            p.ranges role="group" aria-label="Range of the charts" {
                @for range in Range::ALL {
                    a href={ "?range=" (range.label()) (query) } aria-current=[(range == self.range).then_some("true")] {
                        (range.label())
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
