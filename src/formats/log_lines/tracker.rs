//! State of one log: the newest values, counts, and the interval between values.

use std::time::Duration;

use super::oom::{self, Cause, Oom};
use super::{Framework, Reading, clean, hugging_face};

/// Equal messages within this time are one event: tracebacks are printed again by the code that catches them.
const SAME_EVENT: Duration = Duration::from_secs(60);
/// Maximum number of messages kept for this; there is one per GPU.
const MOST_REMEMBERED: usize = 64;

/// Counts since the log is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub lines: u64,
    /// Lines with a known format.
    pub recognized: u64,
    /// Skipped steps; absent before the first line that reports them.
    pub skipped: Option<u64>,
    /// Steps with a loss that was not finite; absent before the first loss.
    pub nan: Option<u64>,
    /// Out-of-memory messages, in the order of [`Cause::ALL`].
    pub ooms: [u64; Cause::ALL.len()],
}

#[derive(Debug, Default)]
pub struct Tracker {
    /// The configured framework; if absent, each line is tried with each framework, because frameworks share logs.
    only: Option<Framework>,
    found: Option<Framework>,
    latest: Reading,
    counts: Counts,
    /// When a value was last read.
    last_value: Option<Duration>,
    /// Mean time between two values.
    usual: Option<Duration>,
    /// A progress bar that is not yet confirmed as the Trainer's.
    bar: Option<Reading>,
    /// Length of the confirmed bar.
    bar_steps: Option<u64>,
    remembered: Vec<(Duration, Option<u32>, Oom)>,
}

impl Tracker {
    pub fn new(only: Option<Framework>) -> Self {
        Self { only, ..Self::default() }
    }

    /// Processes one raw line that was read at `at`, on a monotonic clock.
    pub fn line(&mut self, raw: &[u8], at: Duration) {
        self.counts.lines += 1;
        let line = clean(raw);
        if let Some(oom) = oom::find(&line.text) {
            self.oom(line.rank, oom, at);
            return;
        }
        let read = match self.only {
            Some(framework) => framework.read(&line.text).map(|reading| (framework, reading)),
            None => super::read(&line.text),
        };
        let Some((framework, mut reading)) = read else { return };
        self.counts.recognized += 1;
        reading.rank = reading.rank.or(line.rank);
        if framework == Framework::HuggingFace && !self.confirmed(&line.text, &mut reading) {
            return;
        }
        // Of several ranks in one log, the lowest represents the job.
        match (self.latest.rank, reading.rank) {
            (Some(current), Some(other)) if other > current => return,
            (Some(current), Some(other)) if other < current => self.latest = Reading::default(),
            _ => {}
        }
        self.count(&reading);
        self.found = Some(framework);
        self.latest.update(&reading);
        self.record_interval(at);
    }

    /// Whether a progress bar is the Trainer's. Other programs and evaluations print the same format: a bar is
    /// confirmed once values of the Trainer follow one of the same length.
    fn confirmed(&mut self, text: &str, reading: &mut Reading) -> bool {
        if !hugging_face::is_certain(text) {
            if reading.steps_planned.is_some() && reading.steps_planned == self.bar_steps {
                return true;
            }
            self.bar = Some(reading.clone());
            return false;
        }
        if reading.step.is_none()
            && let Some(bar) = self.bar.take()
        {
            reading.step = bar.step;
            reading.steps_planned = bar.steps_planned;
            reading.step_seconds = bar.step_seconds;
        }
        self.bar_steps = reading.steps_planned.or(self.bar_steps);
        true
    }

    fn count(&mut self, reading: &Reading) {
        let counts = &mut self.counts;
        if let Some(more) = reading.skipped_more {
            counts.skipped = Some(counts.skipped.unwrap_or(0).saturating_add(more));
        }
        if reading.nan_more.is_some() || reading.loss.is_some() || reading.loss_not_finite {
            let more = reading.nan_more.unwrap_or(0).max(u64::from(reading.loss_not_finite));
            counts.nan = Some(counts.nan.unwrap_or(0).saturating_add(more));
        }
    }

    fn record_interval(&mut self, at: Duration) {
        let since = self.last_value.map(|before| at.saturating_sub(before)).filter(|since| !since.is_zero());
        if let Some(since) = since {
            // An exponential mean with a weight of 1/4 for new values.
            self.usual = Some(self.usual.map_or(since, |usual| (usual * 3 + since) / 4));
        }
        self.last_value = Some(at);
    }

    fn oom(&mut self, rank: Option<u32>, oom: Oom, at: Duration) {
        self.counts.recognized += 1;
        self.remembered.retain(|(when, ..)| at.saturating_sub(*when) < SAME_EVENT);
        if self.remembered.iter().any(|(_, known_rank, known)| *known_rank == rank && *known == oom) {
            return;
        }
        for (count, cause) in self.counts.ooms.iter_mut().zip(Cause::ALL) {
            *count += u64::from(cause == oom.cause());
        }
        if self.remembered.len() == MOST_REMEMBERED {
            self.remembered.remove(0);
        }
        self.remembered.push((at, rank, oom));
    }

    /// The newest values.
    pub fn latest(&self) -> &Reading {
        &self.latest
    }

    /// The framework of the last recognized line.
    pub fn framework(&self) -> Option<Framework> {
        self.only.or(self.found)
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// When a value was last read; absent after [`Self::forget`].
    pub fn last_value(&self) -> Option<Duration> {
        self.last_value
    }

    /// Mean time between two values; absent before the second.
    pub fn usual(&self) -> Option<Duration> {
        self.usual
    }

    /// Drops the values, because the writer has stopped. Counts are kept.
    pub fn forget(&mut self) {
        self.latest = Reading::default();
        self.bar = None;
        self.bar_steps = None;
        self.usual = None;
        self.last_value = None;
    }
}
