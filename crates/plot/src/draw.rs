//! A chart as a picture: where title, panels and axes go.

use super::chart::{Baseline, Chart, TimeAxis};
use super::color::Theme;
use super::labels::Labels;
use super::marks::{self, Marked, STRIP_ROW};
use super::panel::{self, Axes, Frame, SMALL};
use super::picture::{Anchor, Layer, Picture, Point, Rect, Text};
use super::range::{self, Cut, Range};
use super::ticks::{self, Tick};
use super::{legend, text, times, words};

const MARGIN: f64 = 14.0;
const TITLE: f64 = 17.0;
const SUBTITLE: f64 = 12.5;
/// Pixels between panels.
const BETWEEN: f64 = 12.0;
/// Plots lower than this are not worth drawing, in pixels.
const LOWEST: f64 = 24.0;
/// Rows of event labels at most: more would be a list, not a chart.
const STRIP_ROWS: usize = 3;

/// The picture of a chart, in pixels; readable from about 400 by 200 on.
pub fn picture(chart: &Chart, width: u32, height: u32, theme: &Theme) -> Picture {
    let mut layer = Layer::default();
    let whole = Rect::new(0.0, 0.0, f64::from(width), f64::from(height));
    let mut labels = Labels::new(whole);
    let inner = Rect::new(MARGIN, 10.0, whole.width - 2.0 * MARGIN, whole.height - 18.0);
    let mut top = inner.y;
    for (content, size, bold, color) in
        [(&chart.title, TITLE, true, theme.ink), (&chart.subtitle, SUBTITLE, false, theme.muted)]
    {
        if !content.is_empty() {
            let shown = text::fit(content, size, bold, inner.width);
            let at = Point::new(inner.x, top + text::ASCENT * size);
            let text = Text { bold, ..Text::new(at, shown, size, color) };
            labels.place(&mut layer, text);
            top += size * 1.35;
        }
    }
    top += 4.0;
    let cuts: Vec<Cut<'_>> = chart.panels.iter().map(Cut::new).collect();
    let time = range::time(&cuts);
    let room = Rect::new(inner.x, top, inner.width, inner.bottom() - top - 3.0 * SMALL);
    let unnamed = panels(&mut layer, &mut labels, theme, chart, &cuts, time, room);
    let at = Point::new(inner.x, inner.bottom() - 2.0);
    let note = note(chart, unnamed);
    if !note.is_empty() {
        let shown = text::fit(&note, SMALL, false, inner.width * 0.55);
        let at = Point::new(inner.right(), at.y);
        labels.place(&mut layer, Text::new(at, shown, SMALL, theme.muted).anchored(Anchor::End));
    }
    if !cuts.is_empty() {
        labels.place(&mut layer, Text::new(at, axis_name(chart.time, time), SMALL, theme.muted));
    }
    Picture {
        width,
        height,
        title: if chart.title.is_empty() { "Chart".to_owned() } else { chart.title.clone() },
        description: words::describe(chart, &cuts),
        background: theme.background,
        layer,
    }
}

/// Paints the panels under each other and the time axis below; gives how many marks had no room for a label.
fn panels(
    layer: &mut Layer,
    labels: &mut Labels,
    theme: &Theme,
    chart: &Chart,
    cuts: &[Cut<'_>],
    time: Range,
    room: Rect,
) -> usize {
    let count = f64::from(u32::try_from(cuts.len().max(1)).unwrap_or(u32::MAX));
    let each = (room.height - BETWEEN * (count - 1.0)) / count;
    let wanted = rows_of_ticks(each);
    let values: Vec<Range> = cuts.iter().map(|cut| cut.values(time)).collect();
    let rows: Vec<Vec<Tick>> = cuts
        .iter()
        .zip(&values)
        .map(|(cut, values)| {
            // Without samples no number on the axis means anything.
            let wanted = if cut.is_empty() { 0 } else { wanted };
            ticks::ticks(&cut.panel.unit, values.low, values.high, wanted)
        })
        .collect();
    let widest = rows.iter().flatten().map(|tick| text::width(&tick.label, SMALL, false)).fold(0.0, f64::max);
    let left = room.x + widest + 9.0;
    let width = room.right() - left;
    if width < LOWEST {
        return 0;
    }
    let none = cuts.iter().all(Cut::is_empty);
    let columns = if none { Vec::new() } else { columns(chart.time, time, width) };
    let mut unnamed = 0;
    let mut top = room.y;
    let mut bottom = None;
    for ((cut, values), rows) in cuts.iter().zip(&values).zip(&rows) {
        let most = if each < 110.0 { 1 } else { 1 + usize::from(each > 150.0) + usize::from(each > 260.0) };
        let heading = Rect::new(room.x, top, room.width, each);
        let taken = legend::draw(layer, labels, theme, (cut, *values), heading, most);
        let marks = marks::marks(cut, time);
        let strip_rows = if each < 90.0 { 0 } else { STRIP_ROWS.min(1 + usize::from(each > 160.0) * 2) };
        let places = marks::places(&marks, time, left, width, strip_rows);
        let used = places.iter().flatten().map(|place| place.row + 1).max().unwrap_or(0);
        let above = rows_high(taken, legend::ROW) + rows_high(used, STRIP_ROW) + 6.0;
        let plot = Rect::new(left, top + above, width, each - above);
        if plot.height >= LOWEST {
            let frame = Frame { plot, time, values: *values };
            let axes = Axes { rows, columns: &columns, time: chart.time };
            let marked = Marked { marks: &marks, places: &places };
            unnamed += panel::draw(layer, labels, theme, cut, &frame, axes, marked);
            bottom = Some(plot.bottom());
        }
        top += each + BETWEEN;
    }
    if let Some(bottom) = bottom {
        for tick in &columns {
            let half = text::width(&tick.label, SMALL, false) / 2.0;
            let x = (left + time.share(tick.value) * width).min(room.right() + MARGIN - 2.0 - half);
            let at = Point::new(x, bottom + 7.0 + text::ASCENT * SMALL);
            labels
                .place(layer, Text::new(at, tick.label.clone(), SMALL, theme.muted).anchored(Anchor::Middle));
        }
    }
    unnamed
}

/// Ticks of time so few that their labels have room.
fn columns(axis: TimeAxis, time: Range, width: f64) -> Vec<Tick> {
    let mut found = Vec::new();
    for wanted in [12, 10, 8, 6, 5, 4, 3, 2, 1] {
        found = times::ticks(axis, time.low, time.high, wanted);
        let widest = found.iter().map(|tick| text::width(&tick.label, SMALL, false)).fold(0.0, f64::max);
        let step = found.windows(2).map(|pair| pair[1].value - pair[0].value).fold(f64::INFINITY, f64::min);
        if (widest + 24.0) / width <= step / (time.high - time.low) {
            break;
        }
    }
    found
}

fn rows_of_ticks(height: f64) -> usize {
    [(380.0, 8), (260.0, 6), (150.0, 5), (100.0, 4)]
        .iter()
        .find(|(least, _)| height > *least)
        .map_or(2, |(_, rows)| *rows)
}

fn rows_high(rows: usize, height: f64) -> f64 {
    f64::from(u32::try_from(rows).unwrap_or(0)) * height
}

fn axis_name(axis: TimeAxis, time: Range) -> String {
    match axis {
        TimeAxis::Elapsed => "time since the start".to_owned(),
        TimeAxis::Utc => format!("UTC, from {}", times::moment(axis, time.low)),
        TimeAxis::Local => format!("time as logged, from {}", times::moment(axis, time.low)),
        TimeAxis::Order => "samples, in their order (no times were logged)".to_owned(),
    }
}

fn note(chart: &Chart, unnamed: usize) -> String {
    let mut notes = Vec::new();
    if chart.panels.iter().any(|panel| panel.baseline == Baseline::Fit) {
        notes.push("the value axis does not begin at zero".to_owned());
    }
    if unnamed > 0 {
        notes.push(format!("{unnamed} marks without room for a label"));
    }
    notes.join("; ")
}
