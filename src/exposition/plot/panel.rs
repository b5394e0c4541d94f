//! One panel of a chart: grid, bands, gaps, lines, forecast, limit, events.

use super::chart::{Fan, TimeAxis, Tone};
use super::color::{Color, Theme};
use super::decimate::decimate;
use super::labels::Labels;
use super::picture::{Anchor, Layer, Point, Rect, Stroke, Text};
use super::range::{Cut, Range, is_drawable};
use super::strip::{Place, Wanted, arrange};
use super::ticks::Tick;
use super::{clip, gaps, legend, text, times};

/// Size of the numbers on the axes and of labels, in pixels.
pub(super) const SMALL: f64 = 11.0;
/// Height of a row of event labels in pixels.
pub(super) const STRIP_ROW: f64 = 15.0;
/// Length of the line of a mark whose label had no room, in pixels.
const UNNAMED: f64 = 8.0;
/// Marks without a text are told by another panel; of more than these the lines would hide the series.
const MANY: usize = 30;
/// Lines of so few points show each of them.
const FEW: usize = 32;

/// Where a panel is drawn and what it spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// The rectangle between the axes.
    pub(super) plot: Rect,
    /// From its left to its right edge.
    pub(super) time: Range,
    /// From its bottom to its top edge.
    pub(super) values: Range,
}

impl Frame {
    fn x(&self, time: f64) -> f64 {
        self.plot.x + self.time.share(time) * self.plot.width
    }

    fn y(&self, value: f64) -> f64 {
        self.plot.bottom() - self.values.share(value) * self.plot.height
    }

    fn at(&self, time: f64, value: f64) -> Point {
        Point::new(self.x(time), self.y(value))
    }
}

/// A label of a band or an event with its moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark<'a> {
    at_s: f64,
    text: &'a str,
    tone: Tone,
}

/// What a panel marks, the loudest first, then in order of time; what is outside the time shown is left out.
pub(super) fn marks<'a>(cut: &Cut<'a>, time: Range) -> Vec<Mark<'a>> {
    let panel = cut.panel;
    let bands = panel.bands.iter().filter_map(|band| {
        let reaches = band.from_s <= time.high && band.to_s.is_none_or(|to| to >= time.low);
        let at_s = band.from_s.max(time.low);
        reaches.then_some(Mark { at_s, text: &band.text, tone: band.tone })
    });
    let events = panel.events.iter().filter(|event| time.holds(event.at_s));
    let events = events.map(|event| Mark { at_s: event.at_s, text: &event.text, tone: event.tone });
    let mut marks: Vec<Mark<'a>> = bands.chain(events).filter(|mark| mark.at_s.is_finite()).collect();
    marks.sort_by(|one, two| one.tone.cmp(&two.tone).then(one.at_s.total_cmp(&two.at_s)));
    marks
}

/// Where the labels of the marks go, in `rows` rows over a plot from `left` on, `width` wide.
pub(super) fn places(
    marks: &[Mark<'_>],
    time: Range,
    left: f64,
    width: f64,
    rows: usize,
) -> Vec<Option<Place>> {
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

/// What stands on the axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axes<'a> {
    /// Of values.
    pub(super) rows: &'a [Tick],
    /// Of time.
    pub(super) columns: &'a [Tick],
    /// How times are written.
    pub(super) time: TimeAxis,
}

/// The marks of a panel, and where their labels go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marked<'a> {
    /// The loudest first.
    pub(super) marks: &'a [Mark<'a>],
    /// As many as there are marks.
    pub(super) places: &'a [Option<Place>],
}

/// Paints a panel; gives how many marks had no room for a label.
pub(super) fn draw(
    layer: &mut Layer,
    labels: &mut Labels,
    theme: &Theme,
    cut: &Cut<'_>,
    frame: &Frame,
    axes: Axes<'_>,
    marked: Marked<'_>,
) -> usize {
    let plot = frame.plot;
    for (from, to) in gaps::unknown(&cut.lines) {
        let (from, to) = (frame.x(from).max(plot.x), frame.x(to).min(plot.right()));
        layer.rect(Rect::new(from, plot.y, to - from, plot.height), theme.unknown);
    }
    bands(layer, theme, cut, frame, axes.time);
    let hair = Stroke::solid(theme.grid, 1.0);
    for tick in axes.columns {
        let x = frame.x(tick.value);
        layer.line(Point::new(x, plot.y), Point::new(x, plot.bottom()), hair);
    }
    for tick in axes.rows {
        let y = frame.y(tick.value);
        layer.line(Point::new(plot.x, y), Point::new(plot.right(), y), hair);
        let at = Point::new(plot.x - 7.0, y + text::MIDDLE * SMALL);
        labels.place(layer, Text::new(at, tick.label.clone(), SMALL, theme.muted).anchored(Anchor::End));
    }
    layer.line(
        Point::new(plot.x, plot.bottom()),
        Point::new(plot.right(), plot.bottom()),
        Stroke::solid(theme.muted, 1.0),
    );
    moments(layer, theme, frame, axes.time, marked);
    if let Some(fan) = cut.panel.fan.filter(is_drawable) {
        draw_fan(layer, labels, theme, frame, &fan);
    }
    let drawn = lines(layer, theme, cut, frame);
    if drawn.is_empty() {
        let center = Point::new(plot.x + plot.width / 2.0, plot.y + plot.height / 2.0);
        labels.place(layer, Text::new(center, "no samples", 14.0, theme.muted).anchored(Anchor::Middle));
    }
    let moments: Vec<f64> = marked.marks.iter().map(|mark| frame.x(mark.at_s)).collect();
    limit(layer, labels, theme, cut, frame, (&drawn, &moments));
    name_moments(layer, labels, theme, frame, marked)
}

fn tone(theme: &Theme, tone: Tone) -> Color {
    match tone {
        Tone::Alarm => theme.alarm,
        Tone::Plain => theme.muted,
    }
}

fn bands(layer: &mut Layer, theme: &Theme, cut: &Cut<'_>, frame: &Frame, axis: TimeAxis) {
    let plot = frame.plot;
    for band in &cut.panel.bands {
        let from = frame.x(band.from_s).clamp(plot.x, plot.right());
        let to = band.to_s.map_or(plot.right(), |to| frame.x(to).clamp(plot.x, plot.right()));
        let color = tone(theme, band.tone);
        let mut area = Layer::default();
        area.rect(Rect::new(from, plot.y, to - from, plot.height), color.with_alpha(20));
        area.rect(Rect::new(from, plot.y, to - from, 3.0), color);
        layer.group(format!("{}, from {}", band.text, times::moment(axis, band.from_s)), area);
    }
}

/// Paints the lines; gives every point painted.
fn lines(layer: &mut Layer, theme: &Theme, cut: &Cut<'_>, frame: &Frame) -> Vec<Point> {
    let mut all = Vec::new();
    let of = cut.panel.lines.len();
    // The first line is the most important and is painted last, on top of the others.
    for (at, (line, pieces)) in cut.panel.lines.iter().zip(&cut.lines).enumerate().rev() {
        let stroke = legend::stroke(theme, at, of);
        let mut drawn = Layer::default();
        let few = pieces.iter().map(Vec::len).sum::<usize>() <= FEW;
        for piece in pieces {
            let points: Vec<Point> = piece.iter().map(|(time, value)| frame.at(*time, *value)).collect();
            let points = decimate(&points);
            if of == 1 && frame.values.low.abs() < f64::EPSILON {
                under(&mut drawn, &points, frame, stroke.color);
            }
            if few || points.len() == 1 {
                for point in &points {
                    drawn.circle(*point, stroke.width + 1.0, stroke.color);
                }
            }
            all.extend_from_slice(&points);
            drawn.polyline(points, stroke);
        }
        let values = || pieces.iter().flatten().map(|(_, value)| *value);
        if let (Some(last), Some(peak)) = (values().next_back(), values().reduce(f64::max)) {
            let unit = &cut.panel.unit;
            layer.group(format!("{}: last {}, peak {}", line.name, unit.show(last), unit.show(peak)), drawn);
        }
    }
    all
}

/// A light area from a line to the floor, so that a single line reads as an amount.
fn under(layer: &mut Layer, points: &[Point], frame: &Frame, color: Color) {
    if let (Some(first), Some(last)) = (points.first(), points.last()) {
        let floor = frame.plot.bottom();
        let mut area = points.to_vec();
        area.push(Point::new(last.x, floor));
        area.push(Point::new(first.x, floor));
        layer.polygon(area, color.with_alpha(26));
    }
}

fn draw_fan(layer: &mut Layer, labels: &mut Labels, theme: &Theme, frame: &Frame, fan: &Fan) {
    let (area, middle) = legend::fan_paint(theme);
    let mut drawn = Layer::default();
    let start = frame.at(fan.at_s, fan.from);
    let reached = |after: f64| frame.at(fan.at_s + after, fan.limit);
    if let Some(p10) = fan.p10_s {
        // Where the late end is open the area reaches to the edge, at the level of today.
        let end = match fan.p90_s {
            Some(p90) => vec![reached(p90.max(p10))],
            None => {
                vec![Point::new(frame.plot.right(), reached(p10).y), Point::new(frame.plot.right(), start.y)]
            }
        };
        let mut corners = vec![start, reached(p10)];
        corners.extend(end);
        drawn.polygon(clip::polygon(corners, frame.plot), area);
    }
    if let Some(p50) = fan.p50_s
        && let Some((from, to)) = clip::segment(start, reached(p50), frame.plot)
    {
        drawn.line(from, to, middle);
        if frame.time.holds(fan.at_s + p50) && frame.values.holds(fan.limit) {
            drawn.circle(reached(p50), 4.0, middle.color);
        }
    }
    if frame.time.holds(fan.at_s) {
        let now = Stroke::dashed(theme.muted, 1.0, 2.0, 3.0);
        drawn.line(Point::new(start.x, frame.plot.y), Point::new(start.x, frame.plot.bottom()), now);
        let name =
            Text::new(Point::new(start.x + 5.0, frame.plot.bottom() - 6.0), "forecast →", SMALL, theme.muted);
        if name.bounds().right() <= frame.plot.right() {
            labels.place(&mut drawn, name);
        }
    }
    layer.group(legend::forecast(fan), drawn);
}

fn limit(
    layer: &mut Layer,
    labels: &mut Labels,
    theme: &Theme,
    cut: &Cut<'_>,
    frame: &Frame,
    (drawn, moments): (&[Point], &[f64]),
) {
    let plot = frame.plot;
    let Some(limit) = cut.panel.limit.as_ref().filter(|limit| frame.values.holds(limit.value)) else {
        return;
    };
    let y = frame.y(limit.value);
    let name = legend::limit_name(cut.panel, &limit.name, limit.value);
    let mut level = Layer::default();
    level.line(Point::new(plot.x, y), Point::new(plot.right(), y), legend::limit_stroke(theme));
    layer.group(name.clone(), level);
    let name = text::fit(&name, SMALL, true, plot.width - 16.0);
    let places = [(plot.x + 8.0, Anchor::Start), (plot.right() - 8.0, Anchor::End)]
        .into_iter()
        .flat_map(|(x, anchor)| [(x, y - 5.0, anchor), (x, y + 5.0 + SMALL * 0.8, anchor)])
        .map(|(x, base, anchor)| {
            Text::new(Point::new(x, base), name.clone(), SMALL, theme.ink).bold().anchored(anchor)
        })
        .filter(|text| text.bounds().y >= plot.y && text.bounds().bottom() <= plot.bottom());
    // The place with the fewest points of lines, and lines of marks, behind it.
    let crowd = |text: &Text| {
        let bounds = text.bounds();
        let points = drawn.iter().filter(|point| bounds.overlaps(Rect::new(point.x, point.y, 0.1, 0.1)));
        let lines = moments.iter().filter(|x| (bounds.x..bounds.right()).contains(*x));
        points.count() + 5 * lines.count()
    };
    let best = places.filter(|text| labels.has_room(text)).min_by_key(crowd);
    if let Some(text) = best {
        layer.rect(text.bounds(), theme.background.with_alpha(190));
        labels.place(layer, text);
    }
}

/// The top of a row of labels over a plot.
fn row_top(plot: Rect, row: usize) -> f64 {
    plot.y - STRIP_ROW * (f64::from(u32::try_from(row).unwrap_or(0)) + 1.0)
}

/// The lines of the marks.
fn moments(layer: &mut Layer, theme: &Theme, frame: &Frame, axis: TimeAxis, marked: Marked<'_>) {
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
        let stroke = Stroke::dashed(tone(theme, mark.tone), 1.0, 4.0, 2.0);
        line.line(Point::new(x, from), Point::new(x, to.min(plot.bottom())), stroke);
        line.circle(Point::new(x, plot.y), 2.5, tone(theme, mark.tone));
        layer.group(format!("{}, {}", times::moment(axis, mark.at_s), mark.text), line);
    }
}

/// The labels of the marks; gives how many had no room.
fn name_moments(
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
            let color = if mark.tone == Tone::Alarm { theme.alarm } else { theme.ink };
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
