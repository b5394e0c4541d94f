//! Ends over ticks that are made here.

mod kept;
mod launchers;
mod messages;

use std::sync::Arc;

use super::*;
use crate::model::ends::{EndEvidence, ExitStatus, OomKill, Retry, Sender};
use crate::model::facts::{
    Before, ExitedProcess, KernelLog, Membership, OomScope, OomVictim, ReceivedSignal, ReportedRank, Tmpfs,
    TmpfsTable, WorkloadNames,
};
use crate::model::ids::ProcessKey;
use crate::model::point::Batch;
use crate::model::units::{Bytes, MIB, Seconds};
use crate::sources::gpu::metrics::XID_ERRORS;
use crate::sources::{cgroup, training, workload};

/// A node whose workloads run, tick by tick.
#[derive(Default)]
struct Node {
    ends: Ends,
    /// Pid, workload (empty for none), and rank of each running process.
    running: Vec<(u32, &'static str, Option<&'static str>)>,
    facts: Facts,
    second: f64,
    sees_no_kernel_log: bool,
    log: KernelLog,
    /// The parents of processes whose parent is not pid 1.
    parents: BTreeMap<u32, u32>,
    /// Those of root, with their names; the others are of user 1000 and named python3.
    of_root: BTreeMap<u32, &'static str>,
    /// Boot time, where it is known: the process PID has started PID seconds after it.
    boot: Option<u64>,
    last: Analysis,
}

impl Node {
    fn new(running: &[(u32, &'static str, Option<&'static str>)]) -> Self {
        let mut node = Self { running: running.to_vec(), log: KernelLog::Complete, ..Self::default() };
        node.tick(|_| {});
        node.tick(|_| {});
        node
    }

    fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start: u64::from(pid) * 100 }
    }

    /// One tick of half a second; `put` adds what sources report.
    fn tick(&mut self, put: impl FnOnce(&mut Batch)) -> &mut Self {
        self.second += 0.5;
        let mut batch = Batch::new();
        let last = std::mem::take(&mut self.facts);
        let (processes, workload_of, ranks) = (last.processes, last.workload_of, last.ranks);
        batch.facts.before = Before { processes, workload_of, ranks, signalled: last.signalled, frame: None };
        let row = |pid: u32| ProcessRow {
            parent: self.parents.get(&pid).copied().unwrap_or(1),
            session: pid,
            uid: if self.of_root.contains_key(&pid) { 0 } else { 1000 },
            rss: Bytes::new(u64::from(pid) << 20),
            cgroup: Some("/jobs/a".into()),
            ..ProcessRow::new(Self::key(pid), (*self.of_root.get(&pid).unwrap_or(&"python3")).into())
        };
        let rows = self.running.iter().map(|(pid, ..)| row(*pid)).collect();
        batch.facts.processes = Some(ProcessTable { rows, boot: self.boot }.into());
        for (pid, name, rank) in self.running.iter().filter(|(_, name, _)| !name.is_empty()) {
            let mut member = Membership::named(Self::key(*pid), name);
            if !self.of_root.is_empty() {
                Arc::make_mut(&mut member.workload).user = 1000;
            }
            if !batch.facts.workloads.contains(&member.workload) {
                batch.facts.workloads.push(Arc::clone(&member.workload));
                let names =
                    WorkloadNames { user: "ada".into(), cgroup: "/jobs/a".into(), ..Default::default() };
                batch.facts.workload_names.push(names.into());
                batch.put(&workload::metrics::RSS, &[(*name).into()], Bytes::new(7 << 30));
                let started = Seconds::new(1_000.0);
                batch.put_some(&workload::metrics::START, &[(*name).into()], started);
                let gpu = [(*name).into(), "0".into(), "GPU-a".into()];
                batch.put(&workload::metrics::GPU_MEMORY, &gpu, Bytes::new(1 << 30));
            }
            batch.facts.workload_of.push(member);
            if let Some(rank) = rank {
                batch.facts.ranks.push(ReportedRank {
                    key: Some(Self::key(*pid)),
                    workload: (*name).into(),
                    rank: (*rank).into(),
                    run: Label::default(),
                    cannot_save: None,
                });
            }
        }
        put(&mut batch);
        self.last = Analysis::default();
        batch.facts.kernel_log = if self.sees_no_kernel_log { KernelLog::Unread } else { self.log };
        let view = View::new(batch.families()).with_facts(&batch.facts);
        let at = std::time::Duration::from_secs_f64(self.second);
        let unix = std::time::Duration::from_secs_f64(10_000.0 + self.second);
        self.ends.analyze(&view, Timestamp::new(at, unix), &mut self.last);
        self.facts = std::mem::take(&mut batch.facts);
        self
    }

    /// Ends processes, and ticks until it is settled.
    fn end(&mut self, pids: &[u32], put: impl FnOnce(&mut Batch)) -> &[Arc<End>] {
        self.running.retain(|(pid, ..)| !pids.contains(pid));
        self.tick(put);
        (0..4).for_each(|_| {
            self.tick(|_| {});
        });
        &self.last.outlook.ends
    }
}

fn exit(batch: &mut Batch, pid: u32, status: i32) {
    batch.facts.exited.push(ExitedProcess { process: Node::key(pid), tid: pid, status });
}

#[test]
fn the_severity_of_an_xid_is_that_of_the_event_and_94_ends_the_job() {
    let xid = |batch: &mut Batch, number: u32, severity: &str, count| {
        let labels = ["0".into(), "GPU-a".into(), number.into(), severity.into()];
        batch.put(&XID_ERRORS, &labels, Count(count));
    };
    let fault = EndCause::GpuFault;
    for (number, severity, known) in [
        (149, "critical", (fault, 0.9)),
        (149, "warning", (fault, 0.6)),
        (94, "warning", (fault, 0.9)),
        (154, "ok", (EndCause::Failed, 0.9)),
    ] {
        let mut node = Node::new(&[(5, "train", None), (11, "train", Some("0"))]);
        // The five warnings are older than 30 seconds.
        (0..70).for_each(|_| {
            node.tick(|batch| xid(batch, 149, "warning", 5));
        });
        let ends = node.end(&[11], |batch| {
            xid(batch, 149, "warning", 5 + u64::from((number, severity) == (149, "warning")));
            if (number, severity) != (149, "warning") {
                xid(batch, number, severity, 1);
            }
            // A row is remapped beside it.
            xid(batch, 63, "warning", u64::from(number == 94));
            exit(batch, 11, 1 << 8);
        });
        let [end] = ends else { panic!("{number} {severity}: {ends:?}") };
        assert_eq!((end.cause, end.probability), known, "{number} {severity}: {end:?}");
    }
}

#[test]
fn an_oom_kill_is_stated_with_its_limit_and_what_was_lost() {
    let mut node = Node::new(&[(10, "launcher", None), (11, "train", Some("0")), (12, "train", Some("1"))]);
    node.tick(|batch| {
        let saved = Seconds::new(8_000.0);
        batch.put_some(&training::metrics::CHECKPOINT_SAVED, &["train".into(), "0".into()], saved);
    });
    let ends = node.end(&[11, 12], |batch| {
        batch.put(&cgroup::metrics::LIMIT, &["/jobs".into()], Bytes::new(8 << 30));
        let victim = OomVictim {
            pid: Some(12),
            comm: "python3".into(),
            uid: Some(1000),
            process: Some(Node::key(12)),
            cgroup: Label::default(),
            limit_cgroup: "/jobs".into(),
            scope: OomScope::Cgroup,
            ..OomVictim::default()
        };
        batch.facts.oom_victims.push(victim);
        exit(batch, 12, 9);
        exit(batch, 11, 15);
    });
    let [end] = ends else { panic!("{ends:?}") };
    assert_eq!(
        (end.cause, end.retry, end.pid, end.rank.as_str()),
        (EndCause::CgroupLimit, Retry::CannotHelp, 12, "1")
    );
    assert_eq!((end.processes, end.is_whole, end.user_id), (2, true, 0));
    // Its limit is known in the tick of the kill only where a source still reports it.
    let kill = OomKill { scope: OomScope::Cgroup, limit_cgroup: "/jobs".into(), ..OomKill::default() };
    assert_eq!(end.evidence[0], EndEvidence::KernelLog(kill));
    assert_eq!(end.evidence.last(), Some(&EndEvidence::Status(ExitStatus::Signal(9))));
    assert!(end.checkpoint_age_seconds.is_some_and(|age| (age - 2_002.0).abs() < 1.0), "{end:?}");
    assert!(end.lost_gpu_seconds.is_some_and(|lost| (lost - 2_002.0).abs() < 1.0), "{end:?}");
    assert!(end.curve.len() >= 3 && end.curve.iter().all(|(before, ..)| *before > 0.0), "{:?}", end.curve);
    let count = node.last.batch.families().iter().find(|family| family.desc.name == metrics::ENDS.desc.name);
    let count: Vec<_> = count
        .unwrap()
        .points
        .iter()
        .filter(|point| point.value > 0.0)
        .map(|point| (point.labels[1].to_string(), point.value))
        .collect();
    assert_eq!(count, [("cgroup_limit".to_owned(), 1.0)]);
}

#[test]
fn a_checkpoint_of_an_earlier_program_is_not_that_of_a_later_one() {
    let mut node = Node::new(&[(5, "train", None), (11, "train", Some("0"))]);
    // The shell has started at 9,875 s, the first program at 9,881 s; it saves at 9,950 s. The second one starts at 9,990 s.
    node.boot = Some(9_870);
    node.tick(|batch| {
        let saved = Seconds::new(9_950.0);
        batch.put_some(&training::metrics::CHECKPOINT_SAVED, &["train".into(), "0".into()], saved);
        batch.put(&training::metrics::CHECKPOINT_STEP, &["train".into(), "0".into()], Count(29));
    });
    // A helper of the first program that starts after the checkpoint and fails beside it loses what follows the checkpoint.
    node.running.push((119, "train", None));
    node.tick(|_| {});
    let kill = |batch: &mut Batch, pid| exit(batch, pid, 11);
    let ends = node.end(&[119], |batch| kill(batch, 119));
    let known = |end: &End| (end.pid, end.checkpoint_step, end.checkpoint_age_seconds.map(f64::floor));
    let lost = |end: &End| end.lost_gpu_seconds.map(f64::floor);
    assert_eq!((known(&ends[0]), lost(&ends[0])), ((119, Some(29), Some(52.0)), Some(52.0)));
    let ends = node.end(&[11], |batch| kill(batch, 11));
    assert_eq!((known(&ends[1]), lost(&ends[1])), ((11, Some(29), Some(55.0)), Some(55.0)));
    node.running.push((120, "train", None));
    node.tick(|_| {});
    let ends = node.end(&[120], |batch| kill(batch, 120));
    // Its start is known to a second.
    assert_eq!((known(&ends[2]), lost(&ends[2])), ((120, None, None), Some(17.0)));
}

/// What the `tmpfs` source has read at a time: `/dev/shm` of the workload, of 64 MiB, used to this share.
fn tmpfs(batch: &mut Batch, second: f64, used: f64) {
    let member = Membership::named(Node::key(11), "train");
    let at = std::time::Duration::from_secs_f64(second);
    let size = 64.0 * MIB;
    let own = Tmpfs {
        device: "0:9".into(),
        workload: Some(Arc::clone(&member.workload)),
        mount: "/dev/shm".into(),
        size: Bytes::of(size),
        used: Bytes::of(size * used),
        owners: Vec::new(),
    };
    let places: Arc<[usize]> = Arc::from([0]);
    batch.facts.tmpfs = Some(Arc::new(TmpfsTable {
        read_at: Timestamp::new(at, at),
        file_systems: vec![own],
        of_process: [(member.process, Arc::clone(&places))].into(),
        of_workload: [(member.workload.key.clone(), places)].into(),
        left_out: BTreeMap::new(),
    }));
}

#[test]
fn sigbus_is_explained_by_the_reads_before_and_after_the_end() {
    // The used share before, and after; the process is seen for the last time at 1.5 s, and its end at 2 s.
    let end = |pid: u32, before: Option<f64>, after: Option<f64>| {
        let mut node = Node::new(&[(11, "train", None), (12, "train", None)]);
        node.tick(|batch| {
            if let Some(used) = before {
                tmpfs(batch, 1.0, used);
            }
        });
        node.running.retain(|(running, ..)| *running != pid);
        node.tick(|batch| exit(batch, pid, 7));
        let ends = node.end(&[], |batch| {
            if let Some(used) = after {
                tmpfs(batch, 2.1, used);
            }
        });
        let resource = ends[0].resource.as_ref().map(ToString::to_string).unwrap_or_default();
        (ends[0].cause, ends[0].probability, resource, ends[0].limit_bytes)
    };
    let full = || (EndCause::SharedMemory, 0.95, "tmpfs /dev/shm of train".to_owned(), Some(64.0 * MIB));
    assert_eq!(end(11, Some(0.1), Some(1.0)), full());
    assert_eq!(
        end(12, Some(0.1), Some(1.0)),
        full(),
        "it started after the read: that of its workload counts"
    );
    assert_eq!(end(11, Some(0.97), None), full());
    let none = |cause, probability| (cause, probability, String::new(), None);
    assert_eq!(
        end(11, Some(0.1), Some(0.1)),
        none(EndCause::Failed, 0.5),
        "64 MiB are filled in less than a second"
    );
    assert_eq!(end(11, Some(0.1), None), none(EndCause::SharedMemory, 0.6));
    assert_eq!(end(11, None, None), none(EndCause::SharedMemory, 0.6));
    assert_eq!((end(11, Some(1.0), Some(1.0)).1, end(11, None, Some(1.0)).1), (0.6, 0.95));
}

#[test]
fn a_command_that_ends_before_the_first_sample_has_the_cause_of_its_status() {
    let of = |status: i32| {
        let exited = ExitedProcess { process: Node::key(7), tid: 7, status };
        let end = unobserved("a".into(), "sh".into(), (exited, 1000), 10_000.0);
        (end.cause, end.is_abnormal(), end.evidence)
    };
    assert_eq!(of(3 << 8), (EndCause::Failed, true, vec![EndEvidence::Status(ExitStatus::Code(3))]));
    let (cause, _, evidence) = of(9);
    assert!(cause != EndCause::Finished && evidence.contains(&EndEvidence::Status(ExitStatus::Signal(9))));
}

#[test]
fn without_the_kernel_log_a_kill_is_no_certainty() {
    let mut node = Node { sees_no_kernel_log: true, running: vec![(11, "train", None)], ..Node::default() };
    node.tick(|_| {});
    let ends = node.end(&[11], |batch| exit(batch, 11, 9));
    assert_eq!((ends[0].cause, ends[0].retry), (EndCause::Unknown, Retry::Unknown), "{ends:?}");
    // The counter of the cgroup, or of one above, tells.
    let mut node = Node { sees_no_kernel_log: true, running: vec![(11, "train", None)], ..Node::default() };
    let kills = |count| {
        move |batch: &mut Batch| {
            let labels = ["/jobs".into(), "oom_kill".into()];
            batch.put(&cgroup::metrics::EVENTS, &labels, Count(count));
        }
    };
    node.tick(kills(3)).tick(kills(3));
    node.running.clear();
    node.tick(|batch| {
        kills(4)(batch);
        exit(batch, 11, 9);
    });
    (0..3).for_each(|_| {
        node.tick(kills(4));
    });
    let end = &node.last.outlook.ends[0];
    assert_eq!(
        (end.cause, &end.evidence[0]),
        (EndCause::CgroupLimit, &EndEvidence::KillCounter { cgroup: "/jobs".into() })
    );
}

#[test]
fn an_oom_kill_of_a_process_without_a_workload_is_stated_and_another_end_of_one_is_not() {
    let mut node = Node::new(&[(10, "", None), (11, "", None), (12, "train", None)]);
    let ends = node.end(&[10, 11], |batch| {
        let victim = OomVictim {
            pid: Some(10),
            comm: "python3".into(),
            uid: Some(1000),
            process: Some(Node::key(10)),
            cgroup: "/jobs/a".into(),
            limit_cgroup: Label::default(),
            scope: OomScope::Host,
            is_scope_stated: true,
            ..OomVictim::default()
        };
        // With memory.oom.group, the kernel logs it twice.
        batch.facts.oom_victims.extend([victim.clone(), victim]);
        exit(batch, 10, 9);
        exit(batch, 11, 9);
    });
    let [end] = ends else { panic!("{ends:?}") };
    assert_eq!((end.cause, end.pid, end.user_id, end.is_whole), (EndCause::HostMemory, 10, 1000, false));
    assert_eq!((end.workload.as_str(), end.processes), ("", 1));
    // Those of ranks too: they have no name in common.
    let again: Vec<Arc<End>> = vec![End { rank: "0".into(), ..End::clone(end) }.into(); 3];
    assert!(repeated(&again, end.unix_seconds).is_empty());
}

#[test]
fn a_killed_process_of_no_workload_is_stated_when_it_has_gone_and_not_if_it_is_of_one_by_then() {
    for (becomes, expected) in [("", vec![""]), ("train", vec!["train"])] {
        let mut node = Node::new(&[(10, "", None), (12, "other", None)]);
        node.running[0].1 = becomes;
        // It frees its memory for some ticks.
        node.tick(|batch| {
            batch.facts.oom_victims.push(OomVictim {
                pid: Some(10),
                comm: "python3".into(),
                uid: Some(1000),
                process: Some(Node::key(10)),
                cgroup: "/jobs/a".into(),
                limit_cgroup: "/jobs/a".into(),
                scope: OomScope::Cgroup,
                ..OomVictim::default()
            });
        });
        (0..4).for_each(|_| {
            node.tick(|_| {});
        });
        assert_eq!(node.last.outlook.ends.len(), 0, "{becomes}");
        let ends = node.end(&[10], |batch| exit(batch, 10, 9));
        assert_eq!(ends.iter().map(|end| end.workload.as_str()).collect::<Vec<_>>(), expected);
        assert_eq!((ends[0].cause, ends[0].processes), (EndCause::CgroupLimit, 1));
    }
}

#[test]
fn kills_in_another_cgroup_explain_nothing() {
    let mut node = Node { sees_no_kernel_log: true, running: vec![(11, "train", None)], ..Node::default() };
    let kills = |above, other| {
        move |batch: &mut Batch| {
            for (path, count) in [("/jobs", above), ("/jobs/b", other)] {
                batch.put(&cgroup::metrics::EVENTS, &[path.into(), "oom_kill".into()], Count(count));
            }
        }
    };
    node.tick(kills(3, 3)).tick(kills(4, 4));
    node.running.clear();
    node.tick(|batch| {
        kills(4, 4)(batch);
        exit(batch, 11, 9);
    });
    (0..3).for_each(|_| {
        node.tick(kills(4, 4));
    });
    assert_eq!(node.last.outlook.ends[0].cause, EndCause::Unknown);
}

#[test]
fn in_another_pid_namespace_a_kill_is_found_by_its_cgroup_or_by_its_name() {
    let cause = |victims: &[(&str, &str)]| {
        let mut node = Node::new(&[(10, "train", None)]);
        node.log = KernelLog::Foreign;
        let victim = |(comm, cgroup): &(&str, &str)| OomVictim {
            pid: Some(4_711),
            comm: (*comm).into(),
            cgroup: (*cgroup).into(),
            limit_cgroup: (*cgroup).into(),
            scope: OomScope::Cgroup,
            ..OomVictim::default()
        };
        let victims: Vec<_> = victims.iter().map(victim).collect();
        let ends = node.end(&[10], |batch| {
            exit(batch, 10, 9);
            let events = ["/jobs/a".into(), "oom_kill".into()];
            batch.put(&cgroup::metrics::EVENTS, &events, crate::model::units::Count(1));
            batch.facts.oom_victims = victims;
        });
        (ends[0].cause, ends[0].probability)
    };
    assert_eq!(cause(&[("python3", "/jobs/a"), ("python3", "/jobs/b")]), (EndCause::CgroupLimit, 0.9));
    assert_eq!(cause(&[("ray::train", "/jobs/a")]), (EndCause::CgroupLimit, 0.7));
    // A path of the host, of a cgroup namespace; and none.
    assert_eq!(cause(&[("python3", "/docker/17/jobs/a")]), (EndCause::CgroupLimit, 0.7));
    assert_eq!(cause(&[("python3", "")]), (EndCause::CgroupLimit, 0.9));
    for several in
        [&[("python3", "/elsewhere")][..], &[("python3", "/b"), ("python3", "/c")][..], &[("sh", "/b")], &[]]
    {
        let (cause, probability) = cause(several);
        assert!(cause != EndCause::CgroupLimit || probability < 0.8, "{several:?}: {cause:?} {probability}");
    }
}

#[test]
fn a_guess_is_no_reason_to_give_up() {
    let workload = Membership::named(Node::key(1), "train").workload;
    let episode = Episode::new(&workload, None, Timestamp::from_secs(1));
    let member = Member {
        key: Node::key(1),
        comm: "sh".into(),
        is_supervisor: false,
        is_wrapper: false,
        is_parent_own: false,
        limits: crate::model::facts::OwnLimits::default(),
        parent: 1,
        rss: Bytes::new(1),
        cgroup: None,
        rank: None,
        run: Label::default(),
    };
    let retry = |probability| {
        let (cause, level, other, evidence) = (EndCause::CgroupLimit, None, None, Vec::new());
        let found = Classified { cause, probability, settles: "", level, other, evidence };
        episode.end(1, (&member, found, (None, Label::default())), (None, None), true).retry
    };
    assert_eq!([retry(0.5), retry(0.7)], [Retry::Unknown, Retry::CannotHelp]);
}

#[test]
fn a_long_interval_loses_no_status() {
    let mut node = Node::new(&[(11, "train", None)]);
    node.running.clear();
    node.tick(|batch| exit(batch, 11, 9));
    node.second += 60.0;
    node.tick(|_| {});
    assert_eq!(node.last.outlook.ends[0].cause, EndCause::Killed);
}

#[test]
fn what_protection_ended_is_stated_as_that() {
    let mut node = Node::new(&[(11, "train", Some("0"))]);
    // The guard reports at the end of a tick; the job saves before it ends.
    node.tick(|batch| batch.facts.signalled.push(Node::key(11)));
    node.tick(|_| {}).tick(|_| {});
    let ends = node.end(&[11], |batch| exit(batch, 11, 0));
    assert_eq!((ends[0].cause, &ends[0].evidence[0]), (EndCause::Memwarden, &EndEvidence::Signalled));
}

#[test]
fn a_process_that_no_source_explains_ended_for_an_unknown_reason() {
    let mut node = Node::new(&[(11, "train", None)]);
    let ends = node.end(&[11], |_| {});
    assert_eq!((ends[0].cause, &ends[0].evidence[..]), (EndCause::Unknown, &[EndEvidence::NoStatus][..]));
}

#[test]
fn a_process_that_is_started_and_killed_within_a_tick_may_be_seen_afterwards() {
    let kill = |uid: u32, second: f64| {
        let mut node = Node::new(&[(10, "train", None)]);
        node.second = second;
        let victim = OomVictim {
            pid: Some(11),
            comm: "before exec".into(),
            uid: Some(uid),
            process: None,
            cgroup: "/jobs/a".into(),
            limit_cgroup: "/jobs".into(),
            scope: OomScope::Cgroup,
            ..OomVictim::default()
        };
        node.tick(|batch| batch.facts.oom_victims.push(victim));
        node.running.push((11, "train", None));
        node.tick(|_| {});
        let ends = node.end(&[10, 11], |batch| {
            exit(batch, 11, 9);
            exit(batch, 10, 137 << 8);
        });
        (ends[0].cause, ends[0].pid, ends[0].probability)
    };
    assert_eq!(kill(1000, 20.0), (EndCause::CgroupLimit, 11, 0.99));
    // Process 11 starts after 11 s.
    for (uid, second) in [(1001, 20.0), (1000, 9.0)] {
        let (cause, _, probability) = kill(uid, second);
        assert!(cause != EndCause::CgroupLimit || probability < 0.9, "another process of this pid");
    }
}

#[test]
fn what_a_program_ends_of_its_own_explains_nothing() {
    let by = |pid: u32| Some(Sender { pid, comm: "python3".into(), user_id: Some(1000) });
    let killed = |batch: &mut Batch, pid: u32, sender: u32| {
        exit(batch, pid, 9);
        let (process, sender) = (Node::key(pid), by(sender));
        batch.facts.received_signals.push(ReceivedSignal { process, signal: 9, sender });
    };
    // Its helper some seconds before it fails, and together with it.
    for pause in [10, 0] {
        let mut node = Node::new(&[(10, "train", None), (11, "train", None)]);
        node.parents = [(11, 10)].into();
        node.tick(|_| {});
        node.running.retain(|(pid, ..)| *pid != 11);
        node.tick(|batch| killed(batch, 11, 10));
        (0..pause).for_each(|_| {
            node.tick(|_| {});
        });
        let ends = node.end(&[10], |batch| exit(batch, 10, 3 << 8));
        assert_eq!((ends.len(), ends[0].pid, ends[0].cause), (1, 10, EndCause::Failed), "{pause}: {ends:?}");
    }
    // Another program did: it explains the failure.
    let mut node = Node::new(&[(10, "train", None), (11, "train", None), (12, "other", None)]);
    node.parents = [(11, 10)].into();
    node.tick(|_| {});
    let ends = node.end(&[10, 11], |batch| {
        killed(batch, 11, 12);
        exit(batch, 10, 3 << 8);
    });
    assert_eq!((ends.len(), ends[0].pid, ends[0].cause), (1, 11, EndCause::Killed), "{ends:?}");
}

#[test]
fn the_first_request_to_end_is_remembered_while_a_job_saves() {
    let mut node = Node::new(&[(10, "train", Some("0"))]);
    let asked = |batch: &mut Batch, pid: u32| {
        let sender = Some(Sender { pid, comm: "slurmstepd".into(), user_id: Some(0) });
        batch.facts.received_signals.push(ReceivedSignal { process: Node::key(10), signal: 15, sender });
    };
    node.tick(|batch| asked(batch, 99));
    (0..60).for_each(|_| {
        node.tick(|_| {});
    });
    let ends = node.end(&[10], |batch| {
        asked(batch, 10);
        exit(batch, 10, 15);
    });
    let sent_by = |pid| EndEvidence::SentBy(Sender { pid, comm: "slurmstepd".into(), user_id: Some(0) });
    assert!(ends[0].evidence.contains(&sent_by(99)), "{ends:?}");
}

/// A kill by the kernel log, without its report.
fn bare_kill(pid: u32) -> OomVictim {
    OomVictim {
        pid: Some(pid),
        comm: "pool_thread".into(),
        uid: Some(1000),
        scope: OomScope::Cgroup,
        is_scope_stated: true,
        ..OomVictim::default()
    }
}

#[test]
fn a_kill_that_names_a_thread_is_one_of_its_process() {
    // The thread is reported in the tick of the kill, or in the next one.
    for is_late in [false, true] {
        let mut node = Node::new(&[(11, "train", None)]);
        node.second = 20.0;
        node.tick(|_| {});
        node.tick(|batch| {
            if is_late {
                batch.facts.oom_victims.push(bare_kill(4_711));
            }
        });
        let ends = node.end(&[11], |batch| {
            if !is_late {
                batch.facts.oom_victims.push(bare_kill(4_711));
            }
            batch.facts.exited.push(ExitedProcess { process: Node::key(11), tid: 4_711, status: 9 });
            exit(batch, 11, 9);
        });
        assert_eq!((ends[0].cause, ends[0].probability), (EndCause::CgroupLimit, 0.99), "{ends:?}");
    }
}

#[test]
fn a_kill_that_is_not_placed_does_not_explain_the_counter_of_a_cgroup() {
    let mut node = Node::new(&[(11, "train", None)]);
    let kills = |count| {
        move |batch: &mut Batch| {
            batch.put(&cgroup::metrics::EVENTS, &["/jobs/a".into(), "oom_kill".into()], Count(count))
        }
    };
    node.tick(kills(3)).tick(kills(3));
    node.running.clear();
    node.tick(|batch| {
        kills(4)(batch);
        batch.facts.oom_victims.push(bare_kill(4_711));
        exit(batch, 11, 9);
    });
    (0..4).for_each(|_| {
        node.tick(kills(4));
    });
    let ends = &node.last.outlook.ends;
    assert_eq!((ends[0].cause, ends[0].probability), (EndCause::CgroupLimit, 0.95), "{ends:?}");
}

#[test]
fn a_log_that_is_read_to_its_end_later_is_complete() {
    let killed = |is_victim: bool| {
        let mut node = Node::new(&[(11, "train", None)]);
        node.log = KernelLog::Behind;
        node.running.clear();
        node.tick(|batch| exit(batch, 11, 9)).tick(|_| {}).tick(|_| {});
        assert!(node.last.outlook.ends.is_empty());
        node.log = KernelLog::Complete;
        let ends = node.end(&[], |batch| {
            let victim = OomVictim { process: Some(Node::key(11)), ..bare_kill(11) };
            batch.facts.oom_victims.extend(is_victim.then_some(victim));
        });
        (ends[0].cause, ends[0].probability)
    };
    assert_eq!(killed(true), (EndCause::CgroupLimit, 0.99));
    assert_eq!(killed(false), (EndCause::Killed, 0.9));
}
