//! A real Prometheus scrapes a memwarden with fake GPUs: every query of the dashboards returns data, every rule is
//! evaluated, series of exited processes disappear, and no scrape fails.

use crate::database::{BusyNode, Database, dashboard_queries};
use crate::harness::tool;

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
    assert!(prometheus.query("min_over_time(up[10m]) == 1").len() == 1, "a scrape failed");
}
