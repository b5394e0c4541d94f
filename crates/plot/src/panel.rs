//! One panel of a chart: grid, bands, gaps, lines, forecast, limit, events.

use super::chart::{Fan, TimeAxis};
use super::color::{Color, Theme};
use super::decimate::decimate;
use super::labels::Labels;
use super::marks::{self, Marked};
use super::picture::{Anchor, Layer, Point, Rect, Stroke, Text};
use super::range::{Cut, Range, is_drawable};
use super::ticks::Tick;
use super::{clip, gaps, legend, text};
use memwarden_model::outlook::Tte;

/// Size of the numbers on the axes and of labels, in pixels.
pub(super) const SMALL: f64 = 11.0;
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
    pub(super) fn x(&self, time: f64) -> f64 {
        self.plot.x + self.time.share(time) * self.plot.width
    }

    fn y(&self, value: f64) -> f64 {
        self.plot.bottom() - self.values.share(value) * self.plot.height
    }

    fn at(&self, time: f64, value: f64) -> Point {
        Point::new(self.x(time), self.y(value))
    }
}

/// What stands on the axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axes<'a> {
    /// Of values.
    pub(super) rows: &'a [Tick],
    /// Of time.
    pub(super) columns: &'a [Tick],
    pub(super) time: TimeAxis,
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
    marks::bands(layer, theme, cut, frame, axes.time);
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
    marks::moments(layer, theme, frame, axes.time, marked);
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
    marks::name_moments(layer, labels, theme, frame, marked)
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
    let Tte { p10, p50, p90 } = fan.tte;
    // Where the late end is open the area reaches to the edge, at the level of today.
    let end = match p90 {
        Some(p90) => vec![reached(p90.max(p10))],
        None => vec![Point::new(frame.plot.right(), reached(p10).y), Point::new(frame.plot.right(), start.y)],
    };
    let mut corners = vec![start, reached(p10)];
    corners.extend(end);
    drawn.polygon(clip::polygon(corners, frame.plot), area);
    if let Some((from, to)) = clip::segment(start, reached(p50), frame.plot) {
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
    let across = (0..=4_u32).map(|step| {
        let x = plot.x + 8.0 + f64::from(step) / 4.0 * (plot.width - 16.0);
        (x, [Anchor::Start, Anchor::Middle, Anchor::Middle, Anchor::Middle, Anchor::End][step as usize])
    });
    let places = across
        .flat_map(|(x, anchor)| [(x, y - 5.0, anchor), (x, y + 5.0 + SMALL * 0.8, anchor)])
        .map(|(x, base, anchor)| {
            Text::new(Point::new(x, base), name.clone(), SMALL, theme.ink).bold().anchored(anchor)
        })
        .filter(|text| text.bounds().y >= plot.y && text.bounds().bottom() <= plot.bottom());
    // The place with the fewest points of lines, lines of marks, and least of the forecast behind it.
    let foreseen = cut.panel.fan.filter(is_drawable).map_or(f64::INFINITY, |fan| frame.x(fan.at_s));
    let crowd = |text: &Text| {
        let bounds = text.bounds();
        let points = drawn.iter().filter(|point| bounds.overlaps(Rect::new(point.x, point.y, 0.1, 0.1)));
        let lines = moments.iter().filter(|x| (bounds.x..bounds.right()).contains(*x));
        let below = bounds.y > y && bounds.right() > foreseen;
        points.count() + 5 * lines.count() + if below { 8 } else { 0 }
    };
    let best = places.filter(|text| labels.has_room(text)).min_by_key(crowd);
    if let Some(text) = best {
        layer.rect(text.bounds(), theme.background.with_alpha(190));
        labels.place(layer, text);
    }
}
