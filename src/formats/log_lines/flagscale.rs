//! FlagScale's `perf_realtime.log` and `perf_metrics_*.log` (flagscale/train/perf_monitor/perf_logger.py).
//!
//! Its rates are ignored: it divides the work of one data-parallel replica by the number of all GPUs, so that they
//! are too small by the number of replicas.

use super::reading::Reading;
use super::scan::scaled;
use crate::formats::older_logs::lines::flagscale_step;

pub(super) fn read(line: &str) -> Option<Reading> {
    let found = flagscale_step(line)?;
    Some(Reading {
        step: Some(found.step),
        step_seconds: Some(found.seconds).filter(|seconds| *seconds > 0.0),
        // 0 GB means "not tracked".
        allocated: scaled(found.bytes, 1.0).filter(|bytes| *bytes > 0),
        ..Reading::default()
    })
}
