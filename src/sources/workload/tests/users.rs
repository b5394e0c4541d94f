//! Processes of several users, and what each of them can claim.

use super::*;

/// Whether fixtures can belong to other users.
fn may_chown() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_process_name_does_not_make_it_a_member_of_a_job() {
    let mut host = Host::new(options());
    host.add(&Process::new(7, "slurm"));
    let start = host.sample().facts.processes.unwrap().get(7).unwrap().key.start;
    host.reporting.push(ProcessKey { pid: 7, start });
    assert_eq!(host.members(), "tree-slurm-7: 7");
    host.add(&Process::new(30, "python").cgroup(JOB));
    assert_eq!(host.members(), "slurm-7: 30\ntree-slurm-7: 7");
    let facts = host.sample().facts;
    let keys: Vec<_> = facts.workload_of.iter().map(|member| member.workload.key.clone()).collect();
    let (anchors, users): (Vec<_>, Vec<_>) = keys.into_iter().map(|key| (key.anchor, key.user)).unzip();
    let tree = Anchor::Tree(ProcessKey { pid: 7, start });
    assert_eq!(anchors, [tree, Anchor::Group("/slurm/uid_1000/job_7".into())]);
    assert_eq!(users[1], None);
    assert_eq!(facts.member(ProcessKey { pid: 30, start: 30 }).unwrap().name.as_str(), "slurm-7");
    assert!(facts.member(ProcessKey { pid: 30, start: 31 }).is_none());
}

#[test]
fn cgroups_of_a_user_do_not_identify_jobs_or_pods() {
    if !may_chown() {
        return;
    }
    let id = "0123456789abcdef".repeat(4);
    let mut host = Host::new(Options { units: vec!["train*".to_owned()], ..options() });
    host.delegate("/user/1002", 1002);
    host.delegate(&format!("/docker/{id}"), 1002);
    host.delegate("/user.slice/user@1002.service", 1002);
    host.add(&Process::new(10, "python").cgroup(JOB));
    host.add(&Process::new(11, "python").cgroup("/user/1002/slurm/job_7"));
    host.add(&Process::new(12, "python").cgroup(&format!("/docker/{id}/slurm/job_7")));
    // A workload created by a user's own engine or manager belongs to that user and is named accordingly.
    let podman = format!("/user.slice/user@1002.service/user.slice/libpod-{id}.scope");
    host.add(&Process::new(13, "python").cgroup(&podman));
    host.add(&Process::new(14, "python").cgroup("/user.slice/user@1002.service/app.slice/train.service"));
    host.add(&Process::new(15, "python").cgroup("/system.slice/train.service"));
    expect_test::expect![[r#"
        container-0123456789ab: 12
        container-0123456789ab@1002: 13
        slurm-7: 10
        unit-train.service: 15
        unit-train.service@1002: 14"#]]
    .assert_eq(&host.members());
}

#[test]
fn a_job_whose_cgroup_is_unreadable_is_found_when_it_is_readable() {
    let mut host = Host::new(options());
    host.add(&Process::new(10, "python").cgroup(JOB));
    std::fs::remove_dir_all(host.tree.group("/slurm")).unwrap();
    assert_eq!(host.members(), "");
    std::fs::create_dir_all(host.tree.group(JOB)).unwrap();
    assert_eq!(host.members(), "slurm-7: 10");
}

#[test]
fn a_matcher_without_a_user_makes_a_workload_for_each() {
    if !may_chown() {
        return;
    }
    let any = matcher::Matcher { executable: Some("train".to_owned()), ..matcher("train") };
    let mut host = Host::new(Options { matchers: vec![any], ..options() });
    let train = |pid| Process::new(pid, "train").exe("/opt/train");
    host.add_of(1001, &train(20));
    host.add_of(1002, &train(10).start(900));
    assert_eq!(host.members(), "train: 20\ntrain@1002: 10", "the oldest has the plain name");
    host.add_of(1001, &train(21));
    host.add_of(1003, &Process::new(22, "child").parent(21));
    host.add(&Process::new(23, "ping").parent(21));
    assert_eq!(
        host.members(),
        "train: 20 21 23\ntrain@1002: 10\ntrain@1003: 22",
        "what root does for it is its own"
    );
    // Names remain while their workloads exist, and no other workload gets the name of an existing one.
    host.tree.end(20);
    host.add_of(1000, &train(5));
    assert_eq!(host.members(), "train: 21 23\ntrain@1000: 5\ntrain@1002: 10\ntrain@1003: 22");
    let facts = host.sample().facts;
    let users: Vec<_> =
        facts.workload_of.iter().map(|member| (member.process.pid, member.workload.user)).collect();
    assert_eq!(users, [(5, 1000), (10, 1002), (21, 1001), (22, 1003), (23, 1001)]);
    assert!(facts.workload_of.iter().all(|member| member.workload.plain.as_str() == "train"));
}

#[test]
fn a_process_with_a_hidden_owner_or_root_rights_belongs_to_its_user() {
    if !may_chown() {
        return;
    }
    let any = matcher::Matcher { executable: Some("train".to_owned()), ..matcher("train") };
    let mut host = Host::new(Options { matchers: vec![any], ..options() });
    let train = |pid, ids: &str| {
        Process::new(pid, "train").exe("/opt/train").file("status", &format!("Uid:\t{ids}\n"))
    };
    host.add(&train(10, "0\t0\t0\t0"));
    // Not dumpable: root owns its folder. And a process that was started by its user and runs as root because
    // of its file (setuid).
    host.add(&train(11, "1002\t1002\t1002\t1002"));
    host.add(&train(12, "1002\t0\t0\t0"));
    assert_eq!(host.members(), "train: 10\ntrain@1002: 11 12");
}

#[test]
fn a_user_with_many_workloads_leaves_places_to_others() {
    if !may_chown() {
        return;
    }
    let mut host = Host::new(Options { max_workloads: 4, ..options() });
    for pid in 40..46 {
        host.add_of(1002, &Process::new(pid, "python"));
        host.gpu(pid, None);
    }
    assert_eq!(host.sample().facts.members.len(), 4);
    host.add_of(1001, &Process::new(50, "python"));
    host.gpu(50, None);
    let facts = host.sample().facts;
    let watched: Vec<u32> = facts.members.iter().map(|member| member.process.pid).collect();
    assert_eq!(watched, [40, 41, 42, 50]);
    let shortage = Shortage { limit: "workloads", user: Some(1002), left_out: 3, most: 4 };
    assert_eq!(facts.shortages, [shortage]);
}

#[test]
fn the_ids_that_a_user_may_use_in_a_namespace_have_the_share_of_the_user() {
    if !may_chown() {
        return;
    }
    let mut host = Host::new(Options { max_workloads: 4, ..options() });
    let passwd = host.tree.roots().passwd;
    std::fs::write(&passwd, "eve:x:1002:1002::/:/\n").unwrap();
    std::fs::write(passwd.with_file_name("subuid"), "eve:100000:65536\n").unwrap();
    // The files are read again after a minute.
    host.second = 60;
    for pid in 40..46 {
        host.add_of(100_000 + pid, &Process::new(pid, "python"));
        host.gpu(pid, None);
    }
    host.add_of(1001, &Process::new(50, "python"));
    host.add_of(1001, &Process::new(51, "python"));
    host.gpu(50, None);
    host.gpu(51, None);
    let facts = host.sample().facts;
    let watched: Vec<u32> = facts.members.iter().map(|member| member.process.pid).collect();
    assert_eq!(watched, [40, 41, 50, 51]);
    let shortage = Shortage { limit: "workloads", user: Some(1002), left_out: 4, most: 4 };
    assert_eq!(facts.shortages, [shortage]);
}
