//! Tests of the whole source on fixture trees.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::glob::Glob;
use super::options::Options;
use super::*;
use crate::host::cgroup::Version;
use crate::sources::testing::{Root, root, tick};

/// A tree of cgroups in a temporary folder.
struct Tree {
    root: Root,
    /// Location of the memory controller.
    top: PathBuf,
    version: Version,
}

impl Tree {
    fn v2() -> Self {
        let root = root(&[]);
        let tree = Self { top: root.path().to_path_buf(), root, version: Version::V2 };
        tree.write("/", "cgroup.controllers", "cpu memory pids\n");
        tree.write("/", "memory.stat", "anon 1000\nfile 500\ninactive_file 100\n");
        tree
    }

    fn v1() -> Self {
        let root = root(&[]);
        let tree = Self { top: root.path().join("memory"), root, version: Version::V1 };
        tree.group("/", 1_000_000, 0, None);
        tree.write("/", "release_agent", "\n");
        tree
    }

    fn dir(&self, path: &str) -> PathBuf {
        self.top.join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, file: &str, text: impl AsRef<[u8]>) {
        self.root.write(self.dir(path).join(file), text);
    }

    /// Adds a cgroup with the files that every cgroup has.
    fn group(&self, path: &str, usage: u64, inactive_file: u64, limit: Option<u64>) {
        let (anon, v1) = (usage.saturating_sub(inactive_file), self.version == Version::V1);
        self.write(path, self.version.usage_file(), format!("{usage}\n"));
        let limit = limit.map(|limit| format!("{limit}\n"));
        if v1 {
            let stat = format!(
                "cache 7\nrss 7\ntotal_cache {inactive_file}\ntotal_rss {anon}\ntotal_inactive_file {inactive_file}\n"
            );
            self.write(path, "memory.stat", &stat);
            self.write(path, "memory.limit_in_bytes", limit.as_deref().unwrap_or("9223372036854771712\n"));
        } else {
            let stat = format!("anon {anon}\nfile {inactive_file}\ninactive_file {inactive_file}\n");
            self.write(path, "memory.stat", &stat);
            self.write(path, "memory.max", limit.as_deref().unwrap_or("max\n"));
        }
    }

    fn remove(&self, path: &str) {
        std::fs::remove_dir_all(self.dir(path)).unwrap();
    }

    fn source(&self) -> Subject {
        self.source_with(&[], &[], 8, 256, 1_000)
    }

    fn source_with(
        &self,
        include: &[&str],
        exclude: &[&str],
        depth: u64,
        max_cgroups: usize,
        descriptors: usize,
    ) -> Subject {
        let globs = |list: &[&str]| list.iter().map(|text| Glob::new(text)).collect();
        let (include, exclude) = (globs(include), globs(exclude));
        let options = Options { include, exclude, depth, max_cgroups, ..Options::default() };
        Subject(Cgroups::new(options, self.root.path().to_path_buf(), descriptors))
    }
}

struct Subject(Cgroups);

impl Subject {
    /// The exposition after a tick at that second, without comments, and the error.
    fn sample(&mut self, second: u64) -> (String, Option<SourceError>) {
        let (text, outcome) = tick(&mut self.0, second);
        assert!(!text.contains("dropped"), "{text}");
        (text, outcome.err())
    }

    /// The lines of a complete tick that contain one of these parts.
    #[track_caller]
    fn check(&mut self, second: u64, parts: &[&str], expected: Expect) {
        let (text, error) = self.sample(second);
        assert!(error.is_none(), "{error:?}");
        expected.assert_eq(&only(&text, parts));
    }
}

fn only(text: &str, parts: &[&str]) -> String {
    text.lines()
        .filter(|line| parts.iter().any(|word| line.contains(word)))
        .flat_map(|line| [line, "\n"])
        .collect()
}

#[test]
fn all_values_of_v2() {
    let tree = Tree::v2();
    tree.group("/job", 5000, 1000, Some(8000));
    let stat = "anon 3000\nfile 1500\nkernel 400\nshmem 200\nslab 300\ninactive_file 1000\n";
    tree.write("/job", "memory.stat", stat);
    tree.write("/job", "memory.peak", "7000\n");
    tree.write("/job", "memory.high", "7500\n");
    tree.write("/job", "memory.swap.current", "0\n");
    tree.write("/job", "memory.swap.max", "600\n");
    tree.write("/job", "memory.events", "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\nnew 7\n");
    let pressure = "some avg10=25.00 avg60=0.00 avg300=0.00 total=2000000\n\
        full avg10=1.50 avg60=0.00 avg300=0.00 total=500000\n";
    tree.write("/job", "memory.pressure", pressure);
    tree.write("/job", "pids.current", "12\n");
    tree.source().check(
        0,
        &["memwarden"],
        expect![[r#"
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/"} 1000
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/job"} 3000
        memwarden_cgroup_memory_file_bytes{cgroup="/"} 500
        memwarden_cgroup_memory_file_bytes{cgroup="/job"} 1500
        memwarden_cgroup_memory_usage_bytes{cgroup="/job"} 5000
        memwarden_cgroup_memory_working_set_bytes{cgroup="/job"} 4000
        memwarden_cgroup_memory_peak_bytes{cgroup="/job"} 7000
        memwarden_cgroup_memory_shared_bytes{cgroup="/job"} 200
        memwarden_cgroup_memory_kernel_bytes{cgroup="/job"} 400
        memwarden_cgroup_memory_slab_bytes{cgroup="/job"} 300
        memwarden_cgroup_swap_usage_bytes{cgroup="/job"} 0
        memwarden_cgroup_memory_limit_bytes{cgroup="/job"} 8000
        memwarden_cgroup_memory_high_bytes{cgroup="/job"} 7500
        memwarden_cgroup_swap_limit_bytes{cgroup="/job"} 600
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/job"} 8000
        memwarden_cgroup_memory_headroom_bytes{cgroup="/job"} 4000
        memwarden_cgroup_tasks{cgroup="/job"} 12
        memwarden_cgroup_memory_events_total{cgroup="/job",event="low"} 1
        memwarden_cgroup_memory_events_total{cgroup="/job",event="high"} 2
        memwarden_cgroup_memory_events_total{cgroup="/job",event="max"} 3
        memwarden_cgroup_memory_events_total{cgroup="/job",event="oom"} 4
        memwarden_cgroup_memory_events_total{cgroup="/job",event="oom_kill"} 5
        memwarden_cgroup_memory_events_total{cgroup="/job",event="oom_group_kill"} 6
        memwarden_cgroup_memory_pressure_ratio{cgroup="/job",kind="some"} 0.25
        memwarden_cgroup_memory_pressure_ratio{cgroup="/job",kind="full"} 0.015
        memwarden_cgroup_memory_stalled_seconds_total{cgroup="/job",kind="some"} 2
        memwarden_cgroup_memory_stalled_seconds_total{cgroup="/job",kind="full"} 0.5
        memwarden_cgroup_hierarchy_info{version="v2"} 1
        memwarden_cgroup_omitted 0
    "#]],
    );
}

#[test]
fn available_values_of_v1() {
    let tree = Tree::v1();
    tree.group("/job", 5000, 1000, Some(8000));
    tree.write("/job", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    tree.write("/job", "memory.failcnt", "9\n");
    tree.write("/job", "memory.max_usage_in_bytes", "8000\n");
    tree.write("/job", "memory.kmem.usage_in_bytes", "70\n");
    tree.write("/job", "memory.memsw.limit_in_bytes", "9000\n");
    tree.write("/job", "memory.memsw.usage_in_bytes", "7600\n");
    tree.write("/", "memory.max_usage_in_bytes", "1\n");
    tree.write("/", "memory.failcnt", "0\n");
    tree.source().check(
        0,
        &["memwarden"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/"} 1000000
        memwarden_cgroup_memory_usage_bytes{cgroup="/job"} 5000
        memwarden_cgroup_memory_working_set_bytes{cgroup="/"} 1000000
        memwarden_cgroup_memory_working_set_bytes{cgroup="/job"} 4000
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/"} 1000000
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/job"} 4000
        memwarden_cgroup_memory_file_bytes{cgroup="/"} 0
        memwarden_cgroup_memory_file_bytes{cgroup="/job"} 1000
        memwarden_cgroup_memory_peak_bytes{cgroup="/job"} 8000
        memwarden_cgroup_memory_kernel_bytes{cgroup="/job"} 70
        memwarden_cgroup_memory_limit_bytes{cgroup="/job"} 8000
        memwarden_cgroup_memory_and_swap_limit_bytes{cgroup="/job"} 9000
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/job"} 8000
        memwarden_cgroup_memory_headroom_bytes{cgroup="/job"} 2400
        memwarden_cgroup_memory_events_total{cgroup="/job",event="max"} 9
        memwarden_cgroup_memory_events_total{cgroup="/job",event="oom_kill"} 2
        memwarden_cgroup_hierarchy_info{version="v1"} 1
        memwarden_cgroup_omitted 0
    "#]],
    );
}

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
fn limits_above_bind_and_siblings_count() {
    let tree = Tree::v2();
    tree.group("/pod", 900, 100, Some(1000));
    tree.group("/pod/free", 300, 0, None);
    tree.group("/pod/larger", 500, 0, Some(5000));
    tree.group("/pod/small", 90, 0, Some(150));
    tree.group("/over", 700, 0, Some(600));
    tree.group("/alone", 10, 0, None);
    tree.source().check(
        0,
        &["limit_bytes", "headroom"],
        expect![[r#"
        memwarden_cgroup_memory_limit_bytes{cgroup="/over"} 600
        memwarden_cgroup_memory_limit_bytes{cgroup="/pod"} 1000
        memwarden_cgroup_memory_limit_bytes{cgroup="/pod/larger"} 5000
        memwarden_cgroup_memory_limit_bytes{cgroup="/pod/small"} 150
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/over"} 600
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/pod"} 1000
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/pod/free"} 1000
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/pod/larger"} 1000
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/pod/small"} 150
        memwarden_cgroup_memory_headroom_bytes{cgroup="/over"} 0
        memwarden_cgroup_memory_headroom_bytes{cgroup="/pod"} 200
        memwarden_cgroup_memory_headroom_bytes{cgroup="/pod/free"} 200
        memwarden_cgroup_memory_headroom_bytes{cgroup="/pod/larger"} 200
        memwarden_cgroup_memory_headroom_bytes{cgroup="/pod/small"} 60
    "#]],
    );
}

#[test]
fn v1_without_hierarchical_limits_is_not_bound_by_its_parent() {
    let tree = Tree::v1();
    tree.group("/flat", 10, 0, Some(100));
    tree.write("/flat", "memory.use_hierarchy", "0\n");
    tree.group("/flat/child", 50, 0, None);
    tree.source().check(
        0,
        &["effective", "headroom"],
        expect![[r#"
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/flat"} 100
        memwarden_cgroup_memory_headroom_bytes{cgroup="/flat"} 90
    "#]],
    );
}

#[test]
fn an_unreadable_limit_above_leaves_headroom_absent() {
    let tree = Tree::v2();
    tree.group("/pod", 900, 0, Some(1000));
    tree.group("/pod/leaf", 10, 0, Some(500));
    tree.write("/pod", "memory.max", "10");
    let (text, error) = tree.source().sample(0);
    expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/pod"} 900
        memwarden_cgroup_memory_usage_bytes{cgroup="/pod/leaf"} 10
        memwarden_cgroup_memory_limit_bytes{cgroup="/pod/leaf"} 500
    "#]]
    .assert_eq(&only(&text, &["limit_bytes", "headroom", "usage_bytes"]));
    let why = format!("cannot read {}/pod/memory.max: unexpected content", tree.top.display());
    assert!(
        matches!(error, Some(SourceError::Failed { kind: Failure::Parse, why: found }) if found == why),
        "{why}"
    );
}

#[test]
fn a_truncated_stat_removes_only_values_that_need_it() {
    let tree = Tree::v2();
    tree.group("/a", 900, 0, Some(1000));
    tree.write("/a", "memory.stat", "anon 5\nfile 6\ninactive_file 7");
    tree.write("/a", "memory.events", "low 0\nmax x\noom_kill 1");
    tree.write("/a", "memory.pressure", "some avg10=");
    let (text, error) = tree.source().sample(0);
    expect![[r#"
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/a"} 5
        memwarden_cgroup_memory_file_bytes{cgroup="/a"} 6
        memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 900
        memwarden_cgroup_memory_limit_bytes{cgroup="/a"} 1000
        memwarden_cgroup_memory_effective_limit_bytes{cgroup="/a"} 1000
        memwarden_cgroup_memory_events_total{cgroup="/a",event="low"} 0
    "#]]
    .assert_eq(&only(&text, &["/a"]));
    assert!(matches!(error, Some(SourceError::Failed { kind: Failure::Parse, .. })));
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
fn values_are_read_every_tick_and_descriptors_are_bounded() {
    let tree = Tree::v2();
    for name in ["/a", "/b", "/c"] {
        tree.group(name, 10, 0, None);
    }
    let mut source = tree.source_with(&[], &[], 8, 256, 5);
    for second in 0..12 {
        tree.write("/c", "memory.current", format!("{second}\n"));
        let (text, _) = source.sample(second);
        assert!(text.contains(&format!("memory_usage_bytes{{cgroup=\"/c\"}} {second}\n")), "{text}");
        let kept: usize = source.0.groups.iter().map(|group| group.files.kept()).sum();
        assert_eq!(kept, 5);
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

/// Runs on a thread without privileges, so that access permissions apply.
fn unprivileged<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = rustix::process::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            run()
        });
        thread.join().unwrap()
    })
}

fn forbid(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn unreadable_files_are_named_and_the_others_are_read() {
    let tree = Tree::v2();
    forbid(tree.root.path(), 0o755);
    tree.group("/a", 10, 0, None);
    tree.group("/b", 20, 0, Some(100));
    forbid(&tree.dir("/b").join("memory.max"), 0o000);
    let (text, error) = unprivileged(|| tree.source().sample(0));
    expect![[r#"
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/"} 1000
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/a"} 10
        memwarden_cgroup_memory_anonymous_bytes{cgroup="/b"} 20
        memwarden_cgroup_memory_file_bytes{cgroup="/"} 500
        memwarden_cgroup_memory_file_bytes{cgroup="/a"} 0
        memwarden_cgroup_memory_file_bytes{cgroup="/b"} 0
        memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 10
        memwarden_cgroup_memory_usage_bytes{cgroup="/b"} 20
        memwarden_cgroup_memory_working_set_bytes{cgroup="/a"} 10
        memwarden_cgroup_memory_working_set_bytes{cgroup="/b"} 20
    "#]]
    .assert_eq(&only(&text, &["cgroup=\"/"]));
    let why = format!("cannot read {}/b/memory.max: Permission denied (os error 13)", tree.top.display());
    let Some(SourceError::Failed { kind: Failure::Permission, why: found }) = error else {
        panic!("{error:?}")
    };
    assert_eq!(found, why);
}

#[test]
fn a_forbidden_folder_does_not_hide_the_others() {
    let tree = Tree::v2();
    forbid(tree.root.path(), 0o755);
    tree.group("/a", 10, 0, None);
    tree.group("/b", 20, 0, None);
    tree.group("/b/c", 5, 0, None);
    forbid(&tree.dir("/b"), 0o000);
    let mut source = tree.source();
    let (text, error) = unprivileged(|| source.sample(0));
    assert_eq!(only(&text, &["usage_bytes"]), "memwarden_cgroup_memory_usage_bytes{cgroup=\"/a\"} 10\n");
    assert!(matches!(error, Some(SourceError::Failed { kind: Failure::Permission, .. })));
    let (_, again) = unprivileged(|| source.sample(1));
    assert!(again.is_some(), "a failure of the walk lasts until the next");
    forbid(&tree.dir("/b"), 0o755);
    source.check(
        5,
        &["usage_bytes"],
        expect![[r#"
        memwarden_cgroup_memory_usage_bytes{cgroup="/a"} 10
        memwarden_cgroup_memory_usage_bytes{cgroup="/b"} 20
        memwarden_cgroup_memory_usage_bytes{cgroup="/b/c"} 5
    "#]],
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_text_in_any_file_never_panics(
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 8),
        is_v1 in any::<bool>(),
    ) {
        let tree = if is_v1 { Tree::v1() } else { Tree::v2() };
        tree.group("/a", 1, 0, None);
        let files = if is_v1 {
            ["memory.stat", "memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control", "memory.failcnt",
             "memory.max_usage_in_bytes", "memory.memsw.limit_in_bytes", "memory.use_hierarchy"]
        } else {
            ["memory.stat", "memory.current", "memory.max", "memory.events", "memory.high",
             "memory.peak", "memory.pressure", "pids.current"]
        };
        for (file, text) in files.iter().zip(&texts) {
            tree.write("/a", file, text);
        }
        let mut source = tree.source();
        source.sample(0);
        source.sample(1);
    }
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
