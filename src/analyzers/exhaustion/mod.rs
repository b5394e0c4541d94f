//! When a resource runs out at the growth it has, and how likely that is.
//!
//! # What it says
//! The time to exhaustion as 10 %, 50 % and 90 % quantiles, given that the growth goes on; the probability
//! of exhaustion within each horizon, which allows for growth that stops; a risk level with its rule.
//!
//! # Method
//! The peak line (the 90 % quantile of past bucket peaks, each carried on to now) drifts with the rate of
//! [`super::leak`]'s window and diffuses as the variogram says. It looks as far back as the forecast looks
//! ahead, because the highest of as many peaks to come is as likely above the highest of those past as
//! below; where the growth is of a life longer than the newest samples, as far as these go, and the swing of
//! the means before is added. First passage over the limit follows the inverse Gaussian law
//! ([`super::stats::first_passage`]), with 8 % of the rate added to its standard
//! error, because no leak keeps its pace for ever: with that, eight in ten recorded leaks arrive between the
//! outer quantiles. Growth that has lasted for T goes on for another t with probability T/(T+t), the law of a record
//! (what has been seen is as likely the first as the last part of its life): the probability is multiplied
//! with it. Where the device's own figure lies still under a caching allocator, the allocator's figure is
//! carried on, plus what the device held above it at least.
//!
//! # When it stays silent
//! No limit; no growth; growth that has not held half as long as a leak must; a time that is more than
//! 2.5 times what the growth has been seen for.
//!
//! # False alarms
//! A fill that stops below the limit; the rising half of a slow wave; the first large load after an idle week,
//! where it takes minutes. Jumps between two samples are seen by no forecast: alert on the level too.

mod analyzer;
pub mod metrics;
mod resources;
mod risk;

use serde::Serialize;

use super::leak::Look;
use super::stats::first_passage::Walk;
use super::stats::robust;
use super::view::{MOST, View};

pub use analyzer::REGISTRATION;
pub use risk::{Level, Risk, risk};

/// Rounds in which the time ahead and the time looked back on agree.
const ROUNDS: usize = 3;
/// Newest buckets whose peaks make the line at least: more than a sawtooth's period in most.
const PEAKS: usize = 12;
/// The line's quantile among them: the peak that comes again, not the one that came once.
const LINE: f64 = 0.9;
/// Added to the rate's standard error, as a share of the rate.
const PACE: f64 = 0.08;
/// How many windows ahead a forecast may look.
const REACH: f64 = 2.5;
/// What the device held above the allocator: this quantile of the window's buckets.
const OVERHEAD: f64 = 0.4;
/// A bucket in which the device's figure moved by less than this share lies still.
const STILL: f64 = 1e-4;
/// No forecast is longer than 30 years.
const LONGEST: f64 = 1e9;

/// The figure that the distance to the limit was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// What is used, as the limit counts it.
    Used,
    /// What the job's allocator has allocated, because the used figure lies still.
    Allocated,
}

impl Basis {
    /// The word for people and labels.
    pub fn word(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Allocated => "allocated",
        }
    }
}

/// The time to exhaustion in seconds, if growth goes on as it does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tte {
    /// One in ten is earlier.
    pub p10: f64,
    /// Half are earlier.
    pub p50: f64,
    /// One in ten is later; absent where the rate is too unsure to say.
    pub p90: Option<f64>,
}

/// What the growth does to a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forecast {
    walk: Walk,
    /// For how long the growth has been seen, in seconds.
    age: f64,
    middle: Option<f64>,
    pub(super) basis: Basis,
}

/// The figures that a forecast is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures<'a> {
    /// The newest samples of what is used.
    pub(super) used: &'a View,
    /// Those of what the allocator says, where there is one.
    pub(super) allocated: Option<&'a View>,
    /// All of a long life of what the growth is of, where it is of all.
    pub(super) whole: Option<&'a View>,
}

impl Forecast {
    /// From the figures and the growth with its rate; `now` is on the history's clock, after its newest bucket, and it
    /// has grown for `age` seconds.
    pub(super) fn new(
        Figures { used, allocated, whole }: Figures<'_>,
        look: &Look,
        (rate, rate_error): (f64, f64),
        limit: f64,
        (now, age): (f64, f64),
    ) -> Self {
        let mut basis = Basis::Used;
        let (mut figure, mut over) = (used, 0.0);
        if let Some(allocated) = allocated.filter(|view| view.len() > 0 && lies_still(used)) {
            (figure, over) = (allocated, overhead(used, allocated, look.from));
            basis = Basis::Allocated;
        }
        let mut back = 0.0;
        let (mut level, mut spread) = (0.0, 0.0);
        for _ in 0..ROUNDS {
            (level, spread) = line(figure, rate, back, now);
            level += over;
            back = ((limit - level) / rate).clamp(0.0, age);
        }
        // It may come round at any time until then.
        let recent = used.at().first().copied().unwrap_or(now);
        level += whole.map_or(0.0, |whole| swing(whole, recent, rate, back, now));
        let walk = Walk {
            distance: limit - level,
            distance_error: 0.5 * spread,
            rate,
            rate_error: rate_error + PACE * rate,
            diffusion: look.diffusion,
        };
        Self { walk, age, middle: walk.quantile(0.5, LONGEST), basis }
    }

    /// The quantiles, where they are not beyond what has been seen.
    pub(super) fn tte(&self) -> Option<Tte> {
        let p50 = self.middle.filter(|middle| *middle < REACH * self.age)?;
        Some(Tte {
            p10: self.walk.quantile(0.1, LONGEST)?.min(p50),
            p50,
            p90: self.walk.quantile(0.9, LONGEST),
        })
    }

    /// The probability of exhaustion within `horizon` seconds.
    pub(super) fn within(&self, horizon: f64) -> f64 {
        let until = self.middle.map_or(horizon, |middle| middle.min(horizon)).max(0.0);
        self.walk.within(horizon) * self.age / (self.age + until).max(f64::MIN_POSITIVE)
    }
}

/// The high line through the peaks of the last `back` seconds, carried on to `now`, and how far they spread.
fn line(view: &View, rate: f64, back: f64, now: f64) -> (f64, f64) {
    let n = view.len();
    let first = view.from(now - back).min(n - n.min(PEAKS));
    let mut peaks = [0.0; MOST];
    for (peak, i) in peaks.iter_mut().zip(first..n) {
        *peak = view.max()[i] + rate * (now - view.at()[i]);
    }
    let peaks = &mut peaks[..n - first];
    let level = robust::quantile(peaks, LINE);
    (level, level - robust::quantile(peaks, 0.2))
}

/// How much higher the means of the last `back` seconds come, carried on to `now`, than any since `recent`: the day's
/// swing, of which the newest samples see nothing.
fn swing(whole: &View, recent: f64, rate: f64, back: f64, now: f64) -> f64 {
    let carried = |i: usize| whole.mean()[i] + rate * (now - whole.at()[i]);
    let (first, new) = (whole.from(now - back), whole.from(recent));
    let mut older = [0.0; MOST];
    for (mean, i) in older.iter_mut().zip(first..new) {
        *mean = carried(i);
    }
    let newest = (new..whole.len()).map(carried).fold(f64::NEG_INFINITY, f64::max);
    let older = &mut older[..new.saturating_sub(first)];
    if older.is_empty() || !newest.is_finite() {
        0.0
    } else {
        (robust::quantile(older, LINE) - newest).max(0.0)
    }
}

/// Whether the figure stands at one value in most of the newest buckets.
fn lies_still(view: &View) -> bool {
    let n = view.len();
    let newest = n - n.min(PEAKS);
    let still = (newest..n).filter(|i| view.max()[*i] - view.min()[*i] < STILL * view.max()[*i]).count();
    2 * still > n - newest
}

/// What the device held above the allocator's highest peak until then, since `from`; never less than
/// nothing. A caching allocator gives nothing back, so that its past peaks are what it holds.
fn overhead(used: &View, allocated: &View, from: f64) -> f64 {
    let mut over = [0.0; MOST];
    let (mut count, mut highest, mut next) = (0, 0.0_f64, 0);
    for (at, held) in used.at().iter().zip(used.max()) {
        while next < allocated.len() && allocated.at()[next] <= *at {
            highest = highest.max(allocated.max()[next]);
            next += 1;
        }
        if *at >= from && next > 0 {
            over[count] = held - highest;
            count += 1;
        }
    }
    robust::quantile(&mut over[..count], OVERHEAD).max(0.0)
}
