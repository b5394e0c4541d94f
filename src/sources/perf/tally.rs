//! Computes totals from counter readings: scaled, never decreasing, absent if nothing was counted.

use std::time::Duration;

use crate::host::perf::{Counter, Event, Reading};
use crate::model::units::{Ratio, real};

/// A counter and its last reading.
pub(super) struct Open {
    pub(super) event: Event,
    counter: Box<dyn Counter>,
    last: Reading,
}

/// Totals of one workload or of the host.
#[derive(Debug, Default)]
pub(super) struct Tally {
    totals: [Option<u64>; Event::ALL.len()],
    /// Increments in the current interval.
    steps: [Option<u64>; Event::ALL.len()],
    enabled: Duration,
    running: Duration,
}

impl Open {
    pub(super) fn new(event: Event, counter: Box<dyn Counter>) -> Self {
        Self { event, counter, last: Reading::default() }
    }
}

impl Tally {
    /// Begins an interval.
    pub(super) fn turn(&mut self) {
        self.steps = Default::default();
        (self.enabled, self.running) = (Duration::ZERO, Duration::ZERO);
    }

    /// Adds the increment of a counter since its last reading. A counter that cannot be read adds nothing.
    pub(super) fn add(&mut self, open: &mut Open) {
        let Ok(now) = open.counter.read() else { return };
        let step = step(open.last, now);
        let place = open.event as usize;
        if open.event.is_hardware() {
            self.enabled += now.enabled.saturating_sub(open.last.enabled);
            self.running += now.running.saturating_sub(open.last.running);
        }
        open.last = now;
        let Some(step) = step else { return };
        for sum in [&mut self.totals[place], &mut self.steps[place]] {
            *sum = Some(sum.unwrap_or(0).saturating_add(step));
        }
    }

    /// The total of an event; absent if it was never counted.
    pub(super) fn total(&self, event: Event) -> Option<u64> {
        self.totals[event as usize]
    }

    /// Instructions per cycle in this interval; absent if either is not counted or nothing ran.
    pub(super) fn instructions_per_cycle(&self) -> Option<Ratio> {
        let of = |event| self.steps[event as usize].filter(|count| *count > 0);
        let (instructions, cycles) = (of(Event::Instructions)?, of(Event::Cycles)?);
        Ratio::new(real(instructions) / real(cycles))
    }

    /// Share of the interval in which the hardware counters were active; absent if there are none.
    pub(super) fn counting(&self) -> Option<Ratio> {
        if self.enabled.is_zero() {
            return None;
        }
        Ratio::new(self.running.as_secs_f64() / self.enabled.as_secs_f64())
    }
}

/// Events between two readings, scaled to the time in which the counter was enabled (perf_event_open(2)).
///
/// Absent if it was enabled but never active: the number of events is not known.
fn step(before: Reading, now: Reading) -> Option<u64> {
    let value = now.value.saturating_sub(before.value);
    let enabled = now.enabled.saturating_sub(before.enabled).as_nanos();
    let running = now.running.saturating_sub(before.running).as_nanos();
    if running >= enabled {
        return Some(value);
    }
    let scaled = u128::from(value).checked_mul(enabled)?.checked_div(running)?;
    Some(u64::try_from(scaled).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(value: u64, enabled: u64, running: u64) -> Reading {
        Reading { value, enabled: Duration::from_nanos(enabled), running: Duration::from_nanos(running) }
    }

    #[test]
    fn multiplexed_counters_are_scaled_and_unscheduled_ones_are_unknown() {
        assert_eq!(step(reading(100, 50, 50), reading(160, 80, 80)), Some(60));
        assert_eq!(step(reading(100, 100, 50), reading(160, 200, 75)), Some(240));
        assert_eq!(step(reading(100, 100, 50), reading(100, 200, 50)), None);
        assert_eq!(step(reading(0, 0, 0), reading(0, 0, 0)), Some(0), "a task that slept did nothing");
        assert_eq!(step(reading(0, 0, 0), reading(u64::MAX, 1 << 40, 1)), Some(u64::MAX));
    }
}
