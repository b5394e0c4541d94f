//! The lower part of a terminal, which is redrawn for each report.

use std::borrow::Cow;
use std::io::{IsTerminal as _, Write as _};

use crate::model::printable;
use crate::report::text::wrapped;
use crate::report::{Page, Paint};

/// Where the report is shown while it is made: standard error, where that is a terminal.
pub(in crate::cli) struct Screen {
    live: bool,
    /// Number of lines that are drawn.
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

/// The same of the terminal on standard error.
pub(in crate::cli) fn standard_error_page() -> Page {
    let is_terminal = std::io::stderr().is_terminal();
    Page { paint: paint(is_terminal), columns: is_terminal.then(|| size(std::io::stderr()).0) }
}

/// Wraps a text to the width of the terminal on standard error; unchanged if it is no terminal.
pub(in crate::cli) fn for_standard_error(text: &str) -> Cow<'_, str> {
    let columns = std::io::stderr().is_terminal().then(|| size(std::io::stderr()).0);
    wrapped(text, Page { columns, ..Page::default() })
}

/// Columns and rows of a terminal; 80 and 24 where it reports no size.
pub(in crate::cli) fn size(terminal: impl std::os::fd::AsFd) -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(terminal).ok();
    // A terminal without a known size reports 0.
    let report = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    report.map_or((80, 24), |size| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

/// Whether the terminal cannot move its cursor.
pub(in crate::cli) fn is_dumb() -> bool {
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

    /// The bytes that draw a text.
    pub(in crate::cli) fn page(&self) -> Page {
        Page { paint: paint(self.live), columns: self.live.then(|| size(std::io::stderr()).0) }
    }

    /// Replaces the text shown before, wrapped to the width and cut to the height of the terminal; `last` is always shown.
    pub(in crate::cli) fn show(&mut self, text: &str, last: &str) {
        if !self.live {
            return;
        }
        let (columns, rows) = size(std::io::stderr());
        let page = Page { columns: Some(columns), ..Page::default() };
        let (text, last) = (wrapped(text, page), wrapped(last, page));
        let height = rows.saturating_sub(1 + last.lines().count());
        let shown: Vec<&str> = text.lines().take(height).chain(last.lines()).collect();
        let mut out = self.cleared();
        for line in &shown {
            out.push_str(&printable::colored(line));
            out.push('\n');
        }
        self.lines = shown.len();
        // A closed terminal does not end the report: the report may go into a file.
        let _ = std::io::stderr().write_all(out.as_bytes());
    }

    /// Clears the drawn lines.
    pub(in crate::cli) fn clear(&mut self) {
        if self.lines > 0 {
            let _ = std::io::stderr().write_all(self.cleared().as_bytes());
            self.lines = 0;
        }
    }

    /// Moves to the first drawn line and clears from there (ECMA-48: CPL, ED).
    fn cleared(&self) -> String {
        if self.lines == 0 { String::new() } else { format!("\x1b[{}F\x1b[J", self.lines) }
    }
}

/// The progress of a watch: `[#####.....]`.
pub(super) fn bar(share: f64) -> String {
    const WIDTH: usize = 30;
    let full =
        (0..WIDTH).filter(|place| f64::from(u32::try_from(*place).unwrap_or(0)) < share * 30.0).count();
    format!("[{}{}]", "#".repeat(full), ".".repeat(WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_the_share() {
        assert_eq!(bar(0.0), format!("[{}]", ".".repeat(30)));
        assert_eq!(bar(0.5), format!("[{}{}]", "#".repeat(15), ".".repeat(15)));
        assert_eq!(bar(2.0), format!("[{}]", "#".repeat(30)));
    }
}
