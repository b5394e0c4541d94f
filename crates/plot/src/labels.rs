//! Texts that never lie on each other: each is placed only where none is yet, and inside the picture.

use super::picture::{Layer, Rect, Text};

/// Pixels between texts side by side.
const APART: f64 = 4.0;

/// The room of a picture and what is taken of it.
#[derive(Debug)]
pub(super) struct Labels {
    room: Rect,
    taken: Vec<Rect>,
}

impl Labels {
    /// An empty room.
    pub(super) const fn new(room: Rect) -> Self {
        Self { room, taken: Vec::new() }
    }

    /// Whether a text would lie inside the room and on no other.
    pub(super) fn has_room(&self, text: &Text) -> bool {
        let bounds = text.bounds();
        let inside = bounds.x >= self.room.x
            && bounds.y >= self.room.y
            && bounds.right() <= self.room.right()
            && bounds.bottom() <= self.room.bottom();
        let wide = Rect::new(bounds.x - APART, bounds.y, bounds.width + 2.0 * APART, bounds.height);
        inside && bounds.width > 0.0 && !self.taken.iter().any(|taken| taken.overlaps(wide))
    }

    /// Paints a text if it has room; says whether it had.
    pub(super) fn place(&mut self, layer: &mut Layer, text: Text) -> bool {
        let fits = self.has_room(&text);
        if fits {
            self.taken.push(text.bounds());
            layer.text(text);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::super::color::Color;
    use super::super::picture::Point;
    use super::*;

    #[test]
    fn a_text_on_another_or_outside_is_not_placed() {
        let mut labels = Labels::new(Rect::new(0.0, 0.0, 100.0, 40.0));
        let mut layer = Layer::default();
        let text = |x, y| Text::new(Point::new(x, y), "word", 10.0, Color::new(0, 0, 0));
        let placed =
            [(5.0, 15.0), (20.0, 18.0), (60.0, 15.0), (90.0, 15.0), (5.0, 2.0), (5.0, 30.0), (5.0, 39.0)]
                .map(|(x, y)| labels.place(&mut layer, text(x, y)));
        assert_eq!(placed, [true, false, true, false, false, true, false]);
        assert_eq!(layer.texts().len(), 3);
    }
}
