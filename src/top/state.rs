//! What is shown at the moment: data, tab, selection, filter and sort order.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui_core::layout::{Position, Rect};

use super::data::{Data, Trails, Update};
use super::details;
use crate::model::format;
use crate::model::names::named;
use crate::node_view::table::{Sort, Table};
use crate::node_view::{Health, Link};

/// What is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Node,
    Cluster,
}

named! {
    pub(super) enum Tab {
        Workloads = "Workloads",
        Ranks = "Ranks",
        Gpus = "GPUs",
        Problems = "Problems",
        Events = "Events",
        Protection = "Protection",
        Sources = "Sources",
        Nodes = "Nodes",
        Runs = "Runs",
        Alerts = "Alerts",
    }
}

impl Tab {
    /// The tabs of a kind, in the order of their digits.
    pub(super) const fn all(kind: Kind) -> &'static [Self] {
        match kind {
            Kind::Node => &[
                Self::Workloads,
                Self::Ranks,
                Self::Gpus,
                Self::Problems,
                Self::Events,
                Self::Protection,
                Self::Sources,
            ],
            Kind::Cluster => &[Self::Nodes, Self::Runs, Self::Alerts],
        }
    }
}

/// What fills the part below the verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Screen {
    /// A table, with the host and the GPUs above it.
    Tab(Tab),
    /// What a link names.
    Of(Link),
}

/// A screen, and what is selected there.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) screen: Screen,
    /// The id of the selected row.
    pub(super) selected: Option<String>,
    /// The place of the selected row when it was last seen.
    pub(super) row: usize,
    /// The first row or line that is shown.
    pub(super) offset: usize,
    pub(super) sort: Option<Sort>,
    pub(super) filter: String,
}

impl Place {
    fn new(screen: Screen) -> Self {
        Self { screen, selected: None, row: 0, offset: 0, sort: None, filter: String::new() }
    }
}

/// Since when there is no data, and why.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failure {
    pub(super) since: f64,
    pub(super) why: String,
}

/// What a click on a part of the screen does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hit {
    Tab(usize),
    Row(usize),
    Column(usize),
}

#[derive(Debug)]
pub struct State {
    pub(super) kind: Kind,
    /// Where the data is from.
    pub(super) origin: String,
    /// What does not answer, in a sentence: `The daemon`.
    pub(super) teller: &'static str,
    pub(super) data: Option<Data>,
    /// The newest data that came while the screen is paused.
    held: Option<Data>,
    pub(super) failure: Option<Failure>,
    pub(super) trails: Trails,
    /// Seconds by which the clock of the node is ahead of the one of this terminal.
    ahead: f64,
    tabs: Vec<Place>,
    tab: usize,
    /// What was opened from a tab, the newest last.
    pub(super) opened: Vec<Place>,
    /// Whether the filter is being typed.
    pub(super) is_typing: bool,
    pub(super) has_help: bool,
    pub(super) is_paused: bool,
    /// Number of rows or lines that fit, as drawn last.
    pub(super) page: usize,
    pub(super) hits: Vec<(Rect, Hit)>,
}

impl State {
    /// The state before the first data, which comes from `origin`; `teller` begins the sentence about no answer.
    pub fn new(kind: Kind, origin: &str, teller: &'static str) -> Self {
        Self {
            kind,
            origin: origin.to_owned(),
            teller,
            data: None,
            held: None,
            failure: None,
            trails: Trails::default(),
            ahead: 0.0,
            tabs: Tab::all(kind).iter().map(|tab| Place::new(Screen::Tab(*tab))).collect(),
            tab: 0,
            opened: Vec::new(),
            is_typing: false,
            has_help: false,
            is_paused: false,
            page: 1,
            hits: Vec::new(),
        }
    }

    /// Takes what a source reports at `now`, in seconds since 1970.
    pub fn take(&mut self, update: Update, now: f64) {
        match update {
            Update::Data(data, pasts) => {
                self.failure = None;
                for (subject, past) in pasts {
                    self.trails.seed(subject, past);
                }
                if let Data::Node(node) = &data {
                    self.trails.take(&node.view);
                    let sampled = node.view.age_seconds.map(|age| node.view.unix_seconds + age);
                    self.ahead = sampled.map_or(0.0, |sampled| sampled - now);
                }
                if self.is_paused {
                    self.held = Some(data);
                } else {
                    self.data = Some(data);
                }
            }
            Update::Failed(why) => self.fail(why, now),
        }
    }

    /// There is no new data since `now`, because of `why`.
    pub fn fail(&mut self, why: String, now: f64) {
        let now = self.node_time(now);
        let since = self.failure.as_ref().map_or(now, |failure| failure.since);
        self.failure = Some(Failure { since, why });
    }

    /// The time of the node, whose events and samples are shown, at `now` of this terminal; both in seconds since 1970.
    pub(super) fn node_time(&self, now: f64) -> f64 {
        now + self.ahead
    }

    /// Whether what is shown is not current: no answer, or a daemon that does not sample.
    pub(super) fn is_stale(&self) -> bool {
        let stalled = match &self.data {
            Some(Data::Node(node)) => node.view.is_stalled,
            Some(Data::Cluster(_)) => false,
            None => true,
        };
        self.failure.is_some() || stalled
    }

    /// The health as it is shown: nothing that is not current is healthy.
    pub(super) fn shown(&self, health: Health) -> Health {
        if self.is_stale() { Health::Unknown } else { health }
    }

    /// The verdict with the sentence about it, and the number of problems that it does not name.
    pub(crate) fn verdict(&self, now: f64) -> (Health, String, usize) {
        if let Some(Failure { since, why }) = &self.failure {
            let at = format::clock(*since, now);
            let last = if self.data.is_some() { " What follows is the last that is known." } else { "" };
            return (Health::Unknown, format!("{} does not answer since {at}: {why}.{last}", self.teller), 0);
        }
        match &self.data {
            None => (Health::Unknown, "Waiting for the first sample.".to_owned(), 0),
            Some(Data::Node(node)) => {
                let verdict = &node.view.verdict;
                (verdict.health, verdict.sentence.clone(), verdict.more)
            }
            Some(Data::Cluster(cluster)) => (cluster.health(), cluster.sentence(), 0),
        }
    }

    pub(super) fn tab(&self) -> usize {
        self.tab
    }

    pub(super) fn place(&self) -> &Place {
        self.opened.last().unwrap_or(&self.tabs[self.tab])
    }

    pub(super) fn place_mut(&mut self) -> &mut Place {
        self.opened.last_mut().unwrap_or(&mut self.tabs[self.tab])
    }

    pub(super) fn whole(&self, tab: Tab) -> Table {
        let table = match &self.data {
            Some(Data::Node(node)) => match tab {
                Tab::Ranks => node.view.rank_table(|_, _| true),
                Tab::Gpus => node.view.gpu_table(),
                Tab::Problems => node.view.problem_table(),
                Tab::Events => node.view.event_table(&node.events, |_| true),
                Tab::Protection => node.view.protection.target_table(None),
                Tab::Sources => node.view.source_table(),
                _ if node.view.workloads.is_empty() && !node.view.host.cgroups.is_empty() => {
                    node.view.cgroup_table()
                }
                _ => node.view.workload_table(),
            },
            Some(Data::Cluster(cluster)) => match tab {
                Tab::Runs => cluster.run_table(),
                Tab::Alerts => cluster.alert_table(),
                _ => cluster.node_table(),
            },
            None => Table { empty: "No data yet.".to_owned(), ..Table::default() },
        };
        table.without_trails()
    }

    /// The table that is shown, filtered and sorted; absent where a detail is shown.
    pub(super) fn table(&self) -> Option<Table> {
        let place = self.place();
        let Screen::Tab(tab) = place.screen else { return None };
        let mut table = self.whole(tab);
        table.filter(&place.filter);
        if let Some(sort) = place.sort {
            table.sort(sort);
        }
        Some(table)
    }

    /// The place of the selected row; that where it was, if it is gone.
    pub(super) fn selected(&self, table: &Table) -> Option<usize> {
        let place = self.place();
        let known = place.selected.as_ref().and_then(|id| table.rows.iter().position(|row| row.id == *id));
        let last = table.rows.len().checked_sub(1)?;
        Some(known.unwrap_or(if place.selected.is_some() { place.row.min(last) } else { 0 }))
    }

    pub(super) fn select(&mut self, row: usize) {
        let Some(table) = self.table() else { return };
        let Some(last) = table.rows.len().checked_sub(1) else { return };
        let row = row.min(last);
        let id = table.rows[row].id.clone();
        let place = self.place_mut();
        (place.selected, place.row) = (Some(id), row);
    }

    pub(super) fn show_tab(&mut self, tab: usize) {
        if tab < self.tabs.len() {
            self.opened.clear();
            self.tab = tab;
        }
    }

    /// Opens a screen: a tab is shown, anything else is put above what is shown.
    pub(super) fn open(&mut self, screen: Screen) {
        if let Screen::Tab(tab) = screen {
            let place = Tab::all(self.kind).iter().position(|own| *own == tab);
            return self.show_tab(place.unwrap_or(0));
        }
        if self.place().screen != screen && self.opened.len() < 16 {
            self.opened.push(Place::new(screen));
        }
    }

    /// Opens what a link names.
    fn follow(&mut self, link: Link) {
        match link {
            Link::Node | Link::Incident(_) => {}
            Link::Protection => self.open(Screen::Tab(Tab::Protection)),
            link => self.open(Screen::Of(link)),
        }
    }

    /// Opens the ranks of a workload, what another detail leads to, or a detail of the selected row.
    pub(super) fn open_selected(&mut self) {
        if let Screen::Of(Link::Workload(name)) = self.place().screen.clone() {
            if let Some(ranks) = Tab::all(self.kind).iter().position(|tab| *tab == Tab::Ranks) {
                self.show_tab(ranks);
                self.place_mut().filter = name;
            }
        } else if let Some((_, sheet)) = details::sheet(self) {
            if let Some((_, link)) = sheet.and_then(|sheet| sheet.leads_to) {
                self.follow(link);
            }
        } else if let Some(table) = self.table() {
            let row = self.selected(&table).and_then(|row| table.rows.into_iter().nth(row));
            if let Some(link) = row.and_then(|row| row.link) {
                self.follow(link);
            }
        }
    }

    pub(super) fn pause(&mut self) {
        self.is_paused = !self.is_paused;
        if !self.is_paused
            && let Some(held) = self.held.take()
        {
            self.data = Some(held);
        }
    }

    /// Sorts by a column; by the same one in the other direction.
    pub(super) fn sort_by(&mut self, column: usize) {
        let place = self.place_mut();
        place.sort = match place.sort {
            Some(sort) if sort.column == column => Some(Sort { is_reversed: !sort.is_reversed, ..sort }),
            _ => Some(Sort { column, is_reversed: false }),
        };
    }

    /// Sorts by the next column; after the last one in the order of the data.
    pub(super) fn sort_by_next(&mut self) {
        let Some(table) = self.table() else { return };
        let place = self.place_mut();
        let next = place.sort.map_or(0, |sort| sort.column + 1);
        place.sort = (next < table.columns.len()).then_some(Sort { column: next, is_reversed: false });
    }

    /// Moves the selection, or scrolls a detail.
    pub(super) fn step(&mut self, by: isize) {
        match self.table() {
            Some(table) => {
                let row = self.selected(&table).unwrap_or(0);
                self.select(row.saturating_add_signed(by));
            }
            None => {
                let place = self.place_mut();
                place.offset = place.offset.saturating_add_signed(by);
            }
        }
    }

    /// Takes an event of the mouse; returns whether anything changed.
    pub fn mouse(&mut self, event: MouseEvent) -> bool {
        match event.kind {
            MouseEventKind::ScrollUp => self.step(-3),
            MouseEventKind::ScrollDown => self.step(3),
            MouseEventKind::Down(MouseButton::Left) => {
                let at = Position::new(event.column, event.row);
                let hit = self.hits.iter().find(|(area, _)| area.contains(at)).map(|(_, hit)| *hit);
                match hit {
                    Some(Hit::Tab(tab)) => self.show_tab(tab),
                    Some(Hit::Column(column)) => self.sort_by(column),
                    Some(Hit::Row(row)) => {
                        let was = self.table().and_then(|table| self.selected(&table));
                        let is_open = was == Some(row) && self.place().selected.is_some();
                        self.select(row);
                        if is_open {
                            self.open_selected();
                        }
                    }
                    None => return false,
                }
            }
            _ => return false,
        }
        true
    }
}
