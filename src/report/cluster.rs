//! The report of `memwarden cluster`.

use std::fmt::Write as _;

use super::text::{Page, prose_table, table};
use super::verdict::Shown as _;
use crate::cluster::{Cluster, Named, Node, Past, Run};
use crate::model::format::{UNKNOWN, duration, percent, shown};
use crate::model::health::Health;
use crate::model::printable::escaped;
use crate::plot::{Chart, Limit, Line, Panel, TimeAxis, Unit};

/// Grows when a key changes its meaning or disappears.
pub const CLUSTER_SCHEMA: u32 = 1;

/// A cluster as JSON.
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

/// A cluster for JSON.
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
    nodes(cluster, top, page, &mut text);
    runs(cluster, top, page, &mut text);
    advice(cluster, &mut text);
    alerts(cluster, top, page, &mut text);
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
    text.push_str(&cluster.health().marked(&escaped(&cluster.sentence()), page));
    text.push_str("\n\n");
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn nodes(cluster: &Cluster, top: usize, page: Page, text: &mut String) {
    let mut rows =
        vec![row(&["node", "state", "memory", "time left", "P(15 min)", "leaks", "critical findings"])];
    let count = |count: Option<f64>| shown(count, |count| format!("{count:.0}"));
    rows.extend(cluster.nodes.iter().take(top).map(|node: &Node| {
        vec![
            escaped(&node.instance).into_owned(),
            node.state.word().to_owned(),
            node.memory.word().to_owned(),
            shown(node.time_to_exhaustion_seconds, duration),
            shown(node.exhaustion_probability_15m_ratio, percent),
            count(node.leaks),
            count(node.critical_findings),
        ]
    }));
    text.push_str("Nodes\n");
    table(text, &rows, page, &[5, 4, 6]);
    more(cluster.nodes.len(), top, text);
}

fn runs(cluster: &Cluster, top: usize, page: Page, text: &mut String) {
    if cluster.runs.is_empty() {
        text.push_str("\nNo runs.\n");
        return;
    }
    let mut rows = vec![row(&[
        "run",
        "user",
        "ranks",
        "state",
        "time left",
        "first to run out",
        "slowest / median",
        "fullest / mean",
        "tokens/s",
    ])];
    rows.extend(cluster.runs.iter().take(top).map(|run: &Run| {
        let world = run.world_size.map_or(String::new(), |world| format!(" of {world:.0}"));
        let first = run.first.as_ref();
        vec![
            escaped(&run.run).into_owned(),
            if run.user.is_empty() { UNKNOWN.to_owned() } else { escaped(&run.user).into_owned() },
            format!("{:.0}{world}", run.ranks),
            run.progress().unwrap_or(UNKNOWN).to_owned(),
            shown(first.map(|first| first.time_to_exhaustion_seconds), duration),
            run.first_resource().map_or_else(|| UNKNOWN.to_owned(), |first| escaped(&first).into_owned()),
            shown(run.slowest.as_ref().map(|rank| rank.step_time_ratio), percent),
            shown(run.memory_spread_ratio, percent),
            shown(run.tokens_per_second, |tokens| format!("{tokens:.0}")),
        ]
    }));
    text.push_str("\nRuns\n");
    table(text, &rows, page, &[7, 8, 6, 1, 5]);
    more(cluster.runs.len(), top, text);
}

fn more(count: usize, top: usize, text: &mut String) {
    if count > top {
        let _ = writeln!(text, "  and {} more (--top, --format json)", count - top);
    }
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

fn alerts(cluster: &Cluster, top: usize, page: Page, text: &mut String) {
    let Some(alerts) = &cluster.alerts else {
        text.push_str("\nAlerts: this server evaluates none.\n");
        return;
    };
    if alerts.is_empty() {
        return;
    }
    let mut rows = vec![row(&["severity", "alert", "description"])];
    rows.extend(alerts.iter().take(top).map(|alert| {
        [&alert.severity, &alert.name, &alert.text].map(|cell| escaped(cell).into_owned()).to_vec()
    }));
    text.push_str("\nFiring alerts\n");
    prose_table(text, &rows, &[0, 1], page, &[]);
    more(alerts.len(), top, text);
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
              node               state   memory  time left  P(15 min)  leaks  critical findings
              b\x1b[2J:10636      down  unknown          –          –      –                  –
              a:10636         complete  warning      4 min          –      –                  –

            Runs
              run    user   ranks     state  time left  first to run out  slowest / median  fullest / mean  tokens/s
              llama     –  3 of 4  advances      4 min  gpu 1 of a:10636             200 %               –         –

            Advice
              llama: rank 3 on a:10636 takes 200 % of the step time of the median rank, and all others wait for it; check its GPU for throttling and errors, and its host for other load
              llama: ranks not seen: 1; their nodes are down, have no memwarden, or the ranks have ended

            Alerts: this server evaluates none.
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
