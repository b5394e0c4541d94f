//! PyTorch Lightning's progress bar, and NVIDIA NeMo's values in it.
//!
//! `Epoch 0: : 100%|█| 100/100 [10:48<00:00, reduced_train_loss=0.0172, global_step=99.00, consumed_samples=25600.0,
//! train_step_timing in s=3.130]`. The values have three or four digits, so that `global_step=2e+3` is not an exact
//! step. The bar counts batches of an epoch, which are not steps either.

use super::progress_bar;
use super::reading::Reading;
use super::scan::{number, whole};

pub(super) fn read(line: &str) -> Option<Reading> {
    let bar = progress_bar::find(&line[line.find("Epoch ")?..])?;
    bar.about.strip_prefix("Epoch ").and_then(whole)?;
    let mut reading = Reading { step_seconds: bar.seconds, ..Reading::default() };
    for pair in bar.extra.split(',') {
        let Some((name, value)) = pair.split_once('=') else { continue };
        match name.trim() {
            "reduced_train_loss" | "train_loss" | "train_loss_step" | "loss" => reading.set_loss(value),
            "global_step" => reading.step = whole(value),
            "consumed_samples" => reading.samples = whole(value),
            "train_step_timing in s" => reading.step_seconds = number(value).or(reading.step_seconds),
            "samples/sec" => reading.samples_per_second = number(value),
            "grad_norm" => reading.grad_norm = number(value),
            "lr" => reading.learning_rate = number(value),
            _ => {}
        }
    }
    reading.some()
}
