//! Megatron-LM, and frameworks with the same format: Megatron-DeepSpeed, AMD Primus.
//!
//! `training_log` of megatron/training/training.py (HEAD) and earlier; printed by the last rank only.
//! `report_memory` of megatron/training/utils (common_utils.py), by each first data-parallel rank.
//! Primus prints the last value and the average (`13100.0/13240.9`), of which the last counts.

use super::reading::Reading;
use super::scan::{self, after, number, whole};
use crate::model::units::MIB;
pub(super) fn read(line: &str) -> Option<Reading> {
    iteration(line).or_else(|| memory(line))
}

/// ` [time] iteration 4/ 25000 | consumed samples: 4096 | elapsed time per iteration (ms): 270125.4 | …`, or with `=`
/// and underscores (Megatron-DeepSpeed).
fn iteration(line: &str) -> Option<Reading> {
    let mut cells = line.split('|');
    let first = cells.next()?.trim_end();
    let (step, planned) = scan::of(first.rsplit_once("iteration")?.1.trim_start_matches([' ', '=']))?;
    let mut reading = Reading { step: Some(step), steps_planned: Some(planned), ..Reading::default() };
    let mut known = false;
    for cell in cells {
        // The name may have a colon, the value has none.
        let Some((name, value)) = cell.rsplit_once(':').or_else(|| cell.rsplit_once('=')) else { continue };
        known |= set(&mut reading, &name.trim().replace('_', " "), value);
    }
    known.then_some(reading)
}

/// Sets the value of a cell; returns whether only this format has such a cell.
fn set(reading: &mut Reading, name: &str, value: &str) -> bool {
    let teraflops = || number(value).filter(|flops| *flops > 0.0).map(|flops| flops * 1e12);
    match name {
        "consumed samples" => reading.samples = whole(value),
        "consumed tokens" => reading.tokens = whole(value),
        "elapsed time per iteration (ms)" | "elapsed time per iteration ms" => {
            reading.step_seconds = number(value).map(|millis| millis / 1000.0);
            return true;
        }
        "throughput per GPU (TFLOP/s/GPU)" | "TFLOPs" => reading.flops_per_gpu = teraflops(),
        "tokens per GPU (tokens/s/GPU)" | "tokens per gpu per second (tgs)" | "tokens per gpu per second" => {
            reading.tokens_per_second_per_gpu = number(value);
        }
        "samples per second" => reading.samples_per_second = number(value),
        "learning rate" => reading.learning_rate = number(value),
        "global batch size" => reading.global_batch = whole(value),
        "lm loss" => reading.set_loss(value),
        "loss scale" => reading.loss_scale = number(value),
        "grad norm" => reading.grad_norm = number(value),
        "number of skipped iterations" => reading.skipped_more = whole(value),
        "number of nan iterations" => reading.nan_more = whole(value),
        _ => return false,
    }
    false
}

/// `[Rank 0] (after 10 iterations) memory (MB) | allocated: 18244.6 | max allocated: … | reserved: … | max reserved: …`.
fn memory(line: &str) -> Option<Reading> {
    let (front, cells) = line.split_once("memory (MB) |")?;
    let mut reading = Reading {
        rank: after(front, "[Rank ").and_then(whole).and_then(|rank| rank.try_into().ok()),
        ..Reading::default()
    };
    for cell in cells.split('|') {
        let Some((name, value)) = cell.split_once(':') else { continue };
        let bytes = number(value).and_then(|mebibytes| scan::scaled(mebibytes, MIB));
        match name.trim() {
            "allocated" => reading.allocated = bytes,
            "max allocated" => reading.allocated_peak = bytes,
            "reserved" => reading.reserved = bytes,
            "max reserved" => reading.reserved_peak = bytes,
            _ => {}
        }
    }
    reading.some()
}
