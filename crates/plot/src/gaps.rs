//! Where samples are missing: a line is broken there, and where no line has any the chart is shaded.

/// Steps of this many median steps are gaps: one or two lost samples are not worth breaking a line.
const MEDIANS: f64 = 5.0;
/// Steps of this many times the 95th percentile are gaps, so that a series of uneven steps is not torn up.
const PERCENTILES: f64 = 2.5;

/// A stretch of a series without holes, of one point or more.
pub(super) type Piece = Vec<(f64, f64)>;

/// The stretches of a series between its missing values and long steps of time.
///
/// The points are in order of time.
pub(super) fn pieces(points: &[(f64, Option<f64>)]) -> Vec<Piece> {
    let known = points.iter().filter(|(_, value)| value.is_some());
    // A column measured in every third row has no holes: it is a series with longer steps.
    if known.clone().count() * 2 < points.len() {
        let known: Vec<_> = known.copied().collect();
        return cut(&known);
    }
    cut(points)
}

fn cut(points: &[(f64, Option<f64>)]) -> Vec<Piece> {
    let longest = longest_step(points);
    let mut found: Vec<Piece> = Vec::new();
    let mut piece = Piece::new();
    for (time, value) in points {
        let late = piece.last().is_some_and(|(last, _)| time - last > longest);
        if (late || value.is_none()) && !piece.is_empty() {
            found.push(std::mem::take(&mut piece));
        }
        if let Some(value) = value {
            piece.push((*time, *value));
        }
    }
    if !piece.is_empty() {
        found.push(piece);
    }
    found
}

/// The longest step of time that is still no gap, in seconds.
fn longest_step(points: &[(f64, Option<f64>)]) -> f64 {
    let mut steps: Vec<f64> =
        points.windows(2).map(|pair| pair[1].0 - pair[0].0).filter(|step| *step > 0.0).collect();
    // Of three steps no one is the usual one.
    if steps.len() < 4 {
        return f64::INFINITY;
    }
    steps.sort_by(f64::total_cmp);
    let median = steps[steps.len() / 2];
    let high = steps[(steps.len() - 1) * 95 / 100];
    (MEDIANS * median).max(PERCENTILES * high)
}

/// The stretches of time, between the first and the last sample, in which no series has any.
pub(super) fn unknown(series: &[Vec<Piece>]) -> Vec<(f64, f64)> {
    let ends = |piece: &Piece| Some((piece.first()?.0, piece.last()?.0));
    let mut known: Vec<(f64, f64)> = series.iter().flatten().filter_map(ends).collect();
    known.sort_by(|one, two| one.0.total_cmp(&two.0));
    let mut found = Vec::new();
    let mut until = f64::INFINITY;
    for (from, to) in known {
        if from > until {
            found.push((until, from));
        }
        until = if until.is_finite() { until.max(to) } else { to };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn even(times: impl IntoIterator<Item = u32>) -> Vec<(f64, Option<f64>)> {
        times.into_iter().map(|time| (f64::from(time), Some(1.0))).collect()
    }

    #[test]
    fn a_missing_value_and_a_long_step_break_a_line() {
        let mut points = even((0..10).chain(30..40));
        points[3].1 = None;
        let ends: Vec<(f64, f64)> =
            pieces(&points).iter().map(|piece| (piece[0].0, piece[piece.len() - 1].0)).collect();
        assert_eq!(ends, [(0.0, 2.0), (4.0, 9.0), (30.0, 39.0)]);
        assert_eq!(unknown(&[pieces(&points)]), [(2.0, 4.0), (9.0, 30.0)]);
    }

    #[test]
    fn a_lost_sample_and_uneven_steps_do_not() {
        assert_eq!(pieces(&even((0..10).chain(13..20))).len(), 1);
        let uneven = even((0..200).map(|at| if at % 8 == 0 { at * 10 + 9 } else { at * 10 }));
        assert_eq!(pieces(&uneven).len(), 1);
        assert_eq!(pieces(&even([0, 1, 900])).len(), 1);
        assert!(pieces(&[(0.0, None)]).is_empty());
    }

    #[test]
    fn a_column_measured_now_and_then_is_a_line() {
        let mut points = even((0..60).chain(90..150));
        for (at, point) in points.iter_mut().enumerate() {
            point.1 = point.1.filter(|_| at % 4 == 0);
        }
        let lengths: Vec<usize> = pieces(&points).iter().map(Vec::len).collect();
        assert_eq!(lengths, [15, 15]);
    }

    #[test]
    fn what_another_series_knows_is_not_unknown() {
        let one = pieces(&even((0..10).chain(30..40)));
        let two = pieces(&even(5..20));
        assert_eq!(unknown(&[one, two]), [(19.0, 30.0)]);
        assert!(unknown(&[]).is_empty());
    }
}
