//! What one log has said so far: the newest figures, counts, and how often it speaks.

use std::time::Duration;

use super::oom::{self, Cause, Oom};
use super::{Framework, Reading, clean, hugging_face};

/// The same message within this time is the same event: tracebacks are printed again by those who catch them.
const SAME_EVENT: Duration = Duration::from_secs(60);
/// The most messages remembered for that; there is one a GPU.
const MOST_REMEMBERED: usize = 64;

/// What was counted since the log is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines.
    pub lines: u64,
    /// Lines of a known form.
    pub recognized: u64,
    /// Steps skipped, once a line has said whether any were.
    pub skipped: Option<u64>,
    /// Steps whose loss was not finite, once there was a loss.
    pub nan: Option<u64>,
    /// Messages about memory that did not suffice, in the order of [`Cause::ALL`].
    pub ooms: [u64; Cause::ALL.len()],
}

/// Follows one log.
#[derive(Debug, Default)]
pub struct Tracker {
    /// As configured; otherwise each line is tried as each framework's, because frameworks share logs.
    only: Option<Framework>,
    found: Option<Framework>,
    latest: Reading,
    counts: Counts,
    /// When a figure was last read.
    spoke: Option<Duration>,
    /// The usual time between two figures.
    usual: Option<Duration>,
    /// The Trainer's bar before its figures confirmed that it is the Trainer's.
    bar: Option<Reading>,
    /// The length of the confirmed bar.
    bar_steps: Option<u64>,
    remembered: Vec<(Duration, Option<u32>, Oom)>,
}

impl Tracker {
    /// Follows a log of that framework, or of any.
    pub fn new(only: Option<Framework>) -> Self {
        Self { only, ..Self::default() }
    }

    /// Takes one raw line that was read at `at`, on a clock that never steps.
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
        // Of several ranks in one log the lowest speaks for the job.
        match (self.latest.rank, reading.rank) {
            (Some(heard), Some(other)) if other > heard => return,
            (Some(heard), Some(other)) if other < heard => self.latest = Reading::default(),
            _ => {}
        }
        self.count(&reading);
        self.found = Some(framework);
        self.latest.update(&reading);
        self.heard(at);
    }

    /// A bar of the Trainer's form may be anybody's, also that of an evaluation: it counts once figures of the Trainer
    /// came after one of its length.
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

    fn heard(&mut self, at: Duration) {
        let since = self.spoke.map(|before| at.saturating_sub(before)).filter(|since| !since.is_zero());
        if let Some(since) = since {
            // An average that forgets: a quarter of what is new.
            self.usual = Some(self.usual.map_or(since, |usual| (usual * 3 + since) / 4));
        }
        self.spoke = Some(at);
    }

    fn oom(&mut self, rank: Option<u32>, oom: Oom, at: Duration) {
        self.counts.recognized += 1;
        self.remembered.retain(|(when, ..)| at.saturating_sub(*when) < SAME_EVENT);
        if self.remembered.iter().any(|(_, who, known)| *who == rank && *known == oom) {
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

    /// The newest figures.
    pub fn latest(&self) -> &Reading {
        &self.latest
    }

    /// Whose lines they were, once there was one.
    pub fn framework(&self) -> Option<Framework> {
        self.only.or(self.found)
    }

    /// What was counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// When a figure was last read; nothing once it was forgotten.
    pub fn spoke(&self) -> Option<Duration> {
        self.spoke
    }

    /// The usual time between two figures, once there were two.
    pub fn usual(&self) -> Option<Duration> {
        self.usual
    }

    /// The figures hold no longer: whoever wrote them is silent. Counts stay.
    pub fn forget(&mut self) {
        self.latest = Reading::default();
        self.bar = None;
        self.bar_steps = None;
        self.usual = None;
        self.spoke = None;
    }
}
