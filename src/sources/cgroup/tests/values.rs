//! Values of one cgroup.

use super::*;
use crate::model::source::Failure;

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
        memwarden_cgroup_memory_held_bytes{cgroup="/job"} 4000
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
            memwarden_cgroup_memory_held_bytes{cgroup="/"} 1000000
            memwarden_cgroup_memory_held_bytes{cgroup="/job"} 4000
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
fn device_memory_has_a_series_for_each_region() {
    // The example of the kernel's documentation (cgroup-v2.rst, "DMEM Interface Files").
    let tree = Tree::v2();
    tree.group("/job", 1_000, 0, None);
    tree.write("/", "dmem.capacity", "drm/0000:03:00.0/vram0 8514437120\ndrm/0000:03:00.0/stolen 67108864\n");
    tree.write("/job", "dmem.current", "drm/0000:03:00.0/vram0 12550144\ndrm/0000:03:00.0/stolen 8650752\n");
    tree.write("/job", "dmem.max", "drm/0000:03:00.0/vram0 1073741824\ndrm/0000:03:00.0/stolen max\n");
    tree.write("/job", "dmem.low", "drm/0000:03:00.0/vram0 0\ndrm/0000:03:00.0/stolen 0\n");
    let mut source = tree.source();
    source.check(
        0,
        &["device_memory"],
        expect![[r#"
            memwarden_device_memory_capacity_bytes{device_region="drm/0000:03:00.0/vram0"} 8514437120
            memwarden_device_memory_capacity_bytes{device_region="drm/0000:03:00.0/stolen"} 67108864
            memwarden_cgroup_device_memory_usage_bytes{cgroup="/job",device_region="drm/0000:03:00.0/vram0"} 12550144
            memwarden_cgroup_device_memory_usage_bytes{cgroup="/job",device_region="drm/0000:03:00.0/stolen"} 8650752
            memwarden_cgroup_device_memory_limit_bytes{cgroup="/job",device_region="drm/0000:03:00.0/vram0"} 1073741824
            memwarden_cgroup_device_memory_low_bytes{cgroup="/job",device_region="drm/0000:03:00.0/vram0"} 0
            memwarden_cgroup_device_memory_low_bytes{cgroup="/job",device_region="drm/0000:03:00.0/stolen"} 0
        "#]],
    );
    // The controller was disabled.
    for file in ["dmem.current", "dmem.max", "dmem.low"] {
        std::fs::remove_file(tree.dir("/job").join(file)).unwrap();
    }
    let mut source = tree.source();
    source.check(1, &["cgroup_device_memory"], expect![[""]]);
}

#[test]
fn a_limit_of_device_memory_above_an_exposed_cgroup_is_exposed() {
    let tree = Tree::v2();
    for path in ["/top", "/top/job", "/other"] {
        tree.group(path, 1_000, 0, None);
        tree.write(path, "dmem.current", "drm/0000:03:00.0/vram0 4096\n");
        let limit = if path == "/top/job" { "max" } else { "2147483648" };
        tree.write(path, "dmem.max", format!("drm/0000:03:00.0/vram0 {limit}\n"));
    }
    tree.source_with(&["/top/job"], &[], 8, 256, 1_000).check(
        0,
        &["cgroup_device_memory", "cgroup_memory_usage"],
        expect![[r#"
            memwarden_cgroup_device_memory_usage_bytes{cgroup="/top",device_region="drm/0000:03:00.0/vram0"} 4096
            memwarden_cgroup_device_memory_usage_bytes{cgroup="/top/job",device_region="drm/0000:03:00.0/vram0"} 4096
            memwarden_cgroup_device_memory_limit_bytes{cgroup="/top",device_region="drm/0000:03:00.0/vram0"} 2147483648
            memwarden_cgroup_memory_usage_bytes{cgroup="/top/job"} 1000
        "#]],
    );
}
