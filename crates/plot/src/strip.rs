//! Rows of labels above a plot, each at its moment, none on another.

/// A label that wants a place: its moment and width, both in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wanted {
    /// Where its moment is.
    pub(super) x: f64,
    pub(super) width: f64,
}

/// Where a label begins, and in which row, counted from the plot up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StripPlace {
    /// Its left edge in pixels.
    pub(super) left: f64,
    /// 0 is next to the plot.
    pub(super) row: usize,
}

/// Pixels between a label and the line of its moment.
const BESIDE: f64 = 3.0;
/// Pixels between labels.
const APART: f64 = 8.0;

/// A place for each label, or none where all rows are full; the first ones are served first.
pub(super) fn arrange(wanted: &[Wanted], from: f64, to: f64, rows: usize) -> Vec<Option<StripPlace>> {
    let mut taken: Vec<Vec<(f64, f64)>> = vec![Vec::new(); rows];
    wanted
        .iter()
        .map(|label| {
            // To the right of its line where there is room, to the left where there is not.
            let sides = [label.x + BESIDE, label.x - BESIDE - label.width];
            let place = (0..rows).find_map(|row| {
                let fits = |left: &f64| {
                    let right = left + label.width;
                    *left >= from
                        && right <= to
                        && !taken[row]
                            .iter()
                            .any(|(begin, end)| left - APART < *end && *begin < right + APART)
                };
                sides.into_iter().find(fits).map(|left| StripPlace { left, row })
            })?;
            taken[place.row].push((place.left, place.left + label.width));
            Some(place)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_move_up_and_to_the_left() {
        let wanted = [0.0, 10.0, 95.0, 12.0, 14.0].map(|x| Wanted { x, width: 40.0 });
        let places = arrange(&wanted, 0.0, 100.0, 3);
        let expected =
            [(3.0, 0), (13.0, 1), (52.0, 0), (15.0, 2)].map(|(left, row)| Some(StripPlace { left, row }));
        assert_eq!(places[..4], expected);
        assert_eq!(places[4], None);
    }

    proptest::proptest! {
        #[test]
        fn no_label_lies_on_another(
            wanted in proptest::collection::vec((-50.0..550.0, 0.0..200.0), 0..40), rows in 0_usize..4
        ) {
            let wanted: Vec<Wanted> = wanted.into_iter().map(|(x, width)| Wanted { x, width }).collect();
            let places: Vec<(f64, f64, usize)> = arrange(&wanted, 0.0, 500.0, rows)
                .into_iter()
                .zip(&wanted)
                .filter_map(|(place, label)| place.map(|place| (place.left, place.left + label.width, place.row)))
                .collect();
            for (at, one) in places.iter().enumerate() {
                assert!(one.0 >= 0.0 && one.1 <= 500.0 && one.2 < rows);
                for two in &places[..at] {
                    assert!(one.2 != two.2 || one.1 < two.0 || two.1 < one.0);
                }
            }
        }
    }
}
