//! Colors that people with any color vision can tell apart, on light and on dark.
//!
//! Okabe and Ito, "Color Universal Design" (2008), <https://jfly.uni-koeln.de/color/>: the eight colors most
//! used for this. Yellow is left out on light, black on dark, because neither could be seen there.

/// A color with its opacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Color {
    /// Red, green, blue: 0 to 255 each.
    pub rgb: [u8; 3],
    /// Opacity: 0 is invisible, 255 covers.
    pub alpha: u8,
}

impl Color {
    pub const fn new(red: u8, green: u8, blue: u8) -> Self {
        Self { rgb: [red, green, blue], alpha: 255 }
    }

    /// The same color with an opacity of 0 to 255.
    #[must_use]
    pub const fn with_alpha(self, alpha: u8) -> Self {
        Self { alpha, ..self }
    }
}

const ORANGE: Color = Color::new(0xE6, 0x9F, 0x00);
const SKY_BLUE: Color = Color::new(0x56, 0xB4, 0xE9);
const BLUISH_GREEN: Color = Color::new(0x00, 0x9E, 0x73);
const YELLOW: Color = Color::new(0xF0, 0xE4, 0x42);
const BLUE: Color = Color::new(0x00, 0x72, 0xB2);
const VERMILION: Color = Color::new(0xD5, 0x5E, 0x00);
const REDDISH_PURPLE: Color = Color::new(0xCC, 0x79, 0xA7);

/// The colors of a picture, by what they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Behind everything.
    pub background: Color,
    /// Titles, limit lines.
    pub ink: Color,
    /// Axis numbers, notes.
    pub muted: Color,
    pub grid: Color,
    /// Where nothing is known.
    pub unknown: Color,
    /// What went wrong.
    pub alarm: Color,
    /// Lines, in the order they are handed out; the best to see come first.
    pub series: [Color; 6],
}

impl Theme {
    /// Dark on white; the default, as most documents are.
    pub const LIGHT: Self = Self {
        background: Color::new(255, 255, 255),
        ink: Color::new(0x1F, 0x23, 0x28),
        muted: Color::new(0x57, 0x5E, 0x66),
        grid: Color::new(0xE3, 0xE6, 0xEA),
        unknown: Color::new(0xEC, 0xEC, 0xEC),
        alarm: Color::new(0xB8, 0x3A, 0x00),
        series: [BLUE, VERMILION, BLUISH_GREEN, REDDISH_PURPLE, ORANGE, SKY_BLUE],
    };

    /// Light on near black.
    pub const DARK: Self = Self {
        background: Color::new(0x14, 0x17, 0x1A),
        ink: Color::new(0xF0, 0xF2, 0xF4),
        muted: Color::new(0xA9, 0xB1, 0xBA),
        grid: Color::new(0x2D, 0x33, 0x3A),
        unknown: Color::new(0x26, 0x2A, 0x30),
        alarm: Color::new(0xFF, 0x9A, 0x5C),
        series: [SKY_BLUE, ORANGE, BLUISH_GREEN, YELLOW, REDDISH_PURPLE, VERMILION],
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Color {
        /// Relative luminance, 0 to 1, as WCAG 2.2 defines it.
        fn luminance(self) -> f64 {
            let [red, green, blue] = self.rgb.map(|channel| {
                let share = f64::from(channel) / 255.0;
                if share <= 0.040_45 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
            });
            0.2126 * red + 0.7152 * green + 0.0722 * blue
        }

        /// Contrast to another color, 1 to 21, as WCAG 2.2 defines it (text wants 4.5, shapes 3).
        fn contrast(self, other: Self) -> f64 {
            let (one, two) = (self.luminance(), other.luminance());
            (one.max(two) + 0.05) / (one.min(two) + 0.05)
        }
    }

    #[test]
    fn contrast_is_what_wcag_says() {
        let (black, white) = (Color::new(0, 0, 0), Color::new(255, 255, 255));
        assert!((black.contrast(white) - 21.0).abs() < 1e-9);
        assert!((white.contrast(white) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn texts_and_lines_can_be_seen() {
        for theme in [Theme::LIGHT, Theme::DARK] {
            for text in [theme.ink, theme.muted, theme.alarm] {
                for behind in [theme.background, theme.unknown] {
                    assert!(text.contrast(behind) >= 4.5, "{text:?} on {behind:?}");
                }
            }
            // The palette is given; its first three lines, which most charts need, have the contrast of shapes.
            for (at, line) in theme.series.iter().enumerate() {
                let least = if at < 3 { 3.0 } else { 2.0 };
                assert!(
                    line.contrast(theme.background) >= least,
                    "{line:?} {}",
                    line.contrast(theme.background)
                );
            }
        }
    }
}
