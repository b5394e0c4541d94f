//! LLaMA-Factory's `trainer_log.jsonl` (llamafactory/train/callbacks.py, `LogCallback`).

use serde_json::{Map, Value};

use super::reading::Reading;
use super::scan::{self, scaled};
use crate::model::units::GIB;
pub(super) fn read(line: &str) -> Option<Reading> {
    if !line.starts_with('{') || !line.contains("\"current_steps\"") {
        return None;
    }
    // Python writes numbers that JSON cannot represent; such a loss must still be counted.
    let not_finite = ["\"loss\": NaN", "\"loss\": Infinity", "\"loss\": -Infinity"];
    let loss_not_finite = not_finite.iter().any(|printed| line.contains(printed));
    let record: Map<String, Value> = if line.contains("NaN") || line.contains("Infinity") {
        let written = line.replace("NaN", "null").replace("-Infinity", "null").replace("Infinity", "null");
        serde_json::from_str(&written).ok()?
    } else {
        serde_json::from_str(line).ok()?
    };
    // Some releases write rates as strings.
    let number = |name: &str| match record.get(name)? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => scan::number(text),
        _ => None,
    };
    let whole = |name: &str| record.get(name)?.as_u64();
    let memory = |name: &str| scaled(number(name)?, GIB).filter(|bytes| *bytes > 0);
    Some(Reading {
        step: Some(whole("current_steps")?),
        steps_planned: whole("total_steps"),
        loss: number("loss"),
        loss_not_finite,
        learning_rate: number("lr"),
        tokens_per_second: number("throughput").filter(|rate| *rate > 0.0),
        tokens: whole("total_tokens").filter(|tokens| *tokens > 0),
        // The peaks, in GiB, where `RECORD_VRAM` is set.
        allocated_peak: memory("vram_allocated"),
        reserved_peak: memory("vram_reserved"),
        ..Reading::default()
    })
}
