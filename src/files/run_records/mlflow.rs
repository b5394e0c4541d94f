//! MLflow's file store: one file for each metric, with a line `milliseconds value step` for each value.
//!
//! `mlflow/store/tracking/file_store.py` (`log_metric`); the name of the file is that of the metric, and the names of system
//! metrics end in their unit. The step of these counts their samples, that of others is the step of the training.

use super::quantity;
use super::{RunRecord, RunRecordError, Samples};
use crate::model::steps::Steps;

/// The end of the names of system metrics that count memory (`mlflow/system_metrics/metrics/`).
const OF_SYSTEM: &str = "_memory_usage_megabytes";

/// Whether a first line is one of a metric file: three numbers, the first of which is a time since 1990 in milliseconds.
pub(super) fn begins(line: &[u8]) -> bool {
    let line = std::str::from_utf8(line).ok().and_then(parse);
    line.is_some_and(|(milliseconds, ..)| milliseconds > 631_152_000_000)
}

/// Milliseconds since 1970, value and step.
fn parse(line: &str) -> Option<(u64, f64, i64)> {
    let mut words = line.split_whitespace();
    let (time, value, step) = (words.next()?, words.next()?, words.next()?);
    words.next().is_none().then_some((time.parse().ok()?, value.parse().ok()?, step.parse().ok()?))
}

/// Reads a metric file; `path` names the metric.
///
/// # Errors
/// [`RunRecordError`], with the line.
pub(crate) fn read(path: &str, bytes: &[u8]) -> Result<RunRecord, RunRecordError> {
    let metric = path.rsplit('/').next().unwrap_or_default();
    let Some(quantity) = quantity::of_name(metric) else {
        let problem =
            "the name of an MLflow metric must state memory and its unit, as in gpu_0_memory_usage_megabytes";
        return Err(RunRecordError::Nothing(problem));
    };
    let (mut samples, mut steps, mut remarks) = (Samples::default(), Steps::default(), Vec::new());
    for (place, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let wrong = || RunRecordError::Line {
            line: place + 1,
            problem: "not a time in milliseconds, a value and a step".to_owned(),
        };
        let (milliseconds, value, step) = std::str::from_utf8(line).ok().and_then(parse).ok_or_else(wrong)?;
        #[expect(clippy::cast_precision_loss, reason = "a time in milliseconds")]
        let at = milliseconds as f64 / 1000.0;
        samples.push(metric, quantity.gpu, at, value * quantity.unit)?;
        if let Ok(step) = u64::try_from(step)
            && !metric.ends_with(OF_SYSTEM)
        {
            steps.push(at, step);
        }
    }
    let series = samples.finish(&mut remarks);
    Ok(RunRecord { tool: "MLflow", series, steps, remarks, ..RunRecord::default() })
}
