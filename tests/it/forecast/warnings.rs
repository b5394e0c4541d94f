//! The columns of the benchmark of forecasts, on its simulated series and on the labeled traces beside the checkout.
//!
//! `FORECAST_TABLE=1` prints them.

#[path = "../../../benches/forecast_benchmark/methods.rs"]
#[expect(dead_code, reason = "only memwarden's own method is called here")]
mod methods;
#[path = "../../../benches/forecast_benchmark/score.rs"]
#[expect(dead_code, reason = "the benchmark prints lines for each trace")]
mod score;
#[path = "../../../benches/forecast_benchmark/simulate.rs"]
#[expect(dead_code, reason = "the null tests are in another file")]
mod simulate;
#[path = "../../../benches/forecast_benchmark/traces.rs"]
mod traces;

use std::path::Path;

use score::{Case, Table};

use crate::skip::skip;

fn table(cases: &[Case]) -> Table {
    let method = methods::all().remove(0);
    let judge = |case: &Case| score::judge(case, &(method.assess)(case));
    let all: Vec<_> = cases.iter().map(judge).collect();
    let near: Vec<_> = cases.iter().filter_map(Case::near_limit).map(|case| judge(&case)).collect();
    let found = score::table(&all, &near);
    super::show("columns", &found);
    found
}

/// Asserts that the column is in the range.
fn assert_in(found: &Table, column: &str, range: std::ops::RangeInclusive<f64>) {
    let value = found.value(column);
    assert!(range.contains(&value), "{column} is {value}: {found:#?}");
}

#[test]
fn simulated_series_are_warned_of_in_time() {
    let found = table(&(0..200).map(simulate::simulated).collect::<Vec<_>>());
    assert_in(&found, "warned", 0.80..=1.0);
    assert_in(&found, "false_warn", 0.0..=0.005);
    assert_in(&found, "false_near", 0.0..=0.025);
    assert_in(&found, "band", 0.70..=0.90);
    assert_in(&found, "band_late", 0.70..=0.90);
    assert!(found.value("brier") < 0.5 * found.value("brier0"), "{found:#?}");
}

#[test]
fn recorded_traces_are_warned_of_in_time() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/traces");
    if !folder.join("labels.csv").exists() {
        skip("the labeled traces (../shared/data/traces) are not here");
        return;
    }
    let found = table(&traces::load(&folder));
    assert_in(&found, "precision", 1.0..=1.0);
    assert_in(&found, "warned", 0.75..=1.0);
    assert_in(&found, "false_warn", 0.0..=0.007);
    assert_in(&found, "false_near", 0.0..=0.022);
    assert_in(&found, "band", 0.70..=0.90);
    assert_in(&found, "band_late", 0.70..=0.90);
    assert_in(&found, "brier", 0.0..=0.028);
}
