//! Files in the states that loggers, log rotation and users produce.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use expect_test::{Expect, expect};

use super::file::{Follower, PassResult, Piece};
use super::options::{Log, Options};
use super::pattern::Pattern;
use super::watch::{View, Watch};
use super::*;
use crate::model::units::{Count, Number};
use crate::sources::testing::{Root, root};
use crate::sources::training;

/// What a pass reads, with `|` where the line that has begun does not continue, and the result of the pass.
fn pass(follower: &mut Follower) -> (String, PassResult) {
    let mut taken = String::new();
    let found = follower.pass(|piece| match piece {
        Piece::Bytes(bytes) => taken.push_str(&String::from_utf8_lossy(bytes)),
        Piece::Break => taken.push('|'),
    });
    (taken, found)
}

fn taken(follower: &mut Follower) -> String {
    let (taken, found) = pass(follower);
    assert_eq!(found, PassResult::End);
    taken
}

fn follower(root: &Root) -> Follower {
    Follower::new(root.path().join("log"))
}

#[test]
fn reading_begins_at_the_end_and_after_the_line_there() {
    let root = root(&[("log", "old\nbegun ")]);
    let mut follower = follower(&root);
    assert_eq!(taken(&mut follower), "");
    root.append("log", "and ended\nnew\n");
    assert_eq!(taken(&mut follower), "new\n");
    root.append("log", "half");
    assert_eq!(taken(&mut follower), "half");
    assert_eq!(taken(&mut follower), "");
    assert_eq!(follower.counts.bytes, 18);
}

#[test]
fn a_file_that_appears_is_read_from_its_front() {
    let root = root(&[]);
    let mut follower = follower(&root);
    assert_eq!(pass(&mut follower).1, PassResult::Missing);
    root.write("log", "first\n");
    assert_eq!(taken(&mut follower), "first\n");
}

#[test]
fn rotation_loses_nothing() {
    let root = root(&[("log", "")]);
    let (log, old) = (root.path().join("log"), root.path().join("log.1"));
    let mut follower = follower(&root);
    assert_eq!(taken(&mut follower), "");
    root.append("log", "one\n");
    std::fs::rename(&log, &old).unwrap();
    // The writer has not reopened the file yet.
    root.append("log.1", "two\n");
    assert_eq!(pass(&mut follower), ("one\ntwo\n".to_owned(), PassResult::Missing));
    root.append("log.1", "three\n");
    root.write("log", "four\n");
    assert_eq!(taken(&mut follower), "three\n|four\n");
    assert_eq!(follower.counts.rotations, 1);
    // A deleted file is closed.
    root.append("log", "five\n");
    std::fs::remove_file(&log).unwrap();
    assert_eq!(pass(&mut follower), ("five\n|".to_owned(), PassResult::Missing));
    assert!(!follower.is_open());
}

#[test]
fn a_truncated_file_is_read_from_its_start() {
    let root = root(&[("log", "")]);
    let log = root.path().join("log");
    let mut follower = follower(&root);
    assert_eq!(taken(&mut follower), "");
    root.append("log", "a long line\n");
    assert_eq!(taken(&mut follower), "a long line\n");
    root.write("log", "short\n");
    assert_eq!(taken(&mut follower), "|short\n");
    // Truncated, and longer than before by the time of the next pass.
    root.write("log", "another and a longer line\n");
    assert_eq!(taken(&mut follower), "|another and a longer line\n");
    // Truncated under a writer that does not append: a hole, then the line.
    std::fs::File::options()
        .write(true)
        .truncate(true)
        .open(&log)
        .unwrap()
        .write_at(b"late\n", 9_000)
        .unwrap();
    assert_eq!(taken(&mut follower), "|late\n");
    assert_eq!(follower.counts.rotations, 3);
}

#[test]
fn other_files_are_refused_once_without_blocking() {
    let root = root(&[("binary", "x")]);
    let path = |name: &str| root.path().join(name);
    rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    std::fs::write(path("binary"), [7, 1, 2, 3, 0, 4, 5, 0, 6, 0xff].repeat(100)).unwrap();
    for (name, why) in [
        ("pipe", Refusal::NotRegular),
        ("socket", Refusal::NotRegular),
        ("folder", Refusal::NotRegular),
        ("binary", Refusal::Binary),
    ] {
        let mut follower = Follower::new(path(name));
        assert_eq!(pass(&mut follower).1, PassResult::Refused(why), "{name}");
        assert!(follower.fresh_refusal());
        assert_eq!(pass(&mut follower).1, PassResult::Refused(why), "{name}");
        assert!(!follower.fresh_refusal() && !follower.is_open());
    }
    // The file that replaces it is read.
    let mut follower = Follower::new(path("pipe"));
    assert_eq!(pass(&mut follower).1, PassResult::Refused(Refusal::NotRegular));
    std::fs::remove_file(path("pipe")).unwrap();
    root.write("pipe", "text\n");
    assert_eq!(taken(&mut follower), "text\n");
}

#[test]
fn a_log_that_becomes_binary_is_no_longer_followed() {
    let root = root(&[("log", "text\n")]);
    let mut follower = follower(&root);
    assert_eq!(taken(&mut follower), "");
    root.append("log", [1, 2, 3, 4, 5, 6, 7, 0x80].repeat(50));
    assert_eq!(pass(&mut follower).1, PassResult::Refused(Refusal::Binary));
}

#[test]
fn reading_is_bounded_and_jumps_ahead_when_it_falls_behind() {
    let root = root(&[("log", "")]);
    let mut follower = follower(&root);
    assert_eq!(taken(&mut follower), "");
    let line = format!("{}\n", "x".repeat(1_023));
    root.append("log", line.repeat(300));
    let (first, found) = pass(&mut follower);
    assert_eq!((first.len(), found), (file::IN_ONE_PASS, PassResult::More));
    assert_eq!(taken(&mut follower).len(), 300 * 1024 - file::IN_ONE_PASS);
    root.append("log", line.repeat(17 * 1024));
    let (first, found) = pass(&mut follower);
    assert!(first.starts_with('|') && found == PassResult::More);
    assert_eq!(follower.counts.skipped, 9 * 1024 * 1024);
}

fn settings() -> Options {
    Options { max_files: 2, ..Options::default() }
}

fn watch(path: &Path, workload: Option<&str>) -> Watch {
    let log = Log {
        pattern: Pattern::new(path.to_owned()).unwrap(),
        framework: None,
        workload: workload.map(Label::from),
    };
    Watch::new(log, settings())
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_secs(second)
}

/// The series of these paths, without HELP and TYPE; `before` is what other sources put.
fn shown(all: &[(&str, LogState)], now: Timestamp, mut before: Batch) -> String {
    let tails: Vec<Tail> =
        all.iter().map(|(path, _)| Tail { path: (*path).into(), follower: None }).collect();
    let seen: Vec<LogState> = all.iter().map(|(_, seen)| seen.clone()).collect();
    put(&tails, &seen, now, &mut before);
    let (families, dropped, _) = before.seal();
    assert!(dropped.is_empty(), "{dropped:?}");
    let text = crate::serve::prometheus::encode(&families, crate::serve::prometheus::Format::Text);
    text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect()
}

const STEP: &str = " [2024-08-21 10:19:42] iteration        4/   25000 | consumed samples:         4096 | elapsed time per iteration (ms): 2701.25 | throughput per GPU (TFLOP/s/GPU): 449.6 | learning rate: 7.500000E-08 | global batch size:  1024 | lm loss: 2.120380E+00 | loss scale: 1.0 | grad norm: 14.218 | number of skipped iterations:   1 | number of nan iterations:   0 |\n";
const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 23.55 GiB of which 1.65 GiB is free. Of the allocated memory 20.04 GiB is allocated by PyTorch, and 903.34 MiB is reserved by PyTorch but unallocated.\n";

fn check(text: &str, expected: &Expect) {
    expected.assert_eq(text);
}

#[test]
fn a_log_becomes_series_and_goes_stale() {
    let root = root(&[("train.log", "")]);
    let mut watch = watch(&root.path().join("train.log"), Some("llama"));
    watch.pass(at(1));
    root.append("train.log", "[rank0]: ");
    root.append("train.log", STEP);
    root.append("train.log", OOM);
    let seen = watch.pass(at(2));
    check(
        &shown(&[("/train.log", seen.clone())], at(4), Batch::new()),
        &expect![[r#"
            memwarden_log_pass_age_seconds{log="/train.log"} 2
            memwarden_log_files{log="/train.log"} 1
            memwarden_log_lines_total{log="/train.log"} 2
            memwarden_log_recognized_lines_total{log="/train.log"} 2
            memwarden_log_cut_lines_total{log="/train.log"} 0
            memwarden_log_read_bytes_total{log="/train.log"} 620
            memwarden_log_skipped_bytes_total{log="/train.log"} 0
            memwarden_log_rotations_total{log="/train.log"} 0
            memwarden_log_errors_total{log="/train.log",kind="not_regular"} 0
            memwarden_log_errors_total{log="/train.log",kind="binary"} 0
            memwarden_log_errors_total{log="/train.log",kind="untrusted"} 0
            memwarden_log_errors_total{log="/train.log",kind="permission"} 0
            memwarden_log_errors_total{log="/train.log",kind="io"} 0
            memwarden_log_info{log="/train.log",workload="llama",framework="megatron"} 1
            memwarden_training_oom_messages_total{workload="llama",cause="fragmentation"} 0
            memwarden_training_oom_messages_total{workload="llama",cause="exhaustion"} 1
            memwarden_training_oom_messages_total{workload="llama",cause="unknown"} 0
            memwarden_training_log_age_seconds{workload="llama",rank="0"} 2
            memwarden_training_loss_scale{workload="llama",rank="0"} 1
            memwarden_training_step{workload="llama",rank="0"} 4
            memwarden_training_step_last_duration_seconds{workload="llama",rank="0"} 2.70125
            memwarden_training_loss{workload="llama",rank="0"} 2.12038
            memwarden_training_learning_rate{workload="llama",rank="0"} 0.000000075
            memwarden_training_gradient_norm{workload="llama",rank="0"} 14.218
            memwarden_training_skipped_steps_total{workload="llama",rank="0"} 1
            memwarden_training_nonfinite_steps_total{workload="llama",rank="0"} 0
            memwarden_training_planned_steps{workload="llama"} 25000
            memwarden_training_job_samples{workload="llama"} 4096
            memwarden_training_global_batch_samples{workload="llama"} 1024
            memwarden_training_reported_flops_per_second{workload="llama"} 449600000000000
        "#]],
    );
    // If a rank reports over the socket, only metrics that it does not report are added.
    let mut batch = Batch::new();
    let rank = |workload: &str| [Label::from(workload), "0".into()];
    batch.put(&training::metrics::STEP, &rank("llama"), Count(9));
    batch.put(&training::metrics::LOSS, &rank("another"), Number::new(1.0).unwrap());
    let text = shown(&[("/train.log", seen)], at(4), batch);
    assert_eq!(text.matches("memwarden_training_step{workload=\"llama\"").count(), 1, "{text}");
    assert!(text.contains("memwarden_training_step{workload=\"llama\",rank=\"0\"} 9"));
    assert!(text.contains("memwarden_training_job_samples"));
    assert!(text.contains("memwarden_training_loss{workload=\"llama\",rank=\"0\"} 2.12038"), "{text}");
    // Ten minutes without a new value.
    let text = shown(&[("/train.log", watch.pass(at(603)))], at(603), Batch::new());
    assert!(!text.contains("memwarden_training_step{") && !text.contains("_age_seconds{workload"), "{text}");
    assert!(
        text.contains("memwarden_training_oom_messages_total{workload=\"llama\",cause=\"exhaustion\"} 1")
    );
}

#[test]
fn of_several_files_each_is_a_rank() {
    let root = root(&[("worker_0.log", ""), ("worker_1.log", ""), ("worker_1.txt", "")]);
    let mut watch = watch(&root.path().join("worker_*.log"), Some("pangu"));
    watch.pass(at(1));
    for (name, loss) in [("worker_0.log", "1.5"), ("worker_1.log", "1.25")] {
        root.append(
            name,
            format!("{{ Epoch:[  1/  2], step:[    7/   19], loss: {loss}, per_step_time: 1500ms }}\n"),
        );
    }
    let seen = watch.pass(at(2));
    let named = |view: &View| (view.rank.as_str().to_owned(), view.reading.loss);
    let found: Vec<_> = seen.views.iter().map(named).collect();
    assert_eq!(found, [("0".to_owned(), Some(1.5)), ("1".to_owned(), Some(1.25))]);
    // The limit is two: a file that is written later replaces the oldest one, whose counts remain.
    let later = std::fs::File::create(root.path().join("worker_2.log")).unwrap();
    later.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 32)).unwrap();
    root.append("worker_2.log", OOM);
    later.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 32)).unwrap();
    let seen = watch.pass(at(10));
    assert_eq!((seen.followed, seen.totals.recognized), (2, 3));
}

#[test]
fn allocator_values_of_a_log_have_no_process() {
    let root = root(&[("train.log", "")]);
    let mut watch = watch(&root.path().join("train.log"), Some("llama"));
    watch.pass(at(1));
    let line = "[Rank 0] (after 10 iterations) memory (MB) | allocated: 50.0 | max allocated: 60.0 | reserved: 70.0 | max reserved: 70.0\n";
    root.append("train.log", STEP);
    root.append("train.log", line);
    let seen = [watch.pass(at(2))];
    let facts_of = |workload: &str| {
        let mut batch = Batch::new();
        let member = Membership::named(crate::model::ids::ProcessKey { pid: 10, start: 1 }, workload);
        batch.facts.workload_of.push(member);
        put(&[], &seen, at(2), &mut batch);
        batch.facts
    };
    let facts = facts_of("llama");
    let [allocator] = &facts.allocators[..] else { panic!("{:?}", facts.allocators) };
    assert_eq!(allocator.workload.as_ref(), Some(&facts.workload_of[0].workload.key));
    assert_eq!((allocator.process, allocator.age), (None, None));
    assert_eq!(facts_of("another").allocators, []);
}

#[test]
fn a_file_of_another_user_has_no_workload() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let root = root(&[("slurm-7.log", ""), ("slurm-8.log", "")]);
    std::os::unix::fs::chown(root.path().join("slurm-7.log"), Some(1002), None).unwrap();
    std::os::unix::fs::chown(root.path().join("slurm-8.log"), Some(1001), None).unwrap();
    let mut watch = watch(&root.path().join("slurm-*.log"), None);
    let mut all = [watch.pass(at(1))];
    let member = |pid, name: &str| {
        let named = Membership::named(crate::model::ids::ProcessKey { pid, start: 1 }, name);
        let workload = crate::model::facts::Workload { user: 1001, ..(*named.workload).clone() };
        Membership { workload: workload.into(), ..named }
    };
    add_owners(&mut all, &[member(10, "slurm-7"), member(11, "slurm-8")]);
    let mut names: Vec<_> = all[0].views.iter().map(|view| view.workload.to_string()).collect();
    names.sort();
    assert_eq!(names, ["slurm-7@1002", "slurm-8"]);
}

#[test]
fn failures_are_reported() {
    let root = root(&[("folder/x", "")]);
    let path = root.path().join("folder");
    let mut refusing = watch(&path, None);
    let tail = |follower| Tail { path: "/folder".into(), follower };
    let follower = watch::start(
        Log { pattern: Pattern::new(path).unwrap(), framework: None, workload: None },
        settings(),
    );
    let tails = [tail(follower.ok())];
    let result =
        |seen: LogState, now| outcome(&tails, &[seen], at(1), at(now)).map_err(|error| error.to_string());
    refusing.pass(at(1));
    let seen = refusing.pass(at(2));
    assert_eq!(seen.totals.refused, [1, 0, 0, 0, 0]);
    let why = result(seen, 2).unwrap_err();
    assert!(why.ends_with("/folder is not followed: it is not a regular file"), "{why}");
    assert_eq!(result(LogState::default(), 2), Ok(()));
    assert_eq!(
        result(LogState::default(), 40).unwrap_err(),
        "the file system of /folder has not responded for 39 s"
    );
    let missing = LogState { passed: Some(at(2)), ..LogState::default() };
    assert_eq!(result(missing, 2).unwrap_err(), "none of the configured logs exists yet");
}

#[test]
fn a_private_log_of_root_where_a_group_can_write_is_refused_with_the_reason_and_the_remedy() {
    use std::os::unix::fs::PermissionsExt as _;

    if !rustix::process::geteuid().is_root() {
        return;
    }
    let top = tempfile::tempdir().unwrap();
    // As on Debian and Ubuntu: /var/log is root:syslog 0775 and contains files that the group may read.
    let folder = top.path().join("log");
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(0), Some(104)).unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(top.path(), 0o755);
    mode(&folder, 0o775);
    let file = folder.join("train.log");
    std::fs::write(&file, "").unwrap();
    mode(&file, 0o640);
    let log = Log { pattern: Pattern::new(file.clone()).unwrap(), framework: None, workload: None };
    let tails = [Tail { path: "/log".into(), follower: watch::start(log, settings()).ok() }];
    let seen = watch(&file, None).pass(at(1));
    let why = outcome(&tails, &[seen], at(1), at(1)).unwrap_err().to_string();
    let begun = format!(
        "{} is not followed: it is a private file in a folder that others can write: not everybody may read it",
        file.display()
    );
    assert!(why.contains(&begun) && why.contains("chmod o+r"), "{why}");
    // The folder of the test may itself be in a folder that others can write.
    let own = format!("; the folder is {} (user 0, group 104, mode 0775)", folder.display());
    assert!(why.ends_with(&own) || why.ends_with("mode 1777)"), "{why}");
    mode(&file, 0o644);
    assert!(watch(&file, None).pass(at(2)).refused.is_none(), "the remedy");
}
