//! Hugging Face's Trainer: Python dictionaries of its values, and its progress bar.
//!
//! `{'loss': 0.4231, 'grad_norm': 1.23, 'learning_rate': 4.9e-05, 'epoch': 0.12}`; from transformers 5 the numbers
//! are quoted (trainer_callback.py, `f"{v:.4g}"`). The line has no step: it is taken from the progress bar.

use super::progress_bar;
use super::reading::Reading;
use super::scan::{number, of, whole};

pub(super) fn read(line: &str) -> Option<Reading> {
    let mut reading = dictionary(line).unwrap_or_default();
    // A bar with a description loads or maps something; the Trainer's has none.
    if let Some(bar) = progress_bar::find(line).filter(|bar| bar.about.is_empty()) {
        reading.step = Some(bar.done);
        reading.steps_planned = bar.all;
        reading.step_seconds = bar.seconds;
    }
    reading.some()
}

/// Whether a line has the Trainer's values, and not only a progress bar that other programs print too.
pub(super) fn is_certain(line: &str) -> bool {
    dictionary(line).is_some()
}

fn dictionary(line: &str) -> Option<Reading> {
    let inner = line.split_once("{'")?.1.split('}').next()?;
    let mut reading = Reading::default();
    let mut known = false;
    for pair in inner.split(", '") {
        let Some((name, value)) = pair.split_once("':") else { continue };
        match name {
            "loss" => {
                reading.set_loss(value);
                known = true;
            }
            "grad_norm" => reading.grad_norm = number(value),
            "learning_rate" => reading.learning_rate = number(value),
            // TRL's SFTTrainer counts what it has trained on, all ranks together.
            "num_tokens" => reading.tokens = whole(value),
            "train_runtime" => {
                reading.finished = true;
                known = true;
            }
            // ms-swift.
            "global_step/max_steps" => (reading.step, reading.steps_planned) = of(value).unzip(),
            "train_samples_per_second" => reading.samples_per_second = number(value),
            _ => {}
        }
    }
    known.then_some(reading)
}
