//! Series from the answer of a Prometheus server to a range query.
//!
//! The format: <https://prometheus.io/docs/prometheus/latest/querying/api/#range-vectors>.
//! Values that are not finite are left out (`cluster::ranges`).

use std::collections::BTreeMap;

use memwarden::model::series::Series;

/// A series of an answer, by its labels and its points of time and value.
pub fn series(labels: &BTreeMap<String, String>, points: Vec<(f64, f64)>) -> Series {
    Series::of_points(name(labels), None, points.into_iter().map(|(at, used)| (at, Some(used))))
}

/// The series as Prometheus writes it: name and labels.
fn name(metric: &BTreeMap<String, String>) -> String {
    let labels = metric.iter().filter(|(label, _)| *label != "__name__");
    let labels: Vec<String> = labels.map(|(label, value)| format!("{label}={value:?}")).collect();
    let name = metric.get("__name__").map_or("", String::as_str);
    if labels.is_empty() && !name.is_empty() {
        name.to_owned()
    } else {
        format!("{name}{{{}}}", labels.join(","))
    }
}

/// Joins the answers for consecutive periods.
pub fn join(into: &mut Vec<Series>, more: Vec<Series>) {
    for found in more {
        match into.iter_mut().find(|series| series.name == found.name) {
            Some(series) => {
                let last = series.rows.last().map_or(f64::NEG_INFINITY, |row| row.at);
                series.rows.extend(found.rows.into_iter().filter(|row| row.at > last));
                series.remarks.extend(found.remarks);
            }
            None => into.push(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwarden::model::series::Row;

    #[test]
    fn a_range_is_a_series() {
        let labels = [("__name__", "up"), ("instance", "a:1")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let series = super::series(&labels, vec![(1.5, 10.0), (2.5, -1.0), (4.5, 1000.0), (3.5, 1.0)]);
        assert_eq!(series.name, "up{instance=\"a:1\"}");
        let rows: Vec<_> = series.rows.iter().map(|row| (row.at, row.used)).collect();
        assert_eq!(rows, [(1.5, 10.0), (4.5, 1000.0)]);
        assert_eq!(series.remarks, ["2 points that are not amounts, or out of order, were ignored"]);
        assert_eq!(super::series(&BTreeMap::new(), Vec::new()).name, "{}");
    }

    #[test]
    fn answers_are_joined_without_their_overlap() {
        let row = |at| Row { at, ..Row::default() };
        let series =
            |rows: &[f64]| Series { rows: rows.iter().copied().map(row).collect(), ..Series::default() };
        let mut all = vec![series(&[1.0, 2.0])];
        join(&mut all, vec![series(&[2.0, 3.0])]);
        assert_eq!(all[0].rows.iter().map(|row| row.at).collect::<Vec<_>>(), [1.0, 2.0, 3.0]);
    }
}
