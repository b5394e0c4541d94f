//! The columns of the benchmark of forecasts on its simulated series, on the labeled traces beside the checkout, and on
//! the null tests.
//!
//! `FORECAST_TABLE=1 cargo nextest run forecast --no-capture` prints them.

#[path = "../../../../benches/outcomes/episodes.rs"]
#[expect(dead_code, reason = "the benchmark prints every column")]
mod episodes;
mod long;
#[path = "../../../../benches/forecast_benchmark/methods.rs"]
#[expect(dead_code, reason = "only memwarden's own method is called here")]
mod methods;
mod outcomes;
#[path = "../../../../benches/forecast_benchmark/score.rs"]
#[expect(dead_code, reason = "the benchmark prints lines for each trace")]
mod score;
#[path = "../../../../benches/forecast_benchmark/simulate.rs"]
#[expect(dead_code, reason = "only the benchmark has interrupted series")]
mod simulate;
#[path = "../../../../benches/forecast_benchmark/traces.rs"]
mod traces;

use std::ops::RangeInclusive;
use std::path::Path;

use memwarden::model::series::Row;
use score::{Case, Judged, Said, Table};

use crate::skip::skip;

/// What memwarden says about a series.
fn said(case: &Case) -> Vec<Said> {
    (methods::all().remove(0).assess)(case)
}

fn judged(cases: impl Iterator<Item = Case>) -> Vec<Judged> {
    cases.map(|case| score::judge(&case, &said(&case))).collect()
}

fn table(cases: &[Case]) -> Table {
    let judge = |case: &Case| score::judge(case, &said(case));
    let judged: Vec<_> =
        cases.iter().map(|case| (judge(case), case.near_limit().map(|near| judge(&near)))).collect();
    let missed: Vec<&str> = judged
        .iter()
        .map(|(all, _)| all)
        .filter(|all| !all.is_right())
        .map(|all| all.name.as_str())
        .collect();
    let found = score::table(&judged.iter().collect::<Vec<_>>());
    show("columns", &(&found, missed));
    found
}

fn show(what: &str, found: &impl std::fmt::Debug) {
    if std::env::var_os("FORECAST_TABLE").is_some() {
        println!("{what}: {found:#?}");
    }
}

/// Asserts that each column is in its range.
fn assert_in(found: &Table, columns: &[(&str, RangeInclusive<f64>)]) {
    for (column, range) in columns {
        let value = found.value(column);
        assert!(range.contains(&value), "{column} is {value}: {found:#?}");
    }
}

/// What holds on any set of series like these, with some slack for chance.
fn assert_sound(found: &Table) {
    let quantiles = 0.70..=0.90;
    assert_in(
        found,
        &[
            ("precision", 0.95..=1.0),
            ("bnd_pre", 0.0..=0.65),
            ("false_bnd", 0.0..=0.12),
            ("band", quantiles.clone()),
            ("band_late", quantiles),
        ],
    );
    assert!(found.value("brier") < 0.6 * found.value("brier0"), "{found:#?}");
    assert!((found.value("top_p") - found.value("top_freq")).abs() <= 0.15, "{found:#?}");
}

#[test]
fn recorded_traces_keep_their_score() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/traces");
    if !folder.join("labels.csv").exists() {
        skip("the labeled traces (../shared/data/traces) are not here");
        return;
    }
    let found = table(&traces::load(&folder));
    assert_sound(&found);
    assert_in(
        &found,
        &[
            ("recall", 0.86..=1.0),
            ("precision", 1.0..=1.0),
            ("flat_on", 0.0..=0.01),
            ("bnd_post", 0.0..=0.05),
            ("mttd", 0.0..=0.20),
            ("cov25", 0.86..=1.0),
            ("err25", 0.0..=0.12),
            ("err10", 0.0..=0.30),
            ("warned", 0.75..=1.0),
            ("false_warn", 0.0..=0.007),
            ("false_near", 0.0..=0.022),
            ("false_flat", 0.0..=0.006),
            ("brier", 0.0..=0.028),
        ],
    );
}

#[test]
fn simulated_series_keep_their_score() {
    let found = table(&(0..200).map(simulate::simulated).collect::<Vec<_>>());
    assert_sound(&found);
    assert_in(
        &found,
        &[
            ("recall", 0.85..=1.0),
            ("flat_on", 0.0..=0.05),
            ("bnd_post", 0.0..=0.07),
            ("cov25", 0.87..=1.0),
            ("err25", 0.0..=0.22),
            ("warned", 0.80..=1.0),
            ("false_warn", 0.0..=0.005),
            ("false_near", 0.0..=0.025),
            ("brier", 0.0..=0.02),
        ],
    );
}

#[test]
fn series_that_leak_nothing_are_not_called_leaking() {
    for kind in simulate::NULLS {
        for samples in [400, 1000, 2500] {
            let all = judged((0..120).map(|seed| simulate::null(kind, samples, seed)));
            let called = all.iter().filter(|judged| !judged.is_right()).count();
            show(&format!("{kind} {samples}"), &called);
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
    for seed in [1004, 1005, 1006, 1007] {
        let case = simulate::simulated(seed);
        let later = |row: &Row| Row { at: row.at * 16.0, ..*row };
        let slower = Case {
            interval: case.interval * 16.0,
            limit_at: case.limit_at * 16.0,
            rows: case.rows.iter().map(later).collect(),
            ..case.clone()
        };
        let leaks = |case: &Case| said(case).iter().map(|said| said.leak).collect::<Vec<_>>();
        assert_eq!(leaks(&case), leaks(&slower), "{}", case.name);
    }
}
