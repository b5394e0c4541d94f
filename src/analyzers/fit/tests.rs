use std::time::Duration;

use super::*;
use crate::model::facts::{Facts, GpuProcess, Membership, ProcessRow, ProcessTable};
use crate::model::fit::{Size, SizeUnit};
use crate::model::ids::ProcessKey;
use crate::model::point::Batch;
use crate::sources::{cgroup, memory, training};

const GIB: f64 = 1_073_741_824.0;

fn gib(amount: f64) -> Bytes {
    Bytes::of(amount * GIB)
}

/// A node: available memory of the host, the cgroup `/job` with its limit and use, and one GPU with its free memory.
struct Node {
    facts: Facts,
    batch: Batch,
    /// Free memory of the GPU, which each rank reports.
    free: Option<f64>,
}

impl Node {
    fn new(host: f64) -> Self {
        let mut batch = Batch::new();
        batch.put(&memory::metrics::AVAILABLE, &[], gib(host));
        Self { facts: Facts::default(), batch, free: None }
    }

    fn limited(mut self, limit: f64, used: f64) -> Self {
        self.batch.put(&cgroup::metrics::LIMIT, &["/job".into()], gib(limit));
        self.batch.put(&cgroup::metrics::WORKING_SET, &["/job".into()], gib(used));
        self.batch.put(&cgroup::metrics::HEADROOM, &["/job/step".into()], gib(limit - used));
        self
    }

    fn gpu(mut self, free: f64) -> Self {
        self.free = Some(free);
        self
    }

    /// A rank with this resident memory and these predictions; its allocator holds 10 GiB of 12 reserved on GPU 0.
    fn rank(mut self, workload: &str, pid: u32, rss: f64, predictions: Vec<Prediction>) -> Self {
        let process = ProcessKey { pid, start: 1 };
        let row = ProcessRow {
            parent: 1,
            session: pid,
            uid: 1000 + pid,
            state: b'R',
            rss: gib(rss),
            cgroup: Some("/job/step".into()),
            ..ProcessRow::new(process, "python".into())
        };
        let mut rows = self.facts.processes.take().map_or_else(Vec::new, |table| table.rows.clone());
        rows.push(row);
        self.facts.processes = Some(ProcessTable { rows, boot: None }.into());
        let member = Membership::named(process, workload);
        let rank = Label::from(u64::from(pid));
        let labels = [workload.into(), rank.clone(), "0".into(), "0".into()];
        self.batch.put(&training::metrics::ALLOCATED, &labels, gib(10.0));
        if let Some(free) = self.free {
            self.batch.put(&training::metrics::RESERVED, &labels, gib(12.0));
            self.batch.put(&training::metrics::DEVICE_FREE, &labels, gib(free));
        }
        self.facts.predictions.push(RankPredictions {
            process: Some(process),
            key: Some(member.workload.key.clone()),
            workload: workload.into(),
            rank,
            run: "run".into(),
            past: String::new(),
            predictions,
        });
        self.facts.members.push(member);
        self
    }

    fn foreign(mut self, pid: u32, holds: f64) -> Self {
        let memory = Some(gib(holds));
        self.facts.gpu_processes.push(GpuProcess { pid, gpu: "0".into(), uuid: "GPU-a".into(), memory });
        self
    }

    /// The analysis of the second of two equal ticks.
    fn analyzed(self) -> Analysis {
        let mut fits = Fits::default();
        self.tick(&mut fits, 1);
        self.tick(&mut fits, 2)
    }

    fn tick(&self, fits: &mut Fits, second: u64) -> Analysis {
        let mut out = Analysis::default();
        let view = View::new(self.batch.families()).with_facts(&self.facts);
        fits.analyze(&view, Timestamp::from_secs(second), &mut out);
        out
    }

    fn verdicts(self) -> Vec<String> {
        let out = self.analyzed();
        let shown = out.outlook.fits.iter().map(|fit| {
            let left =
                fit.headroom_bytes().map_or_else(|| "?".to_owned(), |left| format!("{:.1}", left / GIB));
            format!("{} {} on {}: {} {left}", fit.rank, fit.phase, fit.resource, fit.verdict)
        });
        shown.collect()
    }
}

fn predicted(phase: Phase, medium: Medium, p50: f64, p90: f64) -> Prediction {
    Prediction::of(phase, medium, Peak { p50: gib(p50), p90: gib(p90) })
}

#[test]
fn a_gpu_has_what_the_allocator_has_and_what_is_free() {
    // 12 GiB are reserved, 8 are free: 20 for the allocator.
    let of = |peak: f64| {
        let prediction = predicted(Phase::Optimizer, Medium::Device, peak, peak);
        Node::new(100.0).gpu(8.0).rank("sft", 7, 1.0, vec![prediction]).verdicts()
    };
    assert_eq!(of(19.0), ["7 optimizer on gpu 0: fits 1.0"]);
    assert_eq!(of(19.5), ["7 optimizer on gpu 0: tight 0.5"]);
    assert_eq!(of(20.5), ["7 optimizer on gpu 0: will_not_fit -0.5"]);
}

#[test]
fn a_limit_of_device_memory_on_the_path_counts_for_the_gpu() {
    use crate::sources::gpu::metrics::INFO;
    let of = |limits: &[(&str, f64)], peak: f64| {
        let prediction = || predicted(Phase::Optimizer, Medium::Device, peak, peak);
        let mut node = Node::new(100.0).gpu(8.0).rank("sft", 7, 1.0, vec![prediction()]);
        let mut info = vec![Label::default(); INFO.desc.labels.len()];
        (info[0], info[1], info[4]) = ("0".into(), "GPU-a".into(), "0000:03:00.0".into());
        node.batch.put(&INFO, &info, Flag(true));
        for (region, limit) in limits {
            let labels = ["/job".into(), (*region).into()];
            node.batch.put(&cgroup::metrics::DEVICE_USAGE, &labels, gib(13.0));
            node.batch.put(&cgroup::metrics::DEVICE_LIMIT, &labels, gib(*limit));
        }
        node
    };
    // 12 GiB are reserved: 4 are left below the limit, and 8 of the GPU.
    let vram = "drm/0000:03:00.0/vram";
    assert_eq!(
        of(&[(vram, 17.0)], 17.0).verdicts(),
        ["7 optimizer on device memory /job drm/0000:03:00.0/vram on gpu 0: will_not_fit -1.0"]
    );
    let out = of(&[(vram, 17.0)], 17.0).analyzed();
    expect_test::expect!["Rank 7 of sft: the first optimizer step needs 17.0 GiB and will not fit: 16.0 GiB is available in the device memory of the cgroup /job."].assert_eq(&out.findings[0].summary);
    for limits in [
        &[][..],
        &[(vram, 40.0)],
        &[("drm/0000:04:00.0/vram", 17.0)],
        &[("drm/0000:03:00.0/stolen", 17.0)],
        // One region for each tile.
        &[("drm/0000:03:00.0/vram0", 17.0), ("drm/0000:03:00.0/vram1", 17.0)],
    ] {
        assert_eq!(of(limits, 17.0).verdicts(), ["7 optimizer on gpu 0: fits 3.0"], "{limits:?}");
    }
}

#[test]
fn of_the_host_and_the_cgroups_the_one_with_the_least_room_counts() {
    let save = || vec![predicted(Phase::Save, Medium::Host, 50.0, 50.0)];
    assert_eq!(Node::new(100.0).rank("sft", 7, 2.0, save()).verdicts(), ["7 save on host: fits 52.0"]);
    assert_eq!(
        Node::new(100.0).limited(64.0, 33.0).rank("sft", 7, 2.0, save()).verdicts(),
        ["7 save on cgroup /job: will_not_fit -17.0"]
    );
    // Mapped files need not be charged to the cgroup: what is said to be there is never more than its limit.
    let mapped = |bytes: f64| {
        let save =
            Prediction { mapped: Some(gib(bytes)), ..predicted(Phase::Save, Medium::Host, 50.0, 50.0) };
        let out = Node::new(100.0).limited(64.0, 33.0).rank("sft", 7, 2.0, vec![save]).analyzed();
        out.outlook.fits[0].clone()
    };
    let (without, with) = (mapped(0.0), mapped(1.5));
    assert_eq!((without.capacity_bytes, with.capacity_bytes), (Some(33.0 * GIB), Some(31.5 * GIB)));
    assert_eq!((with.peak_bytes, with.headroom_bytes()), (Some([48.5 * GIB; 2]), without.headroom_bytes()));
    assert_eq!(with.verdict, without.verdict);
}

#[test]
fn an_estimate_fails_only_where_it_is_sure() {
    let of = |p50: f64| {
        let step = predicted(Phase::Step, Medium::Host, p50, p50 + 1.0);
        Node::new(10.0).rank("sft", 7, 10.0, vec![step]).analyzed().outlook.fits.remove(0)
    };
    assert_eq!(of(18.0).verdict, Verdict::Fits);
    assert_eq!(of(19.5).verdict, Verdict::Tight);
    assert_eq!(of(20.5).verdict, Verdict::Tight);
    assert_eq!(of(21.5).verdict, Verdict::WillNotFit);
    let half = of(20.0).exhaustion_probability.unwrap();
    assert!((half - 0.5).abs() < 1e-6, "{half}");
}

#[test]
fn memory_of_the_host_and_of_its_process_that_was_read_at_different_times_is_no_shortage() {
    let step = || vec![predicted(Phase::Step, Medium::Host, 9.0, 9.1)];
    let mut fits = Fits::default();
    // Its micro-batches take up to 4 GiB: read at the end of one and at the begin of the next, 4 of 10 GiB are missing.
    for (second, rss, used) in [(1, 5.0, 5.0), (2, 5.0, 5.0), (3, 4.0, 8.0), (4, 8.0, 4.0), (5, 4.0, 8.0)] {
        let out = Node::new(50.0).limited(10.0, used).rank("a", 1, rss, step()).tick(&mut fits, second);
        assert_eq!(out.outlook.fits[0].verdict, Verdict::Fits, "at {second} s");
    }
    let taken = (6..=8).map(|second| {
        // Another process in the cgroup takes 3 GiB.
        let node = Node::new(50.0).limited(10.0, 8.0).rank("a", 1, 5.0, step());
        node.tick(&mut fits, second).outlook.fits[0].verdict
    });
    assert_eq!(taken.last(), Some(Verdict::WillNotFit));
}

#[test]
fn ranks_of_a_run_take_memory_in_the_same_phase() {
    let optimizer = || vec![predicted(Phase::Optimizer, Medium::Host, 12.0, 12.0)];
    // Each holds 2 and needs 10 more; 16 are free.
    let two = Node::new(16.0).rank("sft", 7, 2.0, optimizer()).rank("sft", 8, 2.0, optimizer());
    assert_eq!(
        two.verdicts(),
        ["7 optimizer on host: will_not_fit -4.0", "8 optimizer on host: will_not_fit -4.0"]
    );
    // What another workload predicts makes it tight, whatever that is.
    let other = Node::new(16.0).rank("sft", 7, 2.0, optimizer()).rank(
        "bad",
        8,
        2.0,
        vec![predicted(Phase::Save, Medium::Host, 1e6, 1e6)],
    );
    assert_eq!(
        other.verdicts(),
        ["7 optimizer on host: tight 6.0", "8 save on host: will_not_fit -999982.0"]
    );
}

#[test]
fn unknown_is_unknown() {
    let unknown = || Prediction {
        certainty: Certainty::Unknown,
        peak: None,
        ..predicted(Phase::Generation, Medium::Device, 0.0, 0.0)
    };
    let node = Node::new(10.0).gpu(70.0).rank("sft", 7, 1.0, vec![unknown()]);
    assert_eq!(node.verdicts(), ["7 generation on gpu 0: unknown ?"]);
    // The driver does not confirm the GPU, or reports no memory.
    let step = predicted(Phase::Step, Medium::Device, 1.0, 1.0);
    let node =
        Node::new(10.0).rank("sft", 7, 1.0, vec![Prediction { uuid: None, gpu: None, ..step.clone() }]);
    assert_eq!(node.verdicts(), ["7 step on gpu: unknown ?"]);
    assert_eq!(Node::new(10.0).rank("sft", 7, 1.0, vec![step]).verdicts(), ["7 step on gpu 0: unknown ?"]);
    let disk = || vec![predicted(Phase::Save, Medium::Disk, 1.0, 1.0), unknown()];
    assert_eq!(
        Node::new(10.0).rank("sft", 7, 1.0, disk()).verdicts(),
        ["7 save on disk: unknown ?", "7 generation on gpu 0: unknown ?"]
    );
    assert_eq!(
        Node::new(10.0).rank("sft", 7, 1.0, disk()).analyzed().answers[0].text,
        "the save on the disk needs 1.0 GiB; what is free for it is not known; generation is unknown ()"
    );
}

#[test]
fn the_job_states_what_is_free_on_its_file_systems() {
    let of = |medium: Medium, free: f64| {
        let save = Prediction { free: Some(gib(free)), ..predicted(Phase::Save, medium, 30.0, 30.5) };
        Node::new(1.0).rank("sft", 7, 1.0, vec![save]).analyzed()
    };
    for (free, expected) in [
        (40.0, "the save on the disk fits (30.0 GiB of 40.0 GiB)"),
        (30.1, "the save on the disk may not fit (30.0 GiB to 30.5 GiB of 30.1 GiB)"),
        (12.0, "the save on the disk needs 30.0 GiB and will not fit: 12.0 GiB is available"),
    ] {
        assert_eq!(of(Medium::Disk, free).answers[0].text, expected);
    }
    let finding = &of(Medium::Shm, 0.0625).findings[0];
    assert_eq!(
        finding.summary,
        "Rank 7 of sft: the save in /dev/shm needs 30.0 GiB and will not fit: 64.0 MiB is available."
    );
    assert!(finding.advice.contains("larger /dev/shm"), "{}", finding.advice);
}

#[test]
fn an_old_report_of_a_gpu_is_not_used() {
    let step = predicted(Phase::Step, Medium::Device, 15.0, 15.0);
    let of = |seconds: u64| {
        let age = Some(Duration::from_secs(seconds));
        let step = Prediction { memory_age: age, ..step.clone() };
        Node::new(1.0).gpu(8.0).rank("sft", 7, 1.0, vec![step]).verdicts()
    };
    assert_eq!(of(10), ["7 step on gpu 0: fits 5.0"]);
    assert_eq!(of(11), ["7 step on gpu 0: unknown ?"]);
}

#[test]
fn a_job_is_told_that_it_will_not_fit_in_the_second_tick_in_a_row() {
    let mut fits = Fits::default();
    let node = |free: f64| {
        let step = predicted(Phase::Step, Medium::Device, 20.0, 20.0);
        Node::new(100.0).gpu(free).rank("sft", 7, 1.0, vec![step])
    };
    let mut told = |free: f64, second: u64| {
        let out = node(free).tick(&mut fits, second);
        out.answers.first().map(|answer| answer.verdict)
    };
    let (large, small) = (50.0, 1.0);
    let free = [large, small, large, small, small, small, large, small];
    let verdicts: Vec<_> = (1..).zip(free).map(|(second, free)| told(free, second)).collect();
    let (fits, fails) = (Some(Verdict::Fits), Some(Verdict::WillNotFit));
    assert_eq!(verdicts, [fits, None, fits, None, fails, fails, fits, None]);
}

#[test]
fn a_measured_optimizer_is_not_to_come() {
    let optimizer = predicted(Phase::Optimizer, Medium::Host, 50.0, 50.0);
    let node =
        Node::new(1.0).rank("sft", 7, 1.0, vec![Prediction { measured: Some(gib(50.0)), ..optimizer }]);
    assert!(node.analyzed().outlook.fits.is_empty());
}

/// A micro-batch of 8 samples of 4,096 tokens: 10 GiB and 2 GiB for each sample.
fn step_of_samples() -> Prediction {
    let per_unit = 2.0 * GIB / 4_096.0;
    let size = Size {
        unit: SizeUnit::Tokens,
        units: 8 * 4_096,
        samples: Some(8),
        length: Some(4_096),
        fixed: 10.0 * GIB,
        per_unit,
        per_square: 0.0,
    };
    let due_step = Some(262);
    Prediction { size: Some(size), due_step, ..predicted(Phase::Step, Medium::Device, 26.0, 26.1) }
}

#[test]
fn the_advice_has_the_limit_that_fits_and_who_holds_the_memory_of_the_host() {
    let advice = |node: Node| {
        let save = predicted(Phase::Save, Medium::Host, 50.0, 51.0);
        node.rank("sft", 7, 2.0, vec![save]).analyzed().outlook.fits[0].advice.clone()
    };
    // 2 held and 31 left below the limit: 17 GiB are lacking, and 6 more by the largest error of a save.
    assert_eq!(advice(Node::new(100.0).limited(64.0, 33.0)), "a memory limit of 87 GiB fits");
    assert_eq!(advice(Node::new(48.0).limited(64.0, 33.0)), "", "the host has no more either");
    let nested = |limit: f64, used: f64| {
        let mut node = Node::new(100.0).limited(64.0, 34.0);
        node.batch.put(&cgroup::metrics::LIMIT, &["/job/step".into()], gib(limit));
        node.batch.put(&cgroup::metrics::WORKING_SET, &["/job/step".into()], gib(used));
        advice(node)
    };
    assert_eq!(
        nested(64.0, 33.0),
        "a memory limit of 88 GiB fits",
        "the limit of the job is that of its step"
    );
    assert_eq!(nested(65.0, 33.0), "", "the step has another limit, which does not suffice");
    let beside = |held: f64| Node::new(40.0).rank("other", 6, held, Vec::new());
    assert_eq!(advice(beside(8.0)), "it fits alone: PID 6 of user 1006 holds 8.0 GiB there");
    assert_eq!(advice(beside(7.0)), "");
    for (cgroup, limit, expected) in [
        ("/slurm/uid_1/job_2", 64.0, "--mem=82G fits"),
        ("/kubepods.slice/a", 64.0, "limits.memory: 82Gi fits"),
        ("/job", 2.0, "a memory limit of 20 GiB fits"),
    ] {
        assert_eq!(words::sufficient(cgroup, limit * GIB, 18.0 * GIB), expected);
    }
}

#[test]
fn limits_are_advised_as_people_write_them() {
    let mib = GIB / 1_024.0;
    for (limit, lacking, expected) in [
        (1_000.0, 16.0, "1024 MiB"),
        (1_000.0, 100.0, "1152 MiB"),
        (1_900.0, 150.0, "2304 MiB"),
        (4_000.0, 1.0, "4096 MiB"),
        (8_000.0, 1_000.0, "9 GiB"),
    ] {
        let said = words::sufficient("/job", limit * mib, lacking * mib);
        assert_eq!(said, format!("a memory limit of {expected} fits"));
    }
}

#[test]
fn nothing_fits_of_which_only_a_least_amount_is_known() {
    let save = |free: f64| {
        let save = Prediction { least: true, ..predicted(Phase::Save, Medium::Host, 20.0, 21.0) };
        let out = Node::new(free).rank("sft", 7, 2.0, vec![save]).analyzed();
        (out.answers[0].verdict, out.answers[0].text.clone())
    };
    let known = "the save needs at least 20.0 GiB; whether it fits is not known".to_owned();
    assert_eq!(save(60.0), (Verdict::Unknown, known));
    assert_eq!(save(4.0).0, Verdict::WillNotFit);
    let step = |so_far: bool| {
        let step = Prediction { so_far, ..predicted(Phase::Step, Medium::Host, 20.0, 20.5) };
        Node::new(60.0).rank("sft", 7, 2.0, vec![step]).analyzed().answers[0].text.clone()
    };
    assert_eq!(step(true), "the largest step so far fits (20.0 GiB of 62.0 GiB of host memory)");
    assert_eq!(step(false), "the largest step fits (20.0 GiB of 62.0 GiB of host memory)");
}

#[test]
fn amounts_that_are_shown_alike_are_shown_more_exactly() {
    let save = Prediction { free: Some(gib(30.01)), ..predicted(Phase::Save, Medium::Disk, 30.02, 30.02) };
    let text = Node::new(1.0).rank("sft", 7, 1.0, vec![save]).analyzed().answers[0].text.clone();
    assert_eq!(text, "the save on the disk needs 30740 MiB and will not fit: 30730 MiB is available");
}

#[test]
fn the_advice_has_the_size_that_fits() {
    let out = Node::new(10.0).gpu(11.0).rank("sft", 7, 1.0, vec![step_of_samples()]).analyzed();
    assert_eq!(
        out.findings[0].summary,
        "Rank 7 of sft: the largest step (8 samples of 4096 tokens, expected at step 262) needs 26.0 GiB and will not \
         fit: 23.0 GiB is available on GPU 0; a micro-batch of 6 of 8 samples fits."
    );
    assert_eq!(out.answers[0].verdict, Verdict::WillNotFit);
    assert!(out.answers[0].text.ends_with("a micro-batch of 6 of 8 samples fits"), "{}", out.answers[0].text);
    // One sample of a length that is too long.
    let one = |capacity: f64| {
        let step = step_of_samples();
        let size = Size { units: 4_096, samples: Some(1), ..step.size.unwrap() };
        let step =
            Prediction { size: Some(size), peak: Some(Peak { p50: gib(12.0), p90: gib(12.0) }), ..step };
        let free = capacity - 12.0;
        Node::new(10.0).gpu(free.max(0.0)).rank("sft", 7, 1.0, vec![step]).analyzed()
    };
    assert!(one(12.0).findings.is_empty());
    let step = step_of_samples();
    let size = Size { units: 4_096, samples: Some(1), fixed: 11.5 * GIB, ..step.size.unwrap() };
    let step = Prediction { size: Some(size), peak: Some(Peak { p50: gib(13.5), p90: gib(13.5) }), ..step };
    let out = Node::new(10.0).gpu(1.0).rank("sft", 7, 1.0, vec![step]).analyzed();
    assert!(
        out.findings[0].summary.ends_with("4096 tokens do not fit, 3072 do."),
        "{}",
        out.findings[0].summary
    );
    // Batches that an evaluation keeps.
    let size = Size {
        unit: SizeUnit::Batches,
        units: 100,
        samples: Some(8),
        length: None,
        fixed: 10.0 * GIB,
        per_unit: 0.3 * GIB,
        per_square: 0.0,
    };
    let said = |medium: Medium, samples: Option<u64>| {
        let size = Some(Size { samples, ..size });
        let evaluation = Prediction { size, ..predicted(Phase::Evaluation, medium, 40.0, 40.0) };
        let out = Node::new(14.0).gpu(3.0).rank("sft", 7, 1.0, vec![evaluation]).analyzed();
        out.findings[0].summary.clone()
    };
    let fits = |summary: &str| summary.ends_with("; the outputs of 16 of 100 batches fit.");
    assert!(said(Medium::Device, Some(8)).ends_with("; eval_accumulation_steps=16 fits."));
    assert!(fits(&said(Medium::Device, None)), "no Trainer moves them to the host");
    assert!(fits(&said(Medium::Host, Some(8))), "they are on the host");
}

#[test]
fn a_neighbour_that_stands_in_the_way_is_named() {
    let optimizer = predicted(Phase::Optimizer, Medium::Device, 60.0, 60.0);
    let node = Node::new(10.0).gpu(8.0).foreign(7, 13.0).foreign(99, 58.0);
    let out = node.rank("sft", 7, 1.0, vec![optimizer]).rank("old", 99, 1.0, Vec::new()).analyzed();
    assert_eq!(
        out.findings[0].summary,
        "Rank 7 of sft: the first optimizer step needs 60.0 GiB and will not fit: 20.0 GiB is available on GPU 0; it fits \
         alone: PID 99 of user 1099 holds 58.0 GiB there."
    );
}

#[test]
fn hostile_numbers_and_names_stay_in_their_row() {
    let huge = Prediction {
        peak: Some(Peak { p50: Bytes::new(u64::MAX), p90: Bytes::new(u64::MAX) }),
        size: Some(Size {
            unit: SizeUnit::Tokens,
            units: u64::MAX,
            samples: Some(u64::MAX),
            length: Some(u64::MAX),
            fixed: -1e300,
            per_unit: f64::MAX,
            per_square: f64::MAX,
        }),
        basis: "\u{1b}[31m".into(),
        ..predicted(Phase::Step, Medium::Host, 1.0, 1.0)
    };
    let fair = predicted(Phase::Step, Medium::Host, 2.0, 2.0);
    let out = Node::new(10.0).rank("a\nb", 7, 1.0, vec![huge]).rank("sft", 8, 1.0, vec![fair]).analyzed();
    assert_eq!(out.outlook.fits[1].verdict, Verdict::Tight);
    let shown = format!("{}{}", out.findings[0].summary, out.answers[0].text);
    assert!(!shown.contains(['\n', '\u{1b}']) && out.answers[0].text.len() <= 1_024, "{shown}");
}

#[test]
fn another_run_of_the_workload_makes_a_phase_tight() {
    let optimizer = || vec![predicted(Phase::Optimizer, Medium::Host, 12.0, 12.0)];
    let mut node = Node::new(16.0).rank("sweep", 7, 2.0, optimizer()).rank("sweep", 8, 2.0, optimizer());
    node.facts.predictions[1].run = "other".into();
    assert_eq!(node.verdicts(), ["7 optimizer on host: tight 6.0", "8 optimizer on host: tight 6.0"]);
}

#[test]
fn many_ranks_of_one_user_leave_room_for_others_and_are_named() {
    let step = || vec![predicted(Phase::Step, Medium::Host, 2.0, 2.0)];
    let mut node = Node::new(1000.0);
    // One user under many names of workloads, before the rank of another.
    for pid in 100..400 {
        node = node.rank(&format!("many-{pid}"), pid, 1.0, step());
    }
    let mut table = ProcessTable { rows: node.facts.processes.take().unwrap().rows.clone(), boot: None };
    table.rows.iter_mut().for_each(|row| row.uid = 1000);
    node.facts.processes = Some(table.into());
    let out = node.rank("one", 900, 1.0, step()).analyzed();
    assert_eq!(out.outlook.fits.len(), MOST_RANKS);
    assert!(out.outlook.fits.iter().any(|fit| fit.workload.as_str() == "one"));
    let left_out: Vec<_> = out.shortages.iter().map(|own| (own.limit, own.user, own.left_out)).collect();
    assert_eq!(left_out, [("fit_ranks", Some(1000), 301 - MOST_RANKS as u64)]);
}
