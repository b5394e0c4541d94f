//! Frames of a job become files within their bounds.

use std::path::Path;

use super::files::Writer;
use super::row::{COLUMNS, rows};
use crate::config::{PerfFormat, PerfLog};
use crate::model::frame::Frame;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, PerSecond, Seconds};
use crate::sources::training::metrics;

fn frame(second: u64, steps: &[(&str, &str, u64)]) -> Frame {
    let mut batch = Batch::new();
    for (workload, rank, step) in steps {
        let of: [Label; 2] = [(*workload).into(), (*rank).into()];
        batch.put(&metrics::STEP, &of, Count(*step));
        batch.put_some(&metrics::STEP_LAST, &of, Seconds::new(0.25));
        for convention in ["causal", "full"] {
            let tera = if convention == "full" { 800e12 } else { 711e12 };
            let labels = [of[0].clone(), of[1].clone(), convention.into()];
            batch.put_some(&metrics::FLOPS, &labels, PerSecond::new(tera));
        }
        for device in ["0", "1"] {
            let labels = [of[0].clone(), of[1].clone(), device.into(), Label::default()];
            batch.put(&metrics::ALLOCATED, &labels, Bytes::new(1 << 30));
        }
    }
    let (families, ..) = batch.seal();
    Frame {
        sequence: second,
        at: Timestamp::from_secs(second),
        families,
        sources: Vec::new(),
        findings: Vec::new(),
        timeline: std::sync::Arc::default(),
    }
}

fn config(folder: &Path, formats: &[PerfFormat], files: usize) -> PerfLog {
    PerfLog { folder: Some(folder.to_owned()), formats: formats.to_vec(), every: 10, files, size: 4096 }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn the_lowest_rank_speaks_in_one_convention() {
    let found = rows(&frame(5, &[("a", "10", 7), ("a", "2", 8), ("b", "", 1)]));
    assert_eq!(found["a"].step, 8);
    let told: Vec<_> = COLUMNS
        .iter()
        .zip(found["a"].values)
        .filter_map(|(column, value)| Some((column.name, value?)))
        .collect();
    let expected =
        [("step_seconds", 0.25), ("flops_per_second_per_gpu", 800e12), ("allocated_bytes", 2_147_483_648.0)];
    assert_eq!(told, expected);
    assert_eq!(found["b"].step, 1);
}

#[test]
fn rows_are_written_every_so_many_steps() {
    let folder = tempfile::tempdir().unwrap();
    let all = [PerfFormat::Text, PerfFormat::Realtime, PerfFormat::Summary, PerfFormat::TensorBoard];
    let mut writer = Writer::new(&config(folder.path(), &all, 10)).unwrap();
    for (second, step) in [(1, 5), (2, 9), (3, 15), (4, 16), (5, 3)] {
        writer.take(&frame(second, &[("slurm/17", "0", step)])).unwrap();
    }
    writer.finish().unwrap();
    let job = folder.path().join("slurm%2F17");
    assert_eq!(
        names(&job),
        [
            "events.out.tfevents.0000000001.memwarden",
            "perf_metrics_19700101_000001.log",
            "perf_realtime.log",
            "perf_summary_19700101_000001.json"
        ]
    );
    let text = std::fs::read_to_string(job.join("perf_metrics_19700101_000001.log")).unwrap();
    let steps: Vec<&str> = text.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
    assert_eq!(steps, ["step=5", "step=15", "step=3"]);
    let table = std::fs::read(job.join("perf_realtime.log")).unwrap();
    let read = crate::training::older_logs::read(&table).unwrap();
    assert_eq!(read.tool, "FlagScale perf_monitor");
    assert_eq!(read.series[0].points.len(), 3);
}

#[test]
fn number_and_size_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let formats = [PerfFormat::Text, PerfFormat::Realtime, PerfFormat::TensorBoard];
    let mut writer = Writer::new(&config(folder.path(), &formats, 3)).unwrap();
    for turn in 1..400 {
        writer.take(&frame(turn, &[("../x", "0", turn * 10)])).unwrap();
    }
    assert_eq!(names(folder.path()), ["%2E.%2Fx"]);
    let job = folder.path().join("%2E.%2Fx");
    let found = names(&job);
    for kind in ["perf_metrics_", "perf_realtime.log", "events.out.tfevents."] {
        assert_eq!(found.iter().filter(|name| name.starts_with(kind)).count(), 3, "{found:?}");
    }
    for name in found {
        assert!(std::fs::metadata(job.join(name)).unwrap().len() < 4096 + 512);
    }
}

#[test]
fn what_stands_in_the_way_is_an_error_and_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("a");
    std::fs::create_dir(&job).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", job.join("perf_realtime.log")).unwrap();
    let mut writer = Writer::new(&config(folder.path(), &[PerfFormat::Realtime], 3)).unwrap();
    let error = writer.take(&frame(1, &[("a", "0", 1)])).unwrap_err();
    assert!(error.to_string().ends_with("/a/perf_realtime.log"), "{error}");
    assert!(Writer::new(&PerfLog { folder: None, ..config(folder.path(), &[], 1) }).is_none());
}
