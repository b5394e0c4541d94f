//! A time without use.

use std::time::Duration;

use crate::model::time::Timestamp;

/// Time without use, from the first sample in which there was none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Period {
    since: Timestamp,
    /// CPU seconds of the workload at the start.
    cpu: Option<f64>,
    /// Start and CPU seconds of the window over which activity is averaged.
    window: (Timestamp, f64),
    /// Time up to which it was counted.
    counted: Timestamp,
}

impl Period {
    /// A period that begins now, at these CPU seconds of its workload.
    pub(super) fn new(now: Timestamp, cpu: Option<f64>) -> Self {
        Self { since: now, cpu, window: (now, cpu.unwrap_or_default()), counted: now }
    }

    pub(super) fn lasted(&self, now: Timestamp) -> Duration {
        now.since(self.since)
    }

    /// Its start in seconds since 1970.
    pub(super) fn since_unix(&self) -> f64 {
        self.since.unix().as_secs_f64()
    }

    /// Mean CPU cores of the workload in the period; absent where its CPU time is unknown, and at the start.
    pub(super) fn cores(&self, now: Timestamp, cpu: Option<f64>) -> Option<f64> {
        mean(cpu? - self.cpu?, self.lasted(now))
    }

    /// Seconds since the last call, or since the start.
    pub(super) fn uncounted(&mut self, now: Timestamp) -> f64 {
        let seconds = now.since(self.counted).as_secs_f64();
        self.counted = now;
        seconds
    }

    /// Whether the CPU use stays below `cores`, averaged over each `window` and so far in the present one. A short use
    /// at the start of a window is tolerated up to what the whole window allows.
    pub(super) fn stays_below(&mut self, cores: f64, window: Duration, now: Timestamp, cpu: f64) -> bool {
        let (start, before) = self.window;
        let used = cpu - before;
        if used > cores * window.as_secs_f64() {
            return false;
        }
        if now.since(start) >= window {
            self.window = (now, cpu);
        }
        true
    }
}

fn mean(seconds: f64, over: Duration) -> Option<f64> {
    let over = over.as_secs_f64();
    (over > 0.0).then(|| seconds / over)
}
