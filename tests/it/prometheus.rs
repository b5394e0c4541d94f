//! A real Prometheus scrapes a memwarden with fake GPUs: every query of the dashboards returns data, every rule is
//! evaluated, series of exited processes disappear, and no scrape fails.

use crate::database::{BusyNode, Database, dashboard_queries};
use crate::harness::{memwarden, tool};
use crate::tmux::Terminal;

#[test]
fn every_dashboard_query_returns_data() {
    let node = BusyNode::start(&[]);
    let Some(binary) = tool("prometheus") else { return };
    let target = node.daemon.address;
    let scrapes =
        format!("scrape_configs: [{{job_name: memwarden, static_configs: [{{targets: ['{target}']}}]}}]\n");
    let prometheus = Database::prometheus(&binary, &scrapes, &[]);
    prometheus.wait_for_all(node.queries());
    // Queries that may be empty must at least be valid.
    for query in dashboard_queries() {
        prometheus.query(&query);
    }
    let failed = prometheus.failed_rules();
    assert!(failed.is_empty(), "{failed:?}");
    // A busy machine may exceed the second that a scrape has; an invalid page fails each.
    assert!(prometheus.query("avg_over_time(up[10m]) > 0.9").len() == 1, "scrapes failed");
    let url = format!("http://{}", prometheus.address);
    the_cluster_is_reported(&url, &target.to_string());
    the_cluster_is_on_the_terminal(&url, &target.to_string());
}

/// `memwarden top --prometheus` shows the node and the run of its job; absent without tmux.
fn the_cluster_is_on_the_terminal(url: &str, target: &str) {
    let Some(terminal) = Terminal::top(&format!("--prometheus {url} --interval 1")) else { return };
    terminal.shows(&[target, "1 Nodes", "q quit"]);
    terminal.keys(&["2"]);
    terminal.shows(&["speaker", "2 of 2"]);
    terminal.keys(&["q"]);
    terminal.is_as_before(0);
    // A server that ends is not a healthy cluster.
    let Some(terminal) = Terminal::top("--prometheus http://127.0.0.1:1") else { return };
    let screen = terminal.shows(&["http://127.0.0.1:1"]);
    assert!(!screen.lines().any(|line| line.starts_with("ok")), "{screen}");
    terminal.keys(&["q"]);
    terminal.shows(&["ended with 0"]);
}

/// `memwarden cluster` shows the node and the run of its job.
fn the_cluster_is_reported(url: &str, target: &str) {
    let cluster = |more: &[&str]| {
        let output = memwarden(&[&["cluster", "--prometheus", url], more].concat()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, text, error) = cluster(&[]);
    assert!([0, 2, 3].contains(&code) && error.is_empty(), "{code} {error}");
    assert!(text.contains(target) && text.contains("speaker"), "{text}");
    let (_, json, _) = cluster(&["--run", "speaker", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let run = &json["runs"][0];
    assert_eq!(
        (&run["run"], &run["ranks"], &run["world_size"]),
        (&"speaker".into(), &2.0.into(), &2.0.into()),
        "{run}"
    );
    assert!(run["tokens_per_second"].as_f64().unwrap() > 0.0, "{run}");
    assert!(json["alerts"].is_array(), "this server evaluates alerts: {json}");
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("cluster.svg");
    let (_, _, error) = cluster(&["--plot", chart.to_str().unwrap(), "--range", "5m"]);
    let svg = std::fs::read_to_string(&chart).unwrap_or_else(|_| panic!("no chart: {error}"));
    assert!(svg.contains("Memory in use") && svg.contains(target), "{svg}");
    let (code, _, error) = cluster(&["--run", "nobody"]);
    assert!(code == 1 && error.contains("knows no run nobody"), "{code} {error}");
}
