//! Workloads of configured matchers.

use super::*;

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
