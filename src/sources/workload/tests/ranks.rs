//! The ranks and the run of workloads, by the environment of their processes.

use super::*;
use crate::model::facts::ContainerName;

/// Samples until every environment has been read.
fn settled(host: &mut Host) -> Batch {
    (0..25).for_each(|_| drop(host.sample()));
    host.sample()
}

/// The ranks as `workload: rank/local_rank/world pid`, and the run of each workload.
fn shown(host: &mut Host) -> String {
    let batch = settled(host);
    let number = |number: Option<u32>| number.map_or("?".to_owned(), |number| number.to_string());
    let ranks = batch.facts.environment_ranks.iter().map(|rank| {
        let (local, world) = (number(rank.local_rank), number(rank.world));
        format!("{}: {}/{local}/{world} {}", rank.workload.name, rank.rank, rank.process.pid)
    });
    let named = batch.facts.workloads.iter().zip(&batch.facts.workload_names);
    let runs =
        named.map(|(workload, names)| format!("{} is of {:?}", workload.name, names.run.name.as_str()));
    ranks.chain(runs).collect::<Vec<_>>().join("\n")
}

fn python(pid: u32, parent: u32, environment: &str) -> Process {
    Process::new(pid, "python").parent(parent).file("environ", &environment.replace(' ', "\0"))
}

const STEP: &str = "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_ID=0 SLURM_NTASKS=2";

#[test]
fn the_ranks_of_torchrun_are_its_children_and_not_their_workers() {
    let mut host = Host::new(options());
    let elastic = "TORCHELASTIC_RUN_ID=abc MASTER_ADDR=node1 MASTER_PORT=29500";
    host.add(&python(20, 10, STEP).cgroup(JOB));
    for rank in 0..2 {
        let environment = format!("{STEP} RANK={} LOCAL_RANK={rank} WORLD_SIZE=16 {elastic}", rank + 8);
        host.add(&python(21 + rank, 20, &environment).cgroup(JOB));
        // A DataLoader worker inherits the environment.
        host.add(&python(31 + rank, 21 + rank, &environment).cgroup(JOB));
    }
    assert_eq!(shown(&mut host), "slurm-7: 8/0/16 21\nslurm-7: 9/1/16 22\nslurm-7 is of \"slurm-7\"");
}

#[test]
fn the_tasks_of_a_step_are_ranks_where_nothing_below_is() {
    let mut host = Host::new(options());
    host.add(&python(20, 10, STEP).cgroup(JOB));
    host.add(&python(21, 20, STEP).cgroup(JOB));
    assert_eq!(shown(&mut host), "slurm-7: 0/0/2 20\nslurm-7 is of \"slurm-7\"");
}

#[test]
fn a_run_has_the_first_name_that_its_ranks_agree_on() {
    let of = |environments: [&str; 2], prepare: &dyn Fn(&mut Host)| {
        let mut host = Host::new(options());
        host.add(&Process::new(20, "torchrun"));
        for (pid, environment) in (21..).zip(environments) {
            host.add(&python(pid, 20, &format!("RANK={} WORLD_SIZE=2 {environment}", pid - 21)));
            host.gpu(pid, None);
        }
        prepare(&mut host);
        let shown = shown(&mut host);
        shown.lines().last().unwrap().split_once(" is of ").unwrap().1.trim_matches('"').to_owned()
    };
    let nothing = |_: &mut Host| {};
    let all = "MEMWARDEN_RUN=llama TORCHELASTIC_RUN_ID=abc MASTER_ADDR=node1 MASTER_PORT=29500";
    assert_eq!(of([all, all], &nothing), "llama");
    let elastic = "TORCHELASTIC_RUN_ID=abc MASTER_ADDR=node1 MASTER_PORT=29500";
    assert_eq!(of([elastic, elastic], &nothing), "abc");
    assert_eq!(of([all, elastic], &nothing), "abc", "one rank has no MEMWARDEN_RUN");
    let fixed = "TORCHELASTIC_RUN_ID=none MASTER_ADDR=node1 MASTER_PORT=29500";
    assert_eq!(of([fixed, fixed], &nothing), "node1:29500");
    assert_eq!(
        of(["PMIX_NAMESPACE=prterun-a-1@1", "PMIX_NAMESPACE=prterun-a-1@1"], &nothing),
        "prterun-a-1@1"
    );
    // Each node has such an address of its own.
    let own = "MASTER_ADDR=localhost MASTER_PORT=29500";
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    assert_eq!(of([own, own], &nothing), format!("{node}:localhost:29500"));
    assert_eq!(of(["MASTER_ADDR=a MASTER_PORT=1", "MASTER_ADDR=b MASTER_PORT=1"], &nothing), "");
}

#[test]
fn the_configuration_and_the_pod_name_a_run() {
    let matched = matcher::Matcher {
        executable: Some("train".to_owned()),
        run: Some("nightly".into()),
        ..matcher("own")
    };
    let mut host = Host::new(Options { matchers: vec![matched], ..options() });
    let train = Process::new(21, "train").exe("/usr/bin/train");
    host.add(&train.file("environ", "RANK=0\0WORLD_SIZE=1\0MEMWARDEN_RUN=mine\0"));
    assert_eq!(shown(&mut host), "own: 0/?/1 21\nown is of \"nightly\"");

    let mut host = Host::new(options());
    let uid = "1a2b3c4d-0000-1111-2222-0123456789ab";
    host.add(
        &python(21, 1, "RANK=0 WORLD_SIZE=1 TORCHELASTIC_RUN_ID=abc").cgroup(&format!("/kubepods/pod{uid}")),
    );
    let mut pods = PodNames::default();
    pods.pods.insert(uid.into(), ContainerName::new("ml", "llama-node-0-0-x7k2p", ""));
    host.pods = Arc::new(pods);
    assert_eq!(
        shown(&mut host),
        "ml/llama-node-0-0-x7k2p: 0/?/1 21\nml/llama-node-0-0-x7k2p is of \"ml/llama\""
    );
}

#[test]
fn a_process_that_is_signalled_or_in_no_workload_is_not_read() {
    let mut host = Host::new(options());
    host.add(&python(20, 1, "RANK=0 WORLD_SIZE=2"));
    let status = "Name:\tpython\nUid:\t1000\t1000\t1000\t1000\nShdPnd:\t0000000000000100\n";
    host.add(&python(21, 10, "RANK=0 WORLD_SIZE=2").cgroup(JOB).file("status", status));
    assert_eq!(shown(&mut host), "slurm-7 is of \"slurm-7\"");
}
