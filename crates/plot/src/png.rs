//! A picture as PNG, drawn with the font that is built in, so that every machine draws the same.

use tiny_skia::{FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, StrokeDash, Transform};

use super::color::Color;
use super::outlines::{Glyph, Outlines, Part};
use super::picture::{Anchor, Layer, Picture, Point, Shape, Stroke, Text};
use super::text::{self, Hidden};

/// Pixels of the largest picture: it takes four bytes each, 128 MiB.
pub const LARGEST: u64 = 1 << 25;

#[derive(Debug, thiserror::Error)]
pub enum PngError {
    /// There is nothing to draw on, or it would take too much memory.
    #[error("a picture of {width} x {height} pixels cannot be drawn: 1 to {LARGEST} pixels can")]
    Size {
        /// Width asked for, in pixels.
        width: u32,
        /// Height asked for, in pixels.
        height: u32,
    },
    #[error("cannot encode the picture as PNG")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The bytes of a PNG file; of the characters that are `hidden`, U+FFFD is drawn.
///
/// # Errors
/// [`PngError::Size`] for a picture without pixels or with more than [`LARGEST`].
pub fn render(picture: &Picture, hidden: Hidden) -> Result<Vec<u8>, PngError> {
    let (width, height) = (picture.width, picture.height);
    let size = || PngError::Size { width, height };
    if u64::from(width) * u64::from(height) > LARGEST {
        return Err(size());
    }
    let mut canvas = Pixmap::new(width, height).ok_or_else(size)?;
    canvas.fill(color(picture.background));
    draw(&mut canvas, &picture.layer, hidden);
    canvas.encode_png().map_err(|error| PngError::Encode(Box::new(error)))
}

fn draw(canvas: &mut Pixmap, layer: &Layer, hidden: Hidden) {
    for shape in &layer.shapes {
        match shape {
            Shape::Rect { rect, fill } => {
                let (right, bottom) = (rect.right(), rect.bottom());
                let corners = [
                    Point::new(rect.x, rect.y),
                    Point::new(right, rect.y),
                    Point::new(right, bottom),
                    Point::new(rect.x, bottom),
                ];
                if let Some(path) = path(&corners, true) {
                    fill_path(canvas, &path, *fill);
                }
            }
            Shape::Circle { center, radius, fill } => {
                if let Some(path) = PathBuilder::from_circle(near(center.x), near(center.y), near(*radius)) {
                    fill_path(canvas, &path, *fill);
                }
            }
            Shape::Polyline { points, stroke } => {
                if let Some(path) = path(points, false) {
                    stroke_path(canvas, &path, stroke);
                }
            }
            Shape::Polygon { points, fill } => {
                if let Some(path) = path(points, true) {
                    fill_path(canvas, &path, *fill);
                }
            }
            Shape::Text(text) => draw_text(canvas, text, hidden),
            Shape::Group { layer, .. } => draw(canvas, layer, hidden),
        }
    }
}

fn draw_text(canvas: &mut Pixmap, text: &Text, hidden: Hidden) {
    let font = Outlines::built_in();
    let scale = near(text.size) / font.units_per_em();
    // Thicker letters stand a little further apart; the plan of the text has room for it.
    let spread = if text.bold { 1.06 } else { 1.0 };
    let glyphs: Vec<Glyph<'_>> =
        text.content.chars().map(|letter| font.glyph(text::drawn(letter, hidden))).collect();
    let step = |glyph: &Glyph<'_>| glyph.advance * scale * spread;
    let width: f32 = glyphs.iter().map(step).sum();
    let mut pen = near(text.at.x)
        - match text.anchor {
            Anchor::Start => 0.0,
            Anchor::Middle => width / 2.0,
            Anchor::End => width,
        };
    let mut outline = PathBuilder::new();
    for glyph in glyphs {
        // The vertical axis of an outline points up.
        let at = |[x, y]: [f32; 2]| (pen + x * scale, near(text.at.y) - y * scale);
        for part in glyph.parts() {
            match part {
                Part::Move(to) => {
                    let (x, y) = at(to);
                    outline.move_to(x, y);
                }
                Part::Line(to) => {
                    let (x, y) = at(to);
                    outline.line_to(x, y);
                }
                Part::Curve(control, to) => {
                    let ((x1, y1), (x, y)) = (at(control), at(to));
                    outline.quad_to(x1, y1, x, y);
                }
                Part::Close => outline.close(),
            }
        }
        pen += step(&glyph);
    }
    if let Some(path) = outline.finish() {
        fill_path(canvas, &path, text.color);
        if text.bold {
            // One font is built in; an outline of its own color thickens it.
            stroke_path(canvas, &path, &Stroke::solid(text.color, text.size / 22.0));
        }
    }
}

fn path(points: &[Point], closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    let (first, rest) = points.split_first()?;
    builder.move_to(near(first.x), near(first.y));
    for point in rest {
        builder.line_to(near(point.x), near(point.y));
    }
    if closed {
        builder.close();
    }
    builder.finish()
}

fn fill_path(canvas: &mut Pixmap, path: &Path, fill: Color) {
    canvas.fill_path(path, &paint(fill), FillRule::Winding, Transform::identity(), None);
}

fn stroke_path(canvas: &mut Pixmap, path: &Path, stroke: &Stroke) {
    let style = tiny_skia::Stroke {
        width: near(stroke.width),
        line_cap: LineCap::Butt,
        line_join: LineJoin::Round,
        dash: stroke.dash.and_then(|lengths| StrokeDash::new(lengths.map(near).to_vec(), 0.0)),
        ..tiny_skia::Stroke::default()
    };
    canvas.stroke_path(path, &paint(stroke.color), &style, Transform::identity(), None);
}

fn paint(fill: Color) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color(color(fill));
    paint
}

fn color(color: Color) -> tiny_skia::Color {
    let [red, green, blue] = color.rgb;
    tiny_skia::Color::from_rgba8(red, green, blue, color.alpha)
}

#[expect(clippy::cast_possible_truncation, reason = "a layer holds no place beyond 100,000 pixels")]
const fn near(value: f64) -> f32 {
    value as f32
}

#[cfg(test)]
mod tests {
    use super::super::picture::Rect;
    use super::*;
    use memwarden_model::printable::is_hidden;

    fn render(picture: &Picture) -> Result<Vec<u8>, PngError> {
        super::render(picture, is_hidden)
    }

    const WHITE: Color = Color::new(255, 255, 255);
    const BLACK: Color = Color::new(0, 0, 0);

    fn picture(width: u32, height: u32, layer: Layer) -> Picture {
        Picture { width, height, title: String::new(), description: String::new(), background: WHITE, layer }
    }

    fn pixels(picture: &Picture) -> Pixmap {
        Pixmap::decode_png(&render(picture).unwrap()).unwrap()
    }

    fn dark(pixels: &Pixmap) -> usize {
        pixels.pixels().iter().filter(|pixel| pixel.red() < 128).count()
    }

    #[test]
    fn shapes_are_where_they_were_put() {
        let mut layer = Layer::default();
        layer.rect(Rect::new(2.0, 3.0, 4.0, 5.0), BLACK);
        let pixels = pixels(&picture(20, 20, layer));
        assert_eq!((pixels.width(), pixels.height()), (20, 20));
        assert_eq!(dark(&pixels), 20);
        assert_eq!(pixels.pixel(2, 3).unwrap().red(), 0);
        assert_eq!(pixels.pixel(6, 3).unwrap().red(), 255);
    }

    #[test]
    fn texts_are_drawn_within_their_bounds() {
        for (anchor, x) in [(Anchor::Start, 10.0), (Anchor::Middle, 100.0), (Anchor::End, 190.0)] {
            let text = Text::new(Point::new(x, 30.0), "limit 80 GiB, жΩ", 14.0, BLACK).anchored(anchor);
            let bounds = text.bounds();
            let mut layer = Layer::default();
            layer.text(text);
            let drawn = pixels(&picture(200, 50, layer));
            assert!(dark(&drawn) > 100, "{anchor:?}");
            for (at, pixel) in drawn.pixels().iter().enumerate() {
                let (x, y) = (u32::try_from(at).unwrap() % 200, u32::try_from(at).unwrap() / 200);
                let inside = bounds.overlaps(Rect::new(f64::from(x), f64::from(y), 1.0, 1.0));
                assert!(inside || pixel.red() == 255, "{anchor:?} at {x}, {y}");
            }
        }
    }

    #[test]
    fn the_widths_of_the_layout_are_those_of_the_font() {
        let font = Outlines::built_in();
        let missing = font.glyph('\u{10ffff}');
        for letter in ' '..='~' {
            let real = f64::from(font.glyph(letter).advance) / 2048.0;
            let planned = text::width(&letter.to_string(), 1.0, false);
            assert!((real - planned).abs() < 1e-9, "{letter}");
        }
        // Beyond ASCII the plan is an upper bound.
        for letter in ('\u{a0}'..='\u{45f}').chain("–—…≤≥≈→−∞●".chars()) {
            let glyph = font.glyph(letter);
            if glyph == missing {
                continue;
            }
            let real = f64::from(glyph.advance) / 2048.0;
            let planned = text::width(&letter.to_string(), 1.0, false);
            assert!(real <= planned + 1e-9, "{letter}: {real} > {planned}");
        }
    }

    #[test]
    fn the_same_picture_gives_the_same_bytes() {
        let mut layer = Layer::default();
        layer.text(Text::new(Point::new(5.0, 20.0), "same", 14.0, BLACK).bold());
        layer.line(Point::default(), Point::new(50.0, 7.3), Stroke::dashed(BLACK, 1.5, 6.0, 4.0));
        let picture = picture(60, 30, layer);
        assert_eq!(render(&picture).unwrap(), render(&picture).unwrap());
    }

    #[test]
    fn a_size_that_cannot_be_is_reported() {
        for (width, height) in [(0, 10), (10, 0), (u32::MAX, u32::MAX), (100_000, 100_000)] {
            let error = render(&picture(width, height, Layer::default())).unwrap_err();
            assert!(error.to_string().contains(&format!("{width} x {height}")), "{error}");
        }
    }

    #[test]
    fn what_is_hostile_is_drawn_all_the_same() {
        let mut layer = Layer::default();
        layer.text(Text::new(Point::new(5.0, 20.0), "\0\u{202e}漢字 <b>&", 14.0, BLACK));
        layer.line(Point::new(-1e300, 1e300), Point::new(1e300, 3.0), Stroke::dashed(BLACK, 1e9, 0.5, 0.5));
        layer.circle(Point::default(), 1e300, BLACK.with_alpha(9));
        layer.rect(Rect::new(-1e9, -1e9, 1e300, 1e300), BLACK.with_alpha(9));
        render(&picture(60, 30, layer)).unwrap();
    }
}
