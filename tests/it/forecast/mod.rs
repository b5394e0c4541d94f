//! The analyzers on series whose truth is known: recorded traces, made ones, and the null tests.
//!
//! `FORECAST_TABLE=1 cargo nextest run forecast --no-capture` prints the tables.

#![expect(clippy::cast_precision_loss, reason = "counts of a few thousand")]

mod long;
mod score;
mod series;
mod warnings;

use std::path::Path;

use memwarden::analyzers::replay::sample;
use memwarden::recording::cells::Rows;
use memwarden::recording::csv;
use score::{Case, Judged, Label, Table, judge, replay, table};

use crate::skip::skip;

fn judged(cases: impl Iterator<Item = Case>) -> Vec<Judged> {
    cases.map(|case| judge(&case, &replay(&case))).collect()
}

fn show(what: &str, found: &impl std::fmt::Debug) {
    if std::env::var_os("FORECAST_TABLE").is_some() {
        println!("{what}: {found:#?}");
    }
}

/// The labeled traces beside the checkout, if they are there.
fn traces() -> Option<Vec<Case>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/traces");
    let labels = std::fs::read(folder.join("labels.csv")).ok()?;
    let mut labels = Rows::new(&labels);
    labels.next_row().unwrap();
    let number = |text: &str, otherwise: f64| match text.parse::<f64>() {
        Ok(number) if number.is_finite() => number,
        _ => otherwise,
    };
    let mut cases = Vec::new();
    while let Some((_, cells)) = labels.next_row().unwrap() {
        let label = match &cells[1] {
            "leak" | "oom" => Label::Leak,
            "flat" => Label::Flat,
            "bounded" => Label::Bounded,
            _ => continue,
        };
        let bytes = std::fs::read(folder.join(&cells[0])).unwrap();
        let recorded = csv::read(&cells[0], &bytes).unwrap();
        cases.push(Case {
            name: cells[0].to_owned(),
            label,
            interval: number(&cells[3], 0.5),
            limit: number(&cells[5], 0.0).floor(),
            limit_at: number(&cells[6], f64::INFINITY),
            onset: number(&cells[7], 0.0),
            plateau: number(&cells[8], 0.0),
            samples: recorded.rows.iter().map(|row| (row.at, sample(row))).collect(),
        });
    }
    Some(cases)
}

/// What holds on any set of series like these, with some slack for chance.
fn assert_sound(found: &Table) {
    assert!(found.precision >= 0.95, "{found:#?}");
    assert!(found.bounded_before <= 0.65 && found.hasty_bounded <= 0.12, "{found:#?}");
    assert!((0.68..=0.92).contains(&found.band), "{found:#?}");
    assert!(found.brier < 0.7 * found.brier_of_zero, "{found:#?}");
    assert!((found.top_said - found.top_came).abs() <= 0.15, "{found:#?}");
}

#[test]
fn recorded_traces_keep_their_score() {
    let Some(cases) = traces() else {
        skip("the labeled traces (../shared/data/traces) are not here");
        return;
    };
    let all = judged(cases.into_iter());
    let missed: Vec<&str> = all.iter().filter(|j| j.last != j.positive).map(|j| j.name.as_str()).collect();
    let found = table(&all);
    show("traces", &(&found, missed));
    assert_sound(&found);
    assert!(found.recall >= 0.81, "{found:#?}");
    assert!(found.flat_on <= 0.01 && found.hasty_flat <= 0.006, "{found:#?}");
    assert!(found.bounded_after <= 0.051 && found.delay <= 0.20, "{found:#?}");
    assert!(found.coverage[1] >= 0.81 && found.error[1] <= 0.13, "{found:#?}");
}

#[test]
fn made_series_keep_their_score() {
    let found = table(&judged((1000..1200).map(series::made)));
    show("made", &found);
    assert_sound(&found);
    assert!(found.recall >= 0.80, "{found:#?}");
    assert!(found.flat_on <= 0.05 && found.bounded_after <= 0.07, "{found:#?}");
    assert!(found.coverage[1] >= 0.87 && found.error[1] <= 0.22, "{found:#?}");
}

#[test]
fn series_that_leak_nothing_are_not_called_leaking() {
    for kind in series::NULLS {
        for samples in [400, 1000, 2500] {
            let all = judged((0..120).map(|seed| series::null(kind, samples, seed)));
            let called = all.iter().filter(|j| j.last).count();
            let on = all.iter().map(|j| j.on).sum::<f64>() / 120.0;
            show(&format!("{kind} {samples}"), &(called, on));
            // 2 % of 120 are 2.4; random walks 10 %; a sine that ends within its first period is a ramp.
            let most = match (kind, samples) {
                ("walk", _) => 12,
                ("sine", 400) => 10,
                _ => 2,
            };
            assert!(called <= most, "{kind} {samples}: {called} of 120");
        }
    }
}

#[test]
fn the_same_series_at_any_interval_has_the_same_verdict() {
    for seed in [1003, 1007, 1013, 1023] {
        let case = series::made(seed);
        let slower = Case {
            interval: case.interval * 16.0,
            limit_at: case.limit_at * 16.0,
            samples: case.samples.iter().map(|(at, sample)| (at * 16.0, *sample)).collect(),
            ..case.clone()
        };
        let said = |case: &Case| replay(case).iter().map(|row| row.1).collect::<Vec<_>>();
        assert_eq!(said(&case), said(&slower), "{}", case.name);
    }
}
