//! A series with its verdicts and its last forecast, as a chart.

use super::text;
use forecast::LeakState;

use memwarden::analyzers::replay::ReplayedAssessment;
use memwarden::model::format;
use memwarden::model::series::Series;
use memwarden::plot::report::clock;
use memwarden::plot::{Band, Baseline, Chart, Fan, Limit, Line, Panel, Unit};

/// The chart of all series, one panel each.
pub(crate) fn chart(replayed: &[(Series, Vec<ReplayedAssessment>)]) -> Chart {
    let first = replayed.iter().filter_map(|(series, _)| series.rows.first()).map(|row| row.at);
    let subtitle = match replayed {
        [(_, replayed)] => replayed.last().map(|last| format!("at the end: {}", rests_on(last))),
        _ => None,
    };
    Chart {
        title: match replayed {
            [(series, _)] => format!("What memwarden says of {}", series.name),
            all => format!("What memwarden says of {} series", all.len()),
        },
        subtitle: subtitle.unwrap_or_default(),
        time: clock(first.fold(f64::INFINITY, f64::min)),
        panels: replayed
            .iter()
            .map(|(series, replayed)| panel(series, replayed, replayed.len() > 1))
            .collect(),
    }
}

fn panel(series: &Series, replayed: &[ReplayedAssessment], several: bool) -> Panel {
    let last = replayed.last();
    let used = |row: &memwarden::model::series::Row| (row.at, Some(row.used));
    let mut lines = vec![Line { name: "used".to_owned(), points: series.rows.iter().map(used).collect() }];
    let mut more = |name: &str, of: fn(&memwarden::model::series::Row) -> Option<f64>| {
        if series.rows.iter().any(|row| of(row).is_some()) {
            let points = series.rows.iter().map(|row| (row.at, of(row))).collect();
            lines.push(Line { name: name.to_owned(), points });
        }
    };
    more("anonymous and shared", |row| row.unreclaimable);
    more("allocated by the job", |row| row.allocated);
    let limit = last.and_then(|last| last.limit);
    let fan = last.zip(limit).and_then(|(last, limit)| {
        let tte = last.assessment.tte?;
        let from = series.rows.last()?.used;
        Some(Fan { at_s: last.at, from, limit, tte })
    });
    Panel {
        title: match last {
            Some(last) if several => format!("{}: {}", series.name, rests_on(last)),
            _ if several => series.name.clone(),
            _ => String::new(),
        },
        unit: Unit::Bytes,
        lines,
        limit: limit.map(|value| Limit { value, name: String::new() }),
        fan,
        bands: bands(replayed),
        events: Vec::new(),
        baseline: Baseline::Zero,
    }
}

/// The state, and what the forecast is computed from: peaks or the trend, how many, since when.
fn rests_on(last: &ReplayedAssessment) -> String {
    let now = &last.assessment;
    let word = now.leak.label();
    match (&now.tte, &now.peaks, now.evidence) {
        (Some(_), Some(peaks), _) => format!("{word}; forecast by {}", text::peaks(peaks, last.at)),
        (Some(_), None, Some(evidence)) => {
            format!("{word}; forecast by the trend of the last {}", format::duration(evidence.window_seconds))
        }
        _ => word.to_owned(),
    }
}

/// The stretches in which it was called growing or leaking.
fn bands(replayed: &[ReplayedAssessment]) -> Vec<Band> {
    let mut found: Vec<(LeakState, Band)> = Vec::new();
    let mut before = None;
    for ReplayedAssessment { at, assessment, .. } in replayed {
        let state = assessment.leak;
        if before == Some(state) {
            continue;
        }
        if let Some((_, band)) = found.last_mut().filter(|(_, band)| band.to_s.is_none()) {
            band.to_s = Some(*at);
        }
        if matches!(state, LeakState::Growing | LeakState::Leaking) {
            let alarm = state == LeakState::Leaking;
            found.push((state, Band { from_s: *at, to_s: None, text: state.label().to_owned(), alarm }));
        }
        before = Some(state);
    }
    found.into_iter().map(|(_, band)| band).collect()
}
