//! Sums over the members of a workload, and what exited members leave.

use super::*;

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

#[test]
fn a_workload_is_bound_to_the_nodes_that_some_process_of_it_may_use() {
    let mut host = Host::new(options());
    let status = |list: &str| {
        format!(
            "VmHWM:\t 8 kB\nRssAnon:\t 4 kB\nRssFile:\t 0 kB\nRssShmem:\t 0 kB\nHugetlbPages:\t 2048 kB\n\
             Mems_allowed_list:\t{list}\n"
        )
    };
    let mut bound = |lists: [&str; 2], memory: &str| {
        for (pid, list) in (10..).zip(lists) {
            host.add(&Process::new(pid, "python").cgroup(JOB).file("status", &status(list)));
        }
        host.memory_nodes = NodeSet::of_list(memory.as_bytes()).unwrap();
        // Unchanged processes are read at every fourth sample.
        let out = (0..4).map(|_| host.sample()).last().unwrap();
        assert_eq!(value(&out, "memwarden_workload_huge_pages_bytes", &["slurm-7"]), Some(4_194_304.0));
        values(&out, "memwarden_workload_numa_node_allowed")
    };
    assert_eq!(bound(["0-3", "0-3"], "0-3"), "");
    assert_eq!(bound(["0-63", "0-63"], "0-3"), "", "possible nodes without memory");
    let both = "memwarden_workload_numa_node_allowed slurm-7,1 1\nmemwarden_workload_numa_node_allowed slurm-7,2 1\n";
    assert_eq!(bound(["1", "2"], "0-3"), both);
    assert_eq!(bound(["1", "0-3"], "0-3"), "");
    assert_eq!(bound(["1", "1"], ""), "", "the nodes of the host are not known");
}

#[test]
fn helpers_of_memwarden_are_no_exits_of_the_job() {
    let mut host = Host::new(options());
    host.add(&Process::new(10, "python").cgroup(JOB));
    for pid in [11, 12] {
        let name = if pid == 11 { "memwarden" } else { "nvidia-smi" };
        host.add(&Process::new(pid, name).cgroup(JOB));
        host.sample();
        host.tree.end(pid);
    }
    let out = host.sample();
    assert_eq!(value(&out, "memwarden_workload_processes_exited_total", &["slurm-7"]), Some(1.0));
}
