//! The tables of conclusions: when memory runs out, what grows, and what will fit.

use super::table::{Cell, Row, Table};
use crate::model::finding::Subject;
use crate::model::fits::Fit;
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
            .text("health", 0, Cell::text(forecast.health().label()).of(forecast.health()))
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
            .text("state", 0, Cell::text(growth.state.label()).of(growth.state.into()))
            .bytes("memory", 1, Some(growth.evaluated_bytes))
            .value("growth", 0, growth.bytes_per_second(), &rate)
            .value("since", 2, since, |since| format::clock(since, now))
            .value("confidence", 0, growth.confidence.filter(|_| growth.grows()), |sure| format!("{sure:.2}"))
            .value("rise", 3, seen.map(|seen| seen.rise_bytes), format::change)
            .value("window", 4, seen.map(|seen| seen.window_seconds), format::duration)
    });
    Table::new("Growth", rows, "No workload was found.")
}

/// Whether the phases that are still to come fit, the worst first.
pub fn fit_table<'a>(of: impl IntoIterator<Item = &'a Fit>) -> Table {
    let mut all: Vec<_> = of.into_iter().collect();
    all.sort_by_key(|fit| std::cmp::Reverse(fit.verdict));
    let rows = all.into_iter().map(|fit| {
        let health = Health::from(fit.verdict);
        let how = if fit.advice.is_empty() { fit.basis.as_str() } else { &fit.advice };
        Row::new(format!("{}\0{}\0{}\0{}", fit.workload, fit.rank, fit.phase, fit.resource), health)
            .number("rank", 1, Cell::index(fit.rank.as_str()))
            .text("phase", 0, &*fit.title)
            .text("resource", 1, fit.resource.to_string())
            .bytes("needs", 0, fit.peak_bytes.map(|peak| peak[0]))
            .bytes("of", 2, fit.capacity_bytes)
            .value("left", 3, fit.headroom_bytes(), format::bytes)
            .value("P(too much)", 4, fit.exhaustion_probability, format::percent)
            .text("prediction", 5, fit.certainty.label())
            .text("verdict", 0, Cell::text(fit.verdict.label().replace('_', " ")).of(health))
            .prose("", how)
    });
    Table::new("Will it fit?", rows, "No rank predicts a phase that is still to come.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fit::{Certainty, Phase, Verdict};
    use crate::node_view::NodeView;
    use crate::node_view::sheet::Item;

    fn fit(phase: Phase, verdict: Verdict, capacity: f64) -> Fit {
        Fit {
            workload: "sft".into(),
            rank: "0".into(),
            run: "r".into(),
            pid: "7".into(),
            phase,
            resource: Subject::host(),
            certainty: Certainty::Estimated,
            verdict,
            peak_bytes: (verdict != Verdict::Unknown).then_some([2_147_483_648.0; 2]),
            capacity_bytes: Some(capacity),
            exhaustion_probability: None,
            due_step: None,
            title: phase.to_string(),
            least: false,
            basis: "text of the job".into(),
            advice: String::new(),
            past: String::new(),
        }
    }

    #[test]
    fn the_phase_that_will_not_fit_comes_first() {
        let fits = [
            fit(Phase::Step, Verdict::Fits, 4_294_967_296.0),
            fit(Phase::Generation, Verdict::Unknown, 4_294_967_296.0),
            fit(Phase::Save, Verdict::WillNotFit, 1_073_741_824.0),
        ];
        let table = fit_table(&fits);
        let rows: Vec<(Health, String)> = table
            .rows
            .iter()
            .map(|row| (row.health, row.cells.iter().map(|cell| &*cell.text).collect::<Vec<_>>().join("|")))
            .collect();
        assert_eq!(
            rows,
            [
                (
                    Health::Critical,
                    "0|save|host|2.0 GiB|1.0 GiB|−1.0 GiB|–|estimated|will not fit|text of the job"
                        .to_owned()
                ),
                (
                    Health::Unknown,
                    "0|generation|host|–|4.0 GiB|–|–|estimated|unknown|text of the job".to_owned()
                ),
                (
                    Health::Ok,
                    "0|step|host|2.0 GiB|4.0 GiB|2.0 GiB|–|estimated|fits|text of the job".to_owned()
                ),
            ]
        );
    }

    #[test]
    fn the_end_of_the_last_runs_is_said_once() {
        let past = "the last run of this command died after step 7 (out of GPU memory)";
        let of = |phase: Phase| Fit { past: past.to_owned(), ..fit(phase, Verdict::Fits, 4_294_967_296.0) };
        let view = NodeView { fits: vec![of(Phase::Step), of(Phase::Save)], ..NodeView::default() };
        let section = view.fit_section(|_| true).unwrap();
        let texts = section.items.iter().filter_map(|item| match item {
            Item::Text(_, text) => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(texts.collect::<Vec<_>>(), [format!("Past runs: {past}.")]);
    }
}
