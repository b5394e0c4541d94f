//! MindFormers (mindformers/core/callback/callback.py, `MFLossMonitor`) and MindRLHF
//! (mindrlhf/trainer/spmd/grpo_trainer.py).

use super::reading::Reading;
use super::scan::{after, field, number, of, scaled, whole};

/// A line of MindFormers: `{ Epoch:[  1/  2], step:[    1/   19], loss: 10.649, per_step_time: 103328ms, lr: 0.0,
/// overflow cond: False, loss_scale: 1.0, global_norm: [44.313248], train_throughput_per_npu: 2.896T`, or the one
/// after it, `  0.0% |   | 0.00600 samples/s/p  25 days, 2:07:47 }`. From 2026 on (mindformers/pynative/callback) steps are
/// those of the whole training: `{ step:[  100/ 1000], loss:   2.3, per_step_time:    850ms, lr: 1.0e-04, grad_norm:   1.2`.
pub(super) fn formers(line: &str) -> Option<Reading> {
    let epoch = after(line, "Epoch:[");
    let Some(rest) = epoch.or_else(|| after(line, "{ step:[").map(|_| line)) else {
        let (rate, _) = line.split_once(" samples/s/p")?;
        let rate = rate.rsplit([' ', '|']).next()?;
        return Some(Reading { samples_per_second_per_gpu: Some(number(rate)?), ..Reading::default() });
    };
    let before = match epoch {
        Some(epoch) => of(epoch)?.0.checked_sub(1)?,
        None => 0,
    };
    let rest = after(rest, "step:[")?;
    let (step, each) = of(rest)?;
    let mut reading = Reading {
        // Steps count from 1 in each epoch.
        step: before.checked_mul(each)?.checked_add(step),
        steps_planned: epoch.is_none().then_some(each),
        step_seconds: field(rest, "per_step_time:").map(|millis| millis / 1000.0),
        learning_rate: field(rest, "lr:"),
        loss_scale: field(rest, "loss_scale:"),
        // Some releases print the decimal point as a space; such a number is ignored.
        grad_norm: after(rest, "global_norm:").or_else(|| after(rest, "grad_norm:")).and_then(norm),
        flops_per_gpu: field(rest, "train_throughput_per_npu:")
            .filter(|flops| *flops > 0.0)
            .map(|tera| tera * 1e12),
        skipped_more: after(rest, "overflow cond:")
            .map(|word| u64::from(word.trim_start().starts_with("True"))),
        ..Reading::default()
    };
    // `[last/average]` in older releases.
    reading.set_loss(after(rest, "loss:")?.trim_start().trim_start_matches('['));
    Some(reading)
}

fn norm(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let inner = match text.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?.0.trim(),
        None => text.split(',').next()?.trim(),
    };
    inner.parse().ok().filter(|norm: &f64| norm.is_finite())
}

/// A line of MindRLHF: `epoch: 0, step: 3 start`, `step processed tokens 4096, tokens/s/p 512.0`, or `total processed
/// tokens 12288`. The lines of its host monitor are ignored, because memwarden measures these values itself.
pub(super) fn rlhf(line: &str) -> Option<Reading> {
    if let Some(rest) = after(line, "step processed tokens ") {
        let rate = after(rest, "tokens/s/p").map(|rest| rest.trim_start_matches([':', ' ']));
        return Reading { tokens_per_second_per_gpu: rate.and_then(number), ..Reading::default() }.some();
    }
    if let Some(rest) = after(line, "total processed tokens") {
        let total = number(rest.trim_start_matches([':', ' '])).and_then(|tokens| scaled(tokens, 1.0));
        return Reading { tokens: total, ..Reading::default() }.some();
    }
    let rest = after(after(line, "epoch: ")?, ", step: ")?;
    rest.trim_end().ends_with(" start").then_some(())?;
    Some(Reading { step: Some(whole(rest)?), ..Reading::default() })
}
