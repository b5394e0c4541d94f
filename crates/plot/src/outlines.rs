//! The outlines of the font that is built in: DejaVu Sans, cut down to Latin, Greek, Cyrillic and the signs that charts
//! use (`font/LICENSE` has its terms).
//!
//! `font/DejaVuSans.outlines` is what `tests/outlines.py` reads from `font/DejaVuSans.ttf`, so that no font library is linked
//! or built; `tests/it/plot.rs` compares them. All numbers in the file are little-endian:
//! - `u16` units per em, `u16` number of glyphs;
//! - for each glyph, in the order of its letter: `u32` letter (0 for what the font does not have), `u16` advance width in
//!   units, `u32` position of its first part, in bytes from the beginning of the parts;
//! - parts: a byte ([`Part`]: 0 move, 1 line, 2 curve, 3 close), then one or two points of two `i16`, in half units, because
//!   a TrueType outline has points in the middle between two others.

const FILE: &[u8] = include_bytes!("font/DejaVuSans.outlines");
const HEAD: usize = 4;
const ENTRY: usize = 10;

/// A font: outlines by letter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outlines {
    bytes: &'static [u8],
}

/// A letter's outline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Glyph<'a> {
    /// How far the next letter stands from this one, in units of the font.
    pub(super) advance: f32,
    parts: &'a [u8],
}

/// A part of an outline; points are horizontal and vertical distances from the letter's origin, in units of the font.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
    /// A new contour begins here.
    Move([f32; 2]),
    /// A straight line to here.
    Line([f32; 2]),
    /// A quadratic curve: its control point, and its end.
    Curve([f32; 2], [f32; 2]),
    Close,
}

impl Outlines {
    pub(super) const fn built_in() -> Self {
        Self { bytes: FILE }
    }

    pub(super) fn units_per_em(self) -> f32 {
        f32::from(self.word(0))
    }

    /// The outline of a letter; of the box for missing letters where the font does not have it.
    pub(super) fn glyph(self, letter: char) -> Glyph<'static> {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.letter(middle).cmp(&u32::from(letter)) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return self.entry(middle),
            }
        }
        self.entry(0)
    }

    fn entry(self, at: usize) -> Glyph<'static> {
        let place = HEAD + at * ENTRY;
        let parts = &self.bytes[HEAD + self.count() * ENTRY..];
        let end = if at + 1 < self.count() { self.long(place + ENTRY + 6) } else { parts.len() };
        Glyph { advance: f32::from(self.word(place + 4)), parts: &parts[self.long(place + 6)..end] }
    }

    fn letter(self, at: usize) -> u32 {
        let place = HEAD + at * ENTRY;
        u32::from(self.word(place)) | u32::from(self.word(place + 2)) << 16
    }

    fn count(self) -> usize {
        usize::from(self.word(2))
    }

    fn word(self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn long(self, at: usize) -> usize {
        usize::from(self.word(at)) | usize::from(self.word(at + 2)) << 16
    }
}

impl<'a> Glyph<'a> {
    /// Its outline, from the first part to the last.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> + use<'a> {
        let mut rest = self.parts;
        std::iter::from_fn(move || {
            let (kind, after) = rest.split_first()?;
            let mut point = after;
            let mut next = || {
                let (point_bytes, after) = point.split_first_chunk::<4>()?;
                point = after;
                let [a, b, c, d] = *point_bytes;
                Some([[a, b], [c, d]].map(|half| f32::from(i16::from_le_bytes(half)) / 2.0))
            };
            let part = match kind {
                0 => Part::Move(next()?),
                1 => Part::Line(next()?),
                2 => Part::Curve(next()?, next()?),
                _ => Part::Close,
            };
            rest = point;
            Some(part)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_is_found_and_read_to_its_end() {
        let font = Outlines::built_in();
        let missing = font.glyph('漢');
        assert!(missing.advance > 0.0 && missing.parts().count() > 4);
        for at in 1..font.count() {
            let letter = char::from_u32(font.letter(at)).unwrap();
            let glyph = font.glyph(letter);
            assert_eq!(glyph, font.entry(at), "{letter}");
            let bytes: usize = glyph
                .parts()
                .map(|part| match part {
                    Part::Move(_) | Part::Line(_) => 5,
                    Part::Curve(..) => 9,
                    Part::Close => 1,
                })
                .sum();
            assert_eq!(bytes, glyph.parts.len(), "{letter}");
        }
        assert_eq!(font.glyph('I').parts().filter(|part| *part == Part::Close).count(), 1);
    }
}
