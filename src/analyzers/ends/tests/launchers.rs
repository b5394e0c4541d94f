//! Ends of launchers, of helpers and of ranks that end together.

use super::*;

#[test]
fn ordinary_ends_of_helpers_are_not_stated() {
    let mut node = Node::new(&[
        (11, "train", Some("0")),
        (12, "train", None),
        (13, "train", None),
        (300, "train", None),
    ]);
    assert_eq!(node.end(&[12], |batch| exit(batch, 12, 0)).len(), 0);
    assert_eq!(node.end(&[13], |batch| exit(batch, 13, 15)).len(), 0);
    // A helper that crashes is.
    node.running.push((14, "train", None));
    node.running.sort_unstable();
    node.tick(|_| {});
    let ends = node.end(&[14], |batch| exit(batch, 14, 11));
    assert_eq!((ends.len(), ends[0].cause, ends[0].is_whole), (1, EndCause::Failed, false));
    // So is a large one that fails.
    let ends = node.end(&[300], |batch| exit(batch, 300, 0x100));
    assert_eq!((ends.len(), ends[1].pid), (2, 300));
    let ends = node.end(&[11], |batch| exit(batch, 11, 0));
    assert_eq!((ends.len(), ends[2].cause, ends[2].is_whole), (3, EndCause::Finished, true));
}

#[test]
fn a_launcher_whose_command_was_ended_extends_the_end_of_that() {
    let mut node = Node::new(&[(300, "train", None), (301, "train", None)]);
    node.parents.insert(301, 300);
    node.tick(|_| {}).tick(|_| {});
    let ends = node.end(&[301], |batch| exit(batch, 301, 15));
    assert_eq!((ends.len(), ends[0].cause, ends[0].pid), (1, EndCause::Killed, 301), "{ends:?}");
    // As a shell states it.
    let ends = node.end(&[300], |batch| exit(batch, 300, 143 << 8));
    assert_eq!((ends.len(), ends[0].processes, ends[0].is_whole), (1, 2, true), "{ends:?}");
}

#[test]
fn helpers_do_not_explain_the_end_of_a_program_that_succeeded() {
    // A pool of processes is terminated as the interpreter exits.
    let mut node = Node::new(&[(11, "train", None), (12, "train", None), (13, "train", None)]);
    node.parents = [(12, 11), (13, 11)].into();
    node.tick(|_| {});
    let ends = node.end(&[11, 12, 13], |batch| {
        exit(batch, 11, 0);
        exit(batch, 12, 15);
        exit(batch, 13, 0x100);
    });
    assert_eq!((ends.len(), ends[0].cause, ends[0].pid), (1, EndCause::Finished, 11));
    // Another helper that fails with a rank does not hide the end of the rank.
    let mut node = Node::new(&[(11, "train", Some("0")), (12, "train", None), (13, "train", Some("1"))]);
    let ends = node.end(&[11, 12], |batch| {
        exit(batch, 11, 0);
        exit(batch, 12, 0x100);
    });
    assert_eq!((ends.len(), ends[0].cause, ends[0].pid), (1, EndCause::Finished, 11));
    // A program whose main process failed is explained by what failed in it.
    let mut node = Node::new(&[(11, "train", None), (12, "train", None)]);
    node.parents = [(12, 11)].into();
    node.tick(|_| {});
    let ends = node.end(&[11, 12], |batch| {
        exit(batch, 11, 0x200);
        exit(batch, 12, 11);
    });
    assert_eq!((ends[0].cause, ends[0].pid), (EndCause::Failed, 12));
}

#[test]
fn a_launcher_fails_because_a_process_of_it_was_killed() {
    let mut node = Node::new(&[(11, "train", None), (12, "train", None), (13, "train", None)]);
    node.parents = [(12, 11), (13, 11)].into();
    node.tick(|_| {});
    let ends = node.end(&[11, 12, 13], |batch| {
        exit(batch, 12, 9);
        exit(batch, 13, 15);
        exit(batch, 11, 0x100);
    });
    assert_eq!((ends[0].cause, ends[0].pid), (EndCause::Killed, 12));
    // What it terminates as it fails does not explain it.
    let mut node = Node::new(&[(11, "train", None), (12, "train", None)]);
    node.parents = [(12, 11)].into();
    node.tick(|_| {});
    let ends = node.end(&[11, 12], |batch| {
        exit(batch, 11, 0x100);
        exit(batch, 12, 15);
    });
    assert_eq!((ends[0].cause, ends[0].pid), (EndCause::Failed, 11));
}

#[test]
fn the_command_of_memwarden_run_explains_the_end_of_both() {
    for (status, cause) in [(0, EndCause::Finished), (143 << 8, EndCause::Killed)] {
        let mut node = Node::new(&[(11, "train", None), (300, "train", None)]);
        (node.parents, node.of_root) = ([(11, 300)].into(), [(300, "memwarden")].into());
        node.tick(|_| {}).tick(|_| {});
        let ends = node.end(&[11, 300], |batch| {
            exit(batch, 11, status);
            exit(batch, 300, status);
        });
        assert_eq!((ends.len(), ends[0].cause, ends[0].pid), (1, cause, 11), "{ends:?}");
    }
}

#[test]
fn that_slurmstepd_succeeds_says_nothing_of_the_job() {
    let node = |pids: &[(u32, &'static str, Option<&'static str>)]| {
        let mut node = Node::new(pids);
        (node.parents, node.of_root) = ([(11, 10)].into(), [(10, "slurmstepd")].into());
        node.tick(|_| {}).tick(|_| {});
        node
    };
    // Slurm's has exit status 0 whatever the job has, and ends with it.
    let mut own = node(&[(10, "train", None), (11, "train", None)]);
    let ends = own.end(&[10, 11], |batch| {
        exit(batch, 10, 0);
        exit(batch, 11, 1 << 8);
    });
    let told = |end: &End| (end.pid, end.cause, end.is_whole);
    assert_eq!((ends.len(), told(&ends[0])), (1, (11, EndCause::Failed, true)), "{ends:?}");
    // Or later.
    let mut own = node(&[(10, "train", None), (11, "train", None)]);
    let ends = own.end(&[11], |batch| exit(batch, 11, 1 << 8));
    assert_eq!((ends.len(), told(&ends[0])), (1, (11, EndCause::Failed, true)), "{ends:?}");
    let ends = own.end(&[10], |batch| exit(batch, 10, 0));
    assert_eq!(ends.len(), 1, "{ends:?}");
    // A program of root beside a process of another user, as a pod's pause, is the job.
    let mut own = node(&[(9, "train", None), (10, "train", None), (11, "train", None)]);
    own.of_root = [(10, "python3"), (11, "python3")].into();
    own.tick(|_| {}).tick(|_| {});
    let ends = own.end(&[11], |batch| exit(batch, 11, 11));
    assert_eq!(
        (ends.len(), told(&ends[0])),
        (1, (11, EndCause::Failed, false)),
        "the program lives: {ends:?}"
    );
    let ends = own.end(&[9, 10], |batch| {
        exit(batch, 9, 0);
        exit(batch, 10, 0);
    });
    assert_eq!((ends.len(), told(&ends[1]).1), (2, EndCause::Finished), "{ends:?}");
    // Where it is all that was seen of the job.
    let mut own = node(&[(10, "train", None)]);
    assert!(own.end(&[10], |batch| exit(batch, 10, 0)).is_empty());
}

#[test]
fn ranks_and_large_processes_are_kept_of_many_that_end_together() {
    let key = |pid: u32| Node::key(pid);
    let workload = Membership::named(key(1), "train").workload;
    let mut episode = Episode::new(&workload, None, Timestamp::from_secs(1));
    for pid in 1..=10_000_u32 {
        let rank = (pid == 9_000).then(|| "0".into());
        let rss = Bytes::new(if pid == 9_500 { 8 << 30 } else { 1 << 20 });
        let member = Member {
            key: key(pid),
            comm: "sh".into(),
            is_supervisor: false,
            is_wrapper: false,
            is_parent_own: false,
            limits: crate::model::facts::OwnLimits::default(),
            parent: 1,
            rss,
            cgroup: None,
            rank,
            run: Label::default(),
        };
        episode.add(member, Timestamp::from_secs(1));
    }
    let kept: Vec<u32> = episode.members.iter().map(|member| member.key.pid).collect();
    assert!(kept.len() <= 256 && kept.contains(&9_000) && kept.contains(&9_500), "{kept:?}");
}

#[test]
fn a_launcher_that_fails_later_because_of_its_rank_extends_the_end_of_that() {
    let mut node = Node::new(&[(9, "train", None), (10, "train", None), (11, "train", Some("0"))]);
    node.parents = [(10, 9), (11, 10)].into();
    node.tick(|_| {});
    let ends = node.end(&[11], |batch| exit(batch, 11, 9));
    assert_eq!((ends.len(), ends[0].processes, ends[0].is_whole), (1, 1, false), "{ends:?}");
    (0..20).for_each(|_| {
        node.tick(|_| {});
    });
    let ends = node.end(&[10], |batch| exit(batch, 10, 1 << 8));
    assert_eq!((ends.len(), ends[0].processes, ends[0].is_whole), (1, 2, false), "{ends:?}");
    let ends = node.end(&[9], |batch| exit(batch, 9, 137 << 8));
    assert_eq!((ends.len(), ends[0].processes, ends[0].is_whole), (1, 3, true), "{ends:?}");
    assert_eq!((ends[0].cause, ends[0].pid), (EndCause::Killed, 11));

    // A launcher that ends with success, or much later, has an end of its own.
    for (status, ticks) in [(0, 2), (1 << 8, 200)] {
        let mut node = Node::new(&[(10, "train", None), (11, "train", Some("0"))]);
        node.parents = [(11, 10)].into();
        node.tick(|_| {});
        node.end(&[11], |batch| exit(batch, 11, 9));
        (0..ticks).for_each(|_| {
            node.tick(|_| {});
        });
        let ends = node.end(&[10], |batch| exit(batch, 10, status));
        assert_eq!((ends.len(), ends[1].pid), (2, 10), "{status} {ticks}: {ends:?}");
    }
}

#[test]
fn what_is_killed_with_the_first_process_of_its_namespace_does_not_explain_its_end() {
    // The kernel kills it before the end of the first process is reported; supervisors do after it.
    let last = |is_init: bool, status: i32, is_first: bool, rank: Option<&'static str>| {
        let mut node = Node::new(&[(11, "train", None), (12, "train", None), (13, "train", rank)]);
        node.parents = [(12, 11), (13, if rank.is_some() { 11 } else { 12 })].into();
        node.tick(|batch| {
            let limits = crate::model::facts::OwnLimits { is_init, ..Default::default() };
            batch.facts.own_limits.push((Node::key(11), limits));
        });
        let ends = node.end(&[11, 12, 13], |batch| {
            let mut statuses = [(11, status), (12, 9), (13, 9)];
            statuses.rotate_left(usize::from(!is_first));
            statuses.into_iter().for_each(|(pid, status)| exit(batch, pid, status));
        });
        assert_eq!((ends.len(), ends[0].processes, ends[0].is_whole), (1, 3, true), "{ends:?}");
        (ends[0].cause, ends[0].pid)
    };
    for (is_init, is_first) in [(true, false), (true, true), (false, true)] {
        assert_eq!(last(is_init, 0, is_first, None), (EndCause::Finished, 11));
        assert_eq!(last(is_init, 1 << 8, is_first, None), (EndCause::Failed, 11));
        assert_eq!(last(is_init, 0, is_first, Some("0")), (EndCause::Finished, 11));
    }
    // A launcher and a shell end because of it.
    assert_eq!(last(true, 1 << 8, false, Some("0")), (EndCause::Killed, 13));
    assert_eq!(last(true, 137 << 8, false, None), (EndCause::Killed, 13));
    assert_eq!(last(false, 1 << 8, false, None), (EndCause::Killed, 13));
    assert_eq!(last(false, 0, false, None), (EndCause::Killed, 13));
}

#[test]
fn the_end_of_a_workload_is_that_of_its_main_process() {
    let node = || {
        let mut node = Node::new(&[(11, "train", None), (12, "train", None)]);
        (node.parents, node.second) = ([(12, 11)].into(), 100.0);
        node.tick(|_| {}).tick(|_| {});
        node
    };
    for status in [1 << 8, 11] {
        for helper in [0, 1 << 8, 15, 9] {
            let mut node = node();
            let ends = node.end(&[11], |batch| exit(batch, 11, status));
            assert_eq!((ends.len(), ends[0].pid, ends[0].is_whole), (1, 11, false), "{ends:?}");
            node.parents.clear();
            let ends = node.end(&[12], |batch| exit(batch, 12, helper));
            assert_eq!((ends.len(), ends[0].processes, ends[0].is_whole), (1, 2, true), "{ends:?}");
            assert_eq!((ends[0].cause, ends[0].pid), (EndCause::Failed, 11));
        }
    }
    // A kill that is known explains an end of its own, and a later program ends for itself.
    let mut own = node();
    own.end(&[11], |batch| exit(batch, 11, 1 << 8));
    own.running.push((110, "train", None));
    own.second = 120.0;
    own.tick(|_| {}).tick(|_| {});
    own.end(&[12], |batch| exit(batch, 12, 0));
    let ends = own.end(&[110], |batch| exit(batch, 110, 0));
    assert_eq!((ends.len(), ends[1].cause, ends[1].pid), (2, EndCause::Finished, 110), "{ends:?}");
    // One that succeeds says nothing of what goes on.
    let mut own = node();
    assert!(own.end(&[11], |batch| exit(batch, 11, 0)).is_empty());
    let ends = own.end(&[12], |batch| exit(batch, 12, 1 << 8));
    assert_eq!((ends.len(), ends[0].cause, ends[0].pid), (1, EndCause::Failed, 12), "{ends:?}");
}

#[test]
fn a_signal_of_a_parent_outside_of_the_workload_is_one_of_another_program() {
    let mut node = Node::new(&[(9, "", None), (11, "train", None), (12, "train", None)]);
    node.parents = [(11, 9)].into();
    node.tick(|_| {});
    let ends = node.end(&[11], |batch| {
        exit(batch, 11, 9);
        let sender = Some(Sender { pid: 9, comm: "agent".into(), user_id: Some(0) });
        batch.facts.received_signals.push(ReceivedSignal { process: Node::key(11), signal: 9, sender });
    });
    assert_eq!((ends.len(), ends[0].cause, ends[0].pid), (1, EndCause::Killed, 11), "{ends:?}");
}

#[test]
fn what_ends_by_sigkill_with_timeout_has_reached_its_time() {
    // A shell (11), `timeout` (12), and what it started (13, 14).
    let ended = |shell: Option<i32>, timeout: i32, others: &'static str| {
        let mut node = Node::new(&[11, 12, 13, 14].map(|pid| (pid, "train", None)));
        node.parents = [(12, 11), (13, 12), (14, 13)].into();
        node.of_root = [(12, others)].into();
        node.tick(|_| {}).tick(|_| {});
        let mut gone = vec![12, 13, 14];
        gone.extend(shell.map(|_| 11));
        let ends = node.end(&gone, |batch| {
            exit(batch, 14, 9);
            exit(batch, 13, 9);
            exit(batch, 12, timeout);
            shell.into_iter().for_each(|status| exit(batch, 11, status));
        });
        (ends[0].cause, ends[0].probability)
    };
    let limit = (EndCause::TimeLimit, 0.7);
    assert_eq!(ended(Some(1 << 8), 9, "timeout"), limit);
    // As shells and `memwarden run` state it.
    assert_eq!(ended(Some(137 << 8), 9, "timeout"), limit);
    // With --foreground it lives.
    assert_eq!(ended(None, 137 << 8, "timeout"), limit);
    // All of a group were killed, or `timeout` forwarded another end.
    let killed = (EndCause::Killed, 0.9);
    assert_eq!(ended(Some(9), 9, "timeout"), killed);
    assert_eq!(ended(Some(1 << 8), 9, "env"), killed);
    assert_eq!(ended(Some(1 << 8), 1 << 8, "timeout"), killed);
}
