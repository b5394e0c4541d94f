use std::sync::Arc;

use super::*;
use crate::model::facts::{EnvironmentRank, Membership, ProcessRow, ProcessTable, TmpfsTable};
use crate::model::ids::ProcessKey;
use crate::model::setting::Settings;

fn row(pid: u32, parent: u32, comm: &str) -> ProcessRow {
    ProcessRow { parent, uid: 7, ..ProcessRow::new(ProcessKey { pid, start: 1 }, comm.into()) }
}

/// A rank with `workers` children, one of another name, in a container with `/dev/shm` of `mib` MiB.
fn facts(workers: u32, name: &str, mib: u64, used: f64) -> Facts {
    let rank = ProcessKey { pid: 10, start: 1 };
    let member = Membership::in_group(rank, "job");
    let mut rows = vec![row(10, 1, "python3"), row(11, 10, "sh")];
    rows.extend((0..workers).map(|number| row(20 + number, 10, name)));
    let own = Tmpfs {
        device: "0:9".into(),
        workload: Some(Arc::clone(&member.workload)),
        mount: MOUNT.into(),
        size: Bytes::new(mib << 20),
        used: Bytes::of(used * real(mib << 20)),
        owners: Vec::new(),
    };
    let tmpfs = TmpfsTable {
        read_at: Timestamp::from_secs(1),
        file_systems: vec![own],
        of_process: [(rank, Arc::from([0]))].into(),
        of_workload: Default::default(),
        left_out: BTreeMap::new(),
    };
    let workload = Arc::clone(&member.workload);
    Facts {
        environment_ranks: vec![EnvironmentRank {
            process: rank,
            workload,
            rank: 0,
            local_rank: None,
            world: None,
        }],
        workload_of: vec![member],
        processes: Some(Arc::new(ProcessTable { rows, boot: None })),
        tmpfs: Some(Arc::new(tmpfs)),
        ..Facts::default()
    }
}

/// What is found at each of these times, in seconds.
fn replay(facts: impl Fn(u64) -> Facts, seconds: &[u64]) -> Vec<Option<String>> {
    let mut analyzer = (REGISTRATION.build)(&Settings::default());
    let found = seconds.iter().map(|second| {
        let (facts, mut out) = (facts(*second), Analysis::default());
        analyzer.analyze(&View::new(&[]).with_facts(&facts), Timestamp::from_secs(*second), &mut out);
        assert_eq!(out.findings.len(), out.batch.families().len());
        out.findings.pop().map(|finding| finding.summary)
    });
    found.collect()
}

#[test]
fn a_small_one_is_found_with_its_size_and_the_number_of_loader_processes() {
    let said = "/dev/shm of job has 64.0 MiB for 8 data-loader processes: a batch that does not fit ends them by SIGBUS (bus error).";
    for name in ["python3", WORKER] {
        assert_eq!(replay(|_| facts(8, name, 64, 0.0), &[1]), [Some(said.to_owned())]);
    }
    for (workers, name, mib) in [(1, WORKER, 16), (8, WORKER, 512), (8, "sh", 64)] {
        assert_eq!(replay(|_| facts(workers, name, mib, 0.9), &[1]), [None], "{workers} {name} {mib}");
    }
    assert_eq!(replay(|_| Facts::default(), &[1]), [None]);
}

#[test]
fn one_of_which_little_is_used_is_enough() {
    let is_found = |used: f64| -> Vec<bool> {
        let found = replay(
            |second| facts(8, WORKER, 64, if second == 100 { used } else { 0.0 }),
            &[1, 100, 300, 400],
        );
        found.iter().map(Option::is_some).collect()
    };
    assert_eq!(is_found(0.1), [true, true, true, false]);
    assert_eq!(is_found(0.5), [true; 4]);
}
