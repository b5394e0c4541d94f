//! The tables of conclusions: when memory runs out, and what grows.

use super::table::{Cell, Row, Table, number, text};
use crate::model::finding::Subject;
use crate::model::format;
use crate::model::health::Health;
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
        Row {
            id: subject.to_string(),
            health: forecast.health(),
            cells: vec![
                Cell::text(subject.to_string()),
                Cell::bytes(Some(forecast.used_bytes)),
                Cell::bytes(Some(forecast.limit_bytes)),
                Cell::number(Some(forecast.used_share()), format::percent),
                Cell::number(forecast.growth(), &rate),
                Cell::time_left(left, format::shown(left, format::duration)),
                Cell::text(range.unwrap_or_default()),
                Cell::number(forecast.within(900.0), format::percent),
                Cell::number(forecast.within(3600.0), format::percent),
                Cell::text(forecast.health().word()).of(forecast.health()),
            ],
            link: None,
        }
    });
    Table {
        name: "Forecasts",
        columns: vec![
            text("", 0),
            number("used", 4),
            number("limit", 2),
            number("share", 0),
            number("growth", 1),
            number("runs out in", 0),
            number("p10 to p90", 6),
            number("P(15 min)", 5),
            number("P(60 min)", 3),
            text("health", 0),
        ],
        rows: rows.collect(),
        empty: "No resource with a limit was found.".to_owned(),
        ..Table::default()
    }
}

/// What grows; `now` is in seconds since 1970, and each name may have more than the subject.
pub fn growth_table<'a>(of: impl IntoIterator<Item = (String, &'a Growth)>, now: f64) -> Table {
    let all: Vec<_> = of.into_iter().collect();
    let rate = format::rates(&all.iter().map(|(_, growth)| growth.bytes_per_second()).collect::<Vec<_>>());
    let rows = all.into_iter().map(|(name, growth)| {
        let seen = growth.evidence;
        let since = growth.since_unix_seconds.filter(|_| growth.grows());
        Row {
            id: name.clone(),
            health: Health::from(growth.state),
            cells: vec![
                Cell::text(name),
                Cell::text(growth.state.word()).of(Health::from(growth.state)),
                Cell::bytes(Some(growth.evaluated_bytes)),
                Cell::number(growth.bytes_per_second(), &rate),
                Cell::number(since, |since| format::clock(since, now)),
                Cell::number(growth.confidence.filter(|_| growth.grows()), |sure| format!("{sure:.2}")),
                Cell::number(seen.map(|seen| seen.rise_bytes), format::change),
                Cell::number(seen.map(|seen| seen.window_seconds), format::duration),
            ],
            link: None,
        }
    });
    Table {
        name: "Growth",
        columns: vec![
            text("", 0),
            text("state", 0),
            number("memory", 1),
            number("growth", 0),
            number("since", 2),
            number("confidence", 0),
            number("rise", 3),
            number("window", 4),
        ],
        rows: rows.collect(),
        empty: "No workload was found.".to_owned(),
        ..Table::default()
    }
}
