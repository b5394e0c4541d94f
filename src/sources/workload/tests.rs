//! Tests of both sources on fixture trees: membership, sums, and values of ended processes.

mod ranks;

use std::time::Duration;

use super::*;
use crate::host::process::testing::{Process, Tree};
use crate::model::facts;
use crate::model::ids::Anchor;
use crate::model::setting::Settings;
use crate::model::units::Bytes;
use crate::sources::Context;

/// Both sources on one fixture, run like the engine runs them.
struct Host {
    tree: Tree,
    process: Box<dyn Source>,
    workload: Workloads,
    gpus: Vec<GpuProcess>,
    reporting: Vec<ProcessKey>,
    pods: Arc<PodNames>,
    second: u64,
}

impl Host {
    fn new(options: Options) -> Self {
        let tree = Tree::new();
        tree.add(&Process::new(1, "systemd"));
        let context = Context {
            roots: Arc::new(tree.roots()),
            worker: None,
            checkpoints: Arc::default(),
            past_runs: Arc::default(),
        };
        let mut process = (crate::sources::REGISTRY
            .iter()
            .find(|source| source.name == "process")
            .unwrap()
            .build)(&Settings::default(), &context);
        // Processes that a test adds start while the daemon runs.
        process.sample(Timestamp::from_secs(0), &mut Batch::new()).unwrap();
        let workload = Workloads::new(options, &tree.roots(), 1_000, &patient());
        Self {
            tree,
            process,
            workload,
            gpus: Vec::new(),
            reporting: Vec::new(),
            pods: Arc::default(),
            second: 0,
        }
    }

    fn add(&self, process: &Process) -> &Self {
        self.tree.add(process);
        self
    }

    fn gpu(&mut self, pid: u32, memory: Option<u64>) {
        let memory = memory.map(Bytes::new);
        self.gpus.push(GpuProcess { pid, gpu: "0".into(), uuid: "GPU-a".into(), memory });
    }

    fn sample(&mut self) -> Batch {
        self.second += 1;
        let mut out = Batch::new();
        let at = Timestamp::from_secs(self.second);
        self.process.sample(at, &mut out).unwrap();
        out.facts.gpu_processes.clone_from(&self.gpus);
        out.facts.reporting.clone_from(&self.reporting);
        out.facts.pods = Arc::clone(&self.pods);
        self.workload.sample(at, &mut out).unwrap();
        out
    }

    /// Members by workload: `name: pids`.
    fn members(&mut self) -> String {
        self.sample();
        let mut lines: Vec<_> = self
            .workload
            .workload_table
            .workloads
            .iter()
            .map(|(id, workload)| {
                let of = self
                    .workload
                    .seen
                    .iter()
                    .filter(|seen| seen.assignment.is_some_and(|assignment| assignment.id == *id));
                let pids: Vec<_> = of.map(|seen| seen.key.pid.to_string()).collect();
                format!("{}: {}", workload.facts.name, pids.join(" "))
            })
            .collect();
        lines.sort();
        lines.join("\n")
    }
}

/// Threads whose results are waited for.
fn patient() -> Arc<Pool> {
    Arc::new(Pool::new(readers::Pace::PATIENT))
}

fn options() -> Options {
    Options { top_processes: 2, host_top: 1, exited_peak_hold: Duration::from_secs(5), ..Options::default() }
}

fn matcher(name: &str) -> matcher::Matcher {
    matcher::Matcher { name: name.into(), ..matcher::Matcher::default() }
}

fn values(batch: &Batch, prefix: &str) -> String {
    let mut text = String::new();
    for family in batch.families().iter().filter(|family| family.desc.name.starts_with(prefix)) {
        for point in &family.points {
            let labels: Vec<_> = point.labels.iter().map(|label| label.as_str()).collect();
            text.push_str(&format!("{} {} {}\n", family.desc.name, labels.join(","), point.value));
        }
    }
    text
}

fn value(batch: &Batch, name: &str, labels: &[&str]) -> Option<f64> {
    let family = batch.families().iter().find(|family| family.desc.name == name)?;
    let same = |point: &&crate::model::point::Point| {
        point.labels.iter().map(|label| label.as_str()).eq(labels.iter().copied())
    };
    family.points.iter().find(same).map(|point| point.value)
}

const JOB: &str = "/slurm/uid_1000/job_7/step_0/task_0";

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
        start.unwrap() - host.sample().facts.processes.unwrap().boot.unwrap() as f64
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
fn every_condition_of_a_matcher_must_hold() {
    let all = matcher::Matcher {
        executable: Some("/usr/bin/python*".to_owned()),
        command_line: Some("train.py".to_owned()),
        user: Some(uid_name()),
        cgroup: Some("/batch/*".to_owned()),
        environment: Some("RANK=*".to_owned()),
        ..matcher("both")
    };
    let second = matcher::Matcher { environment: Some("SPECIAL".to_owned()), ..matcher("special") };
    let mut host = Host::new(Options { matchers: vec![all, second], ..options() });
    let good = |pid| {
        Process::new(pid, "python")
            .cgroup("/batch/x")
            .exe("/usr/bin/python3.11")
            .file("cmdline", "python\0train.py\0--lr\0")
            .file("environ", "HOME=/\0RANK=0\0")
    };
    host.add(&good(10));
    host.add(&good(11).exe("/bin/python3"));
    host.add(&good(12).file("cmdline", "python\0eval.py\0"));
    host.add(&good(13).file("environ", "HOME=/\0"));
    host.add(&good(14).cgroup("/interactive"));
    host.add(&good(15).file("environ", "SPECIAL=\0"));
    // A signal is pending: it is not read, although it would match.
    host.add(&good(16).file("status", "SigPnd:\t0000000000004000\n"));
    host.add(&good(17));
    assert_eq!(host.members(), "both: 10 17\nspecial: 15");
    // Compared again: after exec, and in another cgroup. Not compared again: an old process without changes.
    host.tree.add(&Process { comm: "python3".to_owned(), ..good(12) });
    host.add(&good(14));
    host.add(&good(13));
    assert_eq!(host.members(), "both: 10 12 14 17\nspecial: 15");
    // A new process is compared twice: it may have been seen before its exec.
    host.add(&good(18).file("cmdline", "sh\0"));
    host.sample();
    host.add(&good(18));
    assert_eq!(host.members(), "both: 10 12 14 17 18\nspecial: 15");
}

/// The user that owns the fixture.
fn uid_name() -> String {
    rustix::process::getuid().as_raw().to_string()
}

#[test]
fn counters_never_decrease_and_peaks_of_exited_members_are_kept() {
    let mut host = Host::new(options());
    let of = |pid: u32| Process::new(pid, "python").cgroup(JOB);
    let cpu = |out: &Batch| value(out, "memwarden_workload_cpu_seconds_total", &["slurm-7"]).unwrap();
    let read = |out: &Batch| value(out, "memwarden_workload_io_read_bytes_total", &["slurm-7"]).unwrap();
    host.add(&of(10).cpu(1_000).memory(4000, 400, 40, 9000).io(500, 1));
    host.add(&of(11).cpu(300).memory(400, 40, 4, 800).io(70, 1));
    let out = host.sample();
    assert_eq!((cpu(&out), read(&out)), (13.0, 570.0));
    expect_test::expect![[r#"
        memwarden_workload_info slurm-7,slurm,tester,/slurm/uid_1000/job_7,7,0,,,,,,,,,slurm-7 1
        memwarden_workload_rss_bytes slurm-7 5001216
        memwarden_workload_rss_anon_bytes slurm-7 4505600
        memwarden_workload_rss_file_bytes slurm-7 450560
        memwarden_workload_rss_shmem_bytes slurm-7 45056
        memwarden_workload_swap_bytes slurm-7 0
        memwarden_workload_process_peak_rss_bytes slurm-7 9216000
        memwarden_workload_processes_exited_total slurm-7 0
        memwarden_workload_processes slurm-7,active 0
        memwarden_workload_processes slurm-7,idle 2
        memwarden_workload_threads slurm-7 2
        memwarden_workload_cpu_seconds_total slurm-7 13
        memwarden_workload_major_faults_total slurm-7 0
        memwarden_workload_io_read_bytes_total slurm-7 570
        memwarden_workload_io_written_bytes_total slurm-7 2
        memwarden_workload_restricted_processes slurm-7 0
        memwarden_workload_start_timestamp_seconds slurm-7 1700000000.1
        memwarden_workload_other_processes_rss_bytes  0
        memwarden_workload_other_processes_rss_bytes slurm-7 0
        memwarden_workload_other_processes  0
        memwarden_workload_other_processes slurm-7 0
    "#]]
    .assert_eq(&values(&out, "memwarden_workload_"));
    host.add(&of(10).cpu(1_100).memory(4000, 400, 40, 9500).io(600, 1));
    let out = host.sample();
    assert_eq!((cpu(&out), read(&out)), (14.0, 670.0));
    assert_eq!(value(&out, "memwarden_workload_processes", &["slurm-7", "active"]), Some(1.0));
    // First a zombie without memory, then nothing.
    let mut zombie = of(10).cpu(1_100).pages(0).file("status", "State:\tZ\n").io(600, 1);
    zombie.state = 'Z';
    host.add(&zombie);
    host.sample();
    host.tree.end(10);
    let out = host.sample();
    assert_eq!((cpu(&out), read(&out)), (14.0, 670.0));
    let peak = |out: &Batch| value(out, "memwarden_workload_exited_process_peak_rss_bytes", &["slurm-7"]);
    assert_eq!(peak(&out), Some(9500.0 * 1024.0));
    assert_eq!(value(&out, "memwarden_workload_processes_exited_total", &["slurm-7"]), Some(1.0));
    // The workload ends: its counters disappear at once, its peak after the hold time.
    host.tree.end(11);
    let out = host.sample();
    assert_eq!(value(&out, "memwarden_workload_cpu_seconds_total", &["slurm-7"]), None);
    assert_eq!(peak(&out), Some(9500.0 * 1024.0));
    for _ in 0..4 {
        host.sample();
    }
    assert_eq!(peak(&host.sample()), Some(800.0 * 1024.0));
    assert_eq!(peak(&host.sample()), None);
    assert_eq!(host.members(), "");
}

#[test]
fn a_process_whose_first_thread_has_ended_is_matched_and_has_its_memory() {
    let mut host = Host::new(Options { matchers: vec![of_line("train", "train.py")], ..options() });
    let mut process =
        Process::new(10, "p").pages(0).file("status", "State:\tZ\nThreads:\t2\n").file("cmdline", "");
    (process.state, process.threads) = ('Z', 2);
    let memory = Process::new(10, "p").memory(4000, 400, 40, 9000);
    let status = |process: &Process| String::from_utf8(process.files[0].1.clone()).unwrap();
    process = process.thread(12, 'S', 1110);
    process = process.file("task/12/status", &status(&memory)).file("task/12/cmdline", "train.py\0");
    for rest in [4000, 5000] {
        let memory = Process::new(10, "p").memory(rest, 400, 40, 9000);
        host.add(&process.clone().cpu(rest).file("task/12/status", &status(&memory)));
        let out = host.sample();
        let anon = value(&out, "memwarden_workload_rss_anon_bytes", &["train"]);
        assert_eq!(anon, Some(f64::from(u32::try_from(rest).unwrap()) * 1024.0));
    }
}

#[test]
fn a_user_with_large_status_files_costs_a_sample_one_of_them_and_is_named() {
    if !rustix::process::geteuid().is_root() {
        return crate::skip::skip("processes of several users need root");
    }
    let mut host = Host::new(options());
    let groups = "4294967294 ".repeat(2_000);
    for pid in 10..20 {
        let process = Process::new(pid, "p").cgroup(JOB).memory(4000, 400, 40, 9000);
        let status = String::from_utf8(process.files[0].1.clone()).unwrap();
        host.add_of(1001, &process.file("status", &format!("Groups:\t{groups}\n{status}")));
    }
    host.add_of(1002, &Process::new(30, "p").cgroup(&JOB.replace("_7", "_8")).memory(4000, 400, 40, 9000));
    let out = host.sample();
    let of = |name: &str, workload: &str| value(&out, name, &[workload]);
    // The memory as a whole is known from another file.
    assert_eq!(of("memwarden_workload_rss_bytes", "slurm-7"), Some(10.0 * 4440.0 * 1024.0));
    assert_eq!(of("memwarden_workload_rss_anon_bytes", "slurm-7"), None);
    assert_eq!(of("memwarden_workload_rss_anon_bytes", "slurm-8"), Some(4000.0 * 1024.0));
    let named: Vec<_> = out.facts.shortages.iter().map(|shortage| (shortage.limit, shortage.user)).collect();
    assert_eq!(named, [("status_reads", Some(1001))]);
    assert_eq!(out.facts.shortages[0].left_out, 9);
}

#[test]
fn the_largest_and_the_others_add_up() {
    let mut host = Host::new(options());
    for (pid, pages) in [(10, 100), (11, 400), (12, 200), (13, 300), (14, 0)] {
        host.add(&Process::new(pid, "p").cgroup(JOB).pages(pages));
    }
    host.add(&Process::new(20, "free").pages(5));
    let out = host.sample();
    expect_test::expect![[r#"
        memwarden_process_rss_bytes ,1,systemd 40960
        memwarden_process_rss_bytes slurm-7,11,p 1638400
        memwarden_process_rss_bytes slurm-7,13,p 1228800
        memwarden_workload_other_processes_rss_bytes  20480
        memwarden_workload_other_processes_rss_bytes slurm-7 1228800
        memwarden_workload_other_processes  1
        memwarden_workload_other_processes slurm-7 3
    "#]]
    .assert_eq(&format!(
        "{}{}",
        values(&out, "memwarden_process_rss"),
        values(&out, "memwarden_workload_other")
    ));
    let total = value(&out, "memwarden_workload_rss_bytes", &["slurm-7"]).unwrap();
    assert_eq!(total, 1000.0 * 4096.0);
}

/// `stat` has these pages, `status` these KiB: the former is an estimate of the latter.
fn estimated(pid: u32, pages: u64, [anon, file, shmem]: [u64; 3]) -> Process {
    Process::new(pid, "p").cgroup(JOB).memory(anon, file, shmem, 9000).pages(pages)
}

#[test]
fn the_estimate_of_stat_is_not_taken_for_the_memory_of_members() {
    let mut host = Host::new(options());
    host.add(&estimated(10, 10, [400, 200, 100]));
    host.add(&estimated(11, 900, [40, 20, 10]));
    host.add(&estimated(12, 0, [300, 0, 0]));
    // A zombie: without memory there are no parts.
    host.add(&Process::new(13, "p").cgroup(JOB).pages(0).file("status", "State:\tZ\n"));
    let out = host.sample();
    expect_test::expect![[r#"
        memwarden_workload_rss_bytes slurm-7 1095680
        memwarden_workload_rss_anon_bytes slurm-7 757760
        memwarden_workload_rss_file_bytes slurm-7 225280
        memwarden_workload_rss_shmem_bytes slurm-7 112640
        memwarden_process_rss_bytes ,1,systemd 40960
        memwarden_process_rss_bytes slurm-7,10,p 716800
        memwarden_process_rss_bytes slurm-7,12,p 307200
        memwarden_process_rss_anon_bytes slurm-7,10,p 409600
        memwarden_process_rss_anon_bytes slurm-7,12,p 307200
        memwarden_process_rss_shmem_bytes slurm-7,10,p 102400
        memwarden_process_rss_shmem_bytes slurm-7,12,p 0
        memwarden_workload_other_processes_rss_bytes  0
        memwarden_workload_other_processes_rss_bytes slurm-7 71680
    "#]]
    .assert_eq(&format!(
        "{}{}{}",
        values(&out, "memwarden_workload_rss"),
        values(&out, "memwarden_process_rss"),
        values(&out, "memwarden_workload_other_processes_rss")
    ));
}

#[test]
fn memory_is_read_though_stat_does_not_change() {
    let mut host = Host::new(options());
    for pid in 10..14 {
        host.add(&estimated(pid, 5, [u64::from(pid) * 100, 0, 0]));
    }
    host.sample();
    // 12 and 13 are exposed, the others are not.
    for pid in 10..14 {
        host.add(&estimated(pid, 5, [u64::from(pid) * 104, 0, 0]));
    }
    let out = host.sample();
    let shown = |pid| value(&out, "memwarden_process_rss_bytes", &["slurm-7", pid, "p"]);
    assert_eq!((shown("12"), shown("13")), (Some(1248.0 * 1024.0), Some(1352.0 * 1024.0)));
    for _ in 0..2 {
        host.sample();
    }
    let rss = value(&host.sample(), "memwarden_workload_rss_bytes", &["slurm-7"]);
    assert_eq!(rss, Some(46.0 * 104.0 * 1024.0));
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
fn members_beyond_the_descriptor_limit_are_read() {
    let mut host = Host::new(options());
    host.workload = Workloads::new(options(), &host.tree.roots(), 1, &patient());
    for pid in 10..20 {
        host.add(&Process::new(pid, "p").cgroup(JOB).memory(4, 0, 0, 4).io(1, 1));
    }
    let out = host.sample();
    assert_eq!(value(&out, "memwarden_workload_rss_anon_bytes", &["slurm-7"]), Some(40.0 * 1024.0));
    assert_eq!(value(&out, "memwarden_workload_io_read_bytes_total", &["slurm-7"]), Some(10.0));
}

#[test]
fn pss_is_read_only_where_it_blocks_no_process() {
    let mut host = Host::new(Options { pss: true, ..options() });
    let small =
        |pid| Process::new(pid, "p").cgroup(JOB).memory(4, 0, 0, 4).file("smaps_rollup", "Pss:  3 kB\n");
    host.add(&small(10)).add(&small(11));
    let pss = |out: &Batch| value(out, "memwarden_workload_pss_bytes", &["slurm-7"]);
    assert_eq!(pss(&host.sample()), None, "one a sample");
    assert_eq!(pss(&host.sample()), Some(6.0 * 1024.0));
    host.add(
        &Process::new(12, "big")
            .cgroup(JOB)
            .memory(2 << 20, 0, 0, 2 << 20)
            .file("smaps_rollup", "Pss: 9 kB\n"),
    );
    for _ in 0..3 {
        assert_eq!(pss(&host.sample()), None);
    }
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
fn values_hidden_by_the_kernel_are_absent_and_reported() {
    let mut host = Host::new(options());
    // A folder in place of a file cannot be read, not even by root.
    host.add(&Process::new(10, "p").cgroup(JOB).file("io/x", "").file("fd/0", ""));
    let out = host.sample();
    assert_eq!(value(&out, "memwarden_workload_restricted_processes", &["slurm-7"]), Some(1.0));
    assert_eq!(value(&out, "memwarden_workload_io_read_bytes_total", &["slurm-7"]), None);
    assert_eq!(value(&out, "memwarden_workload_open_files", &["slurm-7"]), Some(1.0));
    host.add(&Process::new(11, "p").cgroup(JOB).io(5, 6));
    let out = host.sample();
    assert_eq!(value(&out, "memwarden_workload_restricted_processes", &["slurm-7"]), Some(1.0));
    assert_eq!(value(&out, "memwarden_workload_io_read_bytes_total", &["slurm-7"]), Some(5.0));
}

/// A matcher with this name that searches for `part` in command lines.
fn of_line(name: &str, part: &str) -> matcher::Matcher {
    matcher::Matcher { command_line: Some(part.to_owned()), ..matcher(name) }
}

#[test]
fn processes_that_change_their_names_are_not_read_each_time() {
    const PROCESSES: u32 = 36;
    let mut host = Host::new(Options { matchers: vec![of_line("job", "train.py")], ..options() });
    // More than the limit for one process, and together more than the limit for one read.
    let line = format!("python\0train.py\0{}", "x".repeat(texts::LONGEST + 50_000));
    let call = |host: &Host, name| {
        for pid in 10..10 + PROCESSES {
            host.add(&Process::new(pid, name));
        }
    };
    for pid in 10..10 + PROCESSES {
        host.add(&Process::new(pid, "a").file("cmdline", &line));
    }
    let read = |host: &Host| host.workload.texts.budget.total.load(std::sync::atomic::Ordering::Relaxed);
    let compared =
        |host: &Host| host.workload.workload_table.workloads.values().map(|workload| workload.live).sum();
    let longest = texts::LONGEST as u64;
    for turn in 0..16 {
        let out = host.sample();
        let most = (8 << 20) + turn * (1 << 20) + longest;
        assert!(read(&host) <= most, "{} bytes by sample {turn}", read(&host));
        let count: u64 = compared(&host);
        if turn == 0 {
            assert_eq!(count, 32, "the others have to wait");
            assert!(value(&out, "memwarden_workload_match_deferred_total", &[]) >= Some(4.0));
        } else {
            assert_eq!(count, u64::from(PROCESSES), "and come first then");
        }
        call(&host, if turn % 2 == 0 { "b" } else { "a" });
    }
    // Each is read at most at every tenth sample, after it was read a few times.
    assert!(read(&host) <= u64::from(PROCESSES) * (4 + 2) * longest, "{} bytes", read(&host));
}

#[test]
fn a_command_line_that_cannot_be_read_is_reported_and_delays_no_tick() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    let others = matcher::Matcher { user: Some(uid_name()), ..matcher("others") };
    let mut host = Host::new(options());
    let options = Options { matchers: vec![of_line("job", "train.py"), others], ..options() };
    let pace = readers::Pace {
        slow: Duration::from_millis(20),
        deadline: Duration::from_millis(40),
        ..readers::Pace::PATIENT
    };
    host.workload = Workloads::new(options, &host.tree.roots(), 1_000, &Arc::new(Pool::new(pace)));
    host.tree.end(1);
    host.add(&Process::new(10, "sly")).add(&Process::new(11, "python").file("cmdline", "train.py\0"));
    // A FIFO without a writer.
    let line = host.tree.proc().join("10/cmdline");
    mknodat(CWD, &line, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let until = |host: &mut Host, good: &dyn Fn(&str, &[String]) -> bool| {
        for _ in 0..3_000 {
            let members = host.members();
            let findings = host.sample().facts.findings;
            let findings: Vec<_> = findings.into_iter().map(|finding| finding.summary).collect();
            if good(&members, &findings) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{}", host.members());
    };
    let named = format!(
        "Process 10 (sly) of user {} cannot be read: cmdline or environ does not return.",
        uid_name()
    );
    until(&mut host, &|members, findings| members == "job: 11\nothers: 10" && findings == [named.clone()]);
    // The read returns, and the process runs another program.
    let writer = std::fs::File::options().read(true).write(true).open(&line).unwrap();
    until(&mut host, &|_, findings| findings.is_empty());
    drop(writer);
    std::fs::remove_file(&line).unwrap();
    host.add(&Process::new(10, "python").file("cmdline", "train.py\0"));
    until(&mut host, &|members, findings| members == "job: 10 11" && findings.is_empty());
}

/// `status` of a process with this set of pending signals.
fn pending(mask: &str) -> String {
    format!("Name:\tx\nVmHWM:\t40 kB\nRssAnon:\t40 kB\nSigPnd:\t{mask}\nShdPnd:\t0000000000000000\n")
}

#[test]
fn a_process_with_a_pending_signal_is_matched_after_its_delivery() {
    let others = matcher::Matcher { user: Some(uid_name()), ..matcher("others") };
    for (more, before, after) in [(None, "", "job: 10"), (Some(others), "others: 10", "job: 10")] {
        let matchers = std::iter::once(of_line("job", "train.py")).chain(more).collect();
        let mut host = Host::new(Options { matchers, ..options() });
        host.tree.end(1);
        let process =
            |mask| Process::new(10, "python").file("cmdline", "train.py\0").file("status", &pending(mask));
        host.add(&process("0000000000004000"));
        for _ in 0..60 {
            assert_eq!(host.members(), before);
        }
        let deferred = value(&host.sample(), "memwarden_workload_match_deferred_total", &[]).unwrap();
        assert!((8.0..=12.0).contains(&deferred), "compared {deferred} times in a minute");
        host.add(&process("0000000000000000"));
        let met = (0..12).any(|_| host.members() == after);
        assert!(met, "{}", host.members());
    }
}

/// Whether fixtures can belong to other users.
fn may_chown() -> bool {
    rustix::process::geteuid().is_root()
}

impl Host {
    /// Adds a process of another user.
    fn add_of(&self, user: u32, process: &Process) {
        self.tree.add(process);
        std::os::unix::fs::chown(self.tree.proc().join(process.pid.to_string()), Some(user), None).unwrap();
    }

    /// Gives a cgroup to a user.
    fn delegate(&self, path: &str, user: u32) {
        std::fs::create_dir_all(self.tree.group(path)).unwrap();
        std::os::unix::fs::chown(self.tree.group(path), Some(user), None).unwrap();
    }
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

const SLUID_STEP: &str = "/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0";

/// A process with the user ids of `status`, below `parent`.
fn with_users(pid: u32, comm: &str, parent: u32, users: &str) -> Process {
    let status = format!("Name:\tx\nUid:\t{users}\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n");
    Process::new(pid, comm).parent(parent).file("status", &status)
}

/// The slurmstepd of a step of job `job`.
fn stepd(pid: u32, job: &str) -> Process {
    with_users(pid, "slurmstepd", 1, "0\t0\t0\t0")
        .cgroup(&format!("{SLUID_STEP}/slurm"))
        .exe("/usr/sbin/slurmstepd")
        .file("cmdline", &format!("slurmstepd: [{job}.0]\0"))
}

/// Labels of `memwarden_workload_info`: workload, kind, id, step, account and partition of the job.
fn slurm_labels(host: &mut Host) -> String {
    labels(host, &["workload", "kind", "slurm_job_id", "slurm_step", "slurm_account", "slurm_partition"])
}

/// Some labels of `memwarden_workload_info`, with a line for each workload.
fn labels(host: &mut Host, names: &[&str]) -> String {
    let out = host.sample();
    let info = out.families().iter().find(|family| family.desc.name == "memwarden_workload_info");
    let points = info.map(|family| &family.points[..]).unwrap_or_default();
    let lines = points.iter().map(|point| {
        let label = |name: &str| {
            let place = metrics::INFO.desc.labels.iter().position(|label| *label == name).unwrap();
            point.labels[place].as_str()
        };
        names.iter().map(|name| label(name)).collect::<Vec<_>>().join(",")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_job_with_a_sluid_has_the_id_in_the_title_of_its_slurmstepd() {
    let mut host = Host::new(options());
    host.add(&stepd(10, "77"));
    let task =
        with_users(11, "python", 10, "1000\t1000\t1000\t1000").cgroup(&format!("{SLUID_STEP}/user/task_0"));
    host.add(&task.file("environ", "SLURM_JOB_ID=99\0SLURM_JOB_ACCOUNT=physics\0SLURM_JOB_PARTITION=gpu\0"));
    assert_eq!(slurm_labels(&mut host), "slurm-77,slurm,77,0,physics,gpu");
    // They stay the same when the first processes have ended.
    host.add(&Process::new(12, "loader").cgroup(&format!("{SLUID_STEP}/user/task_0")));
    host.sample();
    host.tree.end(10);
    host.tree.end(11);
    assert_eq!(slurm_labels(&mut host), "slurm-77,slurm,77,0,physics,gpu");
    // The same SLUID, when it has no process for a while, is not remembered.
    host.tree.end(12);
    assert_eq!(slurm_labels(&mut host), "");
    host.add(&Process::new(13, "loader").cgroup(&format!("{SLUID_STEP}/user/task_0")));
    assert_eq!(slurm_labels(&mut host), "slurm-sEKNKTV3WPV500,slurm,,0,,");
}

#[test]
fn the_executable_of_debians_slurmstepd_is_known() {
    for (executable, name) in [
        ("/usr/sbin/slurmstepd-wlm", "slurm-77,slurm,77,0,,"),
        ("/usr/sbin/slurmstepd-wlm (deleted)", "slurm-77,slurm,77,0,,"),
        ("/tmp/slurmstepd-other", "slurm-sEKNKTV3WPV500,slurm,,0,,"),
    ] {
        let mut host = Host::new(options());
        host.add(&stepd(10, "77").exe(executable));
        host.add(&Process::new(12, "loader").cgroup(&format!("{SLUID_STEP}/user/task_0")));
        assert_eq!(slurm_labels(&mut host), name, "{executable}");
    }
}

#[test]
fn a_job_with_a_sluid_is_named_by_its_id_when_it_is_known() {
    let mut host = Host::new(options());
    host.add(&Process::new(12, "loader").cgroup(&format!("{SLUID_STEP}/user/task_0")));
    assert_eq!(slurm_labels(&mut host), "slurm-sEKNKTV3WPV500,slurm,,0,,");
    let key = host.workload.workload_table.workloads.values().next().unwrap().facts.key.clone();
    // Before it has a title, and then with it.
    host.add(&stepd(10, "77").file("cmdline", "/usr/sbin/slurmstepd\0"));
    assert_eq!(slurm_labels(&mut host), "slurm-sEKNKTV3WPV500,slurm,,0,,");
    host.add(&stepd(10, "77"));
    assert_eq!(slurm_labels(&mut host), "slurm-77,slurm,77,0,,");
    assert_eq!(host.workload.workload_table.workloads.values().next().unwrap().facts.key, key);
    assert_eq!(
        host.workload.workload_table.workloads.values().next().unwrap().facts.plain.as_str(),
        "slurm-77"
    );
}

#[test]
fn no_process_of_a_user_gives_its_job_the_id_of_another() {
    let task = format!("{SLUID_STEP}/user/task_0");
    let environ = "SLURM_JOB_ID=7\0SLURM_JOBID=7\0SLURM_JOB_ACCOUNT=a b\0SLURM_JOB_PARTITION=\x1b[2J\0";
    for forged in [
        // The name and the title of a slurmstepd, without root.
        with_users(11, "slurmstepd", 10, "1000\t1000\t1000\t1000").exe("/usr/sbin/slurmstepd"),
        // A setuid root program that was started under this name has the user's real id.
        with_users(11, "slurmstepd", 10, "1000\t0\t0\t0").exe("/usr/sbin/slurmstepd"),
        // One that also took root's real id is another program.
        with_users(11, "slurmstepd", 10, "0\t0\t0\t0").exe("/usr/bin/sudo"),
        // Only its environment.
        with_users(11, "python", 10, "1000\t1000\t1000\t1000"),
        // A pending signal.
        stepd(11, "7").file("status", "Name:\tx\nUid:\t0\t0\t0\t0\nSigPnd:\t0000000000000100\n"),
    ] {
        let mut host = Host::new(options());
        host.add(&forged.cgroup(&task).file("cmdline", "slurmstepd: [7.0]\0").file("environ", environ));
        // The job that has this id.
        host.add(&Process::new(20, "python").cgroup(JOB));
        let labels = slurm_labels(&mut host);
        assert_eq!(labels, "slurm-sEKNKTV3WPV500,slurm,,0,,\nslurm-7,slurm,7,0,,");
    }
}

#[test]
fn the_environment_of_a_process_that_slurm_did_not_start_or_that_is_signalled_is_not_read() {
    let environment = "SLURM_JOB_ACCOUNT=physics\0SLURM_JOB_PARTITION=gpu\0";
    let mut host = Host::new(options());
    host.add(&Process::new(10, "slurmstepd"));
    let signalled = with_users(11, "python", 10, "1\t1\t1\t1").cgroup(JOB).file("environ", environment);
    host.add(&signalled.file("status", "Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
    host.add(&with_users(12, "python", 11, "1\t1\t1\t1").cgroup(JOB).file("environ", environment));
    assert_eq!(slurm_labels(&mut host), "slurm-7,slurm,7,0,,");
    host.add(&with_users(13, "python", 10, "1\t1\t1\t1").cgroup(JOB).file("environ", environment));
    assert_eq!(slurm_labels(&mut host), "slurm-7,slurm,7,0,physics,gpu");
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
