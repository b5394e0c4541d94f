//! FlagScale's `perf_realtime.log` and `perf_metrics_*.log` (flagscale/train/perf_monitor/perf_logger.py).
//!
//! Its rates are ignored: it divides the work of one data-parallel replica by the number of all GPUs, so that they
//! are too small by the number of replicas.

use super::reading::Reading;
use super::scan::scaled;
use crate::formats::stamp;
use crate::model::units::GIB;
/// A row of FlagScale's table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlagscaleRow {
    /// The iteration.
    pub step: u64,
    /// 10^12 operations per second and GPU, as computed by the tool.
    pub flops: f64,
    pub seconds: f64,
    /// Bytes that PyTorch's allocator has allocated; 0 means "not tracked".
    pub bytes: f64,
}

/// Date, time, step, TFLOPS/GPU, TFLOPS, samples/s, tokens/s, ms, GB (xiaodouzi666/FlagScale-new-feature).
pub fn row(line: &str) -> Option<FlagscaleRow> {
    let mut cells = line.split_whitespace();
    let (date, clock, step) = (cells.next()?, cells.next()?, cells.next()?);
    if date.len() != 10 || clock.len() != 8 || step.bytes().any(|byte| !byte.is_ascii_digit()) {
        return None;
    }
    stamp::find(line)?;
    let numbers: Vec<f64> = cells.map(|cell| cell.parse().ok()).collect::<Option<_>>()?;
    let [flops, _, _, _, millis, gigabytes] = numbers[..] else { return None };
    Some(FlagscaleRow { step: step.parse().ok()?, flops, seconds: millis / 1000.0, bytes: gigabytes * GIB })
}

pub(super) fn read(line: &str) -> Option<Reading> {
    let found = row(line)?;
    Some(Reading {
        step: Some(found.step),
        step_seconds: Some(found.seconds).filter(|seconds| *seconds > 0.0),
        allocated: scaled(found.bytes, 1.0).filter(|bytes| *bytes > 0),
        ..Reading::default()
    })
}
