//! The screens of one thing: a sheet of [`crate::node_view`] or of [`crate::cluster`] as lines of a terminal.

use super::data::Data;
use super::state::{Screen, State};
use crate::model::printable::escaped;
use crate::node_view::sheet::{ChartOf, Item, Sheet};
use crate::node_view::{Health, Link};
use crate::report::text::{Page, table};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    Head(String),
    /// A name and its value.
    Fact(&'static str, String),
    /// Text, with its health if it has one.
    Text(Option<Health>, String),
    /// A line of a table, which is not wrapped.
    Row(String),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Detail {
    pub(super) title: String,
    pub(super) health: Health,
    /// What its chart shows.
    pub(super) chart: Option<Box<ChartOf>>,
    pub(super) lines: Vec<Line>,
    /// What Enter opens, in words.
    pub(super) enter: &'static str,
}

/// What the shown link names, as far as it is known; the outer option is absent where a table is shown.
pub(super) fn sheet(state: &State) -> Option<(&Link, Option<Sheet>)> {
    let Screen::Of(link) = &state.place().screen else { return None };
    let found = match &state.data {
        Some(Data::Node(node)) => node.view.sheet(link, &node.events),
        Some(Data::Cluster(cluster)) => cluster.sheet(link),
        None => None,
    };
    Some((link, found))
}

/// The detail that is shown, in so many columns; absent where a table is.
pub(super) fn detail(state: &State, columns: u16) -> Option<Detail> {
    let (link, found) = sheet(state)?;
    let Some(sheet) = found else {
        let text = "It is not among the newest data: it has ended, or is no longer reported.";
        let lines = vec![Line::Text(None, text.to_owned())];
        return Some(Detail { title: escaped(&title(link)).into_owned(), lines, ..Detail::default() });
    };
    let enter = match (link, &sheet.leads_to) {
        (Link::Workload(_), _) => "ranks",
        (_, Some((what, _))) => what,
        _ => "",
    };
    let subtitle = if sheet.subtitle.is_empty() { String::new() } else { format!("  {}", sheet.subtitle) };
    let title = escaped(&format!("{}{subtitle}", sheet.title)).into_owned();
    let mut detail = Detail { title, health: sheet.health, enter, ..Detail::default() };
    for section in sheet.sections {
        let is_first = detail.lines.is_empty();
        if !is_first && !section.title.is_empty() {
            detail.lines.push(Line::Head(escaped(&section.title).into_owned()));
        }
        section.items.into_iter().for_each(|item| detail.add(item, columns));
    }
    Some(detail)
}

impl Detail {
    fn text(&mut self, health: Option<Health>, text: &str) {
        self.lines.push(Line::Text(health, escaped(text).into_owned()));
    }

    fn add(&mut self, item: Item, columns: u16) {
        match item {
            Item::Text(health, text) => self.text(health, &text),
            Item::Facts(facts) => {
                let line = |fact: &crate::node_view::sheet::Fact| {
                    Line::Fact(fact.name, escaped(&fact.text).into_owned())
                };
                self.lines.extend(facts.0.iter().map(line));
            }
            Item::Problems(problems) => {
                for problem in problems {
                    self.text(Some(problem.counted()), &problem.sentence());
                    if !problem.advice.is_empty() {
                        self.text(None, &problem.advice);
                    }
                    if let Some(command) = problem.acknowledging() {
                        self.text(None, &command);
                    }
                }
            }
            Item::Table(own) if own.rows.is_empty() => self.text(None, &own.empty),
            Item::Table(own) => {
                let mut out = String::new();
                table(&mut out, &own, Page { columns: Some(usize::from(columns)), ..Page::default() });
                self.lines.extend(out.lines().map(|line| Line::Row(line.to_owned())));
            }
            Item::Chart(chart) => {
                self.chart.get_or_insert(chart);
            }
            // Its facts have the same figures.
            Item::Stack(_) => {}
        }
    }
}

fn title(link: &Link) -> String {
    match link {
        Link::Gpu(index) => format!("GPU {index}"),
        Link::Workload(name) => format!("Workload {name}"),
        Link::Rank(workload, rank) => format!("Rank {rank} of {workload}"),
        Link::Target(target, workload) => format!("Protection target {target}: {workload}"),
        Link::ClusterNode(_, instance) => format!("Node {instance}"),
        Link::Run(_, run) => format!("Run {run}"),
        Link::Problem(_) => "Problem".to_owned(),
        Link::Alert(_) => "Alert".to_owned(),
        Link::Node | Link::Protection | Link::Incident(_) => String::new(),
    }
}
