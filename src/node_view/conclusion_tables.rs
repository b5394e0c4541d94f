//! The tables of conclusions: when memory runs out, and what grows.

use super::table::{Cell, Row, Table};
use crate::model::finding::Subject;
use crate::model::format;
use crate::model::outlook::{Forecast, Growth};

/// When the memory of each resource runs out.
pub fn forecast_table<'a>(of: impl IntoIterator<Item = (&'a Subject, &'a Forecast)>) -> Table {
    let all: Vec<_> = of.into_iter().collect();
    let rate = format::rates(&all.iter().map(|(_, forecast)| forecast.growth()).collect::<Vec<_>>());
    let rows = all.into_iter().map(|(subject, forecast)| {
        let tte = forecast.stated();
        let range = tte.map(|tte| {
            let late = tte.p90.map_or_else(|| "never".to_owned(), format::duration);
            format!("{} to {late}", format::duration(tte.p10))
        });
        let left = tte.map(|tte| tte.p50);
        Row::new(subject.to_string(), forecast.health())
            .text("", 0, subject.to_string())
            .bytes("used", 4, Some(forecast.used_bytes))
            .bytes("limit", 2, Some(forecast.limit_bytes))
            .value("share", 0, Some(forecast.used_share()), format::percent)
            .value("growth", 1, forecast.growth(), &rate)
            .number("runs out in", 0, Cell::time_left(left, format::shown(left, format::duration)))
            .number("p10 to p90", 6, range.unwrap_or_default())
            .value("P(15 min)", 5, forecast.within(900.0), format::percent)
            .value("P(60 min)", 3, forecast.within(3600.0), format::percent)
            .text("health", 0, Cell::text(forecast.health().word()).of(forecast.health()))
    });
    Table::new("Forecasts", rows, "No resource with a limit was found.")
}

/// What grows; `now` is in seconds since 1970, and each name may have more than the subject.
pub fn growth_table<'a>(of: impl IntoIterator<Item = (String, &'a Growth)>, now: f64) -> Table {
    let all: Vec<_> = of.into_iter().collect();
    let rate = format::rates(&all.iter().map(|(_, growth)| growth.bytes_per_second()).collect::<Vec<_>>());
    let rows = all.into_iter().map(|(name, growth)| {
        let seen = growth.evidence;
        let since = growth.since_unix_seconds.filter(|_| growth.grows());
        Row::new(name.clone(), growth.state.into())
            .text("", 0, name)
            .text("state", 0, Cell::text(growth.state.word()).of(growth.state.into()))
            .bytes("memory", 1, Some(growth.evaluated_bytes))
            .value("growth", 0, growth.bytes_per_second(), &rate)
            .value("since", 2, since, |since| format::clock(since, now))
            .value("confidence", 0, growth.confidence.filter(|_| growth.grows()), |sure| format!("{sure:.2}"))
            .value("rise", 3, seen.map(|seen| seen.rise_bytes), format::change)
            .value("window", 4, seen.map(|seen| seen.window_seconds), format::duration)
    });
    Table::new("Growth", rows, "No workload was found.")
}
