//! Maximum numbers of cgroups, and their shares per user.

use super::*;

#[test]
fn only_the_largest_are_exposed_but_every_limit_counts() {
    let tree = Tree::v2();
    tree.group("/pod", 500, 0, Some(600));
    for n in 0..20 {
        tree.group(&format!("/pod/c{n:02}"), 10 + n, 0, None);
    }
    let mut source = tree.source_with(&["/pod/*"], &["/pod/c19"], 8, 3, 1_000);
    source.check(
        0,
        &["usage_bytes", "headroom", "omitted"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/pod/c16"} 26
        memwarden_cgroup_memory_usage_bytes{cgroup="/pod/c17"} 27
        memwarden_cgroup_memory_usage_bytes{cgroup="/pod/c18"} 28
        memwarden_cgroup_memory_headroom_bytes{cgroup="/pod/c16"} 100
        memwarden_cgroup_memory_headroom_bytes{cgroup="/pod/c17"} 100
        memwarden_cgroup_memory_headroom_bytes{cgroup="/pod/c18"} 100
        memwarden_cgroup_omitted 16
    "#]],
    );
}

#[test]
fn a_deep_tree_ends_at_its_depth_and_links_are_not_followed() {
    let tree = Tree::v2();
    let mut path = String::new();
    for level in 0..40 {
        path = format!("{path}/d{level}");
        tree.group(&path, 10, 0, None);
    }
    std::os::unix::fs::symlink(tree.dir("/d0"), tree.dir("/link")).unwrap();
    let mut source = tree.source_with(&[], &[], 3, 256, 1_000);
    source.check(
        0,
        &["usage_bytes"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/d0"} 10
        memwarden_cgroup_memory_usage_bytes{cgroup="/d0/d1"} 10
        memwarden_cgroup_memory_usage_bytes{cgroup="/d0/d1/d2"} 10
    "#]],
    );
    assert_eq!(tree.source_with(&[], &[], 32, 256, 1_000).sample(0).0.matches("usage_bytes{").count(), 32);
}

#[test]
fn a_large_tree_is_walked_over_several_ticks() {
    let tree = Tree::v2();
    for n in 0..1_200 {
        tree.group(&format!("/g{n}"), n, 0, None);
    }
    let mut source = tree.source_with(&[], &[], 8, 10, 1_000);
    let largest = "memory_usage_bytes{cgroup=\"/g1199\"} 1199\n";
    let counts: Vec<String> = (0..3).map(|second| only(&source.sample(second).0, &["omitted"])).collect();
    assert_eq!(counts, ["490", "990", "1191"].map(|count| format!("memwarden_cgroup_omitted {count}\n")));
    assert!(source.sample(3).0.contains(largest));
    // The next walk begins at 5 s; meanwhile the known cgroups stay.
    assert!(source.sample(5).0.contains(largest));
}

#[test]
fn a_user_who_makes_many_groups_leaves_places_to_others_and_is_named() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let tree = Tree::v2();
    for path in ["/slurm", "/slurm/uid_1001", "/slurm/uid_1001/job_7", "/user", "/user/1002"] {
        tree.group(path, 10, 0, None);
    }
    for n in 0..300 {
        tree.group(&format!("/user/1002/g{n}"), 5_000 + n, 0, None);
    }
    std::os::unix::fs::chown(tree.dir("/user/1002"), Some(1002), None).unwrap();
    let mut source = tree.source_with(&["/slurm/uid_*/*", "/user/1002/*"], &[], 8, 20, 1_000);
    let mut out = Batch::new();
    source.0.sample(Timestamp::from_secs(0), &mut out).unwrap();
    let shown = out.families().iter().flat_map(|family| &family.points);
    let shown: std::collections::BTreeSet<_> =
        shown.filter_map(|point| point.labels.first()).map(ToString::to_string).collect();
    assert!(shown.contains("/slurm/uid_1001/job_7") && shown.contains("/user/1002/g299"), "{shown:?}");
    let shortage = Shortage { limit: "cgroups", user: Some(1002), left_out: 281, most: 20 };
    assert_eq!(out.facts.shortages, [shortage]);
    let users = &out.facts.cgroup_users;
    assert_eq!(users.get(&"/user/1002/g299".into()), Some(&1002));
    assert_eq!(users.values().filter(|user| **user == 1002).count(), 19);
}

#[test]
fn a_user_with_more_groups_than_a_walk_visits_leaves_the_groups_of_others_visited() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let tree = Tree::v2();
    for n in 0..2_100 {
        std::fs::create_dir_all(tree.dir(&format!("/a/g{n}"))).unwrap();
    }
    tree.write("/a", "memory.current", "1\n");
    std::os::unix::fs::chown(tree.dir("/a"), Some(1002), None).unwrap();
    tree.group("/b/c/d", 10, 0, None);
    for path in ["/b", "/b/c"] {
        tree.write(path, "memory.current", "10\n");
    }
    let hierarchy = Hierarchy { version: Version::V2, root: tree.top.clone() };
    let mut walk = Walk::new(hierarchy, 8);
    while !walk.step() {}
    assert!(walk.found.iter().any(|found| found.path == "/b/c/d" && found.user == 0));
    assert_eq!(walk.unvisited.keys().collect::<Vec<_>>(), [&1002]);
}
