//! How wide a text is, in a font that is wider than most, so that what fits here fits everywhere.
//!
//! The widths are DejaVu Sans's (2048 units to the em), the font of the PNG pictures; viewers of the SVG
//! choose it, Verdana (as wide), or their own sans-serif, which is narrower.

use std::borrow::Cow;

/// From the base line to the top of the highest letters, in ems.
pub const ASCENT: f64 = 0.93;
/// From the top of the highest letters to the bottom of the lowest, in ems.
pub const HEIGHT: f64 = 1.17;
/// From the middle of digits and capitals down to the base line, in ems.
pub const MIDDLE: f64 = 0.365;

/// Of bold letters to regular ones: DejaVu Sans Bold is 12 % wider on average, and no text of letters more.
const BOLD: f64 = 1.14;

/// Advance widths of U+0020 to U+007E.
#[rustfmt::skip]
const ASCII: [u16; 95] = [
    651, 821, 942, 1716, 1303, 1946, 1597, 563, 799, 799, 1024, 1716, 651, 739, 651, 690,
    1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 1303, 690, 690, 1716, 1716, 1716, 1087,
    2048, 1401, 1405, 1430, 1577, 1294, 1178, 1587, 1540, 604, 604, 1343, 1141, 1767, 1532, 1612,
    1235, 1612, 1423, 1300, 1251, 1499, 1401, 2025, 1403, 1251, 1403, 799, 690, 799, 1716, 1024,
    1024, 1255, 1300, 1126, 1300, 1260, 721, 1300, 1298, 569, 569, 1186, 569, 1995, 1298, 1253,
    1300, 1300, 842, 1067, 803, 1298, 1212, 1675, 1212, 1212, 1075, 1303, 690, 1303, 1716,
];

/// The width of a text in pixels, at a size in pixels.
pub fn width(content: &str, size: f64, bold: bool) -> f64 {
    let ems: f64 = content.chars().map(advance).sum();
    ems * size * if bold { BOLD } else { 1.0 }
}

/// The text, or as much of its beginning as fits a width in pixels, with an ellipsis.
pub fn fit(content: &str, size: f64, bold: bool, room: f64) -> Cow<'_, str> {
    if width(content, size, bold) <= room {
        return Cow::Borrowed(content);
    }
    let scale = size * if bold { BOLD } else { 1.0 };
    let mut left = room / scale - advance('…');
    if left < 0.0 {
        return Cow::Borrowed("");
    }
    let mut cut = String::new();
    for letter in content.chars() {
        left -= advance(letter);
        if left < 0.0 {
            break;
        }
        cut.push(letter);
    }
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    Cow::Owned(cut)
}

/// Whether a character is not to be drawn as it is, because it would hide itself or reorder the text around it. The
/// renderers draw U+FFFD in its place.
pub type Hidden = fn(char) -> bool;

/// What is drawn for a character: itself, or a replacement where it is hidden or XML cannot carry it.
pub(super) fn drawn(letter: char, hidden: Hidden) -> char {
    match letter {
        '\t' | '\n' | '\r' => ' ',
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}' => '\u{fffd}',
        letter if hidden(letter) => '\u{fffd}',
        other => other,
    }
}

/// Advance width in ems. Beyond ASCII it is on the wide side of what fonts have, and no less than that of U+FFFD for
/// all that may be hidden.
fn advance(letter: char) -> f64 {
    let letter = drawn(letter, |_| false);
    if let Some(units) = u32::from(letter)
        .checked_sub(0x20)
        .and_then(|at| usize::try_from(at).ok())
        .and_then(|at| ASCII.get(at))
    {
        return f64::from(*units) / 2048.0;
    }
    match letter {
        '·' | 'ı' => 0.4,
        '–' | '°' => 0.5,
        '\u{300}'..='\u{34e}' | '\u{350}'..='\u{36f}' => 0.0,
        '×' | '\u{2190}'..='\u{2195}' | '≤' | '≥' | '≈' | '−' => 0.84,
        'æ' | 'œ' | 'ŉ' | 'ŵ' | 'ω' | 'ώ' | 'ϖ' | 'ϣ' | 'ж' | 'м' | 'ф' | 'ш' | 'щ' | 'ы' | 'ю' | 'љ'
        | 'њ' => 1.03,
        '\u{a0}'..='\u{52f}' if letter.is_lowercase() => 0.75,
        _ => 1.1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_are_the_fonts() {
        assert!((width("0000", 20.48, false) - 4.0 * 13.03).abs() < 1e-9);
        assert!(width("memory", 12.0, true) > width("memory", 12.0, false));
        assert!(width("", 12.0, false).abs() < 1e-9);
    }

    #[test]
    fn a_hidden_letter_has_room_for_what_is_drawn_for_it() {
        let hidden =
            |letter: &char| memwarden_model::printable::is_hidden(*letter) && !"\t\n\r".contains(*letter);
        for letter in ('\0'..=char::MAX).filter(hidden) {
            assert!(advance(letter) >= advance('\u{fffd}'), "{letter:?}");
        }
    }

    #[test]
    fn what_is_too_long_is_cut() {
        assert_eq!(fit("short", 10.0, false, 100.0), "short");
        assert_eq!(fit("resident memory of a rank", 10.0, false, 60.0), "resident…");
        assert_eq!(fit("resident", 10.0, false, 3.0), "");
        assert_eq!(fit("", 10.0, false, 0.0), "");
    }

    proptest::proptest! {
        #[test]
        fn what_was_cut_fits(content: String, size in 5.0..40.0, bold: bool, room in 0.0..500.0) {
            assert!(width(&fit(&content, size, bold, room), size, bold) <= room + 1e-6);
        }
    }
}
