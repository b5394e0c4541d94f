//! The cells that Megatron-LM and its descendants, NeMo 2.0 and GPT-NeoX write between vertical bars, as one table.

use super::reading::Reading;
use super::scan::{number, whole};

type Set = fn(&mut Reading, &str);

/// Cells by their names, with spaces in place of underscores and dashes.
const CELLS: [(&str, Set); 28] = [
    ("consumed samples", |reading, value| reading.samples = whole(value)),
    ("consumed tokens", |reading, value| reading.tokens = whole(value)),
    ("elapsed time per iteration (ms)", |reading, value| reading.step_seconds = millis(value)),
    ("elapsed time per iteration ms", |reading, value| reading.step_seconds = millis(value)),
    ("elapsed time per iteration (s)", |reading, value| reading.step_seconds = number(value)),
    ("train step timing in s", |reading, value| reading.step_seconds = number(value)),
    ("throughput per GPU (TFLOP/s/GPU)", |reading, value| reading.flops_per_gpu = teraflops(value)),
    ("approx flops per GPU", |reading, value| reading.flops_per_gpu = teraflops(value)),
    ("TFLOPS per GPU", |reading, value| reading.flops_per_gpu = teraflops(value)),
    ("TFLOPs", |reading, value| reading.flops_per_gpu = teraflops(value)),
    ("tokens per GPU (tokens/s/GPU)", |reading, value| reading.tokens_per_second_per_gpu = number(value)),
    ("tokens per gpu per second (tgs)", |reading, value| reading.tokens_per_second_per_gpu = number(value)),
    ("tokens per gpu per second", |reading, value| reading.tokens_per_second_per_gpu = number(value)),
    ("tokens per sec per gpu", |reading, value| reading.tokens_per_second_per_gpu = number(value)),
    ("samples per second", |reading, value| reading.samples_per_second = number(value)),
    ("samples/sec", |reading, value| reading.samples_per_second = number(value)),
    ("learning rate", |reading, value| reading.learning_rate = number(value)),
    ("lr", |reading, value| reading.learning_rate = number(value)),
    ("global batch size", |reading, value| reading.global_batch = whole(value)),
    ("global step", |reading, value| reading.step = whole(value)),
    ("lm loss", Reading::set_loss),
    ("reduced train loss", Reading::set_loss),
    ("loss scale", |reading, value| reading.loss_scale = number(value)),
    ("grad norm", |reading, value| reading.grad_norm = number(value)),
    ("number of skipped iterations", |reading, value| reading.skipped_more = whole(value)),
    ("number of nan iterations", |reading, value| reading.nan_more = whole(value)),
    // Bytes, of NeMo.
    ("max memory allocated", |reading, value| reading.allocated_peak = whole(value)),
    ("max memory reserved", |reading, value| reading.reserved_peak = whole(value)),
];

fn millis(value: &str) -> Option<f64> {
    number(value).map(|millis| millis / 1000.0)
}

fn teraflops(value: &str) -> Option<f64> {
    number(value).filter(|flops| *flops > 0.0).map(|flops| flops * 1e12)
}

/// Sets the values of all known cells of a line; returns whether one of them begins with one of `own`, which no other
/// format has.
pub(super) fn set(reading: &mut Reading, line: &str, own: &[&str]) -> bool {
    let mut known = false;
    for cell in line.split('|') {
        // The name may have a colon, the value has none; before 2020 neither had.
        let pair = cell.rsplit_once([':', '=']).or_else(|| cell.trim_end().rsplit_once(' '));
        let Some((name, value)) = pair else { continue };
        let name = name.trim().replace(['_', '-'], " ");
        known |= own.iter().any(|own| name.starts_with(own));
        if let Some((_, set)) = CELLS.iter().find(|(cell, _)| *cell == name) {
            set(reading, value);
        }
    }
    known
}
