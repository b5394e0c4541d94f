//! Tracks one series over its lifetime in bounded memory: samples in, assessments out.
//!
//! Selects the quantity that is evaluated for leaks: the memory that the job reports as allocated, else memory that
//! cannot be reclaimed (anonymous and shared) where it is known, else the used memory. So file cache is never a leak
//! where it is known separately, nor is growth of reserved memory alone.

use serde::{Deserialize, Serialize};

use crate::estimate::{Basis, LeakState, Rate, Tte};
use crate::exhaustion::forecast::{Forecast, ForecastInput};
use crate::exhaustion::phase::PhasePeaks;
use crate::exhaustion::recurrence::{Growing, Recurrence};
use crate::history::life::Life;
use crate::leak::evidence::Evidence;
use crate::rules::Rules;
use crate::series_verdict::{Clock, SeriesState, SeriesVerdict};
use crate::stats::normal;
use crate::view::View;

/// The history's channels.
const USED: usize = 0;
const WATCHED: usize = 1;
/// The largest accepted value, in bytes: 8 PiB.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// The memory of a subject at one time, in bytes; unknown values are absent, never zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Memory that counts against the limit: resident memory, the charge of a cgroup, the used memory of a device.
    pub used: f64,
    /// Anonymous and shared memory, where it is known separately from file cache.
    pub unreclaimable: Option<f64>,
    /// Memory that the job reports as allocated; zero before the first other value means unknown.
    pub allocated: Option<f64>,
    /// Largest used memory since the sample before, where it was read more often than sampled.
    pub peak: Option<f64>,
}

/// The quantity that is evaluated for leaks: the most precise one that was ever available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Watched {
    /// Used memory.
    #[default]
    Used,
    /// Anonymous and shared memory.
    Unreclaimable,
    /// Memory that the job reports as allocated.
    Allocated,
}

impl Watched {
    /// The name of the quantity in texts.
    pub fn words(self) -> &'static str {
        match self {
            Self::Used => "used memory",
            Self::Unreclaimable => "anonymous and shared memory",
            Self::Allocated => "memory allocated by the job",
        }
    }
}

/// The bounded memory of one series. Its serialized form is the state that survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tracker {
    history: Life,
    watched: Watched,
    sight: SeriesVerdict,
    /// The time of the last sample as given, in seconds.
    sampled_at: Option<f64>,
    /// Observed time in seconds; a gap counts as one interval.
    elapsed: f64,
    /// The learned sampling interval in seconds.
    interval: f64,
    gaps: u8,
}

/// The assessment of a series at one time.
#[derive(Clone, Debug, Serialize)]
pub struct Assessment {
    /// The state of its growth.
    pub leak: LeakState,
    /// The quantity that is evaluated.
    pub watched: Watched,
    /// Seconds since growth began; absent while it does not grow.
    pub growing_for_seconds: Option<f64>,
    /// The growth rate of the evaluated quantity; absent before there are enough samples, and after growth ends until
    /// the evaluated samples no longer include it.
    pub growth: Option<Rate>,
    /// Strength of the evidence, 0.5 to 1: Φ(z/2.5) of the largest z. It orders subjects and is not a probability.
    pub confidence: Option<f64>,
    /// The evidence; absent before there are enough samples.
    pub evidence: Option<Evidence>,
    /// The time to exhaustion; absent while no exhaustion is predicted.
    pub tte: Option<Tte>,
    /// The quantity that the forecast is computed from; absent without a forecast.
    pub basis: Option<Basis>,
    /// The peaks that recur, and that the forecast is computed from; absent where it is computed from the trend.
    pub peaks: Option<Recurrence>,
    /// Median number of steps from one of these peaks to the next; absent where they are not those of a phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase_steps: Option<f64>,
    /// The probability that growth goes on until exhaustion, or for the longest horizon if that is sooner. It limits
    /// the probabilities of exhaustion, and not the quantiles; absent without a forecast.
    pub p_growth_continues: Option<f64>,
    /// The probability of exhaustion within each horizon; absent without a limit or enough samples.
    pub p_exhaustion: Vec<Option<f64>>,
}

impl Tracker {
    /// Maximum size of a tracker in bytes, including the heap.
    pub const BOUND: usize = size_of::<Self>() - size_of::<Life>() + Life::BOUND;

    /// Creates an empty tracker.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a sample at `at` seconds on any clock and returns whether it was accepted. Values that are not finite,
    /// negative or above 8 PiB are rejected, and so is a second sample at the same time. A clock that jumps back or
    /// far ahead counts as one interval.
    pub fn push(&mut self, at: f64, sample: Sample) -> bool {
        self.push_by(Rules::DAEMON, at, sample)
    }

    /// [`Tracker::push`] by other rules.
    pub fn push_by(&mut self, rules: &Rules, at: f64, sample: Sample) -> bool {
        let believed = |bytes: &f64| (0.0..=LARGEST).contains(bytes);
        if !at.is_finite() || !believed(&sample.used) || self.sampled_at == Some(at) {
            return false;
        }
        if let Some(before) = self.sampled_at {
            self.pass(rules, at - before);
        }
        self.sampled_at = Some(at);
        let own = sample.allocated.filter(believed);
        let own = own.filter(|bytes| *bytes > 0.0 || self.watched == Watched::Allocated);
        let firm = sample.unreclaimable.filter(believed);
        let (source, value) = match (own, firm) {
            (Some(_), _) => (Watched::Allocated, own),
            (None, Some(_)) => (Watched::Unreclaimable, firm),
            (None, None) => (Watched::Used, None),
        };
        if source > self.watched {
            self.watched = source;
            self.history.clear_channel(WATCHED);
            self.sight = SeriesVerdict::default();
        }
        let peak = sample.peak.filter(|peak| believed(peak) && *peak > sample.used);
        let values = [Some(sample.used), value.filter(|_| source == self.watched)];
        self.history.push(self.elapsed, values, peak, rules);
        true
    }

    /// Advances the observed time by one step of the given time.
    ///
    /// A gap counts as one interval, so that the sleep of a suspended host does not count as a constant level.
    fn pass(&mut self, rules: &Rules, step: f64) {
        let known = self.interval > 0.0;
        if known && (step < 0.0 || step > rules.gap_intervals * self.interval) {
            self.gaps = if step > 0.0 { self.gaps + 1 } else { 0 };
            if self.gaps >= rules.gap_count {
                (self.interval, self.gaps) = (step, 0);
            }
            self.elapsed += self.interval;
            return;
        }
        self.gaps = 0;
        let step = step.max(0.0);
        self.interval += if known { rules.interval_weight * (step - self.interval) } else { step };
        self.elapsed += step;
    }

    /// Assesses the series against a `limit` in bytes and for `horizons` in seconds. If it is called rarely it
    /// reports less, but not something different: the verdict requires a few calls in 3 % of the history.
    pub fn assess(&mut self, limit: Option<f64>, horizons: &[f64]) -> Assessment {
        self.assess_by(Rules::DAEMON, limit, horizons, None)
    }

    /// Assesses the series by these rules, with the peaks of a phase that the job reports.
    pub fn assess_by(
        &mut self,
        rules: &Rules,
        limit: Option<f64>,
        horizons: &[f64],
        phase: Option<&PhasePeaks>,
    ) -> Assessment {
        let limit = limit.filter(|limit| limit.is_finite() && *limit > 0.0);
        let mut assessment = Assessment {
            leak: LeakState::Insufficient,
            watched: self.watched,
            growing_for_seconds: None,
            growth: None,
            confidence: None,
            evidence: None,
            tte: None,
            basis: None,
            peaks: None,
            phase_steps: None,
            p_growth_continues: None,
            p_exhaustion: vec![None; horizons.len()],
        };
        let (channel, clock) = (self.channel(), Clock { now: self.elapsed, interval: self.interval });
        let seen = self.sight.see(&mut self.history, channel, clock, limit, rules);
        let forecast =
            seen.as_ref().and_then(|seen| self.assess_growth(rules, seen, limit, phase, &mut assessment));
        if limit.is_none() {
            return assessment;
        }
        // A past spike over the limit does not predict the next one; the risk rules include the level.
        let within = |horizon: f64| forecast.as_ref().map_or(0.0, |forecast| forecast.within(horizon));
        if let Some(seen) = seen {
            assessment.p_exhaustion = horizons.iter().map(|horizon| Some(within(*horizon))).collect();
            let longest = horizons.iter().copied().fold(0.0, f64::max);
            assessment.p_growth_continues = forecast.as_ref().map(|forecast| forecast.continues(longest));
            assessment.peaks = forecast.as_ref().and_then(Forecast::peaks);
            let of_phase = assessment.peaks.is_some_and(|peaks| peaks.of_phase);
            assessment.phase_steps =
                phase.filter(|_| of_phase).and_then(PhasePeaks::period).map(|(steps, _)| steps);
            if let Some(forecast) =
                forecast.as_ref().filter(|forecast| seen.half_held || forecast.of_peaks_alone)
            {
                assessment.tte = forecast.tte();
                assessment.basis = assessment.tte.map(|_| forecast.basis);
            }
        }
        assessment
    }

    /// Fills in the state and its evidence, and forecasts exhaustion where the series grows towards a limit.
    fn assess_growth<'r>(
        &self,
        rules: &'r Rules,
        seen: &SeriesState,
        limit: Option<f64>,
        phase: Option<&PhasePeaks>,
        assessment: &mut Assessment,
    ) -> Option<Forecast<'r>> {
        let (rate, error) = seen.rate;
        let evidence = seen.look.evidence;
        assessment.leak = seen.state;
        assessment.growth =
            (!seen.faded).then_some(Rate { bytes_per_second: rate, error_bytes_per_second: error });
        assessment.evidence = Some(evidence);
        let peaks = |below| {
            let of_phase = phase.and_then(|phase| Recurrence::of_phase(phase, below, self.elapsed, rules));
            // Samples may show higher peaks than those of phases, such as those of another process.
            let lowest = of_phase.map_or(0.0, |peaks| rules.phase_height * peaks.height_bytes);
            let found = Recurrence::find(self.history.peaks(), below, self.elapsed, rules);
            found.filter(|found| found.height_bytes > lowest).or(of_phase)
        };
        if !matches!(seen.state, LeakState::Growing | LeakState::Leaking) {
            let look = &seen.look;
            let ends = look.slowing || look.over || seen.faded;
            let (peaks, limit) = (!ends).then(|| peaks(None)).flatten().zip(limit)?;
            return Forecast::of_peaks_alone(&peaks, limit, look.diffusion, self.interval, rules);
        }
        let zs = [evidence.floor_z, evidence.center_z, evidence.peak_z];
        let age = (self.elapsed - seen.from).max(0.0);
        assessment.growing_for_seconds = Some(age);
        assessment.confidence = Some(normal::cdf(zs.into_iter().fold(0.0, f64::max) / 2.5));
        let used = View::recent(&self.history, USED);
        let own = (self.watched == Watched::Allocated).then(|| View::recent(&self.history, WATCHED));
        let past = seen.of_whole.then(|| View::whole(&self.history, self.channel()));
        let peaks = peaks(Some(Growing { from: seen.look.from, rate: seen.rate }));
        let figures = ForecastInput {
            used: &used,
            allocated: own.as_ref(),
            whole: past.as_ref(),
            peaks: peaks.as_ref(),
            interval: self.interval,
            leaks: seen.state == LeakState::Leaking,
        };
        limit.map(|limit| Forecast::new(figures, &seen.look, seen.rate, limit, (self.elapsed, age), rules))
    }

    /// The learned sampling interval in seconds; 0 before the second sample.
    pub fn interval(&self) -> f64 {
        self.interval
    }

    /// The quantity that is evaluated for leaks.
    pub fn watched(&self) -> Watched {
        self.watched
    }

    /// Whether a restored state is valid: finite and in range.
    pub fn is_sound(&self) -> bool {
        [self.elapsed, self.interval].iter().all(|x| (0.0..=LARGEST).contains(x))
            && self.sampled_at.is_none_or(f64::is_finite)
            && self.history.is_sound(self.elapsed)
            && self.sight.is_sound(self.elapsed)
    }

    fn channel(&self) -> usize {
        if self.watched == Watched::Used { USED } else { WATCHED }
    }
}

#[cfg(test)]
mod tests;
