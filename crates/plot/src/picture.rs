//! The display list: shapes in the order they are painted, and the picture they make.

use super::color::{Color, Theme};
use super::text;

/// Where a coordinate ends, in pixels: dashes of a longer line would cost more than any picture shows.
const FAR: f64 = 100_000.0;

/// A place in pixels from the top left corner.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// To the right.
    pub x: f64,
    /// Down.
    pub y: f64,
}

impl Point {
    /// A place in pixels from the top left corner.
    pub const fn new(x: f64, y: f64) -> Self {
        Self { x, y }
    }

    fn tamed(self) -> Option<Self> {
        let finite = self.x.is_finite() && self.y.is_finite();
        finite.then(|| Self::new(self.x.clamp(-FAR, FAR), self.y.clamp(-FAR, FAR)))
    }
}

/// An upright rectangle in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rect {
    /// Left edge.
    pub x: f64,
    /// Top edge.
    pub y: f64,
    /// Width, never negative.
    pub width: f64,
    /// Height, never negative.
    pub height: f64,
}

impl Rect {
    /// A rectangle by its top left corner and size; a negative size is none.
    pub const fn new(x: f64, y: f64, width: f64, height: f64) -> Self {
        Self { x, y, width: width.max(0.0), height: height.max(0.0) }
    }

    pub const fn right(self) -> f64 {
        self.x + self.width
    }

    pub const fn bottom(self) -> f64 {
        self.y + self.height
    }

    /// Whether some place is in both.
    pub fn overlaps(self, other: Self) -> bool {
        self.x < other.right() && other.x < self.right() && self.y < other.bottom() && other.y < self.bottom()
    }
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stroke {
    pub color: Color,
    /// Its width in pixels.
    pub width: f64,
    /// Lengths of dash and gap in pixels; none is a solid line.
    pub dash: Option<[f64; 2]>,
}

impl Stroke {
    pub const fn solid(color: Color, width: f64) -> Self {
        Self { color, width, dash: None }
    }

    /// A line of dashes, in pixels.
    pub const fn dashed(color: Color, width: f64, dash: f64, gap: f64) -> Self {
        Self { color, width, dash: Some([dash, gap]) }
    }

    fn is_drawable(&self) -> bool {
        let dash = self.dash.is_none_or(|lengths| lengths.iter().all(|length| *length >= 0.5));
        self.width.is_finite() && self.width > 0.0 && dash
    }
}

/// Which end of a text stands at its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anchor {
    #[default]
    Start,
    Middle,
    End,
}

/// One line of text.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Text {
    /// A place on the base line of the letters.
    pub at: Point,
    /// What it says; shown literally, whatever it contains.
    pub content: String,
    /// Height of the letters (em) in pixels.
    pub size: f64,
    pub bold: bool,
    pub color: Color,
    /// Which end of it stands at `at`.
    pub anchor: Anchor,
}

impl Text {
    /// A text that begins at a place on its base line.
    pub fn new(at: Point, content: impl Into<String>, size: f64, color: Color) -> Self {
        Self { at, content: content.into(), size, bold: false, color, anchor: Anchor::Start }
    }

    /// The same text with another end at its place.
    pub const fn anchored(mut self, anchor: Anchor) -> Self {
        self.anchor = anchor;
        self
    }

    pub const fn bold(mut self) -> Self {
        self.bold = true;
        self
    }

    /// The room it takes, ascenders and descenders counted.
    pub fn bounds(&self) -> Rect {
        let width = text::width(&self.content, self.size, self.bold);
        let x = match self.anchor {
            Anchor::Start => self.at.x,
            Anchor::Middle => self.at.x - width / 2.0,
            Anchor::End => self.at.x - width,
        };
        Rect::new(x, self.at.y - text::ASCENT * self.size, width, text::HEIGHT * self.size)
    }
}

/// One thing to paint.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Shape {
    Rect { rect: Rect, fill: Color },
    Circle { center: Point, radius: f64, fill: Color },
    Polyline { points: Vec<Point>, stroke: Stroke },
    Polygon { points: Vec<Point>, fill: Color },
    Text(Text),
    Group { title: String, layer: Layer },
}

/// Shapes in the order they are painted. What has a place that is no number is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layer {
    pub(super) shapes: Vec<Shape>,
}

impl Layer {
    pub fn rect(&mut self, rect: Rect, fill: Color) {
        let corners = (Point::new(rect.x, rect.y).tamed(), Point::new(rect.right(), rect.bottom()).tamed());
        let (Some(from), Some(to)) = corners else { return };
        let rect = Rect::new(from.x, from.y, to.x - from.x, to.y - from.y);
        if rect.width > 0.0 && rect.height > 0.0 {
            self.shapes.push(Shape::Rect { rect, fill });
        }
    }

    pub fn line(&mut self, from: Point, to: Point, stroke: Stroke) {
        self.polyline(vec![from, to], stroke);
    }

    /// A line through two points or more.
    pub fn polyline(&mut self, points: Vec<Point>, stroke: Stroke) {
        if let Some(points) = tamed(points)
            && points.len() > 1
            && stroke.is_drawable()
        {
            self.shapes.push(Shape::Polyline { points, stroke });
        }
    }

    /// A filled area within three points or more.
    pub fn polygon(&mut self, points: Vec<Point>, fill: Color) {
        if let Some(points) = tamed(points)
            && points.len() > 2
        {
            self.shapes.push(Shape::Polygon { points, fill });
        }
    }

    /// A filled circle, its radius in pixels.
    pub fn circle(&mut self, center: Point, radius: f64, fill: Color) {
        if let Some(center) = center.tamed()
            && radius.is_finite()
            && radius > 0.0
        {
            self.shapes.push(Shape::Circle { center, radius: radius.min(FAR), fill });
        }
    }

    pub fn text(&mut self, mut text: Text) {
        if let Some(at) = text.at.tamed()
            && text.size.is_finite()
            && text.size > 0.0
            && !text.content.is_empty()
        {
            text.at = at;
            self.shapes.push(Shape::Text(text));
        }
    }

    /// Shapes with a tooltip of their own (in SVG; PNG has none).
    pub fn group(&mut self, title: impl Into<String>, layer: Self) {
        if !layer.shapes.is_empty() {
            self.shapes.push(Shape::Group { title: title.into(), layer });
        }
    }
}

fn tamed(points: Vec<Point>) -> Option<Vec<Point>> {
    points.into_iter().map(Point::tamed).collect()
}

/// Shapes, the room they have, and what they show in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// What it is, for those who cannot see it and for tooltips.
    pub title: String,
    /// What there is to see, in a sentence or two.
    pub description: String,
    /// Behind all shapes.
    pub background: Color,
    /// What is painted.
    pub layer: Layer,
}

impl Picture {
    /// A light picture of what was drawn from the top down to `bottom`.
    pub fn column(width: u32, bottom: f64, title: String, description: &str, layer: Layer) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let height = bottom.clamp(1.0, 30_000.0).ceil() as u32;
        let (description, background) = (description.to_owned(), Theme::LIGHT.background);
        Self { width, height, title, description, background, layer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INK: Color = Color::new(0, 0, 0);

    #[test]
    fn what_has_no_place_is_left_out() {
        let mut layer = Layer::default();
        let lost = Point::new(f64::NAN, 0.0);
        layer.line(lost, Point::default(), Stroke::solid(INK, 1.0));
        layer.line(Point::default(), Point::new(1.0, 1.0), Stroke::solid(INK, f64::INFINITY));
        layer.line(Point::default(), Point::new(1.0, 1.0), Stroke::dashed(INK, 1.0, 0.0, 0.0));
        layer.polygon(vec![Point::default(), lost, Point::new(1.0, 1.0)], INK);
        layer.circle(Point::default(), f64::NAN, INK);
        layer.rect(Rect::new(0.0, 0.0, f64::NAN, 1.0), INK);
        layer.rect(Rect::new(0.0, 0.0, -5.0, 1.0), INK);
        layer.text(Text::new(lost, "lost", 12.0, INK));
        layer.group("nothing", Layer::default());
        assert_eq!(layer, Layer::default());
    }

    #[test]
    fn what_is_far_away_is_brought_near() {
        let mut layer = Layer::default();
        layer.line(Point::default(), Point::new(1e300, -1e300), Stroke::solid(INK, 1.0));
        let Shape::Polyline { points, .. } = &layer.shapes[0] else { panic!("a line was drawn") };
        assert_eq!(points[1], Point::new(FAR, -FAR));
    }

    #[test]
    fn a_text_takes_room_around_its_anchor() {
        let text = Text::new(Point::new(100.0, 50.0), "abc", 10.0, INK);
        let start = text.clone().bounds();
        let end = text.clone().anchored(Anchor::End).bounds();
        let middle = text.anchored(Anchor::Middle).bounds();
        assert!((start.x - 100.0).abs() < 1e-9 && (end.right() - 100.0).abs() < 1e-9);
        assert!((middle.x + middle.width / 2.0 - 100.0).abs() < 1e-9);
        assert!(start.y < 50.0 && start.bottom() > 50.0);
        assert!(start.overlaps(middle) && !start.overlaps(end));
    }
}
