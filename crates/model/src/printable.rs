//! Escapes text of users, files and processes for display, so that it cannot move the cursor, begin a line, or hide
//! or reorder text.
//!
//! Replaced by a visible escape: control characters (C0, DEL, C1), line and paragraph separators, marks, embeddings,
//! overrides and isolates of bidirectional text, and characters without a width. A backslash is unchanged, so that
//! text that is already escaped stays the same.

use std::borrow::Cow;
use std::fmt::Write as _;

/// The color sequences of reports; no other escape sequence is written to a terminal.
const COLORS: [&str; 6] = ["\x1b[1;31m", "\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[1m", "\x1b[0m"];

/// Whether a character is escaped.
pub const fn is_hidden(letter: char) -> bool {
    matches!(letter,
        '\0'..='\x1f' | '\x7f'..='\u{9f}'
        // Format characters (Cf), by the Unicode Character Database.
        | '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}' | '\u{8e2}'
        | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
        // Line and paragraph separators.
        | '\u{2028}' | '\u{2029}'
        // Letters without a glyph.
        | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}' | '\u{ffa0}')
}

/// Escapes one line of text: a name, a path, a message.
pub fn escaped(text: &str) -> Cow<'_, str> {
    replaced(text, is_hidden, escape)
}

/// Escapes a path as one line of text; bytes that are not UTF-8 are replaced by U+FFFD.
pub fn path(path: &std::path::Path) -> String {
    escaped(&path.to_string_lossy()).into_owned()
}

/// Escapes a text of several lines; line feeds are kept.
pub fn lines(text: &str) -> Cow<'_, str> {
    replaced(text, |letter| letter != '\n' && is_hidden(letter), escape)
}

/// Escapes a text of several lines; line feeds and the color sequences of reports are kept.
pub fn colored(text: &str) -> Cow<'_, str> {
    if !text.contains('\x1b') {
        return lines(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find('\x1b') {
        out.push_str(&lines(&rest[..place]));
        rest = &rest[place..];
        let color = COLORS.iter().find(|color| rest.starts_with(**color));
        out.push_str(color.copied().unwrap_or("\\x1b"));
        rest = &rest[color.map_or(1, |color| color.len())..];
    }
    out.push_str(&lines(rest));
    out.into()
}

/// Escapes a JSON text with JSON escapes, so that its meaning is unchanged; such characters occur only in strings.
pub fn json(text: &str) -> Cow<'_, str> {
    replaced(
        text,
        |letter| !matches!(letter, '\n' | '\r' | '\t') && is_hidden(letter),
        |letter, out| {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        },
    )
}

fn replaced(text: &str, hidden: impl Fn(char) -> bool, put: impl Fn(char, &mut String)) -> Cow<'_, str> {
    // Nearly all text is plain ASCII.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.contains(&hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if hidden(letter) {
            put(letter, &mut out);
        } else {
            out.push(letter);
        }
    }
    out.into()
}

fn escape(letter: char, out: &mut String) {
    let _ = match letter {
        '\n' => write!(out, "\\n"),
        '\r' => write!(out, "\\r"),
        '\t' => write!(out, "\\t"),
        letter if letter.is_ascii() => write!(out, "\\x{:02x}", u32::from(letter)),
        letter => write!(out, "\\u{{{:x}}}", u32::from(letter)),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\x1b]0;x\x07\r\n\tb\x7f\u{9b}2J\u{202e}c\u{200b}\u{2028}\u{feff}é\u{e0041}";

    #[test]
    fn no_invisible_character_remains() {
        let shown = escaped(HOSTILE);
        assert_eq!(
            shown,
            "a\\x1b]0;x\\x07\\r\\n\\tb\\x7f\\u{9b}2J\\u{202e}c\\u{200b}\\u{2028}\\u{feff}é\\u{e0041}"
        );
        assert_eq!(escaped(&shown), shown, "escaped once is escaped");
        assert!(matches!(escaped("plain é 中 \\x1b"), Cow::Borrowed(_)));
        assert_eq!(path(std::path::Path::new("/a\nb")), "/a\\nb");
    }

    #[test]
    fn a_report_keeps_its_lines_and_its_own_colors() {
        assert_eq!(lines("a\nb\x1b[31m"), "a\nb\\x1b[31m");
        assert_eq!(colored("\x1b[1mhead\x1b[0m\n\x1b[2Jx\x1b"), "\x1b[1mhead\x1b[0m\n\\x1b[2Jx\\x1b");
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let texts: Vec<String> = vec![HOSTILE.to_owned()];
        let text = serde_json::to_string_pretty(&texts).unwrap();
        let shown = json(&text);
        assert!(!shown.contains(|letter| letter != '\n' && is_hidden(letter)), "{shown}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), texts);
    }
}
