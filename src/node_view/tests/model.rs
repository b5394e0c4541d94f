//! The view as data.

use super::*;

#[test]
fn the_model_survives_its_json_form() {
    let mut node = Node::new();
    node.gpu(0, 70, "ok");
    node.job("slurm/4711", "alice", "llama70b", 0, Some(69));
    node.leak();
    let view = node.view();
    let json = serde_json::to_vec(&view).unwrap();
    assert_eq!(serde_json::from_slice::<NodeView>(&json).unwrap(), view);
}

#[test]
fn a_workload_of_which_only_ended_processes_are_known_is_not_listed() {
    let mut node = Node::new();
    node.job("slurm/4711", "alice", "llama70b", 0, Some(69));
    for name in ["ended", "slurm/4711"] {
        node.batch.put(&jobs::EXITED_PEAK, &[name.into()], Bytes::new(GIB));
    }
    let view = node.view();
    let listed: Vec<_> = view.workloads.iter().map(|own| (own.name.as_str(), own.exited_peak)).collect();
    assert_eq!(listed, [("slurm/4711", Some(1_073_741_824.0))]);
}

#[test]
fn one_subject_cannot_displace_the_events_of_others() {
    let mut recorder = Recorder::default();
    for tick in 0..200 {
        let mut node = Node::new();
        node.at += tick;
        if tick == 0 {
            let [gpu, uuid] = gpu_labels(3);
            node.finding("visibility", Subject::gpu(&gpu, &uuid), "lost", Severity::Critical);
        }
        if tick % 2 == 0 {
            node.finding("leak", Subject::workload(&"flapping".into()), "leaking", Severity::Warning);
        }
        recorder.record(&node.frame());
    }
    let about = |workload: &str| recorder.events().filter(|event| event.workload == workload).count();
    assert_eq!((about("flapping"), about("")), (32, 2));
    assert!(recorder.events().is_sorted_by_key(|event| event.unix_seconds));
}

#[test]
fn a_view_survives_json_and_its_printable_form_has_no_control_characters() {
    let mut node = Node::new();
    node.gpu(0, 70, "ok");
    node.gpu(1, 0, "hung");
    node.job("slurm/4711", "alice", "llama\u{1b}[2J\n", 0, Some(69));
    node.leak();
    let view = view(&node.frame(), 0.0, None);
    let json = serde_json::to_string(&view).unwrap();
    assert_eq!(serde_json::from_str::<NodeView>(&json).unwrap(), view);
    let shown = view.printable();
    assert_eq!(shown.workloads[0].run, "llama\\x1b[2J\\n");
    assert!(!serde_json::to_string(&shown).unwrap().contains("\\u001b"));
}

#[test]
fn the_largest_cgroups_are_those_that_say_more_than_their_parents() {
    let mut node = Node::new();
    for (path, gib, limit) in [
        ("/", 20, None),
        ("/user.slice", 12, None),
        ("/user.slice/user-1000.slice", 11, Some(16)),
        ("/system.slice", 8, None),
        ("/system.slice/a.service", 3, None),
        ("/system.slice/b.service", 3, Some(4)),
    ] {
        node.batch.put(&crate::catalog::cgroup::USAGE, &[path.into()], Bytes::new(gib * GIB));
        let limit = limit.map(|gib: u64| Bytes::new(gib * GIB));
        node.batch.put_some(&crate::catalog::cgroup::LIMIT, &[path.into()], limit);
    }
    let table = node.view().cgroup_table();
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.cells.iter().map(|cell| cell.text.clone()).collect()).collect();
    expect_test::expect![[r#"
        [
            [
                "/user.slice/user-1000.slice",
                "11.0 GiB",
                "16.0 GiB",
            ],
            [
                "/system.slice",
                "8.0 GiB",
                "–",
            ],
            [
                "/system.slice/a.service",
                "3.0 GiB",
                "–",
            ],
            [
                "/system.slice/b.service",
                "3.0 GiB",
                "4.0 GiB",
            ],
        ]
    "#]]
    .assert_debug_eq(&rows);
}

#[test]
fn a_nearly_full_numa_node_is_said_and_is_no_problem() {
    use crate::catalog::{huge_pages, numa};
    let mut node = Node::new();
    for (number, left) in [("0", 400), ("1", 1)] {
        node.batch.put(&numa::TOTAL, &[number.into()], Bytes::new(504 * GIB));
        node.batch.put(&numa::AVAILABLE, &[number.into()], Bytes::new(left * GIB));
    }
    let pool = ["1".into(), "2MB".into()];
    node.batch.put(&huge_pages::OF_NODE, &pool, Bytes::new(4 * GIB));
    node.batch.put(&huge_pages::TOTAL, &pool[1..], Bytes::new(4 * GIB));
    node.batch.put(&huge_pages::FREE, &pool[1..], Bytes::new(GIB));
    let view = node.view();
    let table = view.numa_table();
    let rows: Vec<String> = table
        .rows
        .iter()
        .map(|row| row.cells.iter().map(|cell| &*cell.text).collect::<Vec<_>>().join("|"))
        .collect();
    assert_eq!(
        rows,
        [
            "0|104.0 GiB|400.0 GiB|504.0 GiB|–",
            "1|499.0 GiB|1.0 GiB|500.0 GiB|NUMA node 1 is nearly full: what may use no other finds no memory, although others have some"
        ]
    );
    assert!(view.problems.is_empty(), "{:?}", view.problems);
    let section = format!("{:?}", view.host_section());
    assert!(
        section.contains("1.0 GiB of 4.0 GiB free (2MB)") && section.contains("nearly full"),
        "{section}"
    );
}
