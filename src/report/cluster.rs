//! The report of `memwarden cluster`.

use std::fmt::Write as _;

use super::text::{self, Page};
use crate::cluster::{Cluster, Named, Past};
use crate::model::format::percent;
use crate::model::health::Health;
use crate::model::printable::escaped;
use crate::node_view::table::Table;
use crate::plot::{Chart, Limit, Line, Panel, TimeAxis, Unit};

/// Grows when a key changes its meaning or disappears.
pub const CLUSTER_SCHEMA: u32 = 1;

#[derive(Debug, serde::Serialize)]
pub struct ClusterJson<'c> {
    schema_version: u32,
    /// Whether something needs attention.
    health: Health,
    /// Whether part of the cluster is not seen.
    incomplete: bool,
    #[serde(flatten)]
    cluster: &'c Cluster,
}

pub fn cluster_json(cluster: &Cluster) -> ClusterJson<'_> {
    ClusterJson {
        schema_version: CLUSTER_SCHEMA,
        health: cluster.health(),
        incomplete: cluster.is_incomplete(),
        cluster,
    }
}

/// A cluster as text; tables have at most `top` rows.
pub fn cluster_text(cluster: &Cluster, top: usize, page: Page) -> String {
    let mut text = String::new();
    head(cluster, page, &mut text);
    first("Nodes", cluster.node_table(), top, page, &mut text);
    first("Runs", cluster.run_table(), top, page, &mut text);
    advice(cluster, &mut text);
    first("Firing alerts", cluster.alert_table(), top, page, &mut text);
    text
}

/// The chart of a cluster's past, with points `step` seconds apart.
pub fn cluster_chart(cluster: &Cluster, past: &Past, step: f64) -> Chart {
    let panel = |title: &str, unit: Unit, series: &[Named]| {
        let lines = series
            .iter()
            .map(|(name, points)| Line { name: escaped(name).into_owned(), points: with_gaps(points, step) });
        let limit = (unit == Unit::Ratio).then(|| Limit { value: 1.0, name: "capacity".to_owned() });
        Panel { title: title.to_owned(), unit, lines: lines.collect(), limit, ..Panel::default() }
    };
    let mut panels = vec![panel("Memory in use, the fullest of host and GPUs", Unit::Ratio, &past.used)];
    for (title, series) in [
        ("Time left of nodes, up to 4 hours", &past.node_time_left),
        ("Time left of runs, up to 4 hours", &past.run_time_left),
    ] {
        if !series.is_empty() {
            panels.push(panel(title, Unit::Seconds, series));
        }
    }
    Chart {
        title: "memwarden cluster".to_owned(),
        subtitle: escaped(&cluster.sentence()).into_owned(),
        time: TimeAxis::Utc,
        panels,
    }
}

/// The points, with a missing value where one or more are absent.
fn with_gaps(points: &[(f64, f64)], step: f64) -> Vec<(f64, Option<f64>)> {
    let mut all = Vec::with_capacity(points.len());
    let mut before = None;
    for (time, value) in points {
        if let Some(before) = before
            && time - before > step * 1.5
        {
            all.push((before + step, None));
        }
        all.push((*time, Some(*value)));
        before = Some(*time);
    }
    all
}

fn head(cluster: &Cluster, page: Page, text: &mut String) {
    text.push_str(&page.marked(cluster.health(), &escaped(&cluster.sentence())));
    text.push_str("\n\n");
}

/// The first `top` rows of a table below a heading.
fn first(heading: &str, mut table: Table, top: usize, page: Page, out: &mut String) {
    if table.rows.is_empty() {
        let _ = writeln!(out, "\n{}", table.empty);
        return;
    }
    let _ = writeln!(out, "\n{heading}");
    table.truncate(top);
    text::table(out, &table, page);
}

/// What the balance of the ranks of each run suggests.
fn advice(cluster: &Cluster, text: &mut String) {
    /// Ratios from which ranks are called unequal.
    const UNEQUAL: f64 = 1.2;
    let mut lines = String::new();
    for run in &cluster.runs {
        let name = escaped(&run.run);
        if let Some(slowest) = run.slowest.as_ref().filter(|rank| rank.step_time_ratio > UNEQUAL) {
            let (rank, node) = (escaped(&slowest.rank), escaped(&slowest.instance));
            let _ = writeln!(
                lines,
                "  {name}: rank {rank} on {node} takes {} of the step time of the median rank, and all others wait for it; \
                 check its GPU for throttling and errors, and its host for other load",
                percent(slowest.step_time_ratio)
            );
        }
        if let Some(spread) = run.memory_spread_ratio.filter(|spread| *spread > UNEQUAL) {
            let _ = writeln!(
                lines,
                "  {name}: the fullest rank has {} of the mean memory; move layers or shards from it to other ranks, or \
                 reduce its share of the batch",
                percent(spread)
            );
        }
        if let Some(missing) = run.missing().filter(|missing| *missing > 0.0) {
            let _ = writeln!(
                lines,
                "  {name}: ranks not seen: {missing:.0}; their nodes are down, have no memwarden, or the ranks have ended"
            );
        }
    }
    if !lines.is_empty() {
        let _ = write!(text, "\nAdvice\n{lines}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Answers, Sample};

    fn sample(labels: &[(&str, &str)], value: f64) -> Sample {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Sample { labels: labels.collect(), value }
    }

    #[test]
    fn a_cluster_is_shown_with_what_is_wrong() {
        let mut answers = Answers::default();
        answers[0] =
            vec![sample(&[("instance", "a:10636")], 0.0), sample(&[("instance", "b\x1b[2J:10636")], 4.0)];
        answers[1] = vec![sample(&[("instance", "a:10636")], 2.0)];
        answers[2] = vec![sample(&[("instance", "a:10636")], 240.0)];
        answers[6] = vec![sample(&[("run", "llama")], 3.0)];
        answers[7] = vec![sample(&[("run", "llama")], 4.0)];
        answers[9] = vec![sample(
            &[("run", "llama"), ("instance", "a:10636"), ("resource", "gpu"), ("gpu", "1")],
            240.0,
        )];
        answers[10] = vec![sample(&[("run", "llama"), ("instance", "a:10636"), ("rank", "3")], 2.0)];
        answers[13] = vec![sample(&[("run", "llama")], 0.1)];
        let cluster = Cluster::new(&answers, None);
        expect_test::expect![[r#"
            2 nodes, 1 run, 1 node down, 1 run with ranks that are not seen. First to run out, in 4 min: gpu 1 of a:10636, run llama.


            Nodes
              node            state     memory   time left  P(15 min)  leaks  critical findings
              b\x1b[2J:10636  down      unknown          –          –      –                  –
              a:10636         complete  warning      4 min          –      –                  –

            Runs
              run    user   ranks  state     fit  time left  first to run out  slowest / median  fullest / mean  tokens/s
              llama  –     3 of 4  advances  –        4 min  gpu 1 of a:10636             200 %               –         –

            Advice
              llama: rank 3 on a:10636 takes 200 % of the step time of the median rank, and all others wait for it; check its GPU for throttling and errors, and its host for other load
              llama: ranks not seen: 1; their nodes are down, have no memwarden, or the ranks have ended

            The server evaluates no alerts.
        "#]].assert_eq(&cluster_text(&cluster, 10, Page::default()));
        for columns in [60, 80] {
            let page = Page { columns: Some(columns), ..Page::default() };
            let text = super::super::text::wrapped(&cluster_text(&cluster, 10, page), page).into_owned();
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        }
        let json = serde_json::to_value(cluster_json(&cluster)).unwrap();
        assert_eq!((&json["health"], &json["incomplete"]), (&"warning".into(), &true.into()));
        assert_eq!(json["nodes"][0]["state"], "down");
    }
}
