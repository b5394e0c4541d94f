//! A run in one JSON document: each figure's range, and the newest rows.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::row::{COLUMNS, Row};
use super::table;

/// Rows that a summary keeps.
const MOST_ROWS: usize = 1_000;

/// What was seen of one figure.
#[derive(Clone, Copy, Debug, Serialize)]
struct Range {
    count: u64,
    minimum: f64,
    maximum: f64,
    mean: f64,
    last: f64,
}

/// One run so far.
#[derive(Debug)]
pub struct Summary {
    workload: String,
    begun: f64,
    ranges: [Option<Range>; COLUMNS.len()],
    rows: VecDeque<Row>,
    steps: Option<(u64, u64)>,
}

impl Summary {
    /// A run that begins now, in seconds since 1970.
    pub fn new(workload: &str, begun: f64) -> Self {
        Self {
            workload: workload.to_owned(),
            begun,
            ranges: [None; COLUMNS.len()],
            rows: VecDeque::new(),
            steps: None,
        }
    }

    /// Takes one row.
    pub fn add(&mut self, row: &Row) {
        for (range, value) in self.ranges.iter_mut().zip(row.values) {
            let Some(value) = value else { continue };
            let known =
                range.unwrap_or(Range { count: 0, minimum: value, maximum: value, mean: 0.0, last: value });
            let count = known.count + 1;
            *range = Some(Range {
                count,
                minimum: known.minimum.min(value),
                maximum: known.maximum.max(value),
                mean: known.mean + (value - known.mean) / number(count),
                last: value,
            });
        }
        self.steps = Some((self.steps.map_or(row.step, |(first, _)| first), row.step));
        if self.rows.len() == MOST_ROWS {
            self.rows.pop_front();
        }
        self.rows.push_back(row.clone());
    }

    /// The document: `workload`, `started`, `first_step`, `last_step`, `statistics` by figure, `iteration_logs`; base
    /// units, times in UTC, what is not known left out.
    pub fn json(&self) -> String {
        #[derive(Serialize)]
        struct Document<'a> {
            workload: &'a str,
            started: String,
            first_step: Option<u64>,
            last_step: Option<u64>,
            statistics: BTreeMap<&'static str, Range>,
            iteration_logs: Vec<BTreeMap<&'static str, serde_json::Value>>,
        }
        let ranges = COLUMNS.iter().zip(self.ranges);
        let document = Document {
            workload: &self.workload,
            started: table::date(self.begun),
            first_step: self.steps.map(|(first, _)| first),
            last_step: self.steps.map(|(_, last)| last),
            statistics: ranges.filter_map(|(column, range)| Some((column.name, range?))).collect(),
            iteration_logs: self.rows.iter().map(record).collect(),
        };
        serde_json::to_string(&document).expect("text keys and finite numbers") + "\n"
    }
}

fn record(row: &Row) -> BTreeMap<&'static str, serde_json::Value> {
    let figures =
        COLUMNS.iter().zip(row.values).filter_map(|(column, value)| Some((column.name, value?.into())));
    let fixed = [("iteration", row.step.into()), ("timestamp", table::date(row.unix_seconds).into())];
    fixed.into_iter().chain(figures).collect()
}

#[expect(clippy::cast_precision_loss, reason = "rows of a run stay below 2^53")]
const fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_rows() {
        let mut summary = Summary::new("slurm/17", 0.0);
        for (step, seconds) in [(10, 1.0), (20, 3.0)] {
            let mut values = [None; COLUMNS.len()];
            values[0] = Some(seconds);
            summary.add(&Row { unix_seconds: seconds, step, values });
        }
        expect_test::expect![[r#"
            {"workload":"slurm/17","started":"1970-01-01 00:00:00","first_step":10,"last_step":20,"statistics":{"step_seconds":{"count":2,"minimum":1.0,"maximum":3.0,"mean":2.0,"last":3.0}},"iteration_logs":[{"iteration":10,"step_seconds":1.0,"timestamp":"1970-01-01 00:00:01"},{"iteration":20,"step_seconds":3.0,"timestamp":"1970-01-01 00:00:03"}]}
        "#]]
        .assert_eq(&summary.json());
        let row = Row { unix_seconds: 0.0, step: 1, values: [None; COLUMNS.len()] };
        for _ in 0..2 * MOST_ROWS {
            summary.add(&row);
        }
        assert_eq!(summary.rows.len(), MOST_ROWS);
    }
}
