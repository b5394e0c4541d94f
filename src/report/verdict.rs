//! The line with the result of a report: on a terminal, it begins with a symbol of its severity, in the color of it.

use super::text::{Page, Paint};

/// How severe a verdict is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VerdictLevel {
    /// Measured, and nothing is wrong.
    Ok,
    /// Not measured, or not all of it, or for too short a time.
    Unknown,
    /// Requires attention.
    Warning,
    /// Requires action now.
    Critical,
}

impl VerdictLevel {
    /// The level if part of the selection was not measured: unknown is not healthy.
    pub(crate) fn in_part(self, is_in_part: bool) -> Self {
        if is_in_part && self == Self::Ok { Self::Unknown } else { self }
    }

    /// The symbol, as in the terminal UI, and the color (ECMA-48 SGR).
    const fn symbol(self) -> (&'static str, &'static str) {
        match self {
            Self::Ok => ("ok", "32"),
            Self::Unknown => ("?", "35"),
            Self::Warning => ("!", "33"),
            Self::Critical => ("!!", "1;31"),
        }
    }

    /// A word that names the level itself, in its color.
    pub(crate) fn painted(self, word: &str, page: Page) -> String {
        match page.paint {
            Paint::Plain => word.to_owned(),
            Paint::Colors => format!("\x1b[{}m{word}\x1b[0m", self.symbol().1),
        }
    }

    /// A sentence as it is shown on the page: with symbol and color on a terminal, else unchanged.
    pub(crate) fn marked(self, sentence: &str, page: Page) -> String {
        match page.columns {
            None => sentence.to_owned(),
            Some(_) => self.painted(&format!("{} {sentence}", self.symbol().0), page),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [VerdictLevel; 4] =
        [VerdictLevel::Ok, VerdictLevel::Unknown, VerdictLevel::Warning, VerdictLevel::Critical];

    #[test]
    fn symbols_are_on_terminals_only_and_color_is_never_alone() {
        let shown = |page: Page| ALL.map(|level| level.marked("It leaks.", page)).join("\n");
        assert_eq!(shown(Page::default()), ["It leaks."; 4].join("\n"));
        let plain = Page { columns: Some(80), paint: Paint::Plain };
        assert_eq!(shown(plain), "ok It leaks.\n? It leaks.\n! It leaks.\n!! It leaks.");
        let colors = Page { paint: Paint::Colors, ..plain };
        let colored = shown(colors);
        assert_eq!(colored.lines().next(), Some("\x1b[32mok It leaks.\x1b[0m"));
        // The colors are those that the output keeps.
        assert_eq!(crate::model::printable::colored(&colored), colored);
        let without = ["\x1b[32m", "\x1b[35m", "\x1b[33m", "\x1b[1;31m", "\x1b[0m"];
        assert_eq!(without.iter().fold(colored, |text, color| text.replace(color, "")), shown(plain));
    }

    #[test]
    fn a_word_of_a_level_needs_no_symbol() {
        let page = Page { columns: Some(80), paint: Paint::Colors };
        assert_eq!(VerdictLevel::Critical.painted("problem", page), "\x1b[1;31mproblem\x1b[0m");
        assert_eq!(VerdictLevel::Critical.painted("problem", Page::default()), "problem");
    }

    #[test]
    fn what_is_seen_in_part_is_not_ok() {
        let levels = ALL.map(|level| level.in_part(true));
        assert_eq!(levels, [ALL[1], ALL[1], ALL[2], ALL[3]]);
        assert_eq!(ALL.map(|level| level.in_part(false)), ALL);
    }
}
