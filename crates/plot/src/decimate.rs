//! Many samples in few pixels, without losing a peak.
//!
//! M4 (Jugel et al., "M4: A Visualization-Oriented Time Series Data Aggregation", VLDB 2014): of each column
//! of pixels the first, the lowest, the highest and the last point are kept, which draws the same pixels as
//! all points would. Plain subsampling would lose the spikes that matter.

use super::picture::Point;

/// The points that must be drawn, in their order; at most four a pixel column.
///
/// The points are in order of `x`, in pixels.
pub(super) fn decimate(points: &[Point]) -> Vec<Point> {
    let mut kept = Vec::new();
    for column in points.chunk_by(|one, two| column(one.x) == column(two.x)) {
        let by_height = |one: &usize, two: &usize| column[*one].y.total_cmp(&column[*two].y);
        let (Some(low), Some(high)) =
            ((0..column.len()).min_by(by_height), (0..column.len()).max_by(by_height))
        else {
            continue;
        };
        let mut wanted = [0, low, high, column.len() - 1];
        wanted.sort_unstable();
        let mut last = None;
        for at in wanted {
            if last != Some(at) {
                kept.push(column[at]);
                last = Some(at);
            }
        }
    }
    kept
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a saturated column is as good as any beyond the picture"
)]
fn column(x: f64) -> i64 {
    x.floor() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(count: u32, height: impl Fn(u32) -> f64) -> Vec<Point> {
        (0..count).map(|at| Point::new(f64::from(at) / 100.0, height(at))).collect()
    }

    #[test]
    fn one_spike_among_many_is_kept() {
        let points = series(100_000, |at| if at == 54_321 { 7.0 } else { 500.0 });
        let kept = decimate(&points);
        assert!(kept.len() <= 4 * 1000, "{}", kept.len());
        assert!(kept.contains(&points[54_321]));
    }

    #[test]
    fn few_points_are_all_kept() {
        let points = [Point::new(0.0, 1.0), Point::new(0.5, 2.0), Point::new(3.0, 1.0)];
        assert_eq!(decimate(&points), points);
        assert!(decimate(&[]).is_empty());
    }

    proptest::proptest! {
        #[test]
        fn every_column_keeps_its_ends_and_extremes(heights in proptest::collection::vec(-1e6..1e6, 1..300)) {
            let points: Vec<Point> =
                heights.iter().zip(0_u32..).map(|(y, at)| Point::new(f64::from(at) / 7.0, *y)).collect();
            let kept = decimate(&points);
            assert!(kept.is_sorted_by(|one, two| one.x <= two.x));
            for column in points.chunk_by(|one, two| one.x.floor() == two.x.floor()) {
                let of: Vec<&Point> = kept.iter().filter(|point| point.x.floor() == column[0].x.floor()).collect();
                assert!(of.len() <= 4);
                let extreme = |pick: fn(f64, f64) -> f64, of: &[&Point]| of.iter().map(|p| p.y).reduce(pick);
                let all: Vec<&Point> = column.iter().collect();
                assert_eq!(extreme(f64::min, &of), extreme(f64::min, &all));
                assert_eq!(extreme(f64::max, &of), extreme(f64::max, &all));
                assert_eq!((of[0], of[of.len() - 1]), (&column[0], &column[column.len() - 1]));
            }
        }
    }
}
