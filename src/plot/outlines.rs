//! The outlines of the font that is built in: DejaVu Sans, cut down to Latin, Greek, Cyrillic and the signs that charts
//! use (`font/LICENSE` has its terms).
//!
//! `font/DejaVuSans.outlines` is what `skrifa` reads from `font/DejaVuSans.ttf`, so that no font library is linked: two of
//! its crates would take a tenth of the time of a build. A test compares both files, and writes the first with
//! `UPDATE_EXPECT=1`. All numbers in it are little-endian:
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
    use skrifa::instance::{LocationRef, Size};
    use skrifa::outline::{DrawSettings, OutlinePen};
    use skrifa::{FontRef, GlyphId, MetadataProvider as _};

    use super::*;

    /// The parts of one outline, as they stand in the file.
    #[derive(Default)]
    struct Pen(Vec<u8>);

    impl Pen {
        fn part(&mut self, kind: u8, points: &[f32]) {
            self.0.push(kind);
            for value in points {
                let halves = value * 2.0;
                assert_eq!(halves.fract(), 0.0, "a point lies between two half units");
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "whole, and a font's coordinates are 16 bits"
                )]
                self.0.extend((halves as i16).to_le_bytes());
                assert!(halves.abs() < f32::from(i16::MAX));
            }
        }
    }

    impl OutlinePen for Pen {
        fn move_to(&mut self, x: f32, y: f32) {
            self.part(0, &[x, y]);
        }
        fn line_to(&mut self, x: f32, y: f32) {
            self.part(1, &[x, y]);
        }
        fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
            self.part(2, &[x1, y1, x, y]);
        }
        fn curve_to(&mut self, _: f32, _: f32, _: f32, _: f32, _: f32, _: f32) {
            panic!("a TrueType font has no cubic curves");
        }
        fn close(&mut self) {
            self.part(3, &[]);
        }
    }

    #[test]
    fn the_outlines_are_those_of_the_font() {
        let font = FontRef::new(include_bytes!("font/DejaVuSans.ttf")).unwrap();
        let whole = (Size::unscaled(), LocationRef::default());
        let metrics = font.glyph_metrics(whole.0, whole.1);
        let outlines = font.outline_glyphs();
        let mut letters: Vec<(u32, GlyphId)> = font.charmap().mappings().collect();
        letters.retain(|(_, glyph)| *glyph != GlyphId::NOTDEF);
        letters.push((0, GlyphId::NOTDEF));
        letters.sort_unstable();
        let mut head = Vec::new();
        head.extend(font.metrics(whole.0, whole.1).units_per_em.to_le_bytes());
        head.extend(u16::try_from(letters.len()).unwrap().to_le_bytes());
        let mut parts = Pen::default();
        for (letter, glyph) in letters {
            let advance = metrics.advance_width(glyph).unwrap();
            assert_eq!(advance.fract(), 0.0);
            head.extend(letter.to_le_bytes());
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "whole, and 16 bits in the font"
            )]
            head.extend((advance as u16).to_le_bytes());
            head.extend(u32::try_from(parts.0.len()).unwrap().to_le_bytes());
            if let Some(drawn) = outlines.get(glyph) {
                drawn.draw(DrawSettings::unhinted(whole.0, whole.1), &mut parts).unwrap();
            }
        }
        head.extend(parts.0);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/plot/font/DejaVuSans.outlines"), &head)
                .unwrap();
        } else {
            assert!(head == FILE, "run this test with UPDATE_EXPECT=1 to write the outlines anew");
        }
    }

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
