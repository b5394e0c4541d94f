//! Renders tables, facts and sheets as HTML. maud escapes markup in every text; [`Name`] escapes hidden characters too.

use maud::{Escaper, Markup, PreEscaped, Render, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::fmt::Write as _;

use super::Content;
use super::chart::Chart;
use crate::model::format;
use crate::model::printable::escaped;
use crate::node_view::sheet::{ChartOf, Facts, Item, Section, Sheet, Stack};
use crate::node_view::table::{Cell, CellKind, Column, Row, Table};
use crate::node_view::{Health, Link, Owner, Problem};

/// Text of any origin.
pub(super) struct Name<'a>(pub(super) &'a str);

impl Render for Name<'_> {
    fn render_to(&self, out: &mut String) {
        let _ = Escaper::new(out).write_str(&escaped(self.0));
    }
}

/// A name as one segment of a path, which no letter of it can leave.
pub(super) fn segment(name: &str) -> String {
    utf8_percent_encode(name, NON_ALPHANUMERIC).to_string()
}

/// The path of the page about something; that of the node for what has none.
pub(super) fn path(link: &Link) -> String {
    match link {
        Link::Node | Link::Problem(_) | Link::ClusterNode(..) | Link::Run(..) | Link::Alert(_) => {
            "/".to_owned()
        }
        Link::Gpu(index) => format!("/gpus/{}", segment(index)),
        Link::Workload(name) => format!("/workloads/{}", segment(name)),
        Link::Rank(name, rank) => format!("/workloads/{}?rank={}", segment(name), segment(rank)),
        Link::Protection | Link::Target(..) => "/protection".to_owned(),
        Link::Incident(id) => format!("/incidents/{}", segment(id)),
    }
}

/// A text that leads to more.
fn anchor(link: Option<&Link>, text: &str) -> Markup {
    html! {
        @if let Some(link) = link { a href=(path(link)) { (Name(text)) } } @else { (Name(text)) }
    }
}

/// A health as a word with its color.
pub(super) fn tag(health: Health, word: &str) -> Markup {
    html! { span class={ "tag " (health.label()) } { (Name(word)) } }
}

/// Whose something is, with a link to the workload.
fn owner(owner: &Owner) -> Markup {
    let more = [("run ", &owner.run), ("user ", &owner.user)];
    html! {
        (anchor(Some(&Link::Workload(owner.workload.clone())), &owner.workload))
        @for (what, name) in more.into_iter().filter(|(_, name)| !name.is_empty() && **name != owner.workload) {
            " " small { (what) b { (Name(name)) } }
        }
    }
}

/// From which width on a column is shown, and how it is aligned.
const fn class(column: &Column) -> Option<&'static str> {
    match (column.kind, column.weight) {
        (CellKind::Prose, _) => Some("text"),
        (CellKind::Number, 0..=2) => Some("number"),
        (CellKind::Number, 3..=4) => Some("number wide"),
        (CellKind::Number, _) => Some("number widest"),
        (_, 0..=2) => None,
        (_, 3..=4) => Some("wide"),
        _ => Some("widest"),
    }
}

fn bar(share: f64, health: Health) -> Markup {
    html! {
        svg class={ "bar " (health.label()) } viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
            rect width=(format!("{:.1}", share.clamp(0.0, 1.0) * 100.0)) height="8" {}
        }
    }
}

fn cell(content: &Content<'_>, row: &Row, cell: &Cell) -> Markup {
    html! {
        @if let Some(share) = cell.share { (bar(share, row.health)) " " }
        @match (&cell.trail, cell.health) {
            (Some(trail), _) => (content.spark(trail)),
            (None, Some(health)) => (tag(health, &cell.text)),
            (None, None) => (anchor(cell.link.as_ref(), &cell.text)),
        }
    }
}

/// A table, or what is shown in place of no rows.
pub(super) fn table(content: &Content<'_>, table: &Table) -> Markup {
    let is_flagged =
        |row: &Row| row.health > Health::Ok && row.cells.iter().all(|cell| cell.health.is_none());
    html! {
        @if table.rows.is_empty() {
            p.quiet { (Name(&table.empty)) }
        } @else {
            div.scroll tabindex="0" role="region" aria-label={ (table.name) ", table" } {
                table {
                    caption { (table.name) }
                    thead { tr {
                        @for column in &table.columns {
                            th scope="col" class=[class(column)] { (column.title) }
                        }
                    } }
                    tbody {
                        @for row in &table.rows {
                            tr {
                                @for (place, (column, own)) in table.columns.iter().zip(&row.cells).enumerate() {
                                    @if place == 0 {
                                        th scope="row" class=[class(column)] {
                                            @if is_flagged(row) { (tag(row.health, row.health.label())) " " }
                                            (cell(content, row, own))
                                        }
                                    } @else {
                                        td class=[class(column)] { (cell(content, row, own)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        @if !table.rest.is_empty() { p { (tag(Health::Unknown, "not shown")) " " (Name(&table.rest)) } }
    }
}

/// Named values.
pub(super) fn facts(facts: &Facts) -> Markup {
    html! {
        dl {
            @for fact in &facts.0 {
                div { dt { (fact.name) } dd { (anchor(fact.link.as_ref(), &fact.text)) } }
            }
        }
    }
}

/// The problems, worst first.
fn problems(problems: &[Problem], now: f64) -> Markup {
    // Most sentences have it.
    let since = |problem: &Problem| {
        let since = format!("since {}", format::clock(problem.since?, now));
        let is_told = problem.what.contains(&since) || problem.because.contains(&since);
        (!is_told).then_some(since)
    };
    html! {
        ol.problems {
            @for problem in problems {
                @let counted = problem.counted();
                li class=(counted.label()) {
                    (tag(counted, if counted == problem.health { counted.label() } else { "acknowledged" })) " "
                    div {
                        p {
                            strong { (anchor(Some(&problem.link), &problem.what)) }
                            @if !problem.because.is_empty() { ": " (Name(&problem.because)) }
                        }
                        p {
                            @if let Some(known) = &problem.owner {
                                @if problem.owner_is_last_known { "last used by " }
                                (owner(known)) " "
                            }
                            @if let Some(since) = since(problem) { small { (since) } }
                        }
                        @if !problem.advice.is_empty() { p.advice { (Name(&problem.advice)) } }
                        @if let Some(command) = problem.acknowledging() { p.quiet { code { (command) } } }
                    }
                }
            }
        }
    }
}

/// How an allocator uses what it reserved, as one bar.
fn stack(stack: Stack) -> Markup {
    let Stack { reserved, allocated, unreleasable } = stack;
    let width = |part: f64| format!("{:.2}", (part / reserved * 100.0).clamp(0.0, 100.0));
    let share = |part: f64| format::percent(part / reserved);
    let spoken = format!(
        "{} of the reserved memory is allocated, {} is free and cannot be released",
        share(allocated),
        share(unreleasable)
    );
    html! {
        figure {
            svg.stack viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=(spoken) {
                rect.one width=(width(allocated)) height="8" {}
                rect.torn x=(width(allocated)) width=(width(unreleasable)) height="8" {}
            }
            figcaption {
                span class="key one" { "allocated " (format::bytes(allocated)) } " "
                span class="key torn" { "free, cannot be released " (format::bytes(unreleasable)) } " "
                span class="key rest" {
                    "other free " (format::bytes((reserved - allocated - unreleasable).max(0.0)))
                }
            }
        }
    }
}

fn chart(content: &Content<'_>, chart: &ChartOf, link: &Link) -> Markup {
    let curve = |(name, quantity): &(&'static str, _)| content.curve(name, &chart.subject, *quantity);
    let mut out = String::new();
    Chart {
        title: chart.title,
        range: content.range,
        curves: chart.curves.iter().map(curve).collect(),
        limit: chart.limit,
        forecast: chart.forecast.as_ref(),
        marks: content.marks(link),
        now: content.recorder.recent.newest(),
        unix: content.recorder.unix(0.0),
        interval: content.interval(),
    }
    .write(&mut out);
    PreEscaped(out)
}

fn item(content: &Content<'_>, item: &Item, link: &Link) -> Markup {
    html! {
        @match item {
            Item::Text(Some(health), text) => {
                p.figure { (tag(*health, health.label())) " " b { (Name(text)) } }
            }
            Item::Text(None, text) => { p { (Name(text)) } }
            Item::Facts(own) => (facts(own)),
            Item::Table(own) => (table(content, own)),
            Item::Problems(own) => (problems(own, content.node.unix_seconds)),
            Item::Chart(own) => (chart(content, own, link)),
            Item::Stack(own) => (stack(*own)),
        }
    }
}

/// A section about what `link` names.
pub(super) fn section(content: &Content<'_>, section: &Section, link: &Link) -> Markup {
    let is_chart = |item: &Item| matches!(item, Item::Chart(_));
    let heading = format!("{}-title", section.id);
    let (id, heading) = if section.id.is_empty() { (None, None) } else { (Some(section.id), Some(heading)) };
    html! {
        section id=[id] aria-labelledby=[heading.as_ref()] {
            @if !section.title.is_empty() { h2 id=[heading.as_ref()] { (Name(&section.title)) } }
            @if section.items.iter().any(is_chart) { (content.ranges(link)) }
            @for items in section.items.chunk_by(|one, next| is_chart(one) && is_chart(next)) {
                @if items.len() > 1 {
                    div.charts { @for own in items { (item(content, own, link)) } }
                } @else {
                    @for own in items { (item(content, own, link)) }
                }
            }
        }
    }
}

pub(super) fn sheet(content: &Content<'_>, sheet: &Sheet, link: &Link) -> Markup {
    html! {
        h2.title { (Name(&sheet.title)) " " small { (Name(&sheet.subtitle)) } }
        @for own in &sheet.sections { (section(content, own, link)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leaves_its_place() {
        let name = "<b>/../\"x\"?&#\u{202e}'";
        let link = anchor(Some(&Link::Workload(name.to_owned())), name).into_string();
        assert_eq!(link.matches('<').count(), 2, "{link}");
        let to = "<a href=\"/workloads/%3Cb%3E%2F%2E%2E%2F%22x%22%3F%26%23%E2%80%AE%27\">";
        assert!(link.starts_with(to) && !link.contains('\u{202e}'), "{link}");
        assert!(bar(7.0, Health::Critical).into_string().contains("width=\"100.0\""));
    }
}
