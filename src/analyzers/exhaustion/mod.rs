//! Forecasts when a resource is exhausted at its current growth, and with which probability.
//!
//! # What it says
//! The time to exhaustion as 10 %, 50 % and 90 % quantiles, provided that growth continues; the probability of
//! exhaustion within each horizon, including the chance that growth stops; a risk level and the rule that set it.
//!
//! # Method
//! The peak line (the 90 % quantile of past bucket peaks, each extrapolated to now) drifts with the rate of
//! [`super::leak`]'s window and diffuses as the variogram estimates. It looks as far back as the forecast looks
//! ahead, because the highest of a number of future peaks is as likely above the highest of the same number of past
//! peaks as below it; where the growth is found in a history longer than the newest samples, it looks back as far as
//! the newest samples reach, and the variation of the earlier means is added. The time of first passage over the
//! limit has the inverse Gaussian distribution ([`super::stats::first_passage`]), with 8 % of the rate added to its
//! standard error, because no leak keeps a constant rate: with this, eight of ten recorded leaks reach the limit
//! between the outer quantiles. Growth that has lasted for T continues for another t with probability T/(T+t) (the
//! observed part is as likely the first part of its duration as the last); the probability is multiplied by this.
//! Where the memory that the device reports is constant under a caching allocator, the allocated memory is
//! extrapolated instead, plus at least what the device used above it.
//!
//! # When it stays silent
//! There is no limit; there is no growth; growth has lasted less than half of what a leak requires; the time to
//! exhaustion is more than 2.5 times as long as the observed growth.
//!
//! # False alarms
//! A fill that stops below the limit; the rising half of a slow oscillation; the first large load after an idle week,
//! if it takes minutes. A forecast cannot predict a jump between two samples: alert on the level too.

mod analyzer;
pub mod metrics;
mod recurrence;
mod resources;
mod risk;

use serde::Serialize;

use recurrence::Passage;

use super::leak::Look;
use super::stats::first_passage::Walk;
use super::stats::robust;
use super::view::{MOST, View};

pub use analyzer::REGISTRATION;
pub(in crate::analyzers) use recurrence::Growing;
pub use recurrence::Recurrence;
pub use risk::{Level, Risk, risk};

/// Iterations until the time looked ahead and the time looked back agree.
const ROUNDS: usize = 3;
/// Minimum number of newest buckets that the peak line is computed from: longer than the period of most sawtooth
/// patterns.
const PEAKS: usize = 12;
/// Quantile of these peaks that the line uses: a peak that recurs, not one that occurred once.
const LINE: f64 = 0.9;
/// Added to the rate's standard error, as a share of the rate.
const PACE: f64 = 0.08;
/// Maximum time to exhaustion, as a multiple of the observed duration of the growth.
const REACH: f64 = 2.5;
/// Quantile, over the buckets of the window, of the device memory in use above the allocated memory.
const OVERHEAD: f64 = 0.4;
/// A bucket in which the value changed by less than this share counts as constant.
const STILL: f64 = 1e-4;
/// Longest time of a forecast, in seconds: 30 years.
const LONGEST: f64 = 1e9;

/// The quantity that the distance to the limit is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Used memory, as it counts against the limit.
    Used,
    /// Memory allocated by the job's allocator, because the used memory is constant.
    Allocated,
}

impl Basis {
    /// The value of the label `basis`, also used in texts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Allocated => "allocated",
        }
    }
}

/// Quantiles of the time to exhaustion in seconds, provided that growth continues at its current rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tte {
    /// 10 % quantile.
    pub p10: f64,
    /// Median.
    pub p50: f64,
    /// 90 % quantile; absent where the rate is too uncertain.
    pub p90: Option<f64>,
}

/// Forecast of when growth reaches a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forecast {
    walk: Walk,
    passage: Option<Passage>,
    pub(super) peaks: Option<Recurrence>,
    /// Time for which growth has been observed, in seconds.
    age: f64,
    middle: Option<f64>,
    pub(super) basis: Basis,
    /// Whether only the peaks grow surely.
    pub(super) of_peaks_alone: bool,
}

/// Series that a forecast is computed from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures<'a> {
    /// The newest samples of the used memory.
    pub(super) used: &'a View,
    /// The newest samples of the allocated memory; absent without allocator statistics.
    pub(super) allocated: Option<&'a View>,
    /// The whole history of the growing quantity; absent unless the growth was found in the whole history.
    pub(super) whole: Option<&'a View>,
}

impl Forecast {
    /// Computes the forecast from the series and the growth with its rate. `now` is on the history's clock, after the
    /// newest bucket; growth has been observed for `age` seconds.
    pub(super) fn new(
        Figures { used, allocated, whole }: Figures<'_>,
        look: &Look,
        (rate, rate_error): (f64, f64),
        limit: f64,
        (now, age): (f64, f64),
        recurrence: Option<(&Recurrence, f64)>,
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
        // The variation can recur at any time until exhaustion.
        let recent = used.at().first().copied().unwrap_or(now);
        level += whole.map_or(0.0, |whole| swing(whole, recent, rate, back, now));
        let walk = Walk {
            distance: limit - level,
            distance_error: 0.5 * spread,
            rate,
            rate_error: rate_error + PACE * rate,
            diffusion: look.diffusion,
        };
        let passage = recurrence.filter(|(recurrence, _)| basis == Basis::Used && recurrence.height_bytes > hgate() * (limit - level).max(0.0) && recurrence.period_seconds > gate() * (used.at()[used.len()-1] - used.at()[used.len()-2])).map(|(recurrence, interval)| {
            recurrence.passage(limit, look.diffusion, interval, REACH * age.max(recurrence.for_seconds))
        });
        let passage = passage.filter(|passage| passage.within(LONGEST) >= 0.5);
        let age = recurrence.map_or(age, |(recurrence, _)| age.max(recurrence.for_seconds));
        let middle = match &passage { Some(passage) => passage.quantile(0.5), None => walk.quantile(0.5, LONGEST) };
        let peaks = recurrence.filter(|_| passage.is_some()).map(|(recurrence, _)| *recurrence);
        Self { walk, passage, peaks, age, middle, basis, of_peaks_alone: false }
    }

    /// The forecast from peaks that recur and grow, while the level below them does not grow surely.
    pub(super) fn of_peaks(peaks: &Recurrence, limit: f64, diffusion: f64, interval: f64) -> Option<Self> {
        if !peaks.surely_grows() {
            return None;
        }
        let age = peaks.for_seconds;
        let passage = peaks.passage(limit, diffusion, interval, REACH * age);
        if passage.within(LONGEST) < 0.5 {
            return None;
        }
        let walk = Walk { distance: 1.0, distance_error: 0.0, rate: 0.0, rate_error: 0.0, diffusion: 0.0 };
        Some(Self { walk, middle: passage.quantile(0.5), passage: Some(passage), peaks: Some(*peaks), age, basis: Basis::Used, of_peaks_alone: true })
    }

    /// The quantiles; absent where the median exceeds [`REACH`] times the observed growth.
    pub(super) fn tte(&self) -> Option<Tte> {
        let p50 = self.middle.filter(|middle| *middle < REACH * self.age)?;
        if let Some(passage) = &self.passage {
            return Some(Tte { p10: passage.quantile(0.1)?.min(p50), p50, p90: passage.quantile(0.9) });
        }
        Some(Tte {
            p10: self.walk.quantile(0.1, LONGEST)?.min(p50),
            p50,
            p90: self.walk.quantile(0.9, LONGEST),
        })
    }

    /// The probability of exhaustion within `horizon` seconds.
    pub(super) fn within(&self, horizon: f64) -> f64 {
        let until = self.middle.map_or(horizon, |middle| middle.min(horizon)).max(0.0);
        let within = self.passage.as_ref().map_or_else(|| self.walk.within(horizon), |passage| passage.within(horizon));
        within * (self.age / (self.age + until).max(f64::MIN_POSITIVE)).powf(std::env::var("FX").map_or(1.0, |x| x.parse::<f64>().unwrap()))
    }
}

/// The upper line through the peaks of the last `back` seconds, extrapolated to `now`, and the spread of the peaks
/// below it.
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

/// Height of the means of the last `back` seconds, extrapolated to `now`, above all means since `recent`: the daily
/// variation, which the newest samples do not contain. At least 0.
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

/// Whether the value is constant in most of the newest buckets.
fn lies_still(view: &View) -> bool {
    let n = view.len();
    let newest = n - n.min(PEAKS);
    let still = (newest..n).filter(|i| view.max()[*i] - view.min()[*i] < STILL * view.max()[*i]).count();
    2 * still > n - newest
}

/// Device memory in use above the highest allocated peak so far, since `from`; never below 0. A caching allocator
/// does not release memory, so that its past peaks are what it still holds.
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

fn gate() -> f64 { std::env::var("GATE").map_or(3.0, |x| x.parse().unwrap()) }

fn hgate() -> f64 { std::env::var("HGATE").map_or(0.3, |x| x.parse().unwrap()) }
