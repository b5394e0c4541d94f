//! What a chart shows: series over time in stacked panels, with limits, forecasts, bands and events.
//!
//! Plain data, filled by reports, replay, incidents and commands alike. Times are seconds: since the
//! start, or since 1970 ([`TimeAxis`]). A number that is missing is `None`, or not finite: never zero.

use serde::{Deserialize, Serialize};

use super::ticks::Unit;
use memwarden_model::outlook::Tte;

/// A picture's worth of series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chart {
    /// What is shown; may be empty.
    pub title: String,
    /// The verdict, or where the series are from; may be empty.
    pub subtitle: String,
    pub time: TimeAxis,
    /// From top to bottom, all with the same time axis.
    pub panels: Vec<Panel>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeAxis {
    /// As seconds since the start, wherever that was.
    #[default]
    Elapsed,
    /// As UTC wall time; times are seconds since 1970.
    Utc,
    /// As wall time of a zone that is not known; times are seconds since 1970 there.
    Local,
    /// As numbers of samples: the series has no times.
    Order,
}

/// Series that share a value axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Panel {
    /// What the values are, for example "GPU 0 memory"; may be empty.
    pub title: String,
    /// What the values count.
    pub unit: Unit,
    /// The series, the most important first.
    pub lines: Vec<Line>,
    /// The level that nothing may cross.
    pub limit: Option<Limit>,
    /// When the limit is expected to be reached.
    pub fan: Option<Fan>,
    /// Stretches of time that mean something.
    pub bands: Vec<Band>,
    /// Moments that mean something.
    pub events: Vec<Event>,
    /// Where the value axis begins.
    pub baseline: Baseline,
}

/// Where a value axis begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Baseline {
    /// At zero (or below, for negative values): heights can be compared.
    #[default]
    Zero,
    /// Near the lowest value: small changes of a large value can be seen. The chart says so.
    Fit,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub name: String,
    /// Time and value; a missing value breaks the line, as does a step of time much longer than the others.
    pub points: Vec<(f64, Option<f64>)>,
}

/// A level that nothing may cross.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Where, in the panel's unit.
    pub value: f64,
    /// What limits, for example "cgroup limit"; "limit" where empty.
    pub name: String,
}

/// When a limit is expected to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fan {
    /// When the forecast was made.
    #[serde(rename = "t_s")]
    pub at_s: f64,
    /// The level it began from, in the panel's unit.
    #[serde(skip)]
    pub from: f64,
    /// The level that is reached.
    #[serde(rename = "limit_bytes")]
    pub limit: f64,
    /// The time from `at_s` on.
    pub tte: Tte,
}

/// A stretch of time that means something, such as "leaking since 00:12".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Band {
    pub from_s: f64,
    /// Its end; none lasts to the end of the chart.
    pub to_s: Option<f64>,
    /// What it means.
    pub text: String,
    /// Whether it is bad news.
    #[serde(default)]
    pub alarm: bool,
}

/// A moment that means something, such as a checkpoint or a kill.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub t_s: f64,
    pub text: String,
    /// Whether it is bad news, which gets its label first.
    #[serde(default)]
    pub alarm: bool,
}

impl Line {
    /// The points that have a place: finite times and values, in order of time.
    ///
    /// A missing value stays, as `None`.
    pub(super) fn ordered(&self) -> Vec<(f64, Option<f64>)> {
        let finite = self.points.iter().filter(|(time, _)| time.is_finite());
        let mut points: Vec<_> =
            finite.map(|(time, value)| (*time, value.filter(|value| value.is_finite()))).collect();
        if !points.is_sorted_by(|one, two| one.0 <= two.0) {
            points.sort_by(|one, two| one.0.total_cmp(&two.0));
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_put_in_order_and_nothing_becomes_zero() {
        let points =
            vec![(2.0, Some(5.0)), (1.0, Some(f64::NAN)), (f64::NAN, Some(1.0)), (0.0, Some(f64::INFINITY))];
        let line = Line { name: String::new(), points };
        assert_eq!(line.ordered(), [(0.0, None), (1.0, None), (2.0, Some(5.0))]);
    }
}
