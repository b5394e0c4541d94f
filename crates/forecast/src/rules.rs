//! Every rule and constant of the arithmetic by a name, with the reason for its value.
//!
//! [`Rules::DAEMON`] is a constant, so that in the daemon a rule costs a load from memory that never changes.
//! [`Rules::switch_off`] sets one to its neutral value: the benchmark of forecasts measures with it what each one buys
//! (docs/measurements/benchmark-forecasts.md). Not here are the sizes of the bounded memory ([`crate::history`]) and the steps of
//! iterations and integrals: they are resolutions, with nothing neutral.

/// Declares the rules: type, value, and the value with which the rule changes nothing.
macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $value:expr, without $without:expr;)+) => {
        /// The rules and constants that an assessment follows.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Rules { $($(#[doc = $doc])+ pub $name: $kind,)+ }

        impl Rules {
            /// Those that the daemon follows.
            pub const DAEMON: &'static Self = &Self { $($name: $value,)+ };

            /// The name of every rule.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name),)+];

            /// Sets the named rule to its neutral value; returns whether there is one of this name.
            pub fn switch_off(&mut self, name: &str) -> bool {
                match name {
                    $(stringify!($name) => self.$name = $without,)+
                    _ => return false,
                }
                true
            }
        }
    };
}

rules! {
    // Time of a series.

    /// A step longer than this many intervals is a gap and counts as one interval, because nothing was observed.
    gap_intervals: f64 = 8.0, without f64::INFINITY;
    /// After this many consecutive gaps, the gap is the new interval.
    gap_count: u8 = 3, without u8::MAX;
    /// Weight of a new step in the learned interval.
    interval_weight: f64 = 0.05, without 0.0;

    // Buckets and blocks of a window.

    /// The floor of a block is this quantile of its buckets' minima, so that a single dip does not determine it.
    block_floor: f64 = 0.2, without 0.0;
    /// Differences below this many bytes are insignificant: four pages of 4 KiB. It keeps the error of an exact line above
    /// zero, and so its distance from zero in standard errors finite.
    grain_bytes: f64 = 16_384.0, without 0.0;
    /// Minimum share of the variation that is attributed to a random walk: with a dozen points the variogram cannot rule
    /// it out.
    walk_at_least: f64 = 0.15, without 0.0;
    /// The largest step is most of the variation if its square exceeds this multiple of all the other squares together.
    walk_step: f64 = 8.0, without f64::INFINITY;

    // Growth in a window.

    /// Number of windows, longest first.
    windows: usize = 7, without 1;
    /// The longest window, as a share of the history: the first 5 % are excluded as its start-up.
    window_longest: f64 = 0.95, without 1.0;
    /// Minimum number of samples for an assessment.
    samples: f64 = 60.0, without 0.0;
    /// Minimum number of samples of a window: a shorter one may be the rise of a single sawtooth period.
    window_samples: f64 = 40.0, without 0.0;
    /// Minimum number of buckets of a window, so that nearly every block has one.
    window_buckets: usize = 12, without 4;
    /// An envelope climbs if its slope exceeds this many standard errors. A random walk exceeds it in one of 16 series.
    climb: f64 = 2.5, without 0.0;
    /// The same threshold if neither of the other two envelopes climbs.
    climb_alone: f64 = 3.5, without f64::INFINITY;
    /// Minimum rise, as a share of the level: caches at their limit still grow by 1 %.
    least_rise_share: f64 = 0.01, without 0.0;
    /// Minimum rise, in bytes.
    least_rise_bytes: f64 = 4.0 * 1_048_576.0, without 0.0;
    /// A level is new if its floor is above this quantile of the floors before the window. Not the maximum: phases and
    /// checkpoints raise the floor temporarily.
    held_before: f64 = 0.75, without 0.0;
    /// Growth slows down if the slope of each third is below this share of the slope of the third before it.
    slowing: f64 = 0.8, without 0.0;
    /// And if the slopes of the first and the last third differ by this many standard errors.
    slowing_errors: f64 = 2.0, without 0.0;
    /// Minimum z of two envelopes for which a slowing long window also decides for the shorter windows in it.
    slowing_climb: f64 = 1.5, without f64::INFINITY;
    /// Additional standard errors where there are two evaluations, of which one is wrong more often than a single one.
    surer: f64 = 0.3, without 0.0;
    /// Whether the reported rate is weighted with that of the newer half of the window.
    newer_half: bool = true, without false;

    // The end of growth.

    /// Whether growth ends where the newest gain is below every earlier gain over the same time.
    end_by_gain: bool = true, without false;
    /// A tail that gained less than this share of what the rate predicts may be the end of growth.
    end_gained: f64 = 0.5, without f64::INFINITY;
    /// It is the end if every earlier interval of that length gained more, and the tail is this many standard deviations
    /// of the earlier gains below their mean.
    end_deviations: f64 = 2.25, without 0.0;
    /// Number of newest buckets that the noise of a gain is estimated from.
    end_noise_buckets: usize = 24, without 0;
    /// A late part of the growth is flat if its slope is below this share of the earlier slope.
    flat: f64 = 0.35, without f64::NEG_INFINITY;
    /// And if the slopes differ by this many standard errors.
    flat_errors: f64 = 1.5, without 0.0;
    /// Whether a leak ends where its window slows down.
    end_by_slowing: bool = true, without false;

    // From growth to a leak.

    /// How long growth must have lasted to be a leak, as a share of the evaluated time.
    hold: f64 = 0.03, without 0.0;
    /// The same for the newest samples of a longer history, all of which are replaced every 22 minutes.
    hold_recent: f64 = 0.06, without 0.0;
    /// The most that one evaluation of the whole of a longer history adds.
    hold_step_whole: f64 = 0.01, without 1.0;
    /// Share of the time that counts while growth accelerates, because its rate is not established yet.
    accelerating: f64 = 0.25, without 1.0;
    /// Share of the time that counts at a level where growth ended before.
    old_level: f64 = 0.2, without 1.0;
    /// A level is new if it exceeds that level by this factor.
    new_level: f64 = 1.01, without 1.0;
    /// Growth has resumed if it has gained this share of its former rate since it ended: a cache at its limit gains less.
    resumed: f64 = 0.5, without f64::INFINITY;
    /// The most that one evaluation adds after growth has ended once, as a share of the required duration: two evaluations
    /// make a leak again.
    again: f64 = 0.6, without f64::INFINITY;
    /// The whole of a history shows by itself that growth ended this share of it ago; before that, the newest samples do.
    seen_by_whole: f64 = 0.15, without 0.0;
    /// They do if growth stands for longer than this multiple of its longest pause, below a new level.
    pauses: f64 = 1.5, without 0.0;
    /// If the rate of the newest buckets is below this share of the window's rate, growth has ended while the window still
    /// includes it.
    fades: f64 = 0.35, without f64::NEG_INFINITY;
    /// Number of these buckets.
    fade_buckets: usize = 6, without 4;

    // The newest samples and the whole history.

    /// A level below this share of the old floor is another program's.
    restart: f64 = 2.0 / 3.0, without 0.0;
    /// When it has lasted for this share of the history.
    restart_lasts: f64 = 0.15, without 0.0;
    /// By how much the newest peak must be above the highest one of the past, so that a day like the one before is no growth:
    /// tops are means, and of half precision.
    past_above: f64 = 1.02, without 0.0;
    /// A level above this share of the limit is no comfort, however often it was held.
    past_near_limit: f64 = 0.8, without f64::INFINITY;

    // The forecast by the trend.

    /// How long growth must have lasted for a forecast, as a share of what a leak requires.
    forecast_hold: f64 = 0.5, without 0.0;
    /// Iterations until the time looked ahead and the time looked back agree.
    look_back_rounds: usize = 3, without 1;
    /// Minimum number of newest buckets that the peak line is computed from: longer than the period of most sawtooth
    /// patterns.
    line_buckets: usize = 12, without 1;
    /// Quantile of these peaks that the line uses: a peak that recurs, not one that occurred once.
    line: f64 = 0.9, without 1.0;
    /// Standard error of the distance to the limit, as a share of the spread of the peaks below the line.
    line_error: f64 = 0.5, without 0.0;
    /// Added to the rate's standard error, as a share of the rate: no leak keeps a constant rate.
    pace: f64 = 0.08, without 0.0;
    /// Maximum time to exhaustion, as a multiple of the observed duration of the growth.
    reach: f64 = 2.5, without f64::INFINITY;
    /// Whether the variation of the earlier means is added where growth is found in the whole history.
    swing: bool = true, without false;
    /// A bucket in which the value changed by less than this share counts as constant: where most are, the allocated memory
    /// is extrapolated.
    still: f64 = 1e-4, without f64::NEG_INFINITY;
    /// Quantile, over the buckets of the window, of the device memory in use above the allocated memory.
    overhead: f64 = 0.4, without 0.0;
    /// Growth that has lasted for T goes on for another t with probability (T/(T+t)) to this power: a Pareto law of its
    /// duration. With 1, the observed part would be as likely the first part of the duration as the last; probabilities
    /// above one half then come true more often than they say.
    goes_on: f64 = 0.5, without 0.0;
    /// The probability that growth which is no leak yet exceeds an earlier maximum. Most such growth is a return, as in each
    /// cycle of a load: of simulated growth with warnings, less than one in a hundred came true.
    returns: f64 = 0.05, without 1.0;
    /// Without a new maximum for this share of the longest time between two of them, growth goes on.
    record_pause: f64 = 0.75, without 1.0;
    /// After that, the probability that it does decreases with this power of the time.
    record_fades: i32 = 2, without 0;

    // Peaks in memory.

    /// Height of the tallest peaks, as a share of the highest one in memory.
    peak_tall: f32 = 0.7, without 0.25;
    /// Height of nearly all peaks.
    peak_all: f32 = 0.25, without 0.0;
    /// What remains of the highest height after each sample: half after 5,700 samples, so that peaks that recur every half
    /// an hour at one sample a second keep the threshold.
    peak_remains: f32 = 1.0 - 1.0 / 8192.0, without 1.0;
    /// Minimum height of a peak, as a share of the level.
    peak_least: f32 = 0.003, without 0.0;
    /// A rise by less than this share of the threshold does not change the time of a peak: the highest value of a long phase
    /// is anywhere in it.
    peak_top: f32 = 0.2, without 0.0;

    // The forecast by peaks that recur.

    /// Whether peaks that recur are forecast one by one.
    peaks: bool = true, without false;
    /// Peaks matter where their height is at least this share of the distance to the limit; lower ones hardly change the
    /// time to exhaustion.
    peaks_height: f64 = 0.3, without 0.0;
    /// And where their period is longer than this many of the newest buckets; more frequent ones are in every bucket, whose
    /// highest values the trend goes through.
    peaks_apart: f64 = 3.0, without 0.0;
    /// Peaks that recur without a phase are used if they are higher than those of the phase by this factor.
    phase_height: f64 = 1.5, without 0.0;
    /// Number of newest peaks that the line goes through; its slope is that of all.
    peaks_newest: usize = 5, without 15;
    /// Deviation of the highest values that is assumed beforehand, as a share of the height.
    peaks_deviation: f64 = 0.03, without 0.0;
    /// With the weight of so many peaks.
    peaks_deviation_weight: f64 = 2.0, without 0.0;
    /// The peaks may grow at another rate than the level below them: its error, as a share of the rate.
    peaks_other_rate: f64 = 0.15, without 0.0;
    /// Heights grow if their slope exceeds this many standard errors.
    peaks_height_grows: f64 = 2.0, without f64::INFINITY;
    /// Whether the slope is that of the newer half of the peaks since growth began, where these are enough.
    peaks_newer_half: bool = true, without false;
    /// Peaks have ended if the next one is later than its time by this share of the period.
    peaks_overdue: f64 = 0.6, without f64::INFINITY;
    /// And by so many deviations.
    peaks_overdue_deviations: f64 = 3.0, without 0.0;
    /// Intervals that deviate by more than this share of the period do not recur.
    peaks_irregular: f64 = 0.9, without f64::INFINITY;
    /// A rise is the next peak once it is at most this share lower than the lowest one.
    peaks_arrived: f64 = 0.25, without f64::NEG_INFINITY;
    /// How long a peak goes on, as a share of the period.
    peaks_present: f64 = 0.25, without 0.0;
    /// Peaks whose intervals deviate by at most this share of the period are forecast better than the line through them.
    peaks_on_time: f64 = 0.2, without f64::INFINITY;

    // Peaks that grow where the level below them does not.

    /// Whether they are forecast.
    alone: bool = true, without false;
    /// Their slope exceeds this many standard errors.
    alone_sure: f64 = 5.0, without 0.0;
    /// At a deviation of the period of at most this share.
    alone_regular: f64 = 0.35, without f64::INFINITY;
    /// At a growth from peak to peak of at most this share of the height.
    alone_per_period: f64 = 0.5, without f64::INFINITY;
    /// The slope of the newer half of the peaks is at least this share of the slope of all.
    alone_goes_on: f64 = 0.6, without f64::NEG_INFINITY;
}

impl Rules {
    /// Those for memory that many programs share, such as the host's: builds and tests rise for a minute or more, and what they
    /// took is free again when they end. A rise is as likely to end within the time that it has lasted as it is to go on.
    pub const SHARED: &'static Self = &Self { goes_on: 1.0, ..*Self::DAEMON };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_switches_off_one_rule() {
        let without = |name: &&str| {
            let mut rules = *Rules::DAEMON;
            assert!(rules.switch_off(name));
            rules
        };
        let all: Vec<Rules> = Rules::NAMES.iter().map(without).collect();
        for (name, rules) in Rules::NAMES.iter().zip(&all) {
            assert_ne!(rules, Rules::DAEMON, "{name} is neutral already");
            assert_eq!(
                all.iter().filter(|other| *other == rules).count(),
                1,
                "{name} is another rule's name"
            );
        }
        let mut rules = *Rules::DAEMON;
        assert!(!rules.switch_off("no such rule") && rules == *Rules::DAEMON);
    }
}
