//! The part of a report that can be drawn: the shape that reports write, and the chart of it.
//!
//! ```json
//! {"schema": "memwarden.report/1", "title": "oom: node01", "subtitle": "leaking since 12:05", "time": "utc",
//!  "series": [{"name": "GPU 0", "unit": "bytes", "points": [[1.5, 1024], [2.5, null]], "limit_bytes": 4096}],
//!  "events": [{"t_s": 2.0, "text": "checkpoint"}], "bands": [{"from_s": 1.5, "text": "leaking", "alarm": true}],
//!  "forecast": {"t_s": 2.5, "tte": {"p10": 60, "p50": 90, "p90": null}, "limit_bytes": 4096}}
//! ```

use serde::{Deserialize, Serialize};

pub use super::chart::{Band, Event as Mark, TimeAxis as Clock};
use super::chart::{Baseline, Chart, Fan, Limit, Line, Panel, TimeAxis};
use super::ticks::Unit;

/// Times from here on (2001) are taken for seconds since 1970 where a report does not say.
const WALL_TIME: f64 = 1e9;

/// What can be drawn of a report.
///
/// Only `schema` and `series` (each with `points`) must be there; keys that are not named here are ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name and version of the report's shape, for example "memwarden.report/1".
    pub schema: serde_json::Value,
    #[serde(default)]
    pub title: String,
    /// The verdict in a sentence.
    #[serde(default)]
    pub subtitle: String,
    /// What times count from; found from the times themselves where it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeAxis>,
    /// The series; those with the same unit and limit share a panel.
    pub series: Vec<Series>,
    #[serde(default)]
    pub events: Vec<Mark>,
    /// Verdicts that hold from a time on.
    #[serde(default)]
    pub bands: Vec<Band>,
    /// When a limit is expected to be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    #[serde(default)]
    pub name: String,
    /// `bytes`, `bytes_per_second`, `ratio`, `seconds`, or the sign of another unit.
    #[serde(default = "bytes")]
    pub unit: String,
    /// Pairs of seconds and value; `null` is missing, never zero.
    pub points: Vec<(f64, Option<f64>)>,
    /// The most it can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<f64>,
}

/// Quantiles of the time until a limit is reached, in seconds from `t_s` on; `null` is not foreseen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    #[serde(flatten)]
    pub fan: Fan,
    /// The name of the series that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
}

/// Points by the name of their subject: seconds since 1970 and value.
pub type Named = (String, Vec<(f64, Option<f64>)>);

impl Report {
    /// Puts values of the time `before` the report, which began at `started`, in front of the series whose names begin with that
    /// of their subject. Times are in seconds since 1970 then.
    pub fn precede(&mut self, started: f64, before: &[Named]) {
        if before.is_empty() {
            return;
        }
        self.time = Some(TimeAxis::Utc);
        for series in &mut self.series {
            series.points.iter_mut().for_each(|(at, _)| *at += started);
            let first = series.points.first().map_or(f64::INFINITY, |(at, _)| *at);
            let is_its = |subject: &str| {
                let rest = series.name.strip_prefix(subject);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',']))
            };
            if let Some((_, points)) = before.iter().find(|(subject, _)| is_its(subject)) {
                series.points.splice(..0, points.iter().copied().filter(|(at, _)| *at < first));
            }
        }
        self.events.iter_mut().for_each(|event| event.t_s += started);
        self.bands.iter_mut().for_each(|band| {
            band.from_s += started;
            band.to_s = band.to_s.map(|to| to + started);
        });
        self.forecast.iter_mut().for_each(|forecast| forecast.fan.at_s += started);
    }
}

fn bytes() -> String {
    "bytes".to_owned()
}

/// Reads the drawable part of a report.
///
/// # Errors
/// What the JSON lacks or where it is damaged, with line and column.
pub fn read(json: &[u8]) -> Result<Report, serde_json::Error> {
    serde_json::from_slice(json)
}

/// Reads the drawable part of all reports of a file: of the one that it is, or of those that it has for its `nodes`. A node
/// without series has no report.
///
/// # Errors
/// As [`read`].
pub fn read_all(json: &[u8]) -> Result<Vec<Report>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Nodes {
        nodes: Vec<serde_json::Value>,
    }
    let Ok(Nodes { nodes }) = serde_json::from_slice(json) else { return Ok(vec![read(json)?]) };
    let reports = nodes.into_iter().filter(|node| node.get("series").is_some());
    reports.map(serde_json::from_value).collect()
}

impl Report {
    pub fn chart(&self) -> Chart {
        let mut panels: Vec<Panel> = Vec::new();
        for series in &self.series {
            let (unit, limit) = (unit(&series.unit), series.limit_bytes.filter(|limit| limit.is_finite()));
            let line = Line { name: series.name.clone(), points: series.points.clone() };
            let same = |panel: &&mut Panel| {
                panel.unit == unit && panel.limit.as_ref().map(|limit| limit.value) == limit
            };
            match panels.iter_mut().find(same) {
                Some(panel) => panel.lines.push(line),
                None => panels.push(Panel {
                    unit,
                    lines: vec![line],
                    limit: limit.map(|value| Limit { value, name: String::new() }),
                    baseline: Baseline::Zero,
                    ..Panel::default()
                }),
            }
        }
        if let Some(forecast) = &self.forecast {
            attach(forecast, &mut panels);
        }
        for (at, panel) in panels.iter_mut().enumerate() {
            // The first panel names what is marked; in the others the lines alone are enough.
            let name = |text: &str| if at == 0 { text.to_owned() } else { String::new() };
            let event = |mark: &Mark| Mark { text: name(&mark.text), ..mark.clone() };
            panel.events = self.events.iter().map(event).collect();
            let band = |band: &Band| Band { text: name(&band.text), ..band.clone() };
            panel.bands = self.bands.iter().map(band).collect();
        }
        let first = self.series.iter().flat_map(|series| &series.points).map(|(time, _)| *time);
        let time = self.time.unwrap_or_else(|| clock(first.fold(f64::INFINITY, f64::min)));
        Chart { title: self.title.clone(), subtitle: self.subtitle.clone(), time, panels }
    }
}

/// What a series counts from, judged by its first time.
pub fn clock(first_s: f64) -> TimeAxis {
    if first_s.is_finite() && first_s >= WALL_TIME { TimeAxis::Utc } else { TimeAxis::Elapsed }
}

fn unit(name: &str) -> Unit {
    match name {
        "bytes" => Unit::Bytes,
        "bytes_per_second" => Unit::BytesPerSecond,
        "ratio" => Unit::Ratio,
        "seconds" => Unit::Seconds,
        other => Unit::Other(other.to_owned()),
    }
}

/// Puts a forecast on the panel it speaks of, from the last value known when it was made.
fn attach(forecast: &Forecast, panels: &mut [Panel]) {
    let Forecast { fan, series } = forecast;
    let limited = |panel: &Panel| panel.limit.as_ref().is_some_and(|limit| limit.value == fan.limit);
    let named = |line: &Line| series.as_ref().is_some_and(|name| *name == line.name);
    let at = panels
        .iter()
        .position(|panel| panel.lines.iter().any(named))
        .or_else(|| panels.iter().position(limited))
        .or_else(|| panels.iter().position(|panel| panel.unit == Unit::Bytes));
    let Some(panel) = at.and_then(|at| panels.get_mut(at)) else { return };
    let Some(line) = panel.lines.iter().find(|line| named(line)).or(panel.lines.first()) else { return };
    let known = line.ordered();
    let before = known.iter().filter(|(time, _)| *time <= fan.at_s);
    let Some(from) = before.filter_map(|(_, value)| *value).next_back() else { return };
    if panel.limit.is_none() {
        panel.limit = Some(Limit { value: fan.limit, name: String::new() });
    }
    panel.fan = Some(Fan { from, ..*fan });
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"schema": "memwarden.report/1", "title": "oom", "verdict": {"ignored": 1},
        "series": [{"name": "GPU 0", "points": [[0, 10], [1, null], [2, 30]], "limit_bytes": 100},
                   {"name": "GPU 1", "unit": "bytes", "points": [[0, 5]], "limit_bytes": 100},
                   {"name": "step", "unit": "seconds", "points": []}],
        "events": [{"t_s": 1, "text": "checkpoint"}],
        "forecast": {"t_s": 1.5, "tte": {"p10": 60, "p50": 90, "p90": null}, "limit_bytes": 100}}"#;

    #[test]
    fn a_report_becomes_a_chart() {
        let chart = read(REPORT.as_bytes()).unwrap().chart();
        assert_eq!(chart.time, TimeAxis::Elapsed);
        let lines: Vec<(&Unit, usize)> =
            chart.panels.iter().map(|panel| (&panel.unit, panel.lines.len())).collect();
        assert_eq!(lines, [(&Unit::Bytes, 2), (&Unit::Seconds, 1)]);
        assert_eq!(chart.panels[0].lines[0].points[1], (1.0, None));
        let fan = chart.panels[0].fan.unwrap();
        // The value of 2 s came after the forecast was made.
        assert_eq!((fan.from, fan.limit, fan.tte.p10, fan.tte.p90), (10.0, 100.0, 60.0, None));
        assert_eq!(chart.panels[0].events.len(), 1);
    }

    #[test]
    fn what_was_kept_before_a_report_comes_first() {
        let mut report = read(REPORT.as_bytes()).unwrap();
        let before =
            [("GPU 0".to_owned(), vec![(2e9 - 60.0, Some(1.0)), (2e9 - 50.0, None), (2e9 + 1.0, Some(2.0))])];
        report.precede(2e9, &before);
        let times: Vec<f64> = report.series[0].points.iter().map(|(at, _)| at - 2e9).collect();
        assert_eq!(times, [-60.0, -50.0, 0.0, 1.0, 2.0], "what the report has itself is not repeated");
        assert_eq!(report.series[1].points, [(2e9, Some(5.0))]);
        assert_eq!(
            (report.events[0].t_s, report.forecast.as_ref().unwrap().fan.at_s),
            (2e9 + 1.0, 2e9 + 1.5)
        );
        assert_eq!(report.chart().time, TimeAxis::Utc);
    }

    #[test]
    fn what_is_written_is_read() {
        let report = read(REPORT.as_bytes()).unwrap();
        let written = serde_json::to_vec(&report).unwrap();
        assert_eq!(read(&written).unwrap(), report);
    }

    #[test]
    fn wall_times_are_known_by_their_size() {
        assert_eq!(clock(1.7e9), TimeAxis::Utc);
        assert_eq!(clock(f64::INFINITY), TimeAxis::Elapsed);
        assert_eq!(clock(5.0), TimeAxis::Elapsed);
    }

    #[test]
    fn damage_is_named() {
        let error = read(b"{\"schema\": 1,\n\"series\": [{\"points\": [[1]]}]}").unwrap_err();
        assert_eq!(error.line(), 2);
        assert!(read(b"{\"schema\": 1}").unwrap_err().to_string().contains("series"));
    }
}
