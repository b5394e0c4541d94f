//! Jobs from sample to sample.

use super::*;
use crate::job_summary::{JobMemory, LimitState, PeakBasis};
use crate::model::facts::{OomVictim, SlurmGpu, Workload};
use crate::model::ids::{Anchor, WorkloadKey};
use crate::model::units::{Bytes, Count, Flag, Ratio, Seconds};

const MIB: u64 = 1 << 20;

fn labels<const N: usize>(texts: [&str; N]) -> [Label; N] {
    texts.map(Label::from)
}

/// One job at one sample.
#[derive(Clone, Copy)]
struct Job {
    id: &'static str,
    user: u32,
    working_set: Option<u64>,
    limit: Option<u64>,
    rss: u64,
    process_peak: u64,
    cpu: u64,
    gpu: bool,
}

const JOB: Job = Job {
    id: "7",
    user: 1000,
    working_set: None,
    limit: None,
    rss: 10 * MIB,
    process_peak: 0,
    cpu: 0,
    gpu: false,
};

fn group(job: &str) -> String {
    format!("/slurm/uid_1000/job_{job}")
}

fn batch(jobs: &[Job]) -> Batch {
    let mut out = Batch::new();
    out.put(&gpu::MEMORY_TOTAL, &labels(["0", "GPU-a"]), Bytes::new(80 << 30));
    out.put(&gpu::UTILIZATION, &labels(["0", "GPU-a"]), Ratio::new(0.5).unwrap());
    for job in jobs {
        let (name, cgroup) = (format!("slurm-{}", job.id), group(job.id));
        let info =
            [&name, "slurm", "ada", &cgroup, job.id, "0", "physics", "gpu", "", "", "", "", "", "", ""];
        out.put(&workload::INFO, &labels(info), Flag(true));
        let key = WorkloadKey { anchor: Anchor::Group(cgroup.as_str().into()), user: None };
        let (name, plain) = (Label::from(&name), Label::from(&name));
        out.facts.workloads.push(std::sync::Arc::new(Workload { key, name, plain, user: job.user }));
        let name = labels([&format!("slurm-{}", job.id)]);
        out.put(&workload::RSS, &name, Bytes::new(job.rss));
        out.put(&workload::PROCESS_PEAK, &name, Bytes::new(job.process_peak));
        out.put(&workload::CPU, &name, Seconds::from_micros(job.cpu * 1_000_000));
        out.put(&workload::START, &name, Seconds::from_micros(90_000_000));
        if let Some(bytes) = job.working_set {
            let cgroup = labels([&cgroup]);
            out.put(&cgroup::WORKING_SET, &cgroup, Bytes::new(bytes));
            out.put(&cgroup::USAGE, &cgroup, Bytes::new(bytes + 50 * MIB));
            out.put_some(&cgroup::LIMIT, &cgroup, job.limit.map(Bytes::new));
        }
        if job.gpu {
            let [name] = name;
            let labels = [name, "0".into(), "GPU-a".into()];
            out.put(&workload::GPU_PROCESSES, &labels, Count(1));
            out.put(&workload::GPU_MEMORY, &labels, Bytes::new(4 << 30));
        }
    }
    out
}

fn held(job: &str, user: Option<u32>) -> SlurmGpu {
    SlurmGpu { job: job.into(), user, gpu: "0".into(), uuid: "GPU-a".into() }
}

fn report(ledger: &Ledger, second: u64, out: &mut Batch) {
    ledger.report(Timestamp::from_secs(second), out);
}

fn follow(samples: &[(u64, &[Job])]) -> Ledger {
    let ledger = Ledger::new(Some("node1.example.org"));
    for (second, jobs) in samples {
        report(&ledger, *second, &mut batch(jobs));
    }
    ledger
}

#[test]
fn an_ended_job_keeps_its_peaks() {
    let limit = Some(200 * MIB);
    let small = Job { working_set: Some(60 * MIB), limit, cpu: 3, ..JOB };
    let large = Job { working_set: Some(120 * MIB), limit, cpu: 9, process_peak: 90 * MIB, ..JOB };
    let ledger = follow(&[(100, &[small]), (101, &[large]), (103, &[small]), (104, &[])]);
    let summary = ledger.summary("7").unwrap();
    let shown = (summary.node.as_str(), summary.user.as_str(), summary.user_id, summary.account.as_str());
    assert_eq!(shown, ("node1", "ada", Some(1000), "physics"));
    assert_eq!((summary.state, summary.samples, summary.run_seconds()), (JobState::Ended, 3, 13.0));
    // The counter decreased from 9 s to 3 s: it was counted anew.
    assert_eq!(summary.cpu_seconds, Some(12.0));
    let expected = JobMemory {
        limit: LimitState::Set,
        limit_bytes: limit,
        peak_bytes: Some(120 * MIB),
        peak_basis: PeakBasis::WorkingSet,
        charged_peak_bytes: Some(170 * MIB),
        largest_process_peak_bytes: Some(90 * MIB),
        suggested_request_bytes: Some(200 * MIB),
        ..JobMemory::default()
    };
    assert_eq!(summary.memory, expected);
    assert!(ledger.summary("8").is_none());
}

#[test]
fn what_was_not_measured_is_absent() {
    let summary = follow(&[(100, &[JOB])]).summary("7").unwrap();
    let memory = summary.memory;
    assert_eq!((memory.limit, memory.limit_bytes), (LimitState::Unknown, None));
    assert_eq!((memory.peak_bytes, memory.peak_basis), (Some(10 * MIB), PeakBasis::ResidentMemory));
    assert!(summary.gpus.is_empty());
    // A cgroup without a limit.
    let summary = follow(&[(100, &[Job { working_set: Some(MIB), ..JOB }])]).summary("7").unwrap();
    assert_eq!(summary.memory.limit, LimitState::None);
    // The peak of a process between two samples, but no more than was charged.
    let spike = Job { working_set: Some(MIB), process_peak: 30 * MIB, ..JOB };
    let memory = follow(&[(100, &[spike])]).summary("7").unwrap().memory;
    assert_eq!((memory.peak_bytes, memory.peak_basis), (Some(30 * MIB), PeakBasis::LargestProcess));
    let spike = Job { process_peak: 300 * MIB, ..spike };
    assert_eq!(follow(&[(100, &[spike])]).summary("7").unwrap().memory.peak_bytes, Some(51 * MIB));
}

#[test]
fn a_cgroup_that_was_found_late_does_not_hide_the_peak() {
    let early = Job { rss: 120 * MIB, ..JOB };
    let late = Job { rss: 20 * MIB, working_set: Some(20 * MIB), ..JOB };
    let memory = follow(&[(100, &[early]), (101, &[late])]).summary("7").unwrap().memory;
    // The kernel charged 70 MiB at most; the rest is shared between processes.
    assert_eq!((memory.peak_bytes, memory.peak_basis), (Some(70 * MIB), PeakBasis::ResidentMemory));
    let always = Job { working_set: Some(30 * MIB), ..early };
    let memory = follow(&[(100, &[always]), (101, &[late])]).summary("7").unwrap().memory;
    assert_eq!((memory.peak_bytes, memory.peak_basis), (Some(30 * MIB), PeakBasis::WorkingSet));
}

#[test]
fn a_gpu_without_processes_is_held() {
    let ledger = Ledger::new(None);
    for (second, used) in [(100, false), (110, true), (130, false), (140, false)] {
        let mut out = batch(if used { &[Job { gpu: true, ..JOB }] } else { &[] });
        out.facts.slurm_gpus = vec![held("7", Some(1000))];
        report(&ledger, second, &mut out);
    }
    let summary = ledger.summary("7").unwrap();
    assert_eq!((summary.state, summary.user_id), (JobState::Running, Some(1000)));
    let gpu = &summary.gpus[0];
    assert_eq!((gpu.gpu.as_str(), gpu.uuid.as_str()), ("0", "GPU-a"));
    assert_eq!((gpu.held_seconds, gpu.used_seconds), (Some(40.0), 10.0));
    assert_eq!((gpu.memory_peak_bytes, gpu.memory_total_bytes), (Some(4 << 30), Some(80 << 30)));
    assert_eq!(gpu.mean_utilization_ratio, Some(0.5));
    // Without the files of a prolog, only the use is known.
    let using = Job { gpu: true, ..JOB };
    let summary = follow(&[(100, &[using]), (105, &[using])]).summary("7").unwrap();
    assert_eq!((summary.gpu_held_seconds(), summary.gpu_used_seconds()), (None, 5.0));
}

#[test]
fn oom_kills_come_from_the_cgroups_and_from_the_kernel_log() {
    let (job, task) = (group("7"), format!("{}/step_0/task_0", group("7")));
    let kills = |version: &str, counts: &[(&str, u64)], victims: &[(u32, &str)]| {
        let ledger = Ledger::new(None);
        for second in [100, 101] {
            let mut out = batch(&[JOB]);
            out.put(&cgroup::HIERARCHY, &labels([version]), Flag(true));
            for (path, count) in counts {
                out.put(&cgroup::EVENTS, &labels([path, "oom_kill"]), Count(*count));
            }
            if second == 101 {
                let victim = |(pid, group): &(u32, &str)| OomVictim {
                    pid: Some(*pid),
                    cgroup: (*group).into(),
                    ..OomVictim::default()
                };
                out.facts.oom_victims = victims.iter().map(victim).collect();
            }
            report(&ledger, second, &mut out);
        }
        ledger.summary("7").unwrap().memory.oom_kills
    };
    assert_eq!(kills("v2", &[(&job, 2), (&task, 2)], &[]), 2);
    assert_eq!(kills("v1", &[(&job, 0), (&task, 2), ("/slurm/uid_1000/job_70", 9)], &[]), 2);
    // The cgroup of the task is gone; each victim of a sample counts.
    assert_eq!(kills("v1", &[], &[(12, &task)]), 1);
    assert_eq!(kills("v1", &[], &[(12, &task), (14, &job), (13, "/slurm/uid_1000/job_70/step_0")]), 2);
    assert_eq!(kills("v1", &[], &[(13, "/slurm/uid_1000/job_70/step_0")]), 0);
}

#[test]
fn what_a_killed_process_held_is_a_peak_although_no_sample_saw_it() {
    let ledger = Ledger::new(None);
    report(&ledger, 100, &mut batch(&[JOB]));
    // Its last processes ended with it.
    let mut out = batch(&[]);
    let resident = [Some(Bytes::new(99 << 20)), None, Some(Bytes::new(1 << 20))];
    let cgroup = format!("{}/step_0", group("7")).into();
    out.facts.oom_victims.push(OomVictim { pid: Some(12), cgroup, resident, ..OomVictim::default() });
    report(&ledger, 101, &mut out);
    let memory = ledger.summary("7").unwrap().memory;
    assert_eq!((memory.oom_kills, memory.largest_process_peak_bytes), (1, Some(100 << 20)));
}

#[test]
fn a_job_that_comes_back_begins_anew_after_a_minute() {
    let job = Job { cpu: 5, ..JOB };
    let cpu = |samples: &[(u64, &[Job])]| follow(samples).summary("7").unwrap().cpu_seconds;
    assert_eq!(cpu(&[(100, &[job]), (130, &[]), (140, &[Job { cpu: 7, ..job }])]), Some(7.0));
    assert_eq!(cpu(&[(100, &[job]), (130, &[]), (180, &[Job { cpu: 2, ..job }])]), Some(2.0));
    // Between two steps, a job has no process: that time is not counted as held.
    let using = Job { gpu: true, ..JOB };
    let ledger = follow(&[(100, &[using]), (102, &[using]), (103, &[]), (130, &[using]), (131, &[using])]);
    assert_eq!(ledger.summary("7").unwrap().gpus[0].used_seconds, 3.0);
}

#[test]
fn the_user_of_a_job_stays_when_only_slurmstepd_is_left() {
    let root = Job { user: 0, ..JOB };
    let ledger = Ledger::new(None);
    let shown = |second, job: Job, held_by: Option<u32>| {
        let mut out = batch(&[job]);
        out.facts.slurm_gpus = held_by.map(|user| held("7", Some(user))).into_iter().collect();
        report(&ledger, second, &mut out);
        let summary = ledger.summary("7").unwrap();
        (summary.user, summary.user_id)
    };
    assert_eq!(shown(100, root, Some(1000)), ("1000".to_owned(), Some(1000)));
    assert_eq!(shown(101, JOB, Some(1000)), ("ada".to_owned(), Some(1000)));
    assert_eq!(shown(102, root, Some(1000)), ("ada".to_owned(), Some(1000)));
    assert_eq!(shown(103, root, None), ("ada".to_owned(), Some(1000)));
}

#[test]
fn other_jobs_of_the_user_are_counted() {
    let job = |id, user| Job { id, user, ..JOB };
    let jobs = [job("7", 1000), job("8", 1000), job("9", 1001), job("10", 0)];
    let ledger = follow(&[(100, &jobs), (101, &jobs[1..])]);
    assert_eq!(ledger.summary("7").unwrap().other_jobs_of_user, 1);
    assert_eq!(ledger.summary("8").unwrap().other_jobs_of_user, 0);
}

#[test]
fn ended_jobs_are_kept_in_bounded_memory() {
    let ledger = Ledger::new(None);
    let mut out = Batch::new();
    out.facts.slurm_gpus =
        (1..=u32::try_from(MOST).unwrap() + 5).map(|id| held(&id.to_string(), None)).collect();
    report(&ledger, 100, &mut out);
    assert_eq!(lock(&ledger.book).jobs.len(), MOST, "a node cannot run so many: the others are left out");
    report(&ledger, 101, &mut batch(&[Job { id: "5000", ..JOB }]));
    assert_eq!(lock(&ledger.book).jobs.len(), MOST, "an ended one made room");
    assert!(ledger.summary("5000").is_some());
    report(&ledger, 101 + RETENTION.as_secs() + 1, &mut batch(&[]));
    assert!(lock(&ledger.book).jobs.is_empty());
}

#[test]
fn a_workload_that_is_no_job_of_slurm_is_left_out() {
    let mut out = Batch::new();
    let info = ["pod", "pod", "ada", "/x", "7", "", "", "", "", "", "", "", "", "", ""];
    out.put(&workload::INFO, &labels(info), Flag(true));
    let ledger = Ledger::new(None);
    report(&ledger, 100, &mut out);
    assert!(ledger.summary("7").is_none());
}
