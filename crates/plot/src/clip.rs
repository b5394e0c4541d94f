//! Shapes cut to the rectangle they may be painted in.

use super::picture::{Point, Rect};

/// The part of a convex polygon that lies within a rectangle; empty where none does.
///
/// Sutherland and Hodgman, "Reentrant Polygon Clipping", CACM 17 (1974).
pub(super) fn polygon(points: Vec<Point>, within: Rect) -> Vec<Point> {
    let (left, top, right, bottom) = (within.x, within.y, within.right(), within.bottom());
    let edges: [&dyn Fn(Point) -> f64; 4] =
        [&|point| point.x - left, &|point| right - point.x, &|point| point.y - top, &|point| {
            bottom - point.y
        }];
    let mut points = points;
    for inside in edges {
        let mut kept = Vec::with_capacity(points.len() + 2);
        for (at, &point) in points.iter().enumerate() {
            let before = points[if at == 0 { points.len() - 1 } else { at - 1 }];
            let (was, is) = (inside(before), inside(point));
            if (was < 0.0) != (is < 0.0) {
                let share = was / (was - is);
                kept.push(Point::new(
                    before.x + share * (point.x - before.x),
                    before.y + share * (point.y - before.y),
                ));
            }
            if is >= 0.0 {
                kept.push(point);
            }
        }
        points = kept;
    }
    points
}

/// The part of a straight line that lies within a rectangle.
///
/// Liang and Barsky, "A New Concept and Method for Line Clipping", ACM TOG 3 (1984).
pub(super) fn segment(from: Point, to: Point, within: Rect) -> Option<(Point, Point)> {
    let (dx, dy) = (to.x - from.x, to.y - from.y);
    let (mut begin, mut end) = (0.0_f64, 1.0_f64);
    let sides = [
        (-dx, from.x - within.x),
        (dx, within.right() - from.x),
        (-dy, from.y - within.y),
        (dy, within.bottom() - from.y),
    ];
    for (toward, room) in sides {
        if toward == 0.0 {
            if room < 0.0 {
                return None;
            }
            continue;
        }
        let at = room / toward;
        if toward < 0.0 {
            begin = begin.max(at);
        } else {
            end = end.min(at);
        }
    }
    let place = |share: f64| Point::new(from.x + share * dx, from.y + share * dy);
    (begin <= end).then(|| (place(begin), place(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Rect = Rect::new(10.0, 10.0, 80.0, 80.0);

    #[test]
    fn a_line_is_cut_at_the_edges() {
        let cut = segment(Point::new(0.0, 50.0), Point::new(100.0, 50.0), WITHIN).unwrap();
        assert_eq!(cut, (Point::new(10.0, 50.0), Point::new(90.0, 50.0)));
        let inside = (Point::new(20.0, 20.0), Point::new(30.0, 40.0));
        assert_eq!(segment(inside.0, inside.1, WITHIN), Some(inside));
        assert_eq!(segment(Point::new(0.0, 0.0), Point::new(5.0, 100.0), WITHIN), None);
        assert_eq!(segment(Point::new(0.0, 95.0), Point::new(100.0, 95.0), WITHIN), None);
    }

    #[test]
    fn a_polygon_is_cut_at_the_edges() {
        let triangle = vec![Point::new(50.0, 50.0), Point::new(200.0, 0.0), Point::new(200.0, 50.0)];
        let cut = polygon(triangle, WITHIN);
        assert!(cut.len() >= 3);
        assert!(cut.iter().all(|point| point.x <= 90.0 + 1e-9 && point.y >= 10.0 - 1e-9));
        assert!(
            polygon(vec![Point::default(), Point::new(5.0, 0.0), Point::new(0.0, 5.0)], WITHIN).is_empty()
        );
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_left_outside(
            corners in proptest::collection::vec((-1e4..1e4, -1e4..1e4), 3..6)
        ) {
            let corners: Vec<Point> = corners.into_iter().map(|(x, y)| Point::new(x, y)).collect();
            let mut left = polygon(corners.clone(), WITHIN);
            left.extend(segment(corners[0], corners[1], WITHIN).into_iter().flat_map(|(a, b)| [a, b]));
            for point in left {
                assert!((10.0 - 1e-6..=90.0 + 1e-6).contains(&point.x), "{point:?}");
                assert!((10.0 - 1e-6..=90.0 + 1e-6).contains(&point.y), "{point:?}");
            }
        }
    }
}
