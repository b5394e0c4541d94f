//! Which hierarchy and which cgroups are read.

use super::*;

#[test]
fn a_hybrid_takes_the_hierarchy_that_has_the_controller() {
    let mut tree = Tree::v1();
    tree.group("/a", 10, 0, None);
    let unified = tree.root.path().join("unified");
    std::fs::create_dir_all(unified.join("a")).unwrap();
    tree.root.write("unified/cgroup.controllers", "\n");
    tree.source().check(
        0,
        &["usage_bytes", "info"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/"} 1000000
        memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 10
        memwarden_cgroup_hierarchy_info{version="v1"} 1
    "#]],
    );

    std::fs::remove_dir_all(&tree.top).unwrap();
    tree.root.write("unified/cgroup.controllers", "memory\n");
    tree.top = unified;
    tree.version = Version::V2;
    tree.group("/a", 20, 0, None);
    tree.source().check(
        0,
        &["usage_bytes", "info"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 20
        memwarden_cgroup_hierarchy_info{version="v2"} 1
    "#]],
    );
}

#[test]
fn a_host_without_the_controller_is_unavailable_until_it_has_one() {
    let tree = Tree::v2();
    tree.write("/", "cgroup.controllers", "cpu io\n");
    let mut source = tree.source();
    let (text, error) = source.sample(0);
    assert_eq!(text, "");
    let why = format!("no memory controller in {} (it has: cpu io)", tree.top.display());
    assert!(matches!(error, Some(SourceError::Unavailable { why: found }) if found == why));
    tree.write("/", "cgroup.controllers", "cpu io memory\n");
    tree.group("/a", 20, 0, None);
    source.check(
        1,
        &["usage_bytes"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 20
    "#]],
    );
}

#[test]
fn a_container_sees_its_own_cgroup_as_the_root() {
    let tree = Tree::v2();
    tree.group("/", 300, 100, Some(1000));
    tree.source().check(
        0,
        &["usage_bytes", "limit", "headroom"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/"} 300
        memwarden_cgroup_memory_limit_bytes{cgroup="/"} 1000
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/"} 1000
        memwarden_cgroup_memory_headroom_bytes{cgroup="/"} 800
    "#]],
    );
}

#[test]
fn slurm_and_kubernetes_are_covered_by_default() {
    let tree = Tree::v1();
    let paths = [
        "/slurm/uid_1000/job_42/step_0/task_0",
        "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a_1b.slice/cri-containerd-9f.scope",
        "/kubepods/burstable/pod0a-1b/9f",
        "/docker/7c",
        "/system.slice/docker-7c.scope",
        "/system.slice/sshd.service",
    ];
    for (version, tree) in [(Version::V1, tree), (Version::V2, Tree::v2())] {
        for path in &paths {
            let mut whole = String::new();
            for part in path.split('/').skip(1) {
                whole = format!("{whole}/{part}");
                tree.group(&whole, 10, 0, None);
            }
        }
        let (text, error) = tree.source().sample(0);
        assert!(error.is_none(), "{version:?} {error:?}");
        for path in &paths {
            assert!(
                text.contains(&format!("memory_usage_bytes{{cgroup=\"{path}\"}} 10\n")),
                "{path}\n{text}"
            );
        }
    }
}

#[test]
fn removed_cgroups_disappear_and_new_ones_are_read() {
    for descriptors in [0, 1_000] {
        let tree = Tree::v2();
        tree.group("/a", 10, 0, None);
        tree.group("/b", 20, 0, None);
        let mut source = tree.source_with(&[], &[], 8, 256, descriptors);
        let a = |a: u64| format!("memwarden_cgroup_memory_usage_bytes{{cgroup=\"/a\"}} {a}\n");
        let b = "memwarden_cgroup_memory_usage_bytes{cgroup=\"/b\"} 20\n";
        assert_eq!(only(&source.sample(0).0, &["usage_bytes"]), a(10) + b);

        tree.remove("/a");
        tree.group("/a", 30, 0, None);
        assert_eq!(only(&source.sample(1).0, &["usage_bytes"]), a(30) + b);

        tree.remove("/a");
        let (text, error) = source.sample(2);
        assert_eq!((only(&text, &["usage_bytes"]).as_str(), error.is_none()), (b, true));

        tree.group("/a", 40, 0, None);
        assert_eq!(only(&source.sample(3).0, &["usage_bytes"]), b, "before the next walk");
        assert_eq!(only(&source.sample(5).0, &["usage_bytes"]), a(40) + b);
    }
}

#[test]
fn the_controller_may_disappear_and_return() {
    let tree = Tree::v2();
    tree.group("/a", 10, 0, None);
    tree.write("/b", "memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
    let mut source = tree.source();
    source.check(
        0,
        &["usage_bytes", "pressure"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 10
    "#]],
    );
    tree.group("/b", 20, 0, None);
    tree.remove("/a");
    source.check(
        5,
        &["usage_bytes", "pressure_ratio"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/b"} 20
        memwarden_cgroup_memory_pressure_ratio{cgroup="/b",kind="some"} 0
    "#]],
    );
}
