//! The values that one rank has pushed. Pure: points in, series out; no socket, no clock.

use std::collections::BTreeMap;

use super::counts::Outcome;
use super::names::KnownName;
use crate::model::desc::{Desc, Kind};
use crate::model::histogram::Buckets;
use crate::model::label::Label;
use crate::model::units::real;

/// Step durations from 2 ms to 512 s: the bounds of the job socket's histogram.
const BOUNDS: usize = 19;
const FIRST: i32 = -9;
type Durations = Buckets<FIRST, BOUNDS>;

/// Most bounds of a histogram point.
const MOST_BOUNDS: usize = 1_024;
/// Most series of one rank, enough for every metric with two devices and a dozen phases.
const SERIES: usize = 128;
/// In nanoseconds: a point older than the newest by less than this is late; one older still means that the
/// clock was set back.
const LATE: u64 = 60_000_000_000;
/// Most values that a histogram may count.
const MOST_VALUES: u64 = 1 << 48;

/// Aggregation temporality of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Temporality {
    /// A gauge, not a total.
    Gauge,
    /// A total since the previous push.
    Delta,
    /// A total since its start.
    Cumulative,
}

/// The times of a point, in nanoseconds since 1970 by the job's clock; 0 if not given.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// Start of the counting.
    pub(super) start: u64,
    /// Time of the measurement.
    pub(super) at: u64,
}

/// The content of a histogram point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counted {
    pub(super) count: u64,
    /// Their sum, in seconds; absent if not given.
    pub(super) sum: Option<f64>,
    /// Number of values by our bounds, those above all bounds last; absent if the pushed bounds do not determine it.
    pub(super) buckets: Option<[u64; BOUNDS + 1]>,
}

/// The values that one rank has pushed.
#[derive(Debug, Default)]
pub(super) struct Figures {
    series: BTreeMap<(&'static str, Label), Series>,
    steps: Option<Steps>,
    last_step: Option<f64>,
}

#[derive(Debug)]
struct Series {
    desc: &'static Desc,
    value: f64,
    /// The value of the last point of a cumulative total.
    last: f64,
    times: Times,
}

/// The histogram of step durations.
#[derive(Debug, Default)]
struct Steps {
    durations: Durations,
    /// Whether a push had counts by our bounds.
    counted: bool,
    last: Option<Counted>,
    times: Times,
}

impl Times {
    /// Whether a point with these times is late, that is, a newer one from the same clock is known.
    const fn late_for(self, known: Self) -> bool {
        self.at != 0 && self.at < known.at && known.at - self.at < LATE
    }

    /// Whether it is the same point again.
    const fn repeats(self, known: Self) -> bool {
        self.at != 0 && self.at == known.at
    }
}

impl Figures {
    /// Applies a number point.
    pub(super) fn number(
        &mut self,
        known: &KnownName,
        extra: Label,
        value: f64,
        temporality: Temporality,
        times: Times,
    ) -> Outcome {
        let is_total = known.desc.kind == Kind::Counter;
        if is_total == (temporality == Temporality::Gauge) || known.desc.kind == Kind::Histogram {
            return Outcome::Unknown;
        }
        let value = value * known.factor;
        let value = if known.whole { value.round() } else { value };
        if !value.is_finite() || (value < 0.0 && !known.signed) {
            return Outcome::Refused;
        }
        let key = (known.desc.name, extra);
        let has_capacity = self.series.len() < SERIES;
        let Some(series) = self.series.get_mut(&key) else {
            if !has_capacity {
                return Outcome::Refused;
            }
            self.series.insert(key, Series { desc: known.desc, value, last: value, times });
            return Outcome::Taken;
        };
        if times.late_for(series.times) {
            return Outcome::Refused;
        }
        let more = match temporality {
            Temporality::Gauge => value - series.value,
            // A point that is pushed again because its response was lost counts once.
            Temporality::Delta if times.repeats(series.times) => 0.0,
            Temporality::Delta => value,
            Temporality::Cumulative if value < series.last || times.start != series.times.start => value,
            Temporality::Cumulative => value - series.last,
        };
        series.value = match temporality {
            Temporality::Gauge => value,
            _ => (series.value + more).min(f64::MAX),
        };
        (series.last, series.times) = (value, times);
        Outcome::Taken
    }

    /// Applies a histogram point of step durations.
    pub(super) fn steps(&mut self, counted: Counted, temporality: Temporality, times: Times) -> Outcome {
        let sum_is_wrong = counted.sum.is_some_and(|sum| !sum.is_finite() || sum < 0.0);
        let of =
            |buckets: &[u64; BOUNDS + 1]| buckets.iter().try_fold(0_u64, |sum, more| sum.checked_add(*more));
        let count_is_wrong = counted.buckets.is_some_and(|buckets| of(&buckets) != Some(counted.count));
        if temporality == Temporality::Gauge {
            return Outcome::Unknown;
        }
        if sum_is_wrong || count_is_wrong || counted.count > MOST_VALUES {
            return Outcome::Refused;
        }
        let steps = self.steps.get_or_insert_default();
        if times.late_for(steps.times) {
            return Outcome::Refused;
        }
        let before = match temporality {
            Temporality::Delta if times.repeats(steps.times) => return Outcome::Taken,
            Temporality::Cumulative if times.start == steps.times.start => steps.last,
            _ => None,
        };
        let more = before.and_then(|before| counted.since(&before)).unwrap_or(counted);
        // A part of the steps, or a sum without values, is not a histogram of the rank's steps.
        steps.counted =
            (steps.counted || steps.last.is_none()) && more.buckets.is_some() && more.sum.is_some();
        if let (Some(buckets), Some(sum)) = (&more.buckets, more.sum)
            && let Some((above, within)) = buckets.split_last()
            && let Ok(within) = within.try_into()
        {
            steps.durations.merge(within, *above, sum);
        }
        let mean = more.sum.filter(|_| more.count > 0).map(|sum| sum / real(more.count));
        self.last_step = mean.or(self.last_step);
        (steps.last, steps.times) = (Some(counted), times);
        Outcome::Taken
    }

    /// Each series: its metric, its last label and its value.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (&'static Desc, &Label, f64)> {
        self.series.iter().map(|((_, extra), series)| (series.desc, extra, series.value))
    }

    /// The histogram of step durations, if it was pushed with our bounds or finer ones.
    pub(super) fn durations(&self) -> Option<&Durations> {
        self.steps.as_ref().filter(|steps| steps.counted).map(|steps| &steps.durations)
    }

    /// Mean duration of the steps in the last push, in seconds.
    pub(super) const fn last_step(&self) -> Option<f64> {
        self.last_step
    }
}

impl Counted {
    /// The values counted since then; nothing if the counting restarted.
    fn since(&self, before: &Self) -> Option<Self> {
        let buckets = match (&self.buckets, &before.buckets) {
            (Some(now), Some(before)) => {
                let mut more = *now;
                for (more, before) in more.iter_mut().zip(before) {
                    *more = more.checked_sub(*before)?;
                }
                Some(more)
            }
            _ => None,
        };
        let sum = match (self.sum, before.sum) {
            (Some(now), Some(before)) if now >= before => Some(now - before),
            (Some(_), Some(_)) => return None,
            _ => None,
        };
        Some(Self { count: self.count.checked_sub(before.count)?, sum, buckets })
    }

    /// Converts explicit bounds, which `factor` converts to seconds: `bounds[i]` is the upper bound of `counts[i]`.
    ///
    /// Counts by memwarden's bounds exist only if each of these is a pushed bound; counts are never estimated.
    pub(super) fn explicit(
        count: u64,
        sum: Option<f64>,
        bounds: &[f64],
        counts: &[u64],
        factor: f64,
    ) -> Self {
        let sum = sum.map(|sum| sum * factor);
        let near = |one: f64, other: f64| (one - other).abs() <= other * 1e-9;
        let exact = bounds.len() <= MOST_BOUNDS
            && counts.len() == bounds.len() + 1
            && bounds.is_sorted()
            && Durations::bounds().all(|own| bounds.iter().any(|pushed| near(pushed * factor, own)));
        let buckets = exact.then(|| {
            let mut buckets = [0_u64; BOUNDS + 1];
            let ends = bounds.iter().map(|bound| bound * factor).chain([f64::INFINITY]);
            for (end, count) in ends.zip(counts) {
                let place = Durations::bounds().position(|own| end <= own || near(end, own));
                let bucket = &mut buckets[place.unwrap_or(BOUNDS)];
                *bucket = bucket.saturating_add(*count);
            }
            buckets
        });
        Self { count, sum, buckets }
    }

    /// Converts exponential buckets in seconds: the first is above `2^(offset / 2^scale)`, `zero` values are below all.
    ///
    /// With a scale of 0 or more their bounds include those of memwarden (opentelemetry-proto 1.x, `ExponentialHistogramDataPoint`).
    pub(super) fn exponential(
        count: u64,
        sum: Option<f64>,
        zero: u64,
        (scale, offset): (i32, i32),
        counts: &[u64],
    ) -> Self {
        let exact = (0..=20).contains(&scale);
        let buckets = exact.then(|| {
            let mut buckets = [0_u64; BOUNDS + 1];
            buckets[0] = zero;
            for (index, count) in (i64::from(offset)..).zip(counts) {
                // The bucket ends at 2^((index + 1) / 2^scale), and so lies within the next power of two.
                let exponent = (index >> scale) + 1;
                let place = usize::try_from((exponent - i64::from(FIRST)).max(0)).unwrap_or(BOUNDS);
                let bucket = &mut buckets[place.min(BOUNDS)];
                *bucket = bucket.saturating_add(*count);
            }
            buckets
        });
        Self { count, sum, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::known;
    use super::*;

    const AT: u64 = 1_700_000_000_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    fn times(start: u64, second: u64) -> Times {
        Times { start, at: AT + second * SECOND }
    }

    /// The exposed value of one total after each of these points: temporality, start, second, value.
    fn totals(points: &[(Temporality, u64, u64, f64)]) -> Vec<f64> {
        let tokens = known("memwarden.training.tokens", "").unwrap();
        let mut figures = Figures::default();
        let shown = points.iter().map(|(temporality, start, second, value)| {
            figures.number(&tokens, Label::default(), *value, *temporality, times(*start, *second));
            figures.numbers().map(|(_, _, value)| value).sum()
        });
        shown.collect()
    }

    #[test]
    fn totals_never_decrease() {
        use Temporality::{Cumulative, Delta};
        assert_eq!(
            totals(&[
                (Cumulative, 1, 1, 5.0),
                (Cumulative, 1, 2, 8.0),
                (Cumulative, 9, 3, 2.0),
                (Cumulative, 9, 4, 1.0)
            ]),
            [5.0, 8.0, 10.0, 11.0]
        );
        assert_eq!(
            totals(&[
                (Delta, 1, 1, 5.0),
                (Delta, 2, 2, 3.0),
                (Delta, 2, 2, 3.0),
                (Delta, 3, 1, 3.0),
                (Delta, 3, 3, 1.0)
            ]),
            [5.0, 8.0, 8.0, 8.0, 9.0],
            "what comes again or late counts once"
        );
        assert_eq!(
            totals(&[(Cumulative, 1, 100, 5.0), (Cumulative, 1, 1, 6.0)]),
            [5.0, 6.0],
            "a clock set back"
        );
        assert_eq!(
            totals(&[(Delta, 1, 1, f64::NAN), (Delta, 1, 2, -1.0), (Delta, 1, 3, f64::MAX)])[..2],
            [0.0, 0.0]
        );
    }

    #[test]
    fn series_are_bounded() {
        let phase = known("memwarden.training.phases", "").unwrap();
        let mut figures = Figures::default();
        let take = |number: usize| {
            figures.number(&phase, number.into(), 1.0, Temporality::Delta, Times::default()) == Outcome::Taken
        };
        assert_eq!((0..1_000).map(take).filter(|taken| *taken).count(), SERIES);
    }

    fn powers() -> Vec<f64> {
        Durations::bounds().collect()
    }

    /// The counts of the non-empty buckets, by bound.
    fn shown(figures: &Figures) -> Option<(Vec<(f64, u64)>, f64)> {
        let durations = figures.durations()?;
        let mut before = 0;
        let mut found = Vec::new();
        for (bound, count) in durations.cumulative().chain([(f64::INFINITY, durations.count())]) {
            if count != before {
                found.push((bound, count - before));
            }
            before = count;
        }
        Some((found, durations.sum()))
    }

    #[test]
    fn equal_or_finer_bounds_are_merged() {
        let mut figures = Figures::default();
        let mut finer = powers();
        finer.push(0.75);
        finer.sort_by(f64::total_cmp);
        let mut counts = vec![0; 21];
        // Up to 0.75, up to 1, and above all bounds.
        (counts[9], counts[10], counts[20]) = (2, 1, 1);
        let push = |figures: &mut Figures, counts: &[u64], sum, start, second| {
            let counted = Counted::explicit(counts.iter().sum(), Some(sum), &finer, counts, 1.0);
            figures.steps(counted, Temporality::Cumulative, times(start, second))
        };
        assert_eq!(push(&mut figures, &counts, 602.0, 1, 1), Outcome::Taken);
        assert_eq!(shown(&figures).unwrap(), (vec![(1.0, 3), (f64::INFINITY, 1)], 602.0));
        counts[10] = 3;
        push(&mut figures, &counts, 603.8, 1, 2);
        assert_eq!(shown(&figures).unwrap().0, [(1.0, 5), (f64::INFINITY, 1)]);
        assert!((figures.last_step().unwrap() - 0.9).abs() < 1e-9, "the mean of the two that are new");
        // The job's meter restarted.
        let mut again = vec![0; 21];
        again[10] = 1;
        push(&mut figures, &again, 0.8, 5, 3);
        assert_eq!(shown(&figures).unwrap().0, [(1.0, 6), (f64::INFINITY, 1)]);
        again[10] = u64::MAX;
        assert_eq!(push(&mut figures, &again, 0.8, 5, 4), Outcome::Refused);
    }

    #[test]
    fn other_bounds_give_only_a_mean() {
        let mut figures = Figures::default();
        let counted = Counted::explicit(4, Some(2_600.0), &[500.0, 750.0], &[0, 4, 0], 1e-3);
        assert_eq!(figures.steps(counted, Temporality::Delta, times(1, 1)), Outcome::Taken);
        assert_eq!((shown(&figures), figures.last_step()), (None, Some(0.65)));
        let wrong = Counted { sum: Some(f64::NAN), ..counted };
        assert_eq!(figures.steps(wrong, Temporality::Delta, times(1, 2)), Outcome::Refused);
        let unsorted = Counted::explicit(1, None, &[f64::NAN; 20], &[0; 21], 1.0);
        assert_eq!(unsorted.buckets, None);
        let counts = Counted::explicit(9, None, &powers(), &[1; 20], 1.0);
        assert_eq!(figures.steps(counts, Temporality::Delta, times(1, 3)), Outcome::Refused, "20 are not 9");
    }

    #[test]
    fn exponential_buckets_are_merged() {
        let of = |scale, offset, counts: &[u64]| {
            let counted = Counted::exponential(counts.iter().sum(), Some(1.0), 0, (scale, offset), counts);
            let mut figures = Figures::default();
            figures.steps(counted, Temporality::Delta, Times::default());
            shown(&figures).map(|(found, _)| found)
        };
        // Above 1/2 up to 1, above 1 up to 2.
        assert_eq!(of(0, -1, &[3, 4]), Some(vec![(1.0, 3), (2.0, 4)]));
        // Four buckets per power of two: the last quarter below 1, and the first above.
        assert_eq!(of(2, -1, &[3, 4]), Some(vec![(1.0, 3), (2.0, 4)]));
        assert_eq!(of(20, i32::MIN, &[1]), Some(vec![(1.0 / 512.0, 1)]));
        assert_eq!(of(0, i32::MAX, &[1]), Some(vec![(f64::INFINITY, 1)]));
        assert_eq!(of(-1, 0, &[1]), None, "one that spans several of memwarden's");
    }
}
