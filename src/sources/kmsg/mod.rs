//! OOM kills, GPU XIDs and warnings, from the kernel log.
//!
//! Counts what is logged while the daemon runs. Records that a process wrote
//! into the log are ignored.

pub mod metrics;
pub mod reader;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::formats::kernel::{Event, Kill, Reports, Warning, record};
use crate::host::exit_events::lists_initial_namespace;
use crate::host::{clock, fs, process};
use crate::model::facts::{
    Before, ExitedProcess, Facts, KernelLog as State, KernelReport, KernelXid, OomScope, OomVictim,
    ProcessRow, RESIDENT_KINDS,
};
use crate::model::ids::{ProcessKey, within};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag, Seconds};
use crate::sources::Registration;
use reader::{KernelLog, Next};

/// The source of the kernel log.
pub static REGISTRATION: Registration = Registration {
    name: "kmsg",
    about: "OOM kills with their victims, GPU XIDs and kernel warnings, from the kernel log.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| {
        Box::new(Kmsg {
            log: KernelLog::new(context.roots.kmsg.clone()),
            proc: context.roots.proc.clone(),
            last_sequence: None,
            reports: Reports::default(),
            behind: None,
            has_lost: false,
            group: None,
            threads: Vec::new(),
            counters: None,
        })
    })
};

/// What the kernel logged, of a process.
type ReportOf = fn(ProcessKey) -> KernelReport;

/// By how much the clock of the log may be behind that of start times.
const CLOCK_SLACK: Duration = Duration::from_secs(1);
/// Most records read in one tick; the rest is read at the next tick.
const MOST: usize = 4_000;
/// Most threads whose process is not known yet.
const MOST_THREADS: usize = 64;

struct Kmsg {
    log: KernelLog,
    /// The process file system, whose pids may be those of another namespace than the log's.
    proc: PathBuf,
    last_sequence: Option<u64>,
    reports: Reports,
    /// The processes before the first of the lines that the last tick left unread.
    behind: Option<Before>,
    /// Whether records of these lines are lost.
    has_lost: bool,
    /// The cgroup of the last process that was killed for itself, as far as it is known.
    group: Option<Label>,
    /// Threads that the kernel named in the last tick, of processes that were not known yet.
    threads: Vec<(u32, ReportOf)>,
    /// Absent until the log was opened once: nothing was counted before.
    counters: Option<Counters>,
}

#[derive(Default)]
struct Counters {
    kills: [u64; OomScope::ALL.len()],
    warnings: [u64; Warning::ALL.len()],
    records: u64,
    lost: u64,
    /// When the last OOM kill was, and its victim.
    last: Option<(Timestamp, OomVictim)>,
}

impl Source for Kmsg {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let outcome = self.read(at, &mut out.facts);
        if let Some(counters) = &self.counters {
            counters.put(out);
        }
        outcome
    }
}

impl Kmsg {
    fn read(&mut self, at: Timestamp, facts: &mut Facts) -> Result<(), SourceError> {
        if let Err(error) = self.log.open() {
            return Err(not_open(&self.log, &error));
        }
        let counters = self.counters.get_or_insert_default();
        let lost_before = counters.lost;
        let is_own = lists_initial_namespace(&self.proc);
        let was_behind = self.behind.is_some();
        let (mut is_behind, mut malformed) = (true, false);
        for (tid, report) in self.threads.drain(..) {
            let known = facts.before.row(tid).map(|row| row.key);
            facts.kernel_reports.extend(known.or_else(|| process_of_thread(&facts.exited, tid)).map(report));
        }
        for _ in 0..MOST {
            let bytes = match self.log.poll() {
                Ok(Next::Record(bytes)) => bytes,
                Ok(Next::Nothing) => {
                    is_behind = false;
                    break;
                }
                // The gap in the sequence numbers gives the number of lost records; without an earlier record
                // it is at least one.
                Ok(Next::Overwritten) => {
                    self.reports = Reports::default();
                    counters.lost += u64::from(self.last_sequence.is_none());
                    continue;
                }
                Err(error) => return Err(fs::failed(self.log.path(), &error)),
            };
            let Some(record) = record(bytes) else {
                malformed = true;
                continue;
            };
            counters.records += 1;
            let expected = self.last_sequence.map_or(record.sequence, |last| last.saturating_add(1));
            counters.lost = counters.lost.saturating_add(record.sequence.saturating_sub(expected));
            if record.sequence > expected {
                self.reports = Reports::default();
            }
            self.last_sequence = Some(record.sequence);
            // A line that is read long after it was logged may be of an earlier process of the pid.
            let logged = clock::after_boot(Duration::from_micros(record.kernel_us));
            let newest = was_behind.then(|| process::ticks(logged.saturating_add(CLOCK_SLACK)));
            let is_meant = |row: &&ProcessRow| is_own && newest.is_none_or(|newest| row.key.start <= newest);
            let mut add = |pid: u32, report: ReportOf| {
                let known =
                    row_of(pid, (&facts.before, self.behind.as_ref()), &is_meant).map(|(row, _)| row.key);
                // The ends of this tick can be those of later threads than an old line names.
                let is_recent = is_own && newest.is_none();
                match known.or_else(|| process_of_thread(&facts.exited, pid).filter(|_| is_recent)) {
                    Some(process) => facts.kernel_reports.push(report(process)),
                    // Its process, or its end, is known in the next tick.
                    None if is_recent && self.threads.len() < MOST_THREADS => {
                        self.threads.push((pid, report))
                    }
                    None => {}
                }
            };
            match self.reports.read(&record) {
                Some(Event::Kill(kill)) => {
                    let known = (&facts.before, self.behind.as_ref());
                    let victim = victim(&kill, known, &is_meant, &mut self.group);
                    counters.kills[victim.scope as usize] += 1;
                    counters.last = Some((at, victim.clone()));
                    facts.oom_victims.push(victim);
                }
                Some(Event::Xid { pci, xid, severity }) => {
                    facts.kernel_xids.push(KernelXid { pci, xid, severity, kernel_us: record.kernel_us });
                }
                Some(Event::MemoryError { pid }) => add(pid, KernelReport::MemoryError),
                Some(Event::HugePages { pid }) => add(pid, KernelReport::HugePages),
                Some(Event::ForkRejected { cgroup }) => {
                    facts.kernel_reports.push(KernelReport::ForkRejected(Label::printable(&cgroup)));
                }
                Some(Event::Warning(warning)) => counters.warnings[warning as usize] += 1,
                None => {}
            }
        }
        if !is_behind {
            self.behind = None;
        } else if !was_behind {
            let (processes, workload_of) = (facts.before.processes.clone(), facts.before.workload_of.clone());
            self.behind = Some(Before { processes, workload_of, ..Before::default() });
        }
        self.has_lost = (self.has_lost && was_behind) || counters.lost > lost_before || malformed;
        facts.kernel_log = match () {
            () if is_behind => State::Behind,
            () if self.has_lost => State::Lost,
            () if !is_own => State::Foreign,
            () => State::Complete,
        };
        if malformed {
            let why = format!(
                "invalid record in {}: priority, sequence number or time is missing",
                self.log.path().display()
            );
            return Err(SourceError::failed(Failure::Parse, why));
        }
        Ok(())
    }
}

fn not_open(log: &KernelLog, error: &io::Error) -> SourceError {
    match error.kind() {
        io::ErrorKind::NotFound => {
            SourceError::unavailable(format!("{} does not exist", log.path().display()))
        }
        io::ErrorKind::Unsupported => SourceError::unavailable(format!("{} {error}", log.path().display())),
        io::ErrorKind::PermissionDenied => SourceError::failed(
            Failure::Permission,
            format!(
                "cannot read {}: {error}; CAP_SYSLOG is required if kernel.dmesg_restrict is 1",
                log.path().display()
            ),
        ),
        _ => fs::failed(log.path(), error),
    }
}

/// The processes of the last tick, and those before lines were left unread, of which some have ended since.
type Known<'k> = (&'k Before, Option<&'k Before>);

fn row_of<'k>(
    pid: u32,
    (last, older): Known<'k>,
    is_it: &impl Fn(&&ProcessRow) -> bool,
) -> Option<(&'k ProcessRow, &'k Before)> {
    [Some(last), older].into_iter().flatten().find_map(|known| Some((known.row(pid).filter(is_it)?, known)))
}

/// The victim of a kill. Its process is that of the pid if the user is the same; its name can have changed since the last tick.
fn victim(
    kill: &Kill,
    known: Known<'_>,
    is_meant: &impl Fn(&&ProcessRow) -> bool,
    group: &mut Option<Label>,
) -> OomVictim {
    let is_it = |row: &&ProcessRow| kill.uid.is_none_or(|uid| row.is_of(uid)) && is_meant(row);
    let find = |pid: Option<u32>| row_of(pid?, known, &is_it);
    let named = find(kill.pid);
    // The line before is of another kill where this one names a process that it did not choose.
    let is_chosen = named.is_none() || kill.chosen.is_none() || kill.chosen == kill.pid;
    let (row, before) = named.or_else(|| find(kill.chosen)).unzip();
    let mut cgroups = [&kill.cgroup, &kill.limit_cgroup].map(|path| Label::printable(path));
    // So it is where the process is elsewhere than the others of its group. The paths of the log are those of the host.
    let is_in = |path: &Label| {
        let seen = path.as_str().trim_start_matches("/..");
        seen == "/" || cgroups[0].as_str().ends_with(seen) || within(path.as_str(), cgroups[0].as_str())
    };
    let own = row.and_then(|row| row.cgroup.as_ref());
    let is_elsewhere = kill.is_of_group && own.is_some_and(|path| own != group.as_ref() && !is_in(path));
    if !kill.is_of_group {
        *group = own.cloned();
    }
    if !is_chosen || is_elsewhere {
        cgroups = Default::default();
    }
    let [cgroup, limit_cgroup] = cgroups;
    OomVictim {
        pid: row.map(|row| row.key.pid).or(kill.pid).or(kill.chosen),
        comm: Label::printable(&kill.comm),
        uid: kill.uid,
        process: row.map(|row| row.key),
        cgroup,
        limit_cgroup,
        scope: kill.scope,
        is_scope_stated: kill.is_scope_stated,
        workload: row.and_then(|row| before?.workload(row.key)).cloned().unwrap_or_default(),
        resident: kill.resident,
    }
}

/// The process of a thread that ended in this tick: the kernel's reports of single processes name the thread that they met.
fn process_of_thread(exited: &[ExitedProcess], tid: u32) -> Option<ProcessKey> {
    exited.iter().find(|thread| thread.tid == tid).map(|thread| thread.process)
}

impl Counters {
    fn put(&self, out: &mut Batch) {
        for (count, scope) in self.kills.iter().zip(OomScope::ALL) {
            out.put(&metrics::OOM_KILLS, &[scope.label().into()], Count(*count));
        }
        for (count, kind) in self.warnings.iter().zip(Warning::ALL) {
            out.put(&metrics::MESSAGES, &[kind.label().into()], Count(*count));
        }
        out.put(&metrics::RECORDS, &[], Count(self.records));
        out.put(&metrics::LOST, &[], Count(self.lost));
        let Some((at, victim)) = &self.last else { return };
        out.put(&metrics::LAST_KILL, &[], Seconds::from(at.unix()));
        let labels = [
            victim.scope.label().into(),
            victim.comm.clone(),
            victim.pid.map_or_else(Label::default, Label::from),
            victim.cgroup.clone(),
            victim.uid.map_or_else(Label::default, Label::from),
            victim.workload.clone(),
            victim.limit_cgroup.clone(),
        ];
        out.put(&metrics::LAST_VICTIM, &labels, Flag(true));
        for (kind, amount) in RESIDENT_KINDS.into_iter().zip(victim.resident) {
            out.put_some(&metrics::LAST_VICTIM_RESIDENT, &[kind.into()], amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::Membership;
    use crate::sources::testing::{build, check, root, sample};
    use expect_test::{Expect, expect};

    /// A log that contains `old` when the daemon starts; each of `news` is appended before a sample.
    fn check_log(old: &str, news: &[&str], expected: Expect) {
        let root = root(&[("kmsg", old)]);
        let mut source = build(&REGISTRATION, &root);
        let mut shown = sample(&mut *source, &root, 1);
        for (news, second) in news.iter().zip(2..) {
            root.append("kmsg", news);
            shown = sample(&mut *source, &root, second);
            shown =
                shown.lines().filter(|line| !line.ends_with(" 0")).map(|line| format!("{line}\n")).collect();
        }
        expected.assert_eq(&shown);
    }

    const KILL: &str = "4,900,77000000,-;python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n\
        6,901,77000100,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,oom_memcg=/sys\\x5cx2dtem.slice,task_memcg=/sys\\x5cx2dtem.slice/job,task=python3,pid=48213,uid=1000\n\
        3,902,77000200,-;Memory cgroup out of memory: Killed process 48213 (python3) total-vm:300kB, anon-rss:200kB, file-rss:20kB, shmem-rss:2kB, UID:1000 pgtables:9kB oom_score_adj:0\n";

    #[test]
    fn counters_start_at_zero() {
        check_log(
            KILL,
            &[],
            expect![[r#"
                memwarden_kernel_oom_kills_total{scope="host"} 0
                memwarden_kernel_oom_kills_total{scope="cgroup"} 0
                memwarden_kernel_oom_kills_total{scope="numa_nodes"} 0
                memwarden_kernel_oom_kills_total{scope="request"} 0
                memwarden_kernel_oom_kills_total{scope="page_fault"} 0
                memwarden_kernel_messages_total{kind="allocation_failure"} 0
                memwarden_kernel_messages_total{kind="hung_task"} 0
                memwarden_kernel_messages_total{kind="soft_lockup"} 0
                memwarden_kernel_messages_total{kind="hard_lockup"} 0
                memwarden_kernel_messages_total{kind="rcu_stall"} 0
                memwarden_kernel_messages_total{kind="memory_failure"} 0
                memwarden_kernel_messages_total{kind="machine_check"} 0
                memwarden_kernel_messages_total{kind="memory_corrected"} 0
                memwarden_kernel_messages_total{kind="memory_uncorrected"} 0
                memwarden_kernel_messages_total{kind="nvswitch_fatal"} 0
                memwarden_kernel_messages_total{kind="nvswitch_nonfatal"} 0
                memwarden_kernel_messages_total{kind="gpu_lost"} 0
                memwarden_kernel_messages_total{kind="gpu_driver_memory"} 0
                memwarden_kernel_messages_total{kind="oom_no_victim"} 0
                memwarden_kernel_messages_total{kind="oom_unreaped"} 0
                memwarden_kernel_log_records_total 0
                memwarden_kernel_log_lost_records_total 0
            "#]],
        );
    }

    #[test]
    fn a_kill_names_its_victim() {
        check_log(
            "",
            &[KILL],
            expect![[r#"
                memwarden_kernel_oom_kills_total{scope="cgroup"} 1
                memwarden_kernel_log_records_total 3
                memwarden_kernel_oom_last_kill_timestamp_seconds 2
                memwarden_kernel_oom_last_victim_info{scope="cgroup",comm="python3",pid="48213",cgroup="/sys\\x2dtem.slice/job",uid="1000",limit_cgroup="/sys\\x2dtem.slice"} 1
                memwarden_kernel_oom_last_victim_resident_bytes{kind="anon"} 204800
                memwarden_kernel_oom_last_victim_resident_bytes{kind="file"} 20480
                memwarden_kernel_oom_last_victim_resident_bytes{kind="shmem"} 2048
            "#]],
        );
    }

    #[test]
    fn a_victim_has_the_workload_it_belonged_to() {
        use crate::model::facts::{ProcessRow, ProcessTable};
        use crate::model::ids::ProcessKey;

        let workload = |uid: u32, start: u64| {
            let root = root(&[("kmsg", "")]);
            let mut source = build(&REGISTRATION, &root);
            sample(&mut *source, &root, 1);
            root.append("kmsg", KILL);
            let key = ProcessKey { pid: 48213, start: 7 };
            let row = ProcessRow { parent: 1, uid, state: b'R', ..ProcessRow::new(key, "renamed".into()) };
            let mut batch = Batch::new();
            batch.facts.before.processes =
                Some(std::sync::Arc::new(ProcessTable { rows: vec![row], boot: None }));
            batch.facts.before.workload_of = vec![Membership::named(ProcessKey { start, ..key }, "slurm-17")];
            source.sample(Timestamp::from_secs(2), &mut batch).unwrap();
            let families = batch.families();
            let victim = families.iter().find(|family| std::ptr::eq(family.desc, &metrics::LAST_VICTIM.desc));
            let name = victim.unwrap().points[0].labels[5].to_string();
            (name, batch.facts.oom_victims.iter().map(|victim| victim.process).eq([Some(key)]))
        };
        assert_eq!(workload(1000, 7), ("slurm-17".to_owned(), true));
        assert_eq!(workload(1001, 7), (String::new(), false), "another process of this pid");
        assert_eq!(workload(1000, 8), (String::new(), true), "an earlier process of this pid");
    }

    #[test]
    fn the_cgroup_of_another_users_process_is_not_the_victims() {
        use crate::model::facts::ProcessTable;
        use crate::model::ids::ProcessKey;

        let victim = |log: &str, group: &str| {
            let root = root(&[("kmsg", "")]);
            let mut source = build(&REGISTRATION, &root);
            sample(&mut *source, &root, 1);
            root.append("kmsg", log);
            let rows = [48213, 48214].map(|pid| ProcessRow {
                uid: 1000,
                cgroup: Some(group.into()),
                ..ProcessRow::new(ProcessKey { pid, start: 7 }, "python3".into())
            });
            let mut batch = Batch::new();
            let table = ProcessTable { rows: rows.to_vec(), boot: None };
            batch.facts.before.processes = Some(std::sync::Arc::new(table));
            source.sample(Timestamp::from_secs(2), &mut batch).unwrap();
            let victim = batch.facts.oom_victims.pop().unwrap();
            (victim.pid, victim.limit_cgroup.to_string())
        };
        let (pid, limit) = (Some(48213), "/sys\\x2dtem.slice".to_owned());
        assert_eq!(victim(KILL, "/"), (pid, limit.clone()));
        assert_eq!(victim(&KILL.replace("uid=1000", "uid=1004"), "/"), (pid, String::new()));
        // Both are processes: the line before belongs to another kill.
        assert_eq!(victim(&KILL.replace(",pid=48213", ",pid=48214"), "/"), (pid, String::new()));
        // A number of no process is that of a thread.
        let thread = KILL.replace("process 48213", "process 50000");
        assert_eq!(victim(&thread, "/"), (pid, limit.clone()));
        // One after those of a group, in another cgroup, as a cgroup namespace has it too.
        let group = KILL.replace("48213", "47000")
            + "6,903,77000300,-;Tasks in /sys\\x5cx2dtem.slice/job are going to be killed due to memory.oom.group set\n"
            + &KILL.lines().last().unwrap().replace("902,77000200", "904,77000400")
            + "\n";
        for (own, expected) in [
            ("/sys?x2dtem.slice/job", limit.as_str()),
            ("/../sys?x2dtem.slice/job", &limit),
            ("/sys?x2dtem.slice/job/step", &limit),
            ("/sys?x2dtem.slice/other", ""),
        ] {
            assert_eq!(victim(&group, &own.replace('?', "\\")), (pid, expected.to_owned()), "{own}");
        }
    }

    #[test]
    fn the_last_victim_is_the_one_shown() {
        let host =
            "3,903,78000000,-;Out of memory: Killed process 5 (tr\\x0aain) total-vm:4kB, anon-rss:1kB\n";
        check_log(
            "",
            &[KILL, host],
            expect![[r#"
                memwarden_kernel_oom_kills_total{scope="host"} 1
                memwarden_kernel_oom_kills_total{scope="cgroup"} 1
                memwarden_kernel_log_records_total 4
                memwarden_kernel_oom_last_kill_timestamp_seconds 3
                memwarden_kernel_oom_last_victim_info{scope="host",comm="tr?ain",pid="5"} 1
                memwarden_kernel_oom_last_victim_resident_bytes{kind="anon"} 1024
            "#]],
        );
    }

    #[test]
    fn lines_written_by_processes_are_not_kills() {
        let faked = KILL.replace("3,902", "11,902");
        check_log(
            "",
            &[&faked],
            expect![[r#"
            memwarden_kernel_log_records_total 3
        "#]],
        );
    }

    #[test]
    fn lost_and_malformed_records_are_counted() {
        check_log(
            "",
            &["6,10,1,-;a\n6,14,2,-;b\n6,15,3,-;INFO: task x:1 blocked for more than 120 seconds.\n??\n"],
            expect![[r#"
                memwarden_kernel_messages_total{kind="hung_task"} 1
                memwarden_kernel_log_records_total 3
                memwarden_kernel_log_lost_records_total 3
                failed (parse): invalid record in ROOT/kmsg: priority, sequence number or time is missing
            "#]],
        );
    }

    #[test]
    fn without_a_log_nothing_is_counted() {
        check(
            &REGISTRATION,
            root(&[]),
            expect![[r#"
            unavailable: ROOT/kmsg does not exist
        "#]],
        );
    }

    #[test]
    fn an_unreadable_log_is_reported() {
        let log = KernelLog::new("ROOT/kmsg".into());
        let say = |kind: io::ErrorKind| format!("{:?}", not_open(&log, &kind.into()));
        expect![[r#"Failed { kind: Permission, why: "cannot read ROOT/kmsg: permission denied; CAP_SYSLOG is required if kernel.dmesg_restrict is 1" }"#]].assert_eq(&say(io::ErrorKind::PermissionDenied));
        let root = root(&[]);
        std::os::unix::fs::symlink("/dev/null", root.path().join("kmsg")).unwrap();
        check(
            &REGISTRATION,
            &root,
            expect![[r#"
            unavailable: ROOT/kmsg is a device other than the kernel log
        "#]],
        );
    }

    #[test]
    fn xids_are_left_for_the_gpu_source() {
        let root = root(&[("kmsg", "")]);
        let mut source = build(&REGISTRATION, &root);
        let mut batch = Batch::new();
        source.sample(Timestamp::from_secs(1), &mut batch).unwrap();
        let line = "4,9,123456,-,caller=T9;NVRM: Xid (PCI:0000:3B:00.0): 79, pid=1234, GPU has fallen off the bus.\n";
        root.write("kmsg", line);
        source.sample(Timestamp::from_secs(2), &mut batch).unwrap();
        let expected = KernelXid {
            pci: "0000:3b:00".to_owned(),
            xid: 79,
            severity: crate::model::xid::severity(79),
            kernel_us: 123_456,
        };
        assert_eq!(batch.facts.kernel_xids, [expected]);
    }

    /// The facts of a tick with these lines, in which process 7 is known since `start` ticks, and these threads of it ended.
    fn told(source: &mut dyn Source, second: u64, start: u64, threads: &[u32]) -> Facts {
        use crate::model::facts::ProcessTable;
        let mut batch = Batch::new();
        let process = ProcessKey { pid: 7, start };
        let row = ProcessRow { uid: 1000, ..ProcessRow::new(process, "python3".into()) };
        batch.facts.before.processes =
            Some(std::sync::Arc::new(ProcessTable { rows: vec![row], ..ProcessTable::default() }));
        batch.facts.exited =
            threads.iter().map(|tid| ExitedProcess { process, tid: *tid, status: 7 }).collect();
        source.sample(Timestamp::from_secs(second), &mut batch).unwrap();
        std::mem::take(&mut batch.facts)
    }

    #[test]
    fn what_is_logged_of_a_thread_is_of_its_process() {
        let root = root(&[("kmsg", "")]);
        let mut source = build(&REGISTRATION, &root);
        told(&mut *source, 1, 0, &[]);
        let mut say = |second, pid: u32, threads: &[u32]| {
            let line = format!(
                "3,{second},1,-;Memory failure: 0x1: Sending SIGBUS to python3:{pid} due to hardware memory corruption\n"
            );
            root.append("kmsg", &line);
            told(&mut *source, second, 0, threads).kernel_reports
        };
        let known = [KernelReport::MemoryError(ProcessKey { pid: 7, start: 0 })];
        assert_eq!(say(2, 7, &[]), known, "its first thread");
        assert_eq!(say(3, 9, &[8, 9]), known, "a thread that has ended");
        assert_eq!(say(4, 10, &[]), [], "not known yet");
        assert_eq!(say(5, 11, &[10]), known, "in the next tick");
        assert_eq!(say(6, 12, &[10]), [], "not later");
        // A process that the tick before did not know.
        root.append("kmsg", "3,7,1,-;MCE 0x1: Killing python3:7 due to hardware memory corruption\n");
        source.sample(Timestamp::from_secs(7), &mut Batch::new()).unwrap();
        assert_eq!(told(&mut *source, 8, 0, &[]).kernel_reports, known);
    }

    #[test]
    fn an_old_line_is_not_of_a_later_process_of_its_pid() {
        let root = root(&[("kmsg", "")]);
        let mut source = build(&REGISTRATION, &root);
        told(&mut *source, 1, 0, &[]);
        let kill = "3,9999999,5000000,-;Out of memory: Killed process 7 (python3) total-vm:300kB, anon-rss:200kB, file-rss:20kB, shmem-rss:2kB, UID:1000 pgtables:9kB oom_score_adj:0\n";
        let storm: String = (0..=MOST).map(|n| format!("6,{n},1,-;x\n")).collect();
        root.write("kmsg", &(storm + kill));
        // Logged 5 s after boot at the earliest, of a process that started after 1,000 s.
        let later = process::ticks(clock::after_boot(Duration::from_secs(1_000)));
        told(&mut *source, 2, later, &[]);
        let victims = told(&mut *source, 3, later, &[]).oom_victims;
        assert_eq!(victims.iter().map(|victim| victim.process).collect::<Vec<_>>(), [None]);
    }

    #[test]
    fn a_line_that_is_read_late_is_of_a_process_that_has_ended_meanwhile() {
        let root = root(&[("kmsg", "")]);
        let mut source = build(&REGISTRATION, &root);
        told(&mut *source, 1, 0, &[]);
        let kill = "3,4001,5000000,-;Memory cgroup out of memory: Killed process 7 (python3) total-vm:300kB, anon-rss:200kB, file-rss:20kB, shmem-rss:2kB, UID:1000 pgtables:9kB oom_score_adj:0\n";
        let storm: String = (0..=MOST).map(|n| format!("6,{n},1,-;x\n")).collect();
        root.write("kmsg", &(storm + kill));
        assert_eq!(told(&mut *source, 2, 0, &[]).kernel_log, State::Behind);
        let mut batch = Batch::new();
        source.sample(Timestamp::from_secs(3), &mut batch).unwrap();
        let victims = batch.facts.oom_victims.iter().map(|victim| victim.process);
        assert_eq!(victims.collect::<Vec<_>>(), [Some(ProcessKey { pid: 7, start: 0 })]);
        assert_ne!(batch.facts.kernel_log, State::Lost);
    }

    #[test]
    fn a_victim_has_the_real_user_of_its_process() {
        let is_it = |uid, real_uid| {
            let mut before = Before::default();
            let key = ProcessKey { pid: 7, start: 0 };
            let row = ProcessRow { uid, real_uid, ..ProcessRow::new(key, "python3".into()) };
            before.processes =
                Some(std::sync::Arc::new(crate::model::facts::ProcessTable { rows: vec![row], boot: None }));
            let kill = Kill { pid: Some(7), uid: Some(1000), ..Kill::default() };
            victim(&kill, (&before, None), &|_| true, &mut None).process.is_some()
        };
        assert_eq!(
            [is_it(1000, None), is_it(0, Some(1000)), is_it(0, Some(0)), is_it(1001, None)],
            [true, true, false, false]
        );
    }

    #[test]
    fn many_records_are_read_over_several_ticks() {
        let storm: String = (0..=MOST).map(|n| format!("6,{n},1,-;x\n")).collect();
        let read = |samples: usize| {
            let root = root(&[("kmsg", "")]);
            let mut source = build(&REGISTRATION, &root);
            sample(&mut *source, &root, 1);
            root.write("kmsg", &storm);
            let shown = (0..samples).map(|_| sample(&mut *source, &root, 2)).last().unwrap();
            let line = shown.lines().find(|line| line.contains("log_records")).unwrap();
            line.to_owned()
        };
        assert_eq!(
            [read(1), read(2)],
            [MOST, MOST + 1].map(|n| format!("memwarden_kernel_log_records_total {n}"))
        );
    }
}
