//! A chart in words, for those who cannot see it.

use super::chart::Chart;
use super::legend;
use super::range::{Cut, is_drawable};

/// So many lines are described one by one; a listener would not follow more.
const DESCRIBED: usize = 8;

/// What a chart shows: each series with its last value and peak, limits, forecasts, what is marked.
pub(super) fn describe(chart: &Chart, cuts: &[Cut<'_>]) -> String {
    let mut sentences = Vec::new();
    if !chart.subtitle.is_empty() {
        sentences.push(chart.subtitle.trim_end_matches('.').to_owned());
    }
    for cut in cuts {
        let panel = cut.panel;
        let about = if panel.title.is_empty() { String::new() } else { format!("{}: ", panel.title) };
        sentences.push(format!("{about}{} series over time", panel.lines.len()));
        for (line, pieces) in panel.lines.iter().zip(&cut.lines).take(DESCRIBED) {
            let values = || pieces.iter().flatten().map(|(_, value)| *value);
            sentences.push(match (values().next_back(), values().reduce(f64::max)) {
                (Some(last), Some(peak)) => {
                    format!("{}: last {}, peak {}", line.name, panel.unit.show(last), panel.unit.show(peak))
                }
                _ => format!("{}: no samples", line.name),
            });
        }
        if let Some(limit) = &panel.limit {
            sentences.push(legend::limit_name(panel, &limit.name, limit.value));
        }
        if let Some(fan) = panel.fan.filter(is_drawable) {
            sentences.push(legend::forecast(&fan));
        }
        let marks =
            panel.bands.iter().map(|band| &band.text).chain(panel.events.iter().map(|event| &event.text));
        sentences.extend(marks.take(DESCRIBED).cloned());
    }
    sentences.retain(|sentence| !sentence.is_empty());
    let mut all = sentences.join(". ");
    all.push('.');
    all
}
