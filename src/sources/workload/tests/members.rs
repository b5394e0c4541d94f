//! Which processes belong to a workload, and which workloads are shown.

use super::*;

#[test]
fn orphans_and_new_sessions_stay_with_their_workload() {
    let mut host = Host::new(options());
    host.add(&Process::new(10, "slurmstepd"));
    host.add(&Process::new(11, "python").parent(10).cgroup(JOB));
    host.add(&Process::new(12, "loader").parent(11).cgroup("/elsewhere"));
    assert_eq!(host.members(), "slurm-7: 11 12");
    // Its parent ends; init adopts it; it has a child in a session of its own.
    host.tree.end(11);
    host.add(&Process::new(12, "loader").parent(1).cgroup("/elsewhere"));
    host.add(&Process::new(13, "grandchild").parent(12));
    assert_eq!(host.members(), "slurm-7: 12 13");
    host.tree.end(12);
    host.add(&Process::new(13, "grandchild").parent(1));
    assert_eq!(host.members(), "slurm-7: 13");
    // The same pid, started later, is another process.
    host.add(&Process::new(13, "other").start(999));
    assert_eq!(host.members(), "");
}

#[test]
fn a_gpu_process_brings_its_tree() {
    let mut host = Host::new(options());
    let mut shell = Process::new(20, "bash");
    shell.terminal = 34816;
    host.add(&shell);
    host.add(&Process::new(21, "torchrun").parent(20));
    host.add(&Process::new(22, "python").parent(21));
    host.add(&Process::new(23, "python").parent(21));
    host.add(&Process::new(24, "loader").parent(22));
    host.add(&Process::new(30, "other").parent(20));
    assert_eq!(host.members(), "");
    host.gpu(22, Some(100));
    host.gpu(23, None);
    host.gpu(999, Some(1));
    assert_eq!(host.members(), "torchrun-21: 21 22 23 24");
    let out = host.sample();
    assert_eq!(
        value(&out, "memwarden_workload_gpu_memory_bytes", &["torchrun-21", "0", "GPU-a"]),
        Some(100.0)
    );
    assert_eq!(value(&out, "memwarden_workload_gpu_processes", &["torchrun-21", "0", "GPU-a"]), Some(2.0));
    // It remains a workload while it does not use the GPU; its GPU memory is absent.
    host.gpus.clear();
    assert_eq!(host.members(), "torchrun-21: 21 22 23 24");
    assert_eq!(
        value(&host.sample(), "memwarden_workload_gpu_memory_bytes", &["torchrun-21", "0", "GPU-a"]),
        None
    );
    let mut off = Host::new(Options { gpu_trees: false, ..options() });
    off.add(&Process::new(22, "python"));
    off.gpu(22, Some(1));
    assert_eq!(off.members(), "");
}

#[test]
fn a_process_that_reports_as_a_rank_brings_its_tree() {
    let mut host = Host::new(options());
    host.add(&Process::new(21, "torchrun"));
    host.add(&Process::new(22, "python").parent(21));
    host.add(&Process::new(30, "python").cgroup(JOB));
    let key = |pid, start| ProcessKey { pid, start };
    let start = host.sample().facts.processes.unwrap().get(22).unwrap().key.start;
    // The pid of a process that has ended, and a process that is in a workload already.
    host.reporting = vec![key(22, start + 1), key(30, start)];
    assert_eq!(host.members(), "slurm-7: 30");
    host.reporting.push(key(22, start));
    assert_eq!(host.members(), "slurm-7: 30\ntorchrun-21: 21 22");
    expect_test::expect![[r#"
        memwarden_workload_info slurm-7,slurm,tester,/slurm/uid_1000/job_7,7,0,,,,,,,,,slurm-7 1
        memwarden_workload_info torchrun-21,job,tester,/user.slice,,,,,,,,,,, 1
    "#]]
    .assert_eq(&values(&host.sample(), "memwarden_workload_info"));
    // A job connects before it uses its GPU.
    host.gpu(22, None);
    let shown = values(&host.sample(), "memwarden_workload_info");
    assert!(shown.contains("memwarden_workload_info torchrun-21,gpu,"), "{shown}");
    // It remains one when the connection ends.
    host.reporting.clear();
    assert_eq!(host.members(), "slurm-7: 30\ntorchrun-21: 21 22");
    // Workloads found only by the job socket leave half of the limit to others.
    let mut small = Host::new(Options { max_workloads: 4, ..options() });
    for pid in 40..44 {
        small.add(&Process::new(pid, "python"));
    }
    let table = small.sample().facts.processes.unwrap();
    small.reporting = (40..44).map(|pid| table.get(pid).unwrap().key).collect();
    small.sample();
    assert_eq!(small.workload.workload_table.watched(), 2);
    let mut off = Host::new(Options { job_trees: false, ..options() });
    off.add(&Process::new(22, "python"));
    off.reporting = vec![key(22, start)];
    assert_eq!(off.members(), "");
}

#[test]
fn the_jobs_that_a_shell_runs_one_after_the_other_start_one_after_the_other() {
    let mut host = Host::new(options());
    host.add(&Process::new(20, "bash").start(1_000));
    let start_of = |host: &mut Host, ranks: &[u32]| {
        let table = host.sample().facts.processes.unwrap();
        host.reporting = ranks.iter().map(|pid| table.get(*pid).unwrap().key).collect();
        let start = value(&host.sample(), "memwarden_workload_start_timestamp_seconds", &["bash-20"]);
        let boot = u32::try_from(host.sample().facts.processes.unwrap().boot.unwrap()).unwrap();
        start.unwrap() - f64::from(boot)
    };
    host.add(&Process::new(21, "python").parent(20).start(2_000));
    host.add(&Process::new(22, "python").parent(20).start(2_100));
    assert_eq!(start_of(&mut host, &[21, 22]), 10.0);
    // A rank that is started again beside one that goes on belongs to the same job.
    host.tree.end(21);
    host.add(&Process::new(23, "python").parent(20).start(3_000));
    assert_eq!(start_of(&mut host, &[22, 23]), 10.0);
    host.tree.end(22);
    host.tree.end(23);
    assert_eq!(start_of(&mut host, &[]), 10.0);
    host.add(&Process::new(24, "python").parent(20).start(4_000));
    assert_eq!(start_of(&mut host, &[24]), 40.0);
    // Its own children are no later job.
    host.add(&Process::new(25, "python").parent(24).start(5_000));
    assert_eq!(start_of(&mut host, &[24, 25]), 40.0);
}

#[test]
fn precedence_is_matcher_slurm_pod_container_unit_gpu() {
    let pod = "/kubepods/pod1a2b3c4d-0000-1111-2222-0123456789ab";
    let id = "0123456789abcdef".repeat(4);
    let container = format!("/docker/{id}");
    let own = matcher::Matcher { executable: Some("train".to_owned()), ..matcher("own") };
    let mut host = Host::new(Options { matchers: vec![own], units: vec!["train-*".to_owned()], ..options() });
    host.add(&Process::new(10, "a").cgroup(JOB));
    host.add(&Process::new(11, "train").parent(10).cgroup(JOB).exe("/opt/train"));
    host.add(&Process::new(12, "b").parent(11).cgroup(JOB));
    host.add(&Process::new(20, "c").cgroup(&format!("{pod}/{id}")).pages(50));
    host.add(&Process::new(21, "pause").cgroup(&format!("{pod}/{}", "f".repeat(64))));
    host.add(&Process::new(30, "d").cgroup(&container));
    host.add(&Process::new(31, "e").parent(30).cgroup("/system.slice/train-x.service"));
    host.add(&Process::new(40, "f").cgroup("/system.slice/train-x.service"));
    host.add(&Process::new(50, "g"));
    for pid in [12, 20, 30, 40, 50] {
        host.gpu(pid, None);
    }
    expect_test::expect![[r#"
        container-0123456789ab: 30 31
        g-50: 50
        own: 11 12
        pod-1a2b3c4d-0000-1111-2222-0123456789ab: 20 21
        slurm-7: 10
        unit-train-x.service: 40"#]]
    .assert_eq(&host.members());
    expect_test::expect![[r#"
        memwarden_workload_info slurm-7,slurm,tester,/slurm/uid_1000/job_7,7,0,,,,,,,,,slurm-7 1
        memwarden_workload_info own,matcher,tester,/slurm/uid_1000/job_7/step_0/task_0,,,,,,,,,,, 1
        memwarden_workload_info pod-1a2b3c4d-0000-1111-2222-0123456789ab,pod,tester,/kubepods/pod1a2b3c4d-0000-1111-2222-0123456789ab,,,,,,,,1a2b3c4d-0000-1111-2222-0123456789ab,0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef,, 1
        memwarden_workload_info container-0123456789ab,container,tester,/docker/0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef,,,,,,,,,0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef,, 1
        memwarden_workload_info unit-train-x.service,unit,tester,/system.slice/train-x.service,,,,,,,,,,train-x.service, 1
        memwarden_workload_info g-50,gpu,tester,/user.slice,,,,,,,,,,, 1
    "#]].assert_eq(&values(&host.sample(), "memwarden_workload_info"));
    let none = Options { slurm: false, kubernetes: false, containers: false, gpu_trees: false, ..options() };
    host.workload = Workloads::new(none, &host.tree.roots(), 1_000, &patient());
    assert_eq!(host.members(), "");
}

#[test]
fn a_tree_is_that_of_the_process_which_ran_at_the_start() {
    let trees = ["10 run", "77"].map(str::to_owned).into();
    let mut host = Host::new(Options { trees, ..options() });
    host.add(&Process::new(10, "python"));
    host.add(&Process::new(11, "loader").parent(10).cgroup(JOB));
    assert_eq!(host.members(), "run: 10 11");
    host.add(&Process::new(12, "loader").parent(11));
    // A process that gets the pid later is another one, and so is one that did not exist.
    host.tree.end(10);
    host.add(&Process::new(10, "other").start(900));
    host.add(&Process::new(77, "late"));
    assert_eq!(host.members(), "run: 11 12");
}

#[test]
fn too_many_workloads_are_counted_and_the_first_stay() {
    let mut host = Host::new(Options { max_workloads: 2, ..options() });
    for job in [3, 1] {
        host.add(&Process::new(10 + job, "p").cgroup(&format!("/slurm/uid_0/job_{job}")));
    }
    host.sample();
    host.add(&Process::new(9, "p").cgroup("/slurm/uid_0/job_0"));
    let out = host.sample();
    assert_eq!(value(&out, "memwarden_workloads", &[]), Some(2.0));
    assert_eq!(value(&out, "memwarden_workloads_omitted", &[]), Some(1.0));
    assert_eq!(value(&out, "memwarden_workload_rss_bytes", &["slurm-0"]), None);
    assert!(value(&out, "memwarden_workload_rss_bytes", &["slurm-3"]).is_some());
    host.tree.end(13);
    assert!(value(&host.sample(), "memwarden_workload_rss_bytes", &["slurm-0"]).is_some());
}

#[test]
fn a_process_that_changes_its_workload_is_not_counted_twice() {
    let mut host = Host::new(options());
    host.add(&Process::new(10, "p").cpu(500));
    host.gpu(10, None);
    assert_eq!(host.members(), "p-10: 10");
    host.add(&Process::new(10, "p").cpu(600).cgroup(JOB));
    let out = host.sample();
    assert_eq!(value(&out, "memwarden_workload_cpu_seconds_total", &["slurm-7"]), Some(1.0));
    assert_eq!(value(&out, "memwarden_workload_cpu_seconds_total", &["p-10"]), None);
}

#[test]
fn without_processes_it_is_unavailable_and_bad_matchers_are_named() {
    let tree = Tree::new();
    let mut source = Workloads::new(options(), &tree.roots(), 1, &patient());
    let error = source.sample(Timestamp::from_secs(1), &mut Batch::new()).unwrap_err();
    assert!(matches!(error, SourceError::Unavailable { .. }));
    assert_eq!(
        matcher("x").problem(),
        Some("must have a condition; without one it would match every process")
    );
    assert_eq!(matcher("").problem(), Some("must have a name"));

    let matchers = vec![of_line("", "train.py")];
    let mut host = Host::new(options());
    host.workload = Workloads::new(Options { matchers, ..options() }, &host.tree.roots(), 1, &patient());
    let mut out = Batch::new();
    host.process.sample(Timestamp::from_secs(1), &mut out).unwrap();
    let error = host.workload.sample(Timestamp::from_secs(1), &mut out).unwrap_err();
    assert_eq!(error.to_string(), "matchers[0] must have a name");
    assert_eq!(value(&out, "memwarden_workloads", &[]), Some(0.0));
}

#[test]
fn a_pod_is_named_by_namespace_and_name_and_its_key_stays() {
    let uid = "1a2b3c4d-0000-1111-2222-0123456789ab";
    let (large, small) = ("a".repeat(64), "b".repeat(64));
    let mut host = Host::new(options());
    let group = |id: &str| format!("/kubepods/burstable/pod{uid}/{id}");
    host.add(&Process::new(10, "python").cgroup(&group(&large)).memory(4000, 0, 0, 4000));
    host.add(&Process::new(11, "sidecar").cgroup(&group(&small)).memory(40, 0, 0, 40));
    let shown = |host: &mut Host| labels(host, &["workload", "namespace", "pod", "container"]);
    assert_eq!(shown(&mut host), format!("pod-{uid},,,"));
    let key = |host: &Host| host.workload.workload_table.workloads.values().next().unwrap().facts.key.clone();
    let before = key(&host);
    // Of a container without a name, the pod is known.
    let mut pods = PodNames::default();
    pods.pods.insert(uid.into(), facts::ContainerName::new("team", "llama-0", ""));
    pods.containers.insert((&small).into(), facts::ContainerName::new("team", "llama-0", "sidecar"));
    host.pods = Arc::new(pods.clone());
    assert_eq!(shown(&mut host), "team/llama-0,team,llama-0,");
    pods.containers.insert((&large).into(), facts::ContainerName::new("team", "llama-0", "train"));
    host.pods = Arc::new(pods);
    assert_eq!(shown(&mut host), "team/llama-0,team,llama-0,train");
    assert_eq!(key(&host), before);
    // A process with such a name is not a pod, and the names of a pod that ended change nothing.
    host.add(&Process::new(20, "team/llama"));
    host.gpu(20, None);
    assert_eq!(host.members(), "team/llama-0: 10 11\ntree-team/llama-20: 20");
    host.pods = Arc::default();
    assert_eq!(shown(&mut host).lines().next(), Some("team/llama-0,,,"));
    host.tree.end(10);
    host.tree.end(11);
    assert_eq!(host.members(), "tree-team/llama-20: 20");
}
