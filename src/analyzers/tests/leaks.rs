//! Detection of leaks.

use super::*;

/// A workload whose anonymous memory grows, or whose file cache does.
fn workload_that_grows(anon: f64, file: f64) -> Analysis {
    let mut analyzer = build(&leak::REGISTRATION);
    run(&mut *analyzer, 0, 1800, move |second, batch| {
        let name: Label = "train".into();
        let grown = f64::from(second) * GIB / 1024.0;
        let anon = 2.0 * GIB + anon * grown + noise(second) * GIB / 256.0;
        let rss = anon + GIB + file * grown;
        let label = std::slice::from_ref(&name);
        bytes(batch, &workload::metrics::RSS, label, rss);
        bytes(batch, &workload::metrics::ANON, label, anon);
        bytes(batch, &workload::metrics::SHMEM, label, GIB / 4.0);
        let process = [name, "77".into(), "python".into()];
        bytes(batch, &workload::metrics::PROCESS_RSS, &process, rss);
        bytes(batch, &workload::metrics::PROCESS_ANON, &process, anon);
        bytes(batch, &workload::metrics::PROCESS_SHMEM, &process, GIB / 4.0);
    })
}

#[test]
fn a_leak_is_named_with_its_kind() {
    let analysis = workload_that_grows(1.0, 0.0);
    assert_eq!(value(&analysis, "memwarden_leak_state", &["workload", "train", "leaking"]), Some(1.0));
    assert_eq!(value(&analysis, "memwarden_leak_state", &["process", "77", "leaking"]), Some(1.0));
    let since = value(&analysis, "memwarden_leak_since_timestamp_seconds", &["workload"]).unwrap();
    assert!(since < 400.0, "{since}");
    expect![[r#"
        process 77 of train leaking: The anonymous memory of process 77 of train has been leaking for 30 min.
        workload train leaking: The anonymous memory of workload train has been leaking for 30 min."#]]
    .assert_eq(
        &analysis
            .findings
            .iter()
            .map(|finding| format!("{} {}: {}", finding.subject, finding.state, finding.summary))
            .collect::<Vec<_>>()
            .join("\n"),
    );
}

#[test]
fn the_kind_of_a_leak_is_known_while_its_memory_is_freed() {
    let put = |second: u32, batch: &mut Batch| {
        let name: Label = "train".into();
        let label = std::slice::from_ref(&name);
        // At its end, less is left than when the growth began, and a little more shared memory.
        let anon = if second < 600 { GIB + f64::from(second) * GIB / 100.0 } else { GIB / 8.0 };
        let shared = GIB / 4.0 + f64::from(second) * 64.0;
        bytes(batch, &workload::metrics::RSS, label, anon + shared);
        bytes(batch, &workload::metrics::ANON, label, anon);
        bytes(batch, &workload::metrics::SHMEM, label, shared);
    };
    for (last, expected) in
        [(590, Some(GrowingMemory::Anonymous)), (603, Some(GrowingMemory::Anonymous)), (900, None)]
    {
        let analysis = run(&mut *build(&leak::REGISTRATION), 0, last, put);
        let stated = analysis.outlook.conclusions[0].growth.as_ref().unwrap().stated;
        assert_eq!(stated.map(|stated| stated.memory), expected, "after {last} s");
    }
}

#[test]
fn growth_with_batches_that_become_larger_is_no_leak() {
    let stated = |grow: bool| {
        let put = move |second: u32, batch: &mut Batch| {
            let name: Label = "train".into();
            let label = std::slice::from_ref(&name);
            let anon = GIB + f64::from(second) * GIB / 256.0;
            bytes(batch, &workload::metrics::RSS, label, anon);
            bytes(batch, &workload::metrics::ANON, label, anon);
            bytes(batch, &workload::metrics::SHMEM, label, 0.0);
            batch.facts.growing_data.extend(grow.then_some(name));
        };
        let analysis = run(&mut *build(&leak::REGISTRATION), 0, 600, put);
        analysis.outlook.conclusions[0].growth.as_ref().unwrap().stated.map(|stated| stated.state)
    };
    assert_eq!(stated(true), Some(LeakState::Growing));
    assert_eq!(stated(false), Some(LeakState::Leaking), "it goes on without one");
}

#[test]
fn file_cache_is_no_leak() {
    let analysis = workload_that_grows(0.0, 1.0);
    assert_eq!(value(&analysis, "memwarden_leak_state", &["workload", "train", "steady"]), Some(1.0));
    assert!(analysis.findings.is_empty(), "{:?}", analysis.findings);
}

#[test]
fn the_leak_of_an_ended_job_is_not_stated_of_the_next_one() {
    let put = |second: u32, batch: &mut Batch| {
        let (life, leaked) = if second < 900 { (100.0, second) } else { (900.0, 0) };
        let used = GIB + f64::from(leaked) * GIB / 100.0 + noise(second) * GIB / 512.0;
        let name: Label = "bash-7".into();
        let name = std::slice::from_ref(&name);
        bytes(batch, &workload::metrics::RSS, name, used);
        bytes(batch, &workload::metrics::ANON, name, used);
        bytes(batch, &workload::metrics::SHMEM, name, 0.0);
        batch.put_some(&workload::metrics::START, name, crate::model::units::Seconds::new(life));
    };
    for (last, expected) in [(890, Some(LeakState::Leaking)), (905, None)] {
        let analysis = run(&mut *build(&leak::REGISTRATION), 0, last, put);
        let growth = analysis.outlook.conclusions[0].growth.as_ref().unwrap();
        assert_eq!(growth.stated.map(|stated| stated.state), expected, "after {last} s");
    }
}

#[test]
fn allocated_bytes_of_the_job_distinguish_a_leak_from_reserved_memory() {
    let mut analyzer = build(&leak::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 3600, |second, batch| {
        growing_rank(second, batch);
        let labels = ["5".into(), "GPU-5".into(), "9".into()];
        bytes(batch, &crate::sources::gpu::metrics::PROCESS_MEMORY, &labels, 61.0 * GIB);
    });
    assert_eq!(value(&analysis, "memwarden_leak_state", &["gpu_process", "9", "leaking"]), Some(1.0));
    assert_eq!(
        value(&analysis, "memwarden_leak_state", &["allocator", "leaking"]),
        None,
        "it is reported once"
    );
    let summary = &analysis.findings[0].summary;
    assert!(
        summary.starts_with("The memory allocated to tensors of process 9 of job on GPU 5 has been leaking"),
        "{summary}"
    );
}

#[test]
fn a_rank_that_the_driver_does_not_list_leaks_by_its_own_report() {
    let mut analyzer = build(&leak::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 3600, |second, batch| {
        growing_rank(second, batch);
        let rank = ["job".into(), "3".into()];
        batch.put(&training::metrics::STEPS, &rank, Count(u64::from(second) * 4));
    });
    let labels = ["allocator", "5", "job", "9"];
    let state = value(&analysis, "memwarden_leak_state", &[labels.as_slice(), &["leaking"]].concat());
    assert_eq!(state, Some(1.0));
    // 8 MiB a second, in four steps.
    let per_step = value(&analysis, "memwarden_leak_growth_bytes_per_step", &labels).unwrap();
    assert!((per_step / (GIB / 512.0) - 1.0).abs() < 0.1, "{per_step}");
    let evidence = analysis.findings[0]
        .evidence
        .iter()
        .find(|evidence| evidence.what == "growth_bytes_per_step")
        .unwrap();
    assert!((evidence.value - per_step).abs() < 1.0);
}

#[test]
fn pinned_memory_is_distinguished_from_other_memory_of_the_host() {
    let mut analyzer = build(&leak::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 1800, |second, batch| {
        growing_rank(0, batch);
        let grown = f64::from(second) * GIB / 1024.0;
        let process = ["job".into(), "9".into(), "python".into()];
        let anon = 2.0 * GIB + noise(second) * GIB / 256.0;
        // The first ten minutes are flat: what it grew from is known.
        let grown = (grown - 600.0 * GIB / 1024.0).max(0.0);
        bytes(batch, &workload::metrics::PROCESS_RSS, &process, anon + grown + GIB);
        bytes(batch, &workload::metrics::PROCESS_ANON, &process, anon);
        bytes(batch, &workload::metrics::PROCESS_SHMEM, &process, grown + GIB);
        bytes(batch, &training::metrics::PINNED, &["job".into(), "3".into()], grown + GIB / 2.0);
    });
    let summary = &analysis.findings[0].summary;
    assert!(summary.starts_with("The pinned host memory of process 9 of job"), "{summary}");
}

#[test]
fn what_a_driver_sees_grow_is_never_called_a_leak() {
    let mut analyzer = build(&leak::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 1800, |second, batch| {
        let labels = ["0".into(), "GPU-0".into(), "9".into()];
        let used = 4.0 * GIB + f64::from(second) * GIB / 256.0;
        bytes(batch, &crate::sources::gpu::metrics::PROCESS_MEMORY, &labels, used);
    });
    assert_eq!(value(&analysis, "memwarden_leak_state", &["gpu_process", "growing"]), Some(1.0));
    assert_eq!(value(&analysis, "memwarden_leak_state", &["gpu_process", "leaking"]), Some(0.0));
}

#[test]
fn an_import_is_no_leak_however_often_it_is_sampled() {
    // A program that imports its libraries for 15 s, sampled five times a second; and one that leaks on.
    for (ends, leaks) in [(15.0, false), (f64::INFINITY, true)] {
        let mut analyzer = build(&leak::REGISTRATION);
        let mut found = false;
        for tick in 0..500_u32 {
            let at = f64::from(tick) * 0.2;
            let mut batch = Batch::new();
            let used = GIB / 16.0 + GIB / 50.0 * at.min(ends);
            let name = std::slice::from_ref(&"train".into()).to_vec();
            bytes(&mut batch, &workload::metrics::RSS, &name, used);
            bytes(&mut batch, &workload::metrics::ANON, &name, used);
            bytes(&mut batch, &workload::metrics::SHMEM, &name, 0.0);
            let mut analysis = Analysis::default();
            let now = Timestamp::from_secs(1000).plus(std::time::Duration::from_millis(200) * tick);
            analyzer.analyze(&View::new(batch.families()), now, &mut analysis);
            let growths = analysis.outlook.conclusions.iter().filter_map(|known| known.growth.as_ref());
            let leaking = growths.into_iter().any(crate::model::outlook::Growth::leaks);
            assert!(!leaking || at >= 20.0, "at {at} s");
            found |= leaking;
        }
        assert_eq!(found, leaks);
    }
}

#[test]
fn programs_that_come_and_go_do_not_leak_within_minutes() {
    let leaks = |early: u64, exited: u64| {
        let mut analyzer = build(&leak::REGISTRATION);
        let name = [Label::from("build")];
        let leaks = (0..).zip(builds()).map(|(second, used)| {
            let analysis = run(&mut *analyzer, second, second + 1, |_, batch| {
                bytes(batch, &workload::metrics::RSS, &name, used);
                bytes(batch, &workload::metrics::ANON, &name, used);
                bytes(batch, &workload::metrics::SHMEM, &name, 0.0);
                batch.put(&workload::metrics::EXITED, &name, Count(if second < 12 { early } else { exited }));
                let running = [name[0].clone(), "running".into()];
                batch.put(&workload::metrics::PROCESSES_BY_ACTIVITY, &running, Count(4));
            });
            analysis.findings.iter().any(|finding| finding.state == LeakState::Leaking.label())
        });
        leaks.filter(|leaks| *leaks).count()
    };
    assert!(leaks(0, 0) > 0, "a single program whose memory rises for a minute and more");
    assert!(leaks(5, 5) > 0, "what exits while a program starts does not count");
    assert_eq!(leaks(0, 5), 0);
}

#[test]
fn helpers_that_come_and_go_delay_no_leak_of_the_program_of_a_job() {
    // 2 MiB a second by the program that was there first, or by one that came later, while a helper exits in each second.
    let stated = |born: u32| {
        let mut analyzer = build(&leak::REGISTRATION);
        (0..70).find(|second| {
            let analysis = run(&mut *analyzer, *second, second + 1, |second, batch| {
                let name: Label = "train".into();
                let label = std::slice::from_ref(&name);
                let anon = GIB + f64::from(second) * 2.0 * GIB / 1024.0 + noise(second) * GIB / 4096.0;
                bytes(batch, &workload::metrics::RSS, label, anon);
                bytes(batch, &workload::metrics::ANON, label, anon);
                bytes(batch, &workload::metrics::SHMEM, label, 0.0);
                batch.put(&workload::metrics::EXITED, label, Count(u64::from(second)));
                batch.put(
                    &workload::metrics::PROCESSES_BY_ACTIVITY,
                    &[name.clone(), "running".into()],
                    Count(3),
                );
                if second >= born {
                    let process = [name, "77".into(), "python".into()];
                    bytes(batch, &workload::metrics::PROCESS_RSS, &process, anon);
                    bytes(batch, &workload::metrics::PROCESS_ANON, &process, anon);
                    bytes(batch, &workload::metrics::PROCESS_SHMEM, &process, 0.0);
                }
            });
            analysis
                .findings
                .iter()
                .any(|found| found.state == LeakState::Leaking.label() && found.subject.pid.as_str() == "77")
        })
    };
    assert!(stated(0).is_some());
    assert_eq!(stated(40), None, "it can be one of the programs that come and go");
}

/// A rank whose allocator has reserved 60 GiB; its process has `outside` GiB beside it.
fn rank_with(outside: impl Fn(u32) -> f64, seconds: u32) -> Analysis {
    run(&mut *build(&leak::REGISTRATION), 0, seconds, |second, batch| {
        use crate::sources::training::metrics::{ALLOCATED, INFO, RESERVED};
        let mut info: Vec<Label> = INFO.desc.labels.iter().map(|_| Label::default()).collect();
        for (name, value) in [("workload", "job"), ("rank", "3"), ("pid", "9")] {
            info[INFO.desc.labels.iter().position(|label| *label == name).unwrap()] = value.into();
        }
        batch.put(&INFO, &info, Flag(true));
        let labels = ["job".into(), "3".into(), "0".into(), "5".into()];
        bytes(batch, &ALLOCATED, &labels, 30.0 * GIB);
        bytes(batch, &RESERVED, &labels, 60.0 * GIB);
        let labels = ["5".into(), "GPU-5".into(), "9".into()];
        let used = (60.0 + outside(second)) * GIB;
        bytes(batch, &crate::sources::gpu::metrics::PROCESS_MEMORY, &labels, used);
    })
}

#[test]
fn growth_outside_of_the_allocator_is_a_leak_of_its_own() {
    let growing = rank_with(|second| 2.0 + f64::from(second) / 1024.0, 3600);
    let of =
        |state| value(&growing, "memwarden_leak_state", &["outside_allocator", "job", "9", "GPU-5", state]);
    assert_eq!(of("leaking"), Some(1.0));
    assert_eq!(value(&growing, "memwarden_leak_state", &["gpu_process", "leaking"]), Some(0.0));
    let [finding] = &growing.findings[..] else { panic!("{:?}", growing.findings) };
    assert!(
        finding.summary.starts_with(
            "The GPU memory outside of the allocator of process 9 of job on GPU 5 has been leaking"
        ),
        "{}",
        finding.summary
    );
    // The context, and NCCL's communicators in the first steps.
    let healthy = rank_with(|second| if second < 60 { 0.5 + f64::from(second) / 40.0 } else { 2.0 }, 1800);
    let bytes =
        value(&healthy, "memwarden_rank_gpu_memory_outside_allocator_bytes", &["job", "3", "5", "GPU-5"]);
    assert_eq!(bytes, Some(2.0 * GIB));
    assert!(healthy.findings.is_empty(), "{:?}", healthy.findings);
    let earlier = rank_with(|_| -0.1, 60);
    assert_eq!(
        value(&earlier, "memwarden_rank_gpu_memory_outside_allocator_bytes", &[]),
        None,
        "not of the same instant"
    );
}

#[test]
fn the_first_seconds_of_a_program_are_no_leak_however_often_it_is_sampled() {
    let mut analyzer = build(&leak::REGISTRATION);
    let mut first_leak = None;
    // Five samples a second, as of `memwarden run`.
    for tick in 0_u32..600 {
        let mut batch = Batch::new();
        let (name, at) = ([Label::from("train")], std::time::Duration::from_millis(200) * tick);
        let used = GIB + f64::from(tick) * GIB / 512.0 + noise(tick) * GIB / 1024.0;
        bytes(&mut batch, &workload::metrics::RSS, &name, used);
        bytes(&mut batch, &workload::metrics::ANON, &name, used);
        bytes(&mut batch, &workload::metrics::SHMEM, &name, 0.0);
        let mut analysis = Analysis::default();
        let view = View::new(batch.families()).with_facts(&batch.facts);
        analyzer.analyze(&view, Timestamp::new(at, at), &mut analysis);
        let leaks = value(&analysis, "memwarden_leak_state", &["workload", "train", "leaking"]) == Some(1.0);
        first_leak = first_leak.or(leaks.then_some(at.as_secs()));
    }
    assert!(first_leak.is_some_and(|seconds| (45..60).contains(&seconds)), "{first_leak:?}");
}
