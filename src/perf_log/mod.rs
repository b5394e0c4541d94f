//! Performance logs of training jobs: files for people and tools that read files.
//!
//! A [`StepRow`] is one step of a job. [`table`] and [`text`] write it as a line, [`summary`] collects all rows as JSON,
//! [`tensorboard`] writes event files, and [`files`] rotates files. The table and the names in the summary are those of
//! FlagScale's performance monitor (xiaodouzi666/FlagScale-new-feature, flagscale/train/perf_monitor/perf_logger.py),
//! so that programs that read its files can read these.

pub mod files;
pub mod rows;
pub mod summary;
pub mod table;
pub mod tensorboard;
pub mod text;

use crate::model::format;
use crate::model::units::GIB;

/// One step of a job. Unknown values are absent, in every format.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRow {
    /// Seconds since 1970.
    pub unix_seconds: f64,
    pub step: u64,
    /// The duration of a step, in seconds.
    pub step_seconds: Option<f64>,
    /// Tokens a second, of all ranks together.
    pub tokens_per_second: Option<f64>,
    /// Samples a second, of all ranks together.
    pub samples_per_second: Option<f64>,
    /// Floating-point operations a second, of all GPUs together.
    pub flops: Option<f64>,
    /// Floating-point operations a second and GPU.
    pub flops_per_gpu: Option<f64>,
    /// Model FLOPS utilization, 0 to 1.
    pub mfu: Option<f64>,
    pub loss: Option<f64>,
    /// Bytes that the allocator has given to the job, the largest of all ranks.
    pub allocated: Option<f64>,
    /// Bytes that the allocator holds from the driver, the largest of all ranks.
    pub reserved: Option<f64>,
}

const TERA: f64 = 1e12;
/// A time as `2025-06-24 11:27:20`, in UTC; a time beyond the years of four digits is written in seconds since 1970.
fn stamp(unix_seconds: f64) -> String {
    let text = format::timestamp(unix_seconds + 0.000_5);
    match text.strip_suffix('Z').filter(|text| !text.starts_with('-')) {
        Some(text) => text.replace('T', " "),
        None => format!("{unix_seconds:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_the_calendar_have_no_date() {
        let shown = [0.0, 1_709_249_400.999_9, -1.0, 1e12, f64::INFINITY].map(stamp);
        let expected =
            ["1970-01-01 00:00:00", "2024-02-29 23:30:01", "1969-12-31 23:59:59", "1000000000000", "inf"];
        assert_eq!(shown, expected);
    }
}
