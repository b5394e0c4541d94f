//! The lower part of a terminal, painted anew again and again.

use std::io::{IsTerminal as _, Write as _};

use crate::model::printable;
use crate::report::{Page, Paint};

/// Where the report is shown while it is made: standard error, where that is a terminal.
pub(in crate::cli) struct Screen {
    live: bool,
    /// Lines that are painted now.
    lines: usize,
}

/// Whether colors are wanted (no-color.org).
fn paint(is_terminal: bool) -> Paint {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_terminal && !refused && !is_dumb() { Paint::Colors } else { Paint::Plain }
}

/// The width and the colors of the terminal on standard output; neither if it is no terminal.
pub(in crate::cli) fn standard_output_page() -> Page {
    let is_terminal = std::io::stdout().is_terminal();
    Page { paint: paint(is_terminal), columns: is_terminal.then(|| size(std::io::stdout()).0) }
}

/// Columns and rows of a terminal; 80 and 24 where it does not tell.
pub(in crate::cli) fn size(terminal: impl std::os::fd::AsFd) -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(terminal).ok();
    // A terminal that does not tell its size says 0.
    let told = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    told.map_or((80, 24), |size| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb")
}

impl Screen {
    pub(in crate::cli) fn new() -> Self {
        Self { live: std::io::stderr().is_terminal() && !is_dumb(), lines: 0 }
    }

    /// Whether anything is shown before the end.
    pub(in crate::cli) fn is_live(&self) -> bool {
        self.live
    }

    /// What is written for it.
    pub(in crate::cli) fn page(&self) -> Page {
        Page { paint: paint(self.live), columns: self.live.then(|| size(std::io::stderr()).0) }
    }

    /// Puts a text in the place of the one before, cut to the size of the terminal; the last line is always seen.
    pub(in crate::cli) fn show(&mut self, text: &str, last: &str) {
        if !self.live {
            return;
        }
        let (columns, rows) = size(std::io::stderr());
        let lines = text.lines().take(rows.saturating_sub(2)).chain([last]);
        let shown: Vec<String> = lines.map(|line| cut(line, columns)).collect();
        let mut out = self.cleared();
        for line in &shown {
            out.push_str(&printable::colored(line));
            out.push('\n');
        }
        self.lines = shown.len();
        // A terminal that is gone is no reason to end: the report may go into a file.
        let _ = std::io::stderr().write_all(out.as_bytes());
    }

    /// Takes away what is shown.
    pub(in crate::cli) fn clear(&mut self) {
        if self.lines > 0 {
            let _ = std::io::stderr().write_all(self.cleared().as_bytes());
            self.lines = 0;
        }
    }

    /// Moves to the first line that is painted and clears from there (ECMA-48: CPL, ED).
    fn cleared(&self) -> String {
        if self.lines == 0 { String::new() } else { format!("\x1b[{}F\x1b[J", self.lines) }
    }
}

/// The first columns of a line; colors take no place, and end with the line.
fn cut(line: &str, columns: usize) -> String {
    let (mut out, mut taken, mut escape) = (String::new(), 0, false);
    for letter in line.chars() {
        let begins = letter == '\x1b';
        if escape || begins {
            out.push(letter);
            escape = begins || !letter.is_ascii_alphabetic();
        } else if taken < columns {
            out.push(letter);
            taken += 1;
        }
    }
    out
}

/// How far a watch has come: `[#####.....]`.
pub(in crate::cli) fn bar(share: f64) -> String {
    const WIDTH: usize = 30;
    let full =
        (0..WIDTH).filter(|place| f64::from(u32::try_from(*place).unwrap_or(0)) < share * 30.0).count();
    format!("[{}{}]", "#".repeat(full), ".".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_and_colors_are_kept() {
        assert_eq!(cut("abcdef", 4), "abcd");
        assert_eq!(cut("ab\x1b[1;31mcdef\x1b[0m", 4), "ab\x1b[1;31mcd\x1b[0m");
        assert_eq!(bar(0.0), format!("[{}]", ".".repeat(30)));
        assert_eq!(bar(0.5), format!("[{}{}]", "#".repeat(15), ".".repeat(15)));
        assert_eq!(bar(2.0), format!("[{}]", "#".repeat(30)));
    }
}
