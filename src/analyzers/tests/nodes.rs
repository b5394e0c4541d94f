//! Workloads that may use some NUMA nodes only.

use super::*;
use crate::model::finding::Severity;
use crate::sources::{huge_pages, numa};

/// A host with four nodes of 504 GiB, of which node 1 has 1 GiB left.
fn host(batch: &mut Batch) {
    for node in 0..4_u32 {
        let left = if node == 1 { 1.0 } else { 495.0 };
        bytes(batch, &numa::metrics::TOTAL, &[node.into()], 504.0 * GIB);
        bytes(batch, &numa::metrics::AVAILABLE, &[node.into()], left * GIB);
    }
}

fn bind(batch: &mut Batch, node: u32) {
    batch.put(&workload::metrics::BOUND, &["job".into(), node.into()], Flag(true));
}

#[test]
fn a_full_node_is_a_problem_of_what_may_use_no_other() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 60, |_, batch| host(batch));
    assert!(analysis.findings.is_empty(), "nobody is bound: {:?}", analysis.findings);
    let bound = |nodes: &[u32]| {
        let mut analyzer = build(&exhaustion::REGISTRATION);
        let analysis = run(&mut *analyzer, 0, 60, |_, batch| {
            host(batch);
            nodes.iter().for_each(|node| bind(batch, *node));
        });
        let found = analysis.findings.first();
        found.map(|found| (found.severity, found.summary.clone(), found.advice))
    };
    let (severity, summary, advice) = bound(&[1]).unwrap();
    assert_eq!(severity, Severity::Critical);
    expect!["Memory of NUMA node 1 of job may run out: at least 98 % of the limit is used."]
        .assert_eq(&summary);
    assert!(advice.contains("more NUMA nodes"));
    assert_eq!(bound(&[1, 2]), None, "half of both is free");
    assert_eq!(bound(&[0]), None);
}

#[test]
fn pools_of_huge_pages_are_no_room_of_a_node_and_swap_is() {
    let of = |pool: f64, swap: f64| {
        let mut analyzer = build(&exhaustion::REGISTRATION);
        let analysis = run(&mut *analyzer, 0, 60, |_, batch| {
            host(batch);
            bind(batch, 0);
            bytes(batch, &huge_pages::metrics::OF_NODE, &["0".into(), "2MB".into()], pool * GIB);
            bytes(batch, &memory::metrics::SWAP_FREE, &[], swap * GIB);
        });
        value(&analysis, "memwarden_forecast_limit_bytes", &["numa_nodes", "job"]).unwrap() / GIB
    };
    assert_eq!([of(0.0, 0.0), of(4.0, 0.0), of(4.0, 10.0)], [504.0, 500.0, 510.0]);
}
