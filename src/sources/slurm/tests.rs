//! Which job holds which GPU, and what is known of it.

use super::holders::Job;
use super::*;
use crate::model::facts::{GpuProcess, Membership};
use crate::model::units::Count as Processes;
use crate::serve::prometheus::{Format, encode};

fn labels<const N: usize>(texts: [&str; N]) -> [Label; N] {
    texts.map(Label::from)
}

/// A file: its GPU, and each job with its user.
type File<'f> = (Device, &'f [(u32, Option<u32>)]);

fn holders(files: &[File<'_>]) -> World {
    let jobs = |list: &[(u32, Option<u32>)]| {
        list.iter().map(|(id, user)| Job { id: Label::from(*id), user: *user }).collect()
    };
    let jobs = files.iter().map(|(device, list)| (device.clone(), jobs(list))).collect();
    Some(Ok(Arc::new(Holders { jobs, refused: None })))
}

/// A node with two GPUs; the processes of the first one are known.
fn node() -> Batch {
    let mut out = Batch::new();
    for (gpu, uuid) in [("0", "GPU-aaaaaaaa"), ("1", "GPU-bbbbbbbb")] {
        let [gpu, uuid] = labels([gpu, uuid]);
        let empty = Label::default;
        let mut info = vec![gpu, uuid];
        info.resize_with(gpu::INFO.desc.labels.len(), empty);
        out.put(&gpu::INFO, &info, Flag(true));
    }
    out.put(&gpu::PROCESSES, &labels(["0", "GPU-aaaaaaaa"]), Processes(2));
    for pid in [10, 11] {
        let (gpu, uuid) = ("0".into(), "GPU-aaaaaaaa".into());
        out.facts.gpu_processes.push(GpuProcess { pid, gpu, uuid, memory: None });
    }
    let member = |pid, name| Membership::in_group(ProcessKey { pid, start: 1 }, name);
    out.facts.workload_of = vec![member(10, "slurm-7"), member(11, "slurm-8"), member(12, "slurm-9")];
    out
}

fn text(world: World) -> String {
    let mut out = node();
    let result = put(world, &mut out).map_or_else(|error| format!("{error}\n"), |()| String::new());
    let (families, _, _) = out.seal();
    let shown = encode(&families, Format::Text);
    let lines = shown.lines().filter(|line| line.starts_with("memwarden_slurm"));
    lines.fold(result, |all, line| all + line + "\n")
}

#[test]
fn a_gpu_that_is_held_is_exposed_with_or_without_processes() {
    let index = |gpu: &str| Device::Index(gpu.into());
    let world = holders(&[
        (index("0"), &[(7, Some(1000)), (9, None)]),
        (Device::Uuid("GPU-aaaaaaaa".into()), &[(7, Some(1000))]),
        (index("1"), &[(6, Some(1001))]),
        (index("5"), &[(5, None)]),
    ]);
    expect_test::expect![[r#"
        memwarden_slurm_gpu_job_info{gpu="0",uuid="GPU-aaaaaaaa",slurm_job_id="7",user_id="1000",workload="slurm-7"} 1
        memwarden_slurm_gpu_job_info{gpu="0",uuid="GPU-aaaaaaaa",slurm_job_id="9",workload="slurm-9"} 1
        memwarden_slurm_gpu_job_info{gpu="1",uuid="GPU-bbbbbbbb",slurm_job_id="6",user_id="1001"} 1
        memwarden_slurm_gpu_job_info{gpu="5",slurm_job_id="5"} 1
        memwarden_slurm_gpu_job_processes{gpu="0",uuid="GPU-aaaaaaaa",slurm_job_id="7",workload="slurm-7"} 1
        memwarden_slurm_gpu_job_processes{gpu="0",uuid="GPU-aaaaaaaa",slurm_job_id="9",workload="slurm-9"} 0
    "#]]
    .assert_eq(&text(world));
}

#[test]
fn the_user_comes_from_whichever_file_has_it() {
    let world = holders(&[
        (Device::Index("1".into()), &[(6, None)]),
        (Device::Uuid("GPU-bbbbbbbb".into()), &[(6, Some(1001))]),
    ]);
    let text = text(world);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("user_id=\"1001\""), "{text}");
}

#[test]
fn what_cannot_be_read_has_no_series_and_a_reason() {
    let refused = Holders { refused: Some("/run/gpustat/0: x".to_owned()), ..Holders::default() };
    for (world, expected) in [
        (None, "the jobs of GPUs have not been read yet\n"),
        (Some(Err(SourceError::unavailable("no folder"))), "no folder\n"),
        (Some(Err(SourceError::failed(Failure::Permission, "denied"))), "denied\n"),
        (Some(Ok(Arc::new(refused))), "cannot use /run/gpustat/0: x\n"),
        (Some(Ok(Arc::default())), ""),
    ] {
        assert_eq!(text(world), expected);
    }
}

#[test]
fn the_thread_reads_the_folder() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("0"), "7 1000\n").unwrap();
    let options = Options { gpu_jobs: root.path().to_owned(), interval: Duration::from_secs(3600) };
    let mut slurm = Slurm { options, background: None };
    for _ in 0..3_000 {
        let mut out = node();
        if slurm.sample(Timestamp::from_secs(1), &mut out).is_ok() {
            let held = &out.facts.slurm_gpus;
            assert_eq!((held.len(), held[0].job.as_str(), held[0].user), (1, "7", Some(1000)));
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the folder was not read");
}
