//! nanoGPT (train.py): `iter 300: loss 2.4512, time 135.22ms, mfu 37.29%`. MFU is -100 % for the first five
//! iterations.

use super::reading::Reading;
use super::scan::{after, field, whole};

pub(super) fn read(line: &str) -> Option<Reading> {
    let rest = line.strip_prefix("iter ")?;
    let (step, rest) = rest.split_once(": loss ")?;
    let (_, after_time) = super::scan::front(after(rest, ", time ")?)?;
    if !after_time.starts_with("ms") {
        return None;
    }
    let mut reading = Reading {
        step: Some(whole(step)?),
        step_seconds: field(rest, ", time ").map(|millis| millis / 1000.0),
        mfu: field(rest, ", mfu ").filter(|share| *share > 0.0).map(|percent| percent / 100.0),
        ..Reading::default()
    };
    reading.set_loss(rest);
    Some(reading)
}
