//! One chart for each trace: the memory, the limit, and what memwarden said when.

use memwarden::model::printable::is_hidden;
use memwarden::plot::{self, Band, Baseline, Chart, Limit, Line, Panel, TimeAxis, Unit};

use super::score::{Case, Judged, Said};

/// Draws a trace with the assessments of one method.
pub(crate) fn draw(case: &Case, said: &[Said]) -> String {
    let line = |name: &str, points| Line { name: name.to_owned(), points };
    let memory = Panel {
        unit: Unit::Bytes,
        lines: vec![line("used", case.rows.iter().map(|row| (row.at, Some(row.used))).collect())],
        limit: Some(Limit { value: case.limit, name: String::new() }),
        bands: bands(said),
        baseline: Baseline::Zero,
        ..Panel::default()
    };
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    let quantile = |place: usize| said.iter().map(|said| (said.at, finite(said.tte[place]))).collect();
    let real = said.iter().map(|said| (said.at, finite(case.limit_at - said.at).filter(|left| *left >= 0.0)));
    let left = Panel {
        title: "time to exhaustion".to_owned(),
        unit: Unit::Seconds,
        lines: vec![
            line("real", real.collect()),
            line("p50", quantile(1)),
            line("p10", quantile(0)),
            line("p90", quantile(2)),
        ],
        ..Panel::default()
    };
    let probability = Panel {
        title: "probability of exhaustion within 60 units".to_owned(),
        unit: Unit::Ratio,
        lines: vec![line("probability", said.iter().map(|said| (said.at, Some(said.p))).collect())],
        limit: Some(Limit { value: 0.5, name: "warning".to_owned() }),
        ..Panel::default()
    };
    let chart = Chart {
        title: case.name.clone(),
        subtitle: format!("{}; {:?}", case.origin, case.label).to_lowercase(),
        time: TimeAxis::Elapsed,
        panels: vec![memory, left, probability],
    };
    plot::svg::render(&plot::draw(&chart, 1000, 900, &plot::Theme::LIGHT), is_hidden)
}

/// The number of false warnings of each method while healthy GPUs are watched, one after another.
pub(crate) fn false_warnings(methods: &[(&str, Vec<Judged>)]) -> String {
    let line = |(name, judged): &(&str, Vec<Judged>)| {
        let (mut days, mut count, mut points) = (0.0, 0.0, vec![(0.0, Some(0.0))]);
        for judged in judged.iter().filter(|judged| judged.is_healthy()) {
            count += f64::from(u32::try_from(judged.false_warnings().count()).unwrap_or(u32::MAX));
            days += judged.days();
            points.push((days * 86_400.0, Some(count)));
        }
        Line { name: (*name).to_owned(), points }
    };
    let mut lines: Vec<Line> = methods.iter().map(line).collect();
    let shown =
        ["memwarden", "predict_linear, 120 samples", "level of 95 % (MindRLHF)", "LoRA memory debugger"];
    lines.retain(|line| shown.contains(&line.name.as_str()));
    let chart = Chart {
        title: "False warnings on real training runs".to_owned(),
        subtitle: "all GPUs of runs that did not end out of memory, one after another".to_owned(),
        time: TimeAxis::Elapsed,
        panels: vec![Panel {
            title: "warnings since the begin".to_owned(),
            unit: Unit::Other(String::new()),
            lines,
            baseline: Baseline::Zero,
            ..Panel::default()
        }],
    };
    plot::svg::render(&plot::draw(&chart, 900, 400, &plot::Theme::LIGHT), is_hidden)
}

/// The stretches in alarm.
fn bands(said: &[Said]) -> Vec<Band> {
    let mut found: Vec<Band> = Vec::new();
    let mut before = false;
    for said in said {
        if said.leak && !before {
            let text = "leaking".to_owned();
            found.push(Band { from_s: said.at, to_s: None, text, alarm: true });
        } else if !said.leak
            && before
            && let Some(band) = found.last_mut()
        {
            band.to_s = Some(said.at);
        }
        before = said.leak;
    }
    found
}
