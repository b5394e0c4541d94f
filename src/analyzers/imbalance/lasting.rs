//! What lasts: conditions that must hold for a minute, and means over a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::label::Label;
use crate::model::time::Timestamp;

/// Time constant of the means, and minimum duration of an imbalance.
const MINUTE: Duration = Duration::from_secs(60);

/// When each condition began to hold, by workload and run (empty for the node and where GPUs are compared) and type of
/// imbalance.
#[derive(Debug, Default)]
pub(super) struct Lasting {
    before: BTreeMap<([Label; 2], &'static str), Timestamp>,
    still: BTreeMap<([Label; 2], &'static str), Timestamp>,
}

impl Lasting {
    /// Begins a tick: a condition that the previous tick did not state has ended.
    pub(super) fn begin(&mut self) {
        self.before = std::mem::take(&mut self.still);
    }

    /// When a condition that `holds` now began, in seconds since 1970; absent until it has held for a minute.
    pub(super) fn since(
        &mut self,
        group: &[Label; 2],
        what: &'static str,
        holds: bool,
        now: Timestamp,
    ) -> Option<f64> {
        if !holds {
            return None;
        }
        let key = (group.clone(), what);
        let began = self.before.get(&key).copied().unwrap_or(now);
        self.still.insert(key, began);
        (now.since(began) >= MINUTE).then(|| began.unix().as_secs_f64())
    }
}

/// An exponential mean over a minute, `passed` seconds after `known`.
pub(super) fn mean(known: Option<f64>, value: f64, passed: f64) -> f64 {
    let share = -(-passed / MINUTE.as_secs_f64()).exp_m1();
    known.map_or(value, |known| known + share * (value - known))
}
