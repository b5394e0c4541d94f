//! The tables of a cluster, and what is shown of a node, a run or an alert of it.

use std::collections::BTreeMap;

use super::{Alert, Cluster, Node, Run};
use crate::model::format;
use crate::model::health::Health;
use crate::node_view::Link;
use crate::node_view::sheet::{Facts, Item, Section, Sheet};
use crate::node_view::table::{Cell, Row, Table};

impl Cluster {
    pub fn node_table(&self) -> Table {
        let rows = self.nodes.iter().map(|node| {
            Row::new(format!("{}\0{}", node.job, node.instance), node.health())
                .to(Link::ClusterNode(node.job.clone(), node.instance.clone()))
                .text("node", 0, &node.instance)
                .text("state", 0, Cell::text(node.state.label()).of(node.state.health()))
                .text("memory", 0, Cell::text(node.memory.label()).of(node.memory))
                .number("time left", 0, left(node.time_to_exhaustion_seconds))
                .value("P(15 min)", 2, node.exhaustion_probability_15m_ratio, format::percent)
                .count("leaks", 1, node.leaks)
                .count("critical findings", 3, node.critical_findings)
        });
        Table::new("Nodes", rows, "The server knows no node.")
    }

    pub fn run_table(&self) -> Table {
        let row = |run: &Run| {
            let world = run.world_size.map_or_else(String::new, |world| format!(" of {world:.0}"));
            let progress = run.progress().unwrap_or_default();
            let health = if run.is_stalled() { Health::Critical } else { Health::Ok };
            let fit = run.failing_fit().map_or(Health::Ok, |fit| fit.verdict.into());
            let first = run.first.as_ref().map(|first| first.time_to_exhaustion_seconds);
            let slowest = run.slowest.as_ref().map(|rank| rank.step_time_ratio);
            Row::new(format!("{}\0{}", run.job, run.run), run.health())
                .to(Link::Run(run.job.clone(), run.run.clone()))
                .text("run", 0, &run.run)
                .text("user", 2, &run.user)
                .value("ranks", 0, Some(run.ranks), |ranks| format!("{ranks:.0}{world}"))
                .text("state", 1, Cell::text(progress).of(health))
                .text("fit", 1, Cell::text(run.fit_words().unwrap_or_default()).of(fit))
                .number("time left", 0, left(first))
                .text("first to run out", 1, run.first_resource().unwrap_or_default())
                .value("slowest / median", 4, slowest, format::percent)
                .value("fullest / mean", 5, run.memory_spread_ratio, format::percent)
                .count("tokens/s", 3, run.tokens_per_second)
        };
        Table::new("Runs", self.runs.iter().map(row), "No run is known.")
    }

    pub fn alert_table(&self) -> Table {
        let rows = self.alerts.iter().flatten().enumerate().map(|(place, alert)| {
            Row::new(format!("{}\0{:?}", alert.name, alert.labels), alert.health())
                .to(Link::Alert(place))
                .text("severity", 1, Cell::text(&alert.severity).of(alert.health()))
                .text("alert", 0, &alert.name)
                .prose("description", &alert.text)
        });
        let empty = match self.alerts {
            Some(_) => "No alert fires.",
            None => "The server evaluates no alerts.",
        };
        Table::new("Alerts", rows, empty)
    }

    /// All that is shown of what a link names; absent where it does not exist now.
    pub fn sheet(&self, link: &Link) -> Option<Sheet> {
        let has = |labels: &BTreeMap<String, String>, name: &str, value: &str| {
            labels.get(name).is_some_and(|own| own == value)
        };
        match link {
            Link::ClusterNode(job, instance) => {
                let node = self.nodes.iter().find(|node| node.job == *job && node.instance == *instance)?;
                Some(self.of_node(node, |alert| has(&alert.labels, "instance", instance)))
            }
            Link::Run(job, name) => {
                let run = self.runs.iter().find(|run| run.job == *job && run.run == *name)?;
                Some(self.of_run(run, |alert| has(&alert.labels, "run", name)))
            }
            Link::Alert(place) => {
                let alert = self.alerts.iter().flatten().nth(*place)?;
                let labels =
                    alert.labels.iter().map(|(name, value)| Item::Text(None, format!("{name} = {value}")));
                let sections = vec![
                    Section::new("alert", "", vec![said(alert)]),
                    Section::new("labels", "Labels", labels.collect()),
                ];
                Some(Sheet {
                    title: "Alert".to_owned(),
                    health: alert.health(),
                    sections,
                    ..Sheet::default()
                })
            }
            _ => None,
        }
    }

    fn of_node(&self, node: &Node, wanted: impl Fn(&Alert) -> bool) -> Sheet {
        let facts = Facts::default()
            .text("state", node.state.label())
            .text("memory", node.memory.label())
            .number("time left", node.time_to_exhaustion_seconds, format::duration)
            .number("full within 15 min", node.exhaustion_probability_15m_ratio, format::percent)
            .number("leaks", node.leaks, format::whole)
            .number("critical findings", node.critical_findings, format::whole);
        let mut items = vec![Item::Facts(facts)];
        for run in &self.runs {
            if let Some(first) = run.first.as_ref().filter(|first| first.instance == node.instance) {
                let left = format::duration(first.time_to_exhaustion_seconds);
                items.push(Item::Text(
                    None,
                    format!("The first resource of run {} to run out: {left}", run.run),
                ));
            }
        }
        self.sheet_of(format!("Node {}", node.instance), node.health(), items, wanted)
    }

    fn of_run(&self, run: &Run, wanted: impl Fn(&Alert) -> bool) -> Sheet {
        let first = run.first.as_ref().zip(run.first_resource()).map(|(first, what)| {
            format!("{what}, in {}", format::duration(first.time_to_exhaustion_seconds))
        });
        let slowest = run.slowest.as_ref().map(|slowest| {
            let ratio = format::percent(slowest.step_time_ratio);
            format!("{} on {}, {ratio} of the median", slowest.rank, slowest.instance)
        });
        let facts = Facts::default()
            .text("user", &run.user)
            .number("ranks", Some(run.ranks), format::whole)
            .number("missing ranks", run.missing(), format::whole)
            .text("first to run out", first.unwrap_or_default())
            .text("slowest rank", slowest.unwrap_or_default())
            .number("fullest / mean", run.memory_spread_ratio, format::percent)
            .number("tokens/s", run.tokens_per_second, format::whole);
        let mut items = vec![Item::Facts(facts)];
        if run.is_stalled() {
            items.push(Item::Text(Some(Health::Critical), "No rank makes progress.".to_owned()));
        }
        if let Some((fit, words)) = run.fit.as_ref().zip(run.fit_words()) {
            let health = run.failing_fit().map(|fit| Health::from(fit.verdict));
            let of = format!("rank {} on {}, {}", fit.rank, fit.instance, fit.resource);
            items.push(Item::Text(health, format!("Predicted memory: {words} ({of}).")));
        }
        self.sheet_of(format!("Run {}", run.run), run.health(), items, wanted)
    }

    fn sheet_of(
        &self,
        title: String,
        health: Health,
        items: Vec<Item>,
        wanted: impl Fn(&Alert) -> bool,
    ) -> Sheet {
        let mut sections = vec![Section::new("state", "", items)];
        let alerts = self.alerts.iter().flatten().filter(|alert| wanted(alert));
        let alerts: Vec<Item> = alerts.map(said).collect();
        if !alerts.is_empty() {
            sections.push(Section::new("alerts", "Alerts", alerts));
        }
        Sheet { title, health, sections, ..Sheet::default() }
    }
}

fn said(alert: &Alert) -> Item {
    Item::Text(Some(alert.health()), format!("{}: {}", alert.name, alert.text))
}

fn left(seconds: Option<f64>) -> Cell {
    Cell::time_left(seconds, seconds.map_or_else(String::new, format::duration))
}
