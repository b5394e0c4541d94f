//! The steps of a training run over time.

use super::units::{real, whole};

/// Maximum number of points. Of more, every second one is left out.
const MOST: usize = 1 << 16;

/// The step that a run had reached at each time that it recorded one, with straight lines between them.
///
/// Nothing is recorded before the first step that is logged. The run is taken to have begun one interval of the first two records
/// before the first one, at the same pace: where 10 and 20 are recorded first, it began at 0, and where 5,010 and 5,020 are, it
/// was resumed at 5,000. Nothing is known either of the time that is more than one usual interval after the last record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Steps {
    /// Seconds since the time origin of the recording, and the step; both rise.
    points: Vec<(f64, u64)>,
    /// Whether the first point is not a record but the beginning that is assumed.
    begin_is_assumed: bool,
}

impl Steps {
    /// Adds a record. One that is not later, or whose step is not larger, adds nothing: steps that are done again after a restart
    /// are no progress, and epochs that are recorded as steps are less than these.
    pub fn push(&mut self, at: f64, step: u64) {
        let Some(&(before, known)) = self.points.last() else {
            self.points.extend(at.is_finite().then_some((at, step)));
            return;
        };
        if !at.is_finite() || at <= before || step <= known {
            return;
        }
        if let [first] = *self.points {
            let interval = step - first.1;
            let done = first.1.min(interval);
            let begin = first.0 - (at - first.0) * real(done) / real(interval);
            self.begin_is_assumed = done > 0;
            self.points = if done > 0 { vec![(begin, first.1 - done), first] } else { vec![first] };
        }
        if self.points.len() == MOST {
            let mut place = 0;
            self.points.retain(|_| {
                place += 1;
                place % 2 == 1
            });
        }
        self.points.push((at, step));
    }

    /// Whether there are enough records to count steps: two.
    pub const fn is_known(&self) -> bool {
        self.points.len() > 1
    }

    /// The number of steps that were completed between two times, or that were at least completed where the later one is after the
    /// last record. Absent where fewer than two records are known, where all of the time is after the last record, and where the
    /// later time is more than one usual interval after it.
    pub fn between(&self, from: f64, to: f64) -> Option<u64> {
        if from < to && !(from < self.points.last()?.0 && to <= self.known_until()?) {
            return None;
        }
        let completed = |at| self.at(at).map(f64::floor);
        Some(whole((completed(to)? - completed(from)?).max(0.0)))
    }

    /// The steps of all records, from the beginning that is assumed to the last one.
    #[cfg(any(test, feature = "testing"))]
    pub fn recorded(&self) -> Option<u64> {
        let [(from, _), .., (to, _)] = *self.points else { return None };
        self.between(from, to)
    }

    /// The time of the last record and the median of the intervals between records. Where records were left out because there are
    /// many, the intervals of these are longer; the median is then at most twice as long.
    fn known_until(&self) -> Option<f64> {
        let records = self.points.get(usize::from(self.begin_is_assumed)..)?;
        let mut intervals: Vec<f64> = records.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        let middle = intervals.len() / 2;
        if intervals.is_empty() {
            return None;
        }
        let (_, median, _) = intervals.select_nth_unstable_by(middle, f64::total_cmp);
        Some(self.points.last()?.0 + *median)
    }

    fn at(&self, time: f64) -> Option<f64> {
        if !self.is_known() {
            return None;
        }
        let place = self.points.partition_point(|(at, _)| *at <= time);
        let before = place.checked_sub(1).and_then(|place| self.points.get(place));
        Some(match (before, self.points.get(place)) {
            (Some((at, step)), Some((next_at, next))) => {
                real(*step) + real(next - step) * (time - at) / (next_at - at)
            }
            (Some((_, step)), None) | (None, Some((_, step))) => real(*step),
            (None, None) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(points: &[(f64, u64)], (from, to): (f64, f64), expected: Option<u64>) {
        let mut steps = Steps::default();
        points.iter().for_each(|(at, step)| steps.push(*at, *step));
        assert_eq!(steps.between(from, to), expected, "{points:?} from {from} to {to}");
    }

    #[test]
    fn steps_are_counted_on_lines_between_the_records() {
        let every_ten = [(130.0, 10), (160.0, 20), (190.0, 30)];
        // 10 steps take 30 s, so that the first one began at 100 s.
        check(&every_ten, (0.0, 100.0), Some(0));
        check(&every_ten, (0.0, 115.0), Some(5));
        check(&every_ten, (115.0, 175.0), Some(20));
        check(&every_ten, (0.0, 190.0), Some(30));
        // Resumed at 5,000.
        check(&[(10.0, 5_010), (20.0, 5_020)], (0.0, 20.0), Some(20));
        // From the step 0 on, and from the step 1 on with a longer interval.
        check(&[(5.0, 0), (6.0, 1)], (0.0, 6.0), Some(1));
        check(&[(10.0, 1), (100.0, 10)], (0.0, 100.0), Some(10));
    }

    #[test]
    fn steps_after_the_last_record_are_unknown() {
        // A record each hour; the last one at 3:00.
        let hour = 3_600.0;
        let hourly = [(hour, 100), (2.0 * hour, 200), (3.0 * hour, 300)];
        // A checkpoint at 3:30, and the end at 3:50.
        check(&hourly, (3.5 * hour, 3.0 * hour + 3_000.0), None);
        check(&hourly, (3.0 * hour, 3.5 * hour), None);
        // A checkpoint at 2:30: at least the 50 steps until 3:00, unless the end is after 4:00.
        check(&hourly, (2.5 * hour, 4.0 * hour), Some(50));
        check(&hourly, (2.5 * hour, 4.0 * hour + 1.0), None);
        // Where no time is lost, no step is.
        check(&hourly, (3.5 * hour, 3.5 * hour), Some(0));
        // The intervals are 1, 1, 1 and 100 s; a long one, such as an evaluation, is not the usual one.
        let uneven = [(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4), (104.0, 5)];
        check(&uneven, (3.0, 105.0), Some(2));
        check(&uneven, (3.0, 106.0), None);
        // The first record was of step 50, so that the run began at 40 steps, 10 s earlier; this is no interval of records.
        check(&[(100.0, 50), (110.0, 60), (111.0, 70), (112.0, 80)], (90.0, 113.0), Some(40));
        check(&[(100.0, 50), (110.0, 60), (111.0, 70), (112.0, 80)], (90.0, 113.5), None);
    }

    #[test]
    fn one_very_large_step_makes_the_later_ones_unknown() {
        let largest = 1_u64 << 53;
        let hidden = (2..100_u32).map(|step| (f64::from(step), u64::from(step)));
        let with = |front: &[(f64, u64)]| front.iter().copied().chain(hidden.clone()).collect::<Vec<_>>();
        check(&with(&[(1.0, largest)]), (50.0, 99.0), None);
        check(&with(&[(0.0, 1), (1.0, largest)]), (50.0, 99.0), None);
        check(&with(&[(0.0, 1), (1.0, largest)]), (0.5, 99.0), None);
    }

    #[test]
    fn too_few_records_are_unknown_and_what_is_no_progress_is_ignored() {
        check(&[], (0.0, 1.0), None);
        check(&[(1.0, 1), (1.0, 2), (2.0, 1), (f64::NAN, 9)], (0.0, 1.0), None);
        check(&[(1.0, 1), (2.0, 2), (3.0, 1), (4.0, 4)], (0.0, 3.0), Some(3));
    }

    #[test]
    fn many_records_are_thinned() {
        let mut steps = Steps::default();
        (0..=200_000_u32).for_each(|step| steps.push(f64::from(step), u64::from(step)));
        assert!(steps.points.len() <= MOST, "{}", steps.points.len());
        assert_eq!(steps.between(1_000.0, 200_000.0), Some(199_000));
    }
}
