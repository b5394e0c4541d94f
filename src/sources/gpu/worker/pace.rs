//! Decides when the memory of the GPUs is read between samples. Pure: times are arguments.

use std::time::Duration;

use crate::model::time::Timestamp;
use crate::model::units::real;
use crate::sources::gpu::protocol::Memory;

/// CPU time that the reads may take, as a share of one core.
const BUDGET: f64 = 0.0035;

/// CPU time that may be used at once, in seconds, if the reads took less than the budget before: an expensive read now and
/// then delays no other.
const SAVED: f64 = 0.002;

/// Interval between two reads while the memory does not change: shorter than a peak of 100 ms, with 25 ms for a late
/// wake-up.
const AT_REST: Duration = Duration::from_millis(75);

/// Interval between two reads while the memory changes or is nearly used up, if the budget allows it.
const FAST: Duration = Duration::from_millis(20);

/// Longest interval, so that an expensive driver call does not end the reads.
const LONGEST: Duration = Duration::from_secs(1);

/// The memory counts as changing for this time after a change.
const SETTLED: Duration = Duration::from_secs(2);

/// Used share from which reads are fast.
const NEARLY_FULL: f64 = 0.9;

/// How often one GPU is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    used: Option<u64>,
    changed: Option<Timestamp>,
    nearly_full: bool,
}

impl Pace {
    pub(super) fn record(&mut self, now: Timestamp, memory: &Memory) {
        if self.used.replace(memory.used).is_some_and(|before| before != memory.used) {
            self.changed = Some(now);
        }
        self.nearly_full = real(memory.used) >= NEARLY_FULL * real(memory.used.saturating_add(memory.free));
    }

    /// The time until the next read, if the budget allows it.
    pub(super) fn interval(&self, now: Timestamp) -> Duration {
        let changes = self.changed.is_some_and(|changed| now.since(changed) < SETTLED);
        if changes || self.nearly_full { FAST } else { AT_REST }
    }
}

/// The CPU time that the reads of all GPUs share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// What may be used now, in seconds of CPU time; negative after more was used.
    left: f64,
    at: Timestamp,
}

impl Budget {
    /// Begins with nothing saved.
    pub(super) fn new(now: Timestamp) -> Self {
        Self { left: 0.0, at: now }
    }

    /// Records that reads which ended at `now` took this CPU time, wake-ups included.
    pub(super) fn spend(&mut self, now: Timestamp, cpu: Duration) {
        let earned = BUDGET * now.since(self.at).as_secs_f64();
        let used = cpu.as_secs_f64();
        // No reads for more than the longest interval are owed.
        self.left = ((self.left + earned).min(SAVED) - used).max(-BUDGET * LONGEST.as_secs_f64());
        self.at = now;
    }

    /// The time until reads are allowed again.
    pub(super) fn wait(&self, now: Timestamp) -> Duration {
        let owed = Duration::try_from_secs_f64((-self.left).max(0.0) / BUDGET).unwrap_or(LONGEST);
        owed.min(LONGEST).saturating_sub(now.since(self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(used: u64) -> Memory {
        Memory { total: 80 * GIB, used, free: 80 * GIB - used, reserved: None }
    }

    fn microseconds(count: u64) -> Timestamp {
        Timestamp::from_secs(0).plus(Duration::from_micros(count))
    }

    fn milliseconds(count: u64) -> Timestamp {
        microseconds(1_000 * count)
    }

    #[test]
    fn reads_are_fast_while_memory_changes_or_is_nearly_used_up() {
        let mut pace = Pace::default();
        pace.record(milliseconds(0), &memory(GIB));
        assert_eq!(pace.interval(milliseconds(0)), AT_REST);
        pace.record(milliseconds(75), &memory(2 * GIB));
        assert_eq!(pace.interval(milliseconds(80)), FAST);
        pace.record(milliseconds(95), &memory(2 * GIB));
        assert_eq!(pace.interval(milliseconds(2_074)), FAST);
        assert_eq!(pace.interval(milliseconds(2_075)), AT_REST);
        pace.record(milliseconds(3_000), &memory(79 * GIB));
        assert_eq!(pace.interval(milliseconds(9_000)), FAST);
    }

    /// The share of a core and the number of reads, of reads that are wanted this often and take this long each.
    fn minute(wanted: Duration, cost: impl Fn(u64) -> Duration) -> (f64, u64) {
        let mut budget = Budget::new(microseconds(0));
        let (mut now, mut used, mut reads) = (microseconds(0), Duration::ZERO, 0);
        while now.since(microseconds(0)) < Duration::from_secs(60) {
            let cpu = cost(reads);
            (used, reads) = (used + cpu, reads + 1);
            let ended = now.plus(cpu);
            budget.spend(ended, cpu);
            now = ended.plus(wanted.saturating_sub(cpu).max(budget.wait(ended)));
        }
        (used.as_secs_f64() / 60.0, reads)
    }

    #[test]
    fn reads_stay_within_the_budget() {
        for micros in [40, 200, 250, 900, 3_000] {
            let cost = Duration::from_micros(micros);
            let (share, reads) = minute(FAST, |_| cost);
            assert!(share < BUDGET * 1.01, "{micros} µs: {share}");
            let most = (60.0 / FAST.as_secs_f64()).min(60.0 * BUDGET / cost.as_secs_f64());
            #[expect(clippy::cast_precision_loss, reason = "a small number")]
            let reads = reads as f64;
            assert!(reads > 0.97 * most, "{micros} µs: {reads} of {most}");
        }
        // However expensive they are, there is one a second after the last.
        assert_eq!(minute(FAST, |_| Duration::from_millis(20)).1, 59);
    }

    #[test]
    fn an_expensive_read_now_and_then_delays_no_other() {
        let usual = Duration::from_micros(250);
        let (share, reads) = minute(AT_REST, |read| if read % 200 == 199 { 6 * usual } else { usual });
        assert!(share < BUDGET);
        assert_eq!(reads, 800);
    }

    #[test]
    fn peaks_of_a_tenth_of_a_second_are_seen_whatever_their_phase() {
        let (mut pace, mut budget) = (Pace::default(), Budget::new(microseconds(0)));
        let cost = Duration::from_micros(250);
        let mut phase: u64 = 12_345;
        let mut seen = 0;
        let mut now = 0;
        for peak in 0..100 {
            phase = phase.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let from = 5_000_000 * peak + 1_000 * ((phase >> 33) % 4_900);
            let mut in_peak = false;
            while now < 5_000_000 * (peak + 1) {
                let high = (from..from + 100_000).contains(&now);
                in_peak |= high;
                pace.record(microseconds(now), &memory(if high { 60 * GIB } else { 20 * GIB }));
                budget.spend(microseconds(now), cost);
                let wait = pace.interval(microseconds(now)).max(budget.wait(microseconds(now)));
                now += u64::try_from(wait.as_micros()).unwrap();
                // A late wake-up.
                now += phase.rotate_left(u32::try_from(now % 64).unwrap()) % 15_000;
            }
            seen += u32::from(in_peak);
        }
        assert!(seen >= 95, "{seen} of 100");
    }
}
