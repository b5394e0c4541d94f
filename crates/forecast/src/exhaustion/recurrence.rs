//! Peaks that recur: when the next ones come, how high they are, and when the first one reaches the limit.
//!
//! # Method
//! At least three peaks of [`Excursions`], whose intervals have a median (the period) and a deviation. The peaks'
//! highest values lie on a line with the slope of the peaks (least squares) and of the growth below them, weighted by
//! their precision; single peaks deviate from it. The next peaks come after one, two, … periods; each one reaches the
//! limit with the probability that follows from the line, its error, and the deviation of single peaks. The error of
//! the line is common to all peaks, so that the probability that none of them reaches the limit is integrated over
//! it. Peaks have ended if the next one is overdue.
//!
//! Where the job reports phases, the peaks are those of its phase with the highest peaks ([`PhasePeaks`]): their values
//! are exact, and the next one comes after a number of steps.

use serde::Serialize;

use crate::exhaustion::phase::PhasePeaks;
use crate::history::excursions::{CAPACITY, Excursions, Peak};
use crate::rules::Rules;
use crate::stats::{normal, robust};

/// Minimum number of peaks that recur.
const LEAST: usize = 3;

/// Peaks that recur.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Recurrence {
    /// Number of peaks.
    pub count: usize,
    /// Seconds since the first of them.
    pub for_seconds: f64,
    /// Median interval in seconds.
    pub period_seconds: f64,
    /// Standard deviation of an interval in seconds.
    pub period_deviation_seconds: f64,
    /// Median height in bytes.
    pub height_bytes: f64,
    /// Growth of their highest values in bytes per second.
    pub growth_bytes_per_second: f64,
    /// Its standard error.
    pub growth_error_bytes_per_second: f64,
    /// The highest value of a peak that came now, in bytes.
    pub top_bytes: f64,
    /// Standard deviation of the highest values in bytes.
    pub deviation_bytes: f64,
    /// Seconds until the next one is expected.
    pub next_seconds: f64,
    /// Whether they are those of a phase that the job reports.
    pub of_phase: bool,
    /// The highest value so far of a peak that goes on.
    #[serde(skip)]
    present: Option<f64>,
    /// Whether the newest peaks continue the slope of all.
    #[serde(skip)]
    pub(crate) continues: bool,
    /// The slope of the peaks alone in standard errors.
    #[serde(skip)]
    pub(crate) z: f64,
}

/// Growth of the level below the peaks; absent where it does not grow.
type Below = Option<Growing>;

/// Growth of the level below the peaks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growing {
    /// When it began, on the history's clock.
    pub(crate) from: f64,
    /// Bytes per second, with the standard error.
    pub(crate) rate: (f64, f64),
}

impl Recurrence {
    /// The tallest peaks if these recur, else all.
    pub(crate) fn find(peaks: &Excursions, below: Below, now: f64, rules: &Rules) -> Option<Self> {
        Self::of(peaks.tall(), peaks.rising(true), below, now, rules)
            .or_else(|| Self::of(peaks.all(), peaks.rising(false), below, now, rules))
    }

    fn of(
        peaks: impl ExactSizeIterator<Item = Peak>,
        rising: Option<Peak>,
        below: Below,
        now: f64,
        rules: &Rules,
    ) -> Option<Self> {
        let recorded = peaks.len();
        if recorded + 1 < LEAST {
            return None;
        }
        let mut all = [Peak { at: 0.0, top: 0.0, height: 0.0 }; CAPACITY + 1];
        for (kept, peak) in all.iter_mut().zip(peaks) {
            *kept = peak;
        }
        // The rise that the newest samples are in is a peak once it is high enough.
        let least = all[..recorded].iter().map(|peak| peak.height).fold(f64::INFINITY, f64::min);
        let arrived = rising.filter(|rising| rising.height >= (1.0 - rules.peaks_arrived) * least);
        let mut count = recorded;
        if let Some(rising) = arrived {
            all[count] = rising;
            count += 1;
        }
        if count < LEAST {
            return None;
        }
        let mut intervals = [0.0; CAPACITY + 1];
        for i in 1..count {
            intervals[i - 1] = all[i].at - all[i - 1].at;
        }
        let intervals = &mut intervals[..count - 1];
        let period = robust::median(intervals);
        let spread: f64 = intervals.iter().map(|own| (own - period).abs().min(2.0 * period).powi(2)).sum();
        let deviation = (spread / (float(count) - 1.0)).sqrt();
        let next = all[count - 1].at + period - now;
        if next < -(rules.peaks_overdue * period).max(rules.peaks_overdue_deviations * deviation)
            || deviation > rules.peaks_irregular * period
        {
            return None;
        }
        // The height of a peak that goes on is not known yet.
        let known = &all[..if recorded >= LEAST { recorded } else { count }];
        let mut found = Self::line(known, below, now, rules);
        found.count = count;
        found.period_seconds = period;
        found.period_deviation_seconds = deviation;
        found.next_seconds = next;
        found.present = arrived.map(|peak| peak.top);
        Some(found)
    }

    /// The peaks of a phase that the job reports. `now` is the history's clock.
    pub(crate) fn of_phase(phase: &PhasePeaks, below: Below, now: f64, rules: &Rules) -> Option<Self> {
        let last = phase.occurrences.last().filter(|_| phase.occurrences.len() >= LEAST)?;
        let ((period, deviation), seconds) = (phase.period()?, phase.seconds_per_step()?);
        let next = last.step + period - phase.step;
        if next < -(rules.peaks_overdue * period).max(rules.peaks_overdue_deviations * deviation) - 1.0 {
            return None;
        }
        let peaks: Vec<Peak> = phase
            .occurrences
            .iter()
            .map(|own| Peak { at: now - (phase.now - own.at), top: own.top, height: own.top - own.base })
            .collect();
        let mut found = Self::line(&peaks, below, now, rules);
        found.period_seconds = period * seconds;
        found.period_deviation_seconds = deviation * seconds;
        found.next_seconds = next.max(0.0) * seconds;
        found.of_phase = true;
        Some(found)
    }

    /// The line through the highest values.
    fn line(peaks: &[Peak], below: Below, now: f64, rules: &Rules) -> Self {
        let n = peaks.len();
        let mut heights = [0.0; CAPACITY + 1];
        for (height, peak) in heights.iter_mut().zip(peaks) {
            *height = peak.height;
        }
        let height = robust::median(&mut heights[..n]);
        let prior = rules.peaks_deviation * height;
        // The slope of the peaks since the growth began, or of all.
        let from = below.map_or(f64::NEG_INFINITY, |below| below.from);
        let after = |at: f64| &peaks[peaks.partition_point(|peak| peak.at < at)..];
        let newer = after(f64::midpoint(from, now));
        let since = if rules.peaks_newer_half && from.is_finite() && newer.len() > LEAST {
            newer
        } else {
            after(from)
        };
        let (slope, error, deviation) = slope(since, prior, rules);
        let (mut rate, mut rate_error) = (slope, error);
        if let Some(below) = below {
            // Copies of what is kept grow with it: their heights grow too.
            let mut grown = [Peak { at: 0.0, top: 0.0, height: 0.0 }; CAPACITY + 1];
            for (grown, peak) in grown.iter_mut().zip(since) {
                *grown = Peak { top: peak.height, ..*peak };
            }
            let (of_height, height_error, _) = self::slope(&grown[..since.len()], prior, rules);
            let grows = of_height > rules.peaks_height_grows * height_error;
            let (more, more_error) = if grows { (of_height, height_error) } else { (0.0, 0.0) };
            let base = below.rate.0 + more;
            let other = below.rate.1.powi(2) + (rules.peaks_other_rate * base).powi(2) + more_error.powi(2);
            let own = error.powi(2);
            (rate, rate_error) = if own.is_finite() {
                ((slope * other + base * own) / (own + other), (own * other / (own + other)).sqrt())
            } else {
                (base, other.sqrt())
            };
        }
        let newest = &peaks[n - n.min(rules.peaks_newest)..];
        let count = float(newest.len());
        let carried = |peak: &Peak| peak.top + rate * (now - peak.at.max(from).min(now));
        let top = newest.iter().map(carried).sum::<f64>() / count;
        Self {
            count: n,
            for_seconds: now - peaks[0].at,
            period_seconds: 0.0,
            period_deviation_seconds: 0.0,
            height_bytes: height,
            growth_bytes_per_second: rate,
            growth_error_bytes_per_second: rate_error,
            top_bytes: top,
            deviation_bytes: deviation,
            next_seconds: 0.0,
            of_phase: false,
            present: None,
            continues: continues(peaks, slope, prior, rules),
            z: slope / error.max(f64::MIN_POSITIVE),
        }
    }

    /// Whether the peaks surely grow, whatever the level below them does.
    pub(crate) fn surely_grow(&self, rules: &Rules) -> bool {
        let per_period = self.growth_bytes_per_second * self.period_seconds;
        self.z >= rules.alone_sure
            && self.continues
            && self.period_deviation_seconds <= rules.alone_regular * self.period_seconds
            && per_period <= rules.alone_per_period * self.height_bytes
    }

    /// Whether the time of the next peak is known well.
    pub(crate) fn is_on_time(&self, rules: &Rules) -> bool {
        self.period_deviation_seconds <= rules.peaks_on_time * self.period_seconds
    }

    /// When the first peak reaches `limit`. `longest` is the time in seconds that is looked ahead, `diffusion` the
    /// variance that the level gains per second, and `interval` the sampling interval in seconds.
    pub(crate) fn passage(
        &self,
        limit: f64,
        diffusion: f64,
        interval: f64,
        longest: f64,
        rules: &Rules,
    ) -> Passage {
        let newest = float(self.count.min(rules.peaks_newest));
        let period = self.period_seconds.max(interval).max(f64::MIN_POSITIVE);
        let shift = self.deviation_bytes.powi(2) / newest;
        let mut passage = Passage { cells: [Cell::default(); CELLS], len: 0 };
        let (mut none, mut step) = ([1.0; NODES.len()], 1.0);
        let (mut at, mut number) = (self.next_seconds.max(0.0), 0.0);
        let mut left = 1.0;
        if let Some(present) = self.present {
            // The peak that goes on is at least as high as it is.
            let above = |value: f64| {
                1.0 - normal::cdf(
                    (value - self.top_bytes)
                        / self.deviation_bytes.hypot(shift.sqrt()).max(f64::MIN_POSITIVE),
                )
            };
            let reaches = (above(limit) / above(present).max(NEGLIGIBLE)).clamp(0.0, 1.0);
            let at = rules.peaks_present * period;
            passage.cells[0] = Cell { at, spread: at, reaches };
            passage.len = 1;
            left = 1.0 - reaches;
            none = [left; NODES.len()];
        }
        while passage.len < CELLS && left > NEGLIGIBLE && at < longest {
            let top = self.top_bytes + self.growth_bytes_per_second * at;
            let error = (shift
                + ((self.growth_error_bytes_per_second + rules.pace * self.growth_bytes_per_second.abs())
                    * at)
                    .powi(2)
                + diffusion * at)
                .sqrt();
            let mut still = 0.0;
            for ((node, weight), none) in NODES.into_iter().zip(&mut none) {
                let above = (limit - top - node * error) / self.deviation_bytes.max(f64::MIN_POSITIVE);
                *none *= normal::cdf(above).powf(step);
                still += weight * *none;
            }
            number += step;
            let spread = self.period_deviation_seconds.powi(2) * number
                + (step * period).powi(2) / 12.0
                + interval.powi(2);
            passage.cells[passage.len] = Cell { at, spread: spread.sqrt(), reaches: (left - still).max(0.0) };
            passage.len += 1;
            left = left.min(still);
            if passage.len > SINGLE {
                step *= GROW;
            }
            at += step * period;
        }
        passage
    }
}

/// Whether the newer peaks continue the slope of all.
fn continues(peaks: &[Peak], all: f64, prior: f64, rules: &Rules) -> bool {
    let n = peaks.len();
    let newest = &peaks[n - LEAST..];
    let half = &peaks[(n / 2).min(n - LEAST)..];
    slope(half, prior, rules).0 > rules.alone_goes_on * all && newest[LEAST - 1].top >= newest[0].top
}

#[expect(clippy::cast_precision_loss, reason = "a dozen")]
fn float(count: usize) -> f64 {
    count as f64
}

/// The slope of peaks, its standard error (infinite for fewer than three, or at one time), and the deviation of single peaks, which is
/// assumed to be `prior` before any is seen.
fn slope(peaks: &[Peak], prior: f64, rules: &Rules) -> (f64, f64, f64) {
    let n = peaks.len();
    if n < LEAST {
        return (0.0, f64::INFINITY, prior);
    }
    let count = float(n);
    let middle = peaks.iter().map(|peak| peak.at).sum::<f64>() / count;
    let mean = peaks.iter().map(|peak| peak.top).sum::<f64>() / count;
    let across = peaks.iter().map(|peak| (peak.at - middle).powi(2)).sum::<f64>();
    if across <= 0.0 {
        return (0.0, f64::INFINITY, prior);
    }
    let slope = peaks.iter().map(|peak| (peak.at - middle) * (peak.top - mean)).sum::<f64>() / across;
    let left = |i: usize| peaks[i].top - mean - slope * (peaks[i].at - middle);
    let squares: f64 = (0..n).map(|i| left(i).powi(2)).sum();
    let deviation = ((squares + rules.peaks_deviation_weight * prior * prior)
        / (count - 2.0 + rules.peaks_deviation_weight))
        .sqrt();
    let error = deviation / across.sqrt();
    (slope, error, deviation)
}

/// Nodes and weights of Gauss-Hermite quadrature for a standard normal variable.
const NODES: [(f64, f64); 5] = [
    (-2.856_970_013_872_806, 0.011_257_411_327_720_7),
    (-1.355_626_179_974_266, 0.222_075_922_005_613),
    (0.0, 0.533_333_333_333_333),
    (1.355_626_179_974_266, 0.222_075_922_005_613),
    (2.856_970_013_872_806, 0.011_257_411_327_720_7),
];
/// Number of steps that the future is divided into; so many first ones are single peaks, later ones cover more.
const CELLS: usize = 40;
const SINGLE: usize = 12;
const GROW: f64 = 1.25;
/// A probability that is not followed further.
const NEGLIGIBLE: f64 = 1e-3;

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    at: f64,
    spread: f64,
    reaches: f64,
}

/// The distribution of the time in seconds at which a peak first reaches the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passage {
    cells: [Cell; CELLS],
    len: usize,
}

impl Passage {
    /// The probability that it is within `horizon` seconds.
    pub(crate) fn within(&self, horizon: f64) -> f64 {
        let cells = self.cells[..self.len].iter();
        let all = cells
            .map(|cell| cell.reaches * normal::cdf((horizon - cell.at) / cell.spread.max(f64::MIN_POSITIVE)));
        all.sum::<f64>().clamp(0.0, 1.0)
    }

    /// The time by which it is so with probability `p`; absent if that is beyond what was looked ahead.
    pub(crate) fn quantile(&self, p: f64) -> Option<f64> {
        let last = self.cells[..self.len].last()?;
        let (mut low, mut high) = (0.0, last.at + 4.0 * last.spread);
        if self.within(high) < p {
            return None;
        }
        for _ in 0..24 {
            let middle = f64::midpoint(low, high);
            if self.within(middle) < p { low = middle } else { high = middle }
        }
        Some(high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    /// Peaks of 300 MB on 1 GB, each 45 s for 5 s, that grow by `growth` from one to the next; after `seconds`.
    fn peaks(seconds: u32, growth: f64) -> Option<Recurrence> {
        let mut peaks = Excursions::default();
        for i in 0..seconds {
            let top = 300.0 * MB + growth * f64::from(i / 45);
            peaks.push(f64::from(i), 1_000.0 * MB + if i % 45 >= 40 { top } else { 0.0 }, Rules::DAEMON);
        }
        Recurrence::find(&peaks, None, f64::from(seconds), Rules::DAEMON)
    }

    #[test]
    fn period_height_and_growth_are_found_from_three_peaks_on() {
        assert_eq!(peaks(100, 0.0), None);
        let found = peaks(150, 10.0 * MB).unwrap();
        assert_eq!((found.count, found.period_seconds), (3, 45.0));
        assert!((found.height_bytes - 310.0 * MB).abs() < 5.0 * MB, "{found:?}");
        assert!((found.growth_bytes_per_second - 10.0 / 45.0 * MB).abs() < 0.01 * MB, "{found:?}");
        // The fourth peak begins at 175 s.
        assert!((found.next_seconds - 25.0).abs() <= 1.0, "{found:?}");
    }

    #[test]
    fn the_peak_that_reaches_the_limit_is_forecast() {
        let found = peaks(450, 10.0 * MB).unwrap();
        assert!(found.surely_grow(Rules::DAEMON));
        // The peak at 490 s has 1,400 MB; the one at 535 s 1,410 MB.
        let passage = found.passage(1_405.0 * MB, 0.0, 1.0, 1e4, Rules::DAEMON);
        let p50 = passage.quantile(0.5).unwrap();
        assert!((p50 - 85.0).abs() < 15.0, "{p50}");
        assert!(passage.within(60.0) < 0.5 && passage.within(110.0) > 0.8);
        assert!(passage.quantile(0.1).unwrap() <= p50 && passage.quantile(0.9).unwrap() >= p50);
    }

    #[test]
    fn constant_peaks_below_the_limit_reach_it_hardly_ever() {
        let found = peaks(450, 0.0).unwrap();
        assert!(!found.surely_grow(Rules::DAEMON));
        assert!(found.passage(1_400.0 * MB, 0.0, 1.0, 600.0, Rules::DAEMON).within(600.0) < 0.1);
    }

    #[test]
    fn peaks_that_are_overdue_recur_no_longer() {
        let mut peaks = Excursions::default();
        for i in 0..400_u32 {
            peaks.push(f64::from(i), if i % 40 >= 35 { 1.3e9 } else { 1e9 }, Rules::DAEMON);
        }
        assert!(Recurrence::find(&peaks, None, 410.0, Rules::DAEMON).is_some());
        assert_eq!(Recurrence::find(&peaks, None, 500.0, Rules::DAEMON), None);
    }
}
