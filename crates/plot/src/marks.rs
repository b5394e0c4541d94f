//! Bands and events: what is marked in a panel, and how it is named without a label on another.

use super::chart::TimeAxis;
use super::color::{Color, Theme};
use super::labels::Labels;
use super::panel::{Frame, SMALL};
use super::picture::{Layer, Point, Rect, Stroke, Text};
use super::range::{Cut, Range};
use super::strip::{StripPlace, Wanted, arrange};
use super::{text, times};

/// Height of a row of event labels in pixels.
pub(super) const STRIP_ROW: f64 = 15.0;
/// Length of the line of a mark whose label had no room, in pixels.
const UNNAMED: f64 = 8.0;
/// Marks without a text are labelled in another panel; of more than these the lines would hide the series.
const MANY: usize = 30;

/// The marks of a panel, and where their labels go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked<'a> {
    /// The loudest first.
    pub(super) marks: &'a [Mark<'a>],
    /// As many as there are marks.
    pub(super) places: &'a [Option<StripPlace>],
}

/// A label of a band or an event with its moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark<'a> {
    pub(super) at_s: f64,
    text: &'a str,
    alarm: bool,
}

/// What a panel marks, the loudest first, then in order of time; what is outside the time shown is left out.
pub(super) fn marks<'a>(cut: &Cut<'a>, time: Range) -> Vec<Mark<'a>> {
    let panel = cut.panel;
    let bands = panel.bands.iter().filter_map(|band| {
        let reaches = band.from_s <= time.high && band.to_s.is_none_or(|to| to >= time.low);
        let at_s = band.from_s.max(time.low);
        reaches.then_some(Mark { at_s, text: &band.text, alarm: band.alarm })
    });
    let events = panel.events.iter().filter(|event| time.holds(event.t_s));
    let events = events.map(|event| Mark { at_s: event.t_s, text: &event.text, alarm: event.alarm });
    let mut marks: Vec<Mark<'a>> = bands.chain(events).filter(|mark| mark.at_s.is_finite()).collect();
    marks.sort_by(|one, two| two.alarm.cmp(&one.alarm).then(one.at_s.total_cmp(&two.at_s)));
    marks
}

/// Where the labels of the marks go, in `rows` rows over a plot from `left` on, `width` wide.
pub(super) fn places(
    marks: &[Mark<'_>],
    time: Range,
    left: f64,
    width: f64,
    rows: usize,
) -> Vec<Option<StripPlace>> {
    let (texts, silent): (Vec<_>, Vec<_>) =
        marks.iter().enumerate().partition(|(_, mark)| !mark.text.is_empty());
    let wanted: Vec<Wanted> = texts
        .iter()
        .map(|(_, mark)| {
            let shown = text::fit(mark.text, SMALL, false, width * 0.45);
            Wanted { x: left + time.share(mark.at_s) * width, width: text::width(&shown, SMALL, false) }
        })
        .collect();
    let arranged = arrange(&wanted, left, left + width, rows);
    let mut places = vec![None; texts.len() + silent.len()];
    for ((at, _), place) in texts.into_iter().zip(arranged) {
        places[at] = place;
    }
    places
}

fn tone(theme: &Theme, alarm: bool) -> Color {
    if alarm { theme.alarm } else { theme.muted }
}

/// The areas of the bands.
pub(super) fn bands(layer: &mut Layer, theme: &Theme, cut: &Cut<'_>, frame: &Frame, axis: TimeAxis) {
    let plot = frame.plot;
    for band in &cut.panel.bands {
        let from = frame.x(band.from_s).clamp(plot.x, plot.right());
        let to = band.to_s.map_or(plot.right(), |to| frame.x(to).clamp(plot.x, plot.right()));
        let color = tone(theme, band.alarm);
        let mut area = Layer::default();
        area.rect(Rect::new(from, plot.y, to - from, plot.height), color.with_alpha(20));
        area.rect(Rect::new(from, plot.y, to - from, 3.0), color);
        layer.group(format!("{}, from {}", band.text, times::moment(axis, band.from_s)), area);
    }
}

/// The top of a row of labels over a plot.
fn row_top(plot: Rect, row: usize) -> f64 {
    plot.y - STRIP_ROW * (f64::from(u32::try_from(row).unwrap_or(0)) + 1.0)
}

pub(super) fn moments(layer: &mut Layer, theme: &Theme, frame: &Frame, axis: TimeAxis, marked: Marked<'_>) {
    let plot = frame.plot;
    let mut painted = std::collections::BTreeSet::new();
    for (mark, place) in marked.marks.iter().zip(marked.places).rev() {
        let x = frame.x(mark.at_s);
        // Marks in the same pixel look like one.
        if place.is_none() && !painted.insert(format!("{x:.0}")) {
            continue;
        }
        // A line from top to bottom for each of a hundred events would hide the series.
        let (from, to) = match place {
            Some(place) => (row_top(plot, place.row) + 2.0, plot.bottom()),
            None if mark.text.is_empty() && marked.marks.len() <= MANY => (plot.y, plot.bottom()),
            None => (plot.y, plot.y + UNNAMED),
        };
        let mut line = Layer::default();
        let stroke = Stroke::dashed(tone(theme, mark.alarm), 1.0, 4.0, 2.0);
        line.line(Point::new(x, from), Point::new(x, to.min(plot.bottom())), stroke);
        line.circle(Point::new(x, plot.y), 2.5, tone(theme, mark.alarm));
        layer.group(format!("{}, {}", times::moment(axis, mark.at_s), mark.text), line);
    }
}

/// The labels of the marks; gives how many had no room.
pub(super) fn name_moments(
    layer: &mut Layer,
    labels: &mut Labels,
    theme: &Theme,
    frame: &Frame,
    marked: Marked<'_>,
) -> usize {
    let plot = frame.plot;
    let mut unnamed = 0;
    for (mark, place) in marked.marks.iter().zip(marked.places) {
        let shown = text::fit(mark.text, SMALL, false, plot.width * 0.45);
        let placed = place.is_some_and(|place| {
            let base = row_top(plot, place.row) + STRIP_ROW / 2.0 + text::MIDDLE * SMALL;
            let color = if mark.alarm { theme.alarm } else { theme.ink };
            let text = Text::new(Point::new(place.left, base), shown, SMALL, color);
            if !labels.has_room(&text) {
                return false;
            }
            // Lines of marks in rows above pass behind.
            layer.rect(text.bounds(), theme.background.with_alpha(230));
            labels.place(layer, text)
        });
        unnamed += usize::from(!placed && !mark.text.is_empty());
    }
    unnamed
}
