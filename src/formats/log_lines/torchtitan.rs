//! torchtitan (torchtitan/components/metrics.py): `step: 20  loss: 11.83506  grad_norm:  9.6669  memory:
//! 48.87GiB(51.44%)  tps: 4,376  tflops: 253.41  mfu: 25.62%`, and its warnings about the allocator.

use super::reading::Reading;
use super::scan::{after, field, memory, number, whole};

pub(super) fn read(line: &str) -> Option<Reading> {
    figures(line).or_else(|| warning(line))
}

fn figures(line: &str) -> Option<Reading> {
    let rest = after(line, "step:")?;
    // `validate step:` has the same cells, of an evaluation.
    if line[..line.len() - rest.len() - "step:".len()].trim_end().ends_with(char::is_alphanumeric) {
        return None;
    }
    let loss = after(rest, "loss:")?;
    // Formerly wps: both are tokens per second and device.
    let rate = field(rest, "tps:").or_else(|| field(rest, "wps:"))?;
    let mut reading = Reading {
        step: Some(whole(rest)?),
        grad_norm: field(rest, "grad_norm:"),
        // Peak reserved memory since the last line.
        reserved_peak: memory(rest, "memory:"),
        tokens_per_second_per_gpu: Some(rate),
        flops_per_gpu: field(rest, "tflops:").filter(|flops| *flops > 0.0).map(|flops| flops * 1e12),
        // N/A in fp8.
        mfu: field(rest, "mfu:").filter(|share| *share > 0.0).map(|percent| percent / 100.0),
        ..Reading::default()
    };
    reading.set_loss(loss);
    Some(reading)
}

/// `37 CUDA memory allocation retries.`, `1 CUDA OOM errors thrown.`
fn warning(line: &str) -> Option<Reading> {
    let count = |words: &str| {
        let before = line.split_once(words)?.0.trim_end();
        let digits = before.rsplit(|letter: char| !letter.is_ascii_digit()).next()?;
        number(digits).and(whole(digits))
    };
    Reading {
        retries: count("CUDA memory allocation retries"),
        ooms: count("CUDA OOM errors thrown"),
        ..Reading::default()
    }
    .some()
}
