//! The line with the result of a report: on a terminal, it begins with a symbol of its severity, in the color of it.

use super::text::{Page, Paint};
use crate::model::health::Health;

/// A health as reports show it.
pub(crate) trait Shown {
    /// A word that names the health itself, in its color.
    fn painted(self, word: &str, page: Page) -> String;

    /// A sentence as it is shown on the page: with symbol and color on a terminal, else unchanged.
    fn marked(self, sentence: &str, page: Page) -> String;
}

/// The color (ECMA-48 SGR).
const fn color(health: Health) -> &'static str {
    match health {
        Health::Ok => "32",
        Health::Unknown => "35",
        Health::Warning => "33",
        Health::Critical => "1;31",
    }
}

impl Shown for Health {
    fn painted(self, word: &str, page: Page) -> String {
        match page.paint {
            Paint::Plain => word.to_owned(),
            Paint::Colors => format!("\x1b[{}m{word}\x1b[0m", color(self)),
        }
    }

    fn marked(self, sentence: &str, page: Page) -> String {
        match page.columns {
            None => sentence.to_owned(),
            Some(_) => self.painted(&format!("{} {sentence}", self.symbol()), page),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_on_terminals_only_and_color_is_never_alone() {
        let shown = |page: Page| Health::ALL.map(|level| level.marked("It leaks.", page)).join("\n");
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
        assert_eq!(Health::Critical.painted("problem", page), "\x1b[1;31mproblem\x1b[0m");
        assert_eq!(Health::Critical.painted("problem", Page::default()), "problem");
    }
}
