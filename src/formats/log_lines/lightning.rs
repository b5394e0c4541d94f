//! PyTorch Lightning's progress bar, and NVIDIA NeMo's values in it.
//!
//! `Epoch 0: : 100%|█| 100/100 [10:48<00:00, reduced_train_loss=0.0172, global_step=99.00, consumed_samples=25600.0,
//! train_step_timing in s=3.130]`. The values have three or four digits, so that `global_step=2e+3` is not an exact
//! step. The bar counts batches of an epoch, which are not steps either. Any program can write a bar of this form:
//! only one with a value that these frameworks add is theirs.
//!
//! NeMo 2.0 (`nemo/lightning/pytorch/callbacks/progress_printer.py`) writes lines: `Training epoch 0, iteration 4/99 | lr:
//! 6.9e-06 | global_batch_size: 128 | global_step: 4 | reduced_train_loss: 11.96 | train_step_timing in s: 6.08`.

use super::reading::Reading;
use super::scan::{after, number, whole};
use super::{cells, progress_bar};

/// Values of a bar that only these frameworks write.
const OWN: [&str; 3] = ["v_num=", "global_step=", "reduced_train_loss="];

pub(super) fn read(line: &str) -> Option<Reading> {
    if let Some(printed) = after(line, "Training epoch ") {
        let mut reading = Reading::default();
        let own = ["reduced train loss", "train step timing"];
        return cells::set(&mut reading, printed, &own).then_some(reading);
    }
    let bar = progress_bar::find(&line[line.find("Epoch ")?..])?;
    bar.about.strip_prefix("Epoch ")?.parse::<u64>().ok()?;
    if !OWN.iter().any(|own| bar.extra.contains(own)) {
        return None;
    }
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
