//! The distribution of the time to exhaustion: by the trend, or by the peaks that recur, whichever is sooner.

use crate::estimate::{Basis, Tte};
use crate::exhaustion::records::Records;
use crate::exhaustion::recurrence::{Passage, Recurrence};
use crate::leak::evidence::GrowthWindow;
use crate::rules::Rules;
use crate::stats::first_passage::Walk;
use crate::stats::robust;
use crate::view::{MOST, View};

/// Longest time of a forecast, in seconds: 30 years.
const LONGEST: f64 = 1e9;

/// Minimum probability that peaks ever reach the limit.
const LIKELY: f64 = 0.5;

/// What reaches the limit first.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "one exists at a time, on the stack")]
enum FirstToLimit {
    /// The level, as a random walk with drift.
    Trend(Walk),
    /// A peak that recurs.
    Peaks(Passage, Recurrence),
}

/// Forecast of when growth reaches a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast<'r> {
    rules: &'r Rules,
    course: FirstToLimit,
    /// Time for which growth has been observed, in seconds.
    age: f64,
    /// The probability that growth goes on at all, by its new maxima.
    goes_on: f64,
    middle: Option<f64>,
    pub(crate) basis: Basis,
    /// Whether only the peaks surely grow.
    pub(crate) of_peaks_alone: bool,
}

/// Series that a forecast is computed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForecastInput<'a> {
    /// The newest samples of the used memory.
    pub(crate) used: &'a View,
    /// The newest samples of the allocated memory; absent without allocator statistics.
    pub(crate) allocated: Option<&'a View>,
    /// The whole history of the growing quantity; absent unless the growth was found in the whole history.
    pub(crate) whole: Option<&'a View>,
    /// The peaks of the used memory that recur; absent if none do.
    pub(crate) peaks: Option<&'a Recurrence>,
    /// The sampling interval in seconds.
    pub(crate) interval: f64,
    /// Whether the growth is a leak.
    pub(crate) leaks: bool,
}

impl<'r> Forecast<'r> {
    /// Computes the forecast from the series and the growth with its rate. `now` is on the history's clock, after the
    /// newest bucket; growth has been observed for `age` seconds.
    pub(crate) fn new(
        ForecastInput { used, allocated, whole, peaks, interval, leaks }: ForecastInput<'_>,
        look: &GrowthWindow,
        (rate, rate_error): (f64, f64),
        limit: f64,
        (now, age): (f64, f64),
        rules: &'r Rules,
    ) -> Self {
        let mut basis = Basis::Used;
        let (mut figure, mut over) = (used, 0.0);
        if let Some(allocated) = allocated.filter(|view| view.len() > 0 && lies_still(used, rules)) {
            (figure, over) = (allocated, overhead(used, allocated, look.from, rules));
            basis = Basis::Allocated;
        }
        let goes_on = Records::since(now - age, figure, now).goes_on(leaks, rules);
        let mut back = 0.0;
        let (mut level, mut spread) = (0.0, 0.0);
        for _ in 0..rules.look_back_rounds {
            (level, spread) = line(figure, rate, back, now, rules);
            level += over;
            back = ((limit - level) / rate).clamp(0.0, age);
        }
        // The variation can recur at any time until exhaustion.
        let recent = used.at().first().copied().unwrap_or(now);
        let swing =
            whole.filter(|_| rules.swing).map_or(0.0, |whole| swing(whole, recent, rate, back, now, rules));
        level += swing;
        let stand_out = |peaks: &&Recurrence| {
            // No sample shows the peak of a phase, however often it occurs.
            rules.peaks
                && basis == Basis::Used
                && peaks.height_bytes > rules.peaks_height * (limit - level)
                && (peaks.of_phase || peaks.period_seconds > rules.peaks_apart * newest_width(used))
        };
        let walk = Walk {
            distance: limit - level,
            distance_error: rules.line_error * spread,
            rate,
            rate_error: rate_error + rules.pace * rate,
            diffusion: look.diffusion,
        };
        let middle = walk.quantile(0.5, LONGEST);
        let by_peaks = peaks.filter(stand_out).and_then(|peaks| {
            let forecast = Self::by_peaks(peaks, limit - swing, look.diffusion, interval, age, rules)?;
            let first =
                peaks.is_on_time(rules) || middle.is_none_or(|middle| forecast.middle <= Some(middle));
            first.then_some(Self { goes_on, ..forecast })
        });
        let trend = FirstToLimit::Trend(walk);
        by_peaks.unwrap_or(Self { rules, course: trend, age, goes_on, middle, basis, of_peaks_alone: false })
    }

    /// The forecast from peaks that surely grow, where the level below them may not; absent if they do not reach the
    /// limit.
    pub(crate) fn of_peaks_alone(
        peaks: &Recurrence,
        limit: f64,
        diffusion: f64,
        interval: f64,
        rules: &'r Rules,
    ) -> Option<Self> {
        let forecast = (rules.alone && peaks.surely_grow(rules))
            .then(|| Self::by_peaks(peaks, limit, diffusion, interval, 0.0, rules))?;
        forecast.map(|forecast| Self { of_peaks_alone: true, ..forecast })
    }

    fn by_peaks(
        peaks: &Recurrence,
        limit: f64,
        diffusion: f64,
        interval: f64,
        age: f64,
        rules: &'r Rules,
    ) -> Option<Self> {
        let age = age.max(peaks.for_seconds);
        let passage = peaks.passage(limit, diffusion, interval, (rules.reach * age).min(LONGEST), rules);
        let middle = passage.quantile(LIKELY)?;
        Some(Self {
            rules,
            course: FirstToLimit::Peaks(passage, *peaks),
            age,
            goes_on: 1.0,
            middle: Some(middle),
            basis: Basis::Used,
            of_peaks_alone: false,
        })
    }

    /// The quantiles; absent where the median exceeds [`Rules::reach`] times the observed growth.
    pub(crate) fn tte(&self) -> Option<Tte> {
        let p50 = self.middle.filter(|middle| *middle < self.rules.reach * self.age)?;
        let (p10, p90) = match &self.course {
            FirstToLimit::Trend(walk) => (walk.quantile(0.1, LONGEST)?, walk.quantile(0.9, LONGEST)),
            FirstToLimit::Peaks(passage, _) => (passage.quantile(0.1)?, passage.quantile(0.9)),
        };
        Some(Tte { p10: p10.min(p50), p50, p90: p90.map(|p90| p90.max(p50)) })
    }

    /// The probability of exhaustion within `horizon` seconds: that of the time to exhaustion, multiplied by the
    /// probability that growth goes on until then.
    pub(crate) fn within(&self, horizon: f64) -> f64 {
        let within = match &self.course {
            FirstToLimit::Trend(walk) => walk.within(horizon),
            FirstToLimit::Peaks(passage, _) => passage.within(horizon),
        };
        within * self.continues(horizon)
    }

    /// The probability that growth goes on for `horizon` seconds, or until exhaustion if that is sooner.
    pub(crate) fn continues(&self, horizon: f64) -> f64 {
        let until = self.middle.map_or(horizon, |middle| middle.min(horizon)).max(0.0);
        self.goes_on * (self.age / (self.age + until).max(f64::MIN_POSITIVE)).powf(self.rules.goes_on)
    }

    /// The peaks that the forecast is computed from; absent if it is computed from the trend.
    pub(crate) fn peaks(&self) -> Option<Recurrence> {
        match self.course {
            FirstToLimit::Trend(_) => None,
            FirstToLimit::Peaks(_, peaks) => Some(peaks),
        }
    }
}

/// The time between the two newest buckets in seconds.
fn newest_width(view: &View) -> f64 {
    match view.at() {
        [.., one, next] => next - one,
        _ => 0.0,
    }
}

/// The upper line through the peaks of the last `back` seconds, extrapolated to `now`, and the spread of the peaks
/// below it.
fn line(view: &View, rate: f64, back: f64, now: f64, rules: &Rules) -> (f64, f64) {
    let n = view.len();
    let first = view.from(now - back).min(n - n.min(rules.line_buckets));
    let mut peaks = [0.0; MOST];
    for (peak, i) in peaks.iter_mut().zip(first..n) {
        *peak = view.max()[i] + rate * (now - view.at()[i]);
    }
    let peaks = &mut peaks[..n - first];
    let level = robust::quantile(peaks, rules.line);
    (level, level - robust::quantile(peaks, 0.2))
}

/// Height of the means of the last `back` seconds, extrapolated to `now`, above all means since `recent`: the daily
/// variation, which the newest samples do not contain. At least 0.
fn swing(whole: &View, recent: f64, rate: f64, back: f64, now: f64, rules: &Rules) -> f64 {
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
        (robust::quantile(older, rules.line) - newest).max(0.0)
    }
}

/// Whether the value is constant in most of the newest buckets.
fn lies_still(view: &View, rules: &Rules) -> bool {
    let n = view.len();
    let newest = n - n.min(rules.line_buckets);
    let still =
        (newest..n).filter(|i| view.max()[*i] - view.min()[*i] < rules.still * view.max()[*i]).count();
    2 * still > n - newest
}

/// Device memory in use above the highest allocated peak so far, since `from`; never below 0. A caching allocator
/// does not release memory, so that its past peaks are what it still holds.
fn overhead(used: &View, allocated: &View, from: f64, rules: &Rules) -> f64 {
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
    robust::quantile(&mut over[..count], rules.overhead).max(0.0)
}
