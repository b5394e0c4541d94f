//! Reads a GPU's memory between samples, so that peaks shorter than the sampling interval are seen.

use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::sweep;
use crate::host::clock;
use crate::model::time::Timestamp;
use crate::sources::gpu::protocol::{Memory, Polled};

/// CPU time that the reads of all GPUs may take together, as a share of one core.
const BUDGET: f64 = 0.004;

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

/// Weight of the newest read in the average cost.
const FOLLOW: f64 = 0.1;

/// Decides how often memory is read. Pure: times are arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Share of one core that this GPU's reads may take.
    share: f64,
    /// Average CPU time of a read, with its wake-up; absent before the first.
    cost: Option<f64>,
    used: Option<u64>,
    changed: Option<Timestamp>,
    nearly_full: bool,
}

impl Pace {
    /// For one of this number of GPUs, which share the budget equally.
    pub(super) fn new(gpus: u32) -> Self {
        let share = BUDGET / f64::from(gpus.max(1));
        Self { share, cost: None, used: None, changed: None, nearly_full: false }
    }

    /// Records a read at `now` that took this CPU time.
    pub(super) fn record(&mut self, now: Timestamp, memory: &Memory, cpu: Duration) {
        let cpu = cpu.as_secs_f64();
        self.cost = Some(self.cost.map_or(cpu, |cost| cost + FOLLOW * (cpu - cost)));
        if self.used.replace(memory.used).is_some_and(|before| before != memory.used) {
            self.changed = Some(now);
        }
        #[expect(clippy::cast_precision_loss, reason = "53 bits are enough for a share")]
        let (used, limit) = (memory.used as f64, memory.used.saturating_add(memory.free) as f64);
        self.nearly_full = used >= NEARLY_FULL * limit;
    }

    /// The time until the next read.
    pub(super) fn interval(&self, now: Timestamp) -> Duration {
        let changes = self.changed.is_some_and(|changed| now.since(changed) < SETTLED);
        let wanted = if changes || self.nearly_full { FAST } else { AT_REST };
        let affordable = self.cost.map_or(0.0, |cost| cost / self.share);
        wanted.max(Duration::try_from_secs_f64(affordable).unwrap_or(LONGEST)).min(LONGEST)
    }
}

/// Reads the memory of one GPU, and keeps the largest value until it is taken.
#[derive(Debug)]
pub(super) struct MemoryPeaks {
    pace: Pace,
    next: Timestamp,
    polled: Polled,
    /// Whether reads are configured, and the GPU supports them.
    possible: bool,
}

impl MemoryPeaks {
    /// Starts without values.
    pub(super) fn new(enabled: bool, gpus: u32) -> Self {
        let polled = Polled::default();
        Self { pace: Pace::new(gpus), next: clock::now(), polled, possible: enabled }
    }

    /// The time until the next read; `most` if that is sooner.
    pub(super) fn wait(&self, now: Timestamp, most: Duration) -> Duration {
        if self.possible { most.min(self.next.since(now)) } else { most }
    }

    /// Reads the memory if it is time to. `woken_at` is the CPU time of the thread before it waited, so that the cost
    /// includes the wake-up. An error is left to the next sample, which reports it.
    pub(super) fn poll(&mut self, device: &Device<'_>, woken_at: Duration) {
        let now = clock::now();
        if !self.possible || !self.next.since(now).is_zero() {
            return;
        }
        match sweep::memory(device) {
            Ok(memory) => {
                self.polled.used = self.polled.used.max(memory.used);
                self.polled.reads += 1;
                self.pace.record(now, &memory, clock::thread_cpu().saturating_sub(woken_at));
            }
            Err(NvmlError::NotSupported) => self.possible = false,
            Err(_) => {}
        }
        self.next = now.plus(self.pace.interval(now));
    }

    /// The largest value since the last call; absent without a read.
    pub(super) fn take(&mut self) -> Option<Polled> {
        Some(std::mem::take(&mut self.polled)).filter(|polled| polled.reads > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(used: u64) -> Memory {
        Memory { total: 80 * GIB, used, free: 80 * GIB - used, reserved: None }
    }

    fn milliseconds(count: u64) -> Timestamp {
        Timestamp::from_secs(0).plus(Duration::from_millis(count))
    }

    #[test]
    fn reads_are_fast_while_memory_changes_or_is_nearly_used_up() {
        let cheap = Duration::from_micros(5);
        let mut pace = Pace::new(8);
        pace.record(milliseconds(0), &memory(GIB), cheap);
        assert_eq!(pace.interval(milliseconds(0)), AT_REST);
        pace.record(milliseconds(75), &memory(2 * GIB), cheap);
        assert_eq!(pace.interval(milliseconds(80)), FAST);
        pace.record(milliseconds(95), &memory(2 * GIB), cheap);
        assert_eq!(pace.interval(milliseconds(2_074)), FAST);
        assert_eq!(pace.interval(milliseconds(2_075)), AT_REST);
        pace.record(milliseconds(3_000), &memory(79 * GIB), cheap);
        assert_eq!(pace.interval(milliseconds(9_000)), FAST);
    }

    #[test]
    fn reads_stay_within_the_budget() {
        for (gpus, micros) in [(1, 50_u32), (8, 20), (8, 200), (16, 90), (8, 2_000_000)] {
            let mut pace = Pace::new(gpus);
            for read in 0..100 {
                let at = milliseconds(20 * read);
                pace.record(at, &memory(read * GIB / 2), Duration::from_micros(micros.into()));
            }
            let interval = pace.interval(milliseconds(1_980));
            let share = f64::from(gpus) * f64::from(micros) * 1e-6 / interval.as_secs_f64();
            assert!(share <= BUDGET * 1.001 || interval == LONGEST, "{gpus} GPUs, {micros} µs: {share}");
        }
    }

    #[test]
    fn peaks_of_a_tenth_of_a_second_are_seen_whatever_their_phase() {
        let mut pace = Pace::new(8);
        let mut phase: u64 = 12_345;
        let mut seen = 0;
        let mut now = 0;
        for peak in 0..100 {
            phase = phase.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let from = 5_000 * peak + (phase >> 33) % 4_900;
            let mut in_peak = false;
            while now < 5_000 * (peak + 1) {
                let high = (from..from + 100).contains(&now);
                in_peak |= high;
                let used = if high { 60 * GIB } else { 20 * GIB };
                pace.record(milliseconds(now), &memory(used), Duration::from_micros(25));
                now += u64::try_from(pace.interval(milliseconds(now)).as_millis()).unwrap();
                // A late wake-up.
                now += phase.rotate_left(u32::try_from(now % 64).unwrap()) % 15;
            }
            seen += u32::from(in_peak);
        }
        assert!(seen >= 95, "{seen} of 100");
    }
}
