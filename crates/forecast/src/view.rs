//! One channel of a history as arrays, with its windows and their blocks.

use serde::{Deserialize, Serialize};

use crate::history::buckets::Bucket;
use crate::history::life::Life;
use crate::rules::Rules;
use crate::stats::robust;

/// Maximum number of buckets in a view.
pub(crate) const MOST: usize = 64;
/// Number of blocks of a window: long enough to smooth sawtooth patterns, and enough of them for a trend.
const BLOCKS: usize = 12;

/// A channel's buckets as columns; times in seconds since the series began, values in bytes.
#[derive(Debug)]
pub(crate) struct View {
    len: usize,
    at: [f64; MOST],
    min: [f64; MOST],
    mean: [f64; MOST],
    max: [f64; MOST],
}

impl View {
    fn empty() -> Self {
        Self { len: 0, at: [0.0; MOST], min: [0.0; MOST], mean: [0.0; MOST], max: [0.0; MOST] }
    }

    /// Adds a bucket whose times count from `base`.
    fn add(&mut self, bucket: &Bucket, base: f64, channel: usize) {
        let Some(span) = bucket.span(channel).filter(|_| self.len < MOST) else { return };
        let i = self.len;
        self.at[i] = base + f64::from(bucket.at);
        self.min[i] = f64::from(span.min);
        self.mean[i] = f64::from(span.mean);
        self.max[i] = f64::from(span.max);
        self.len += 1;
    }

    /// The newest samples; all samples of a short history.
    pub(crate) fn recent(history: &Life, channel: usize) -> Self {
        let mut view = Self::empty();
        let recent = history.recent();
        for bucket in recent.all() {
            view.add(bucket, recent.base(), channel);
        }
        view
    }

    /// The whole history.
    pub(crate) fn whole(history: &Life, channel: usize) -> Self {
        let mut view = Self::empty();
        history.whole(|bucket| view.add(&bucket, 0.0, channel));
        view
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn at(&self) -> &[f64] {
        &self.at[..self.len]
    }

    pub(crate) fn min(&self) -> &[f64] {
        &self.min[..self.len]
    }

    pub(crate) fn mean(&self) -> &[f64] {
        &self.mean[..self.len]
    }

    pub(crate) fn max(&self) -> &[f64] {
        &self.max[..self.len]
    }

    /// The time of the last bucket; 0 for none.
    pub(crate) fn now(&self) -> f64 {
        self.at().last().copied().unwrap_or(0.0)
    }

    /// The time from the first bucket to the last.
    pub(crate) fn span(&self) -> f64 {
        self.now() - self.at().first().copied().unwrap_or(0.0)
    }

    /// The first bucket at or after a time.
    pub(crate) fn from(&self, at: f64) -> usize {
        self.at().partition_point(|own| *own < at)
    }

    /// The first bucket of the window that has the last `share` of the time.
    pub(crate) fn begin(&self, share: f64) -> usize {
        let from = self.now() - share * self.span();
        self.from(from - 1e-9 * from.abs())
    }
}

/// A line through a sawtooth pattern.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Envelope {
    /// The lower line: memory that is never released.
    Floor,
    /// The mean.
    #[default]
    Center,
    /// The upper line, which reaches the limit first.
    Peak,
}

impl Envelope {
    /// Every envelope.
    pub const ALL: [Self; 3] = [Self::Floor, Self::Center, Self::Peak];
}

/// A window cut into blocks of equal time.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    len: usize,
    at: [f64; BLOCKS],
    floor: [f64; BLOCKS],
    center: [f64; BLOCKS],
    peak: [f64; BLOCKS],
}

impl Blocks {
    /// The buckets `first..end` of a view.
    pub(crate) fn new(view: &View, first: usize, end: usize, rules: &Rules) -> Self {
        let mut blocks = Self::default();
        if end <= first {
            return blocks;
        }
        let begun = view.at[first];
        #[expect(clippy::cast_precision_loss, reason = "a dozen")]
        let edge = |block: usize| begun + (view.at[end - 1] - begun) * block as f64 / BLOCKS as f64;
        let mut start = first;
        for block in 1..=BLOCKS {
            let until = edge(block);
            let mut stop = start;
            while stop < end && (view.at[stop] < until || block == BLOCKS) {
                stop += 1;
            }
            if stop > start {
                blocks.add(view, start, stop, rules);
                start = stop;
            }
        }
        blocks
    }

    fn add(&mut self, view: &View, start: usize, stop: usize, rules: &Rules) {
        #[expect(clippy::cast_precision_loss, reason = "at most 64")]
        let count = (stop - start) as f64;
        let mut lowest = [0.0; MOST];
        lowest[..stop - start].copy_from_slice(&view.min[start..stop]);
        let i = self.len;
        self.at[i] = view.at[start..stop].iter().sum::<f64>() / count;
        self.floor[i] = robust::quantile(&mut lowest[..stop - start], rules.block_floor);
        self.center[i] = view.mean[start..stop].iter().sum::<f64>() / count;
        self.peak[i] = view.max[start..stop].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.len += 1;
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn at(&self) -> &[f64] {
        &self.at[..self.len]
    }

    /// One of the three lines through the blocks.
    pub(crate) fn line(&self, envelope: Envelope) -> &[f64] {
        match envelope {
            Envelope::Floor => &self.floor[..self.len],
            Envelope::Center => &self.center[..self.len],
            Envelope::Peak => &self.peak[..self.len],
        }
    }

    /// The time between the first and the last block.
    pub(crate) fn span(&self) -> f64 {
        if self.len == 0 { 0.0 } else { self.at[self.len - 1] - self.at[0] }
    }
}
