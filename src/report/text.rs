//! Tables, lines and colors of report texts.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::model::health::Health;
use crate::model::printable::escaped;
use crate::node_view::table::{Cell, CellKind, Column, Row, Table};

/// Whether words may be colored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paint {
    /// As plain text.
    #[default]
    Plain,
    /// With the colors of a terminal.
    Colors,
}

impl Paint {
    pub fn heading(self, text: &str) -> String {
        if self == Self::Colors { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// The output that a report is formatted for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    /// Whether words may be colored.
    pub paint: Paint,
    /// Maximum width of tables in columns; absent for no limit.
    pub columns: Option<usize>,
}

impl Page {
    /// A word that names a health itself, in its color (ECMA-48 SGR).
    pub fn painted(self, health: Health, word: &str) -> String {
        let color = match (self.paint, health) {
            (Paint::Plain, _) => return word.to_owned(),
            (Paint::Colors, Health::Ok) => "32",
            (Paint::Colors, Health::Unknown) => "35",
            (Paint::Colors, Health::Warning) => "33",
            (Paint::Colors, Health::Critical) => "1;31",
        };
        format!("\x1b[{color}m{word}{RESET}")
    }

    /// A sentence of a health: with symbol and color on a terminal, else unchanged.
    pub fn marked(self, health: Health, sentence: &str) -> String {
        match self.columns {
            None => sentence.to_owned(),
            Some(_) => self.painted(health, &format!("{} {sentence}", health.symbol())),
        }
    }
}

impl From<Paint> for Page {
    fn from(paint: Paint) -> Self {
        Self { paint, columns: None }
    }
}

/// Minimum length of a shortened name.
const SHORTEST_NAME: usize = 8;
/// Columns are omitted before a name is shortened below this length.
const NAME: usize = 16;
/// Spaces before a column.
const GAP: usize = 2;
/// The last column is wrapped beside the others from this width on, and below them if there is less room.
const NARROWEST_PROSE: usize = 24;
/// Indent of a last column that is written below the others.
const BELOW: usize = 6;

/// Writes a table, with its titles where a column has one: text aligned to the left, numbers to the right.
///
/// If it is wider than the page, columns are omitted, those with the largest weight first: while prose has less than
/// `NARROWEST_PROSE` columns, or while there is no room for the first `NAME` letters of the first column. Then prose is
/// wrapped, beside the other columns or below them, and the first column is shortened in the middle.
pub fn table(out: &mut String, table: &Table, page: Page) {
    let mut layout = Layout::new(table, page);
    let Some(last) = layout.columns.len().checked_sub(1) else { return };
    let has_prose = layout.columns[last].kind == CellKind::Prose;
    let others = if has_prose { last } else { last + 1 };
    let name = layout.widths[0];
    let room =
        |layout: &Layout| page.columns.map(|most| most.saturating_sub(GAP + layout.width_of(..others)));
    let needed = layout.widths[last].min(NARROWEST_PROSE);
    if has_prose {
        layout.omit(|layout| room(layout).is_some_and(|room| room < needed));
    } else if let Some(most) = page.columns {
        layout.omit(|layout| GAP + name.min(NAME) + layout.width_of(1..) > most);
        let room = most.saturating_sub(GAP + layout.width_of(1..)).max(SHORTEST_NAME);
        layout.widths[0] = room.min(name);
    }
    let beside = has_prose && room(&layout).is_none_or(|room| room >= needed);
    for row in &layout.rows {
        let mut line = String::new();
        for (column, (cell, health)) in layout.kept(row).filter(|(column, _)| *column < others) {
            layout.cell(&mut line, column, cell, *health, page);
        }
        if !has_prose {
            end(out, &line);
            continue;
        }
        let (prose, health) = &row[last];
        let (indent, room) = match page.columns {
            None => (0, usize::MAX),
            Some(_) if beside => (GAP + layout.width_of(..last), room(&layout).unwrap_or(usize::MAX)),
            Some(most) => (BELOW, most.saturating_sub(BELOW)),
        };
        let mut lines = wrap(prose, room).into_iter();
        if beside {
            let first = lines.next().unwrap_or_default();
            line.push_str(&" ".repeat(GAP));
            line.push_str(&health.map_or_else(|| first.to_owned(), |health| page.painted(health, first)));
        }
        end(out, &line);
        for rest in lines.filter(|rest| !rest.is_empty()) {
            end(out, &format!("{}{rest}", " ".repeat(indent)));
        }
    }
    layout.name_omitted(out);
    if !table.rest.is_empty() {
        end(out, &format!("  {}", escaped(&table.rest)));
    }
}

pub fn rows(out: &mut String, rows: impl IntoIterator<Item = Row>, page: Page) {
    table(out, &Table::new("", rows, ""), page);
}

/// Rows below a title, and a blank line.
pub fn titled(out: &mut String, title: &str, all: impl IntoIterator<Item = Row>, page: Page) {
    end(out, title);
    rows(out, all, page);
    out.push('\n');
}

/// A cell as text, and the health that it names.
type Shown = (String, Option<Health>);

/// The columns of a table with their widths, and which of them are omitted.
struct Layout {
    columns: Vec<Column>,
    /// The titles, if there are any, and the cells.
    rows: Vec<Vec<Shown>>,
    widths: Vec<usize>,
    omitted: Vec<usize>,
}

impl Layout {
    fn new(table: &Table, page: Page) -> Self {
        let places: Vec<usize> =
            (0..table.columns.len()).filter(|place| table.columns[*place].kind != CellKind::Trail).collect();
        let columns: Vec<Column> = places.iter().map(|place| table.columns[*place]).collect();
        // On a terminal, a symbol says what the color of a word says that does not name its health.
        let is_marked = |health: Health, text: &str| {
            page.columns.is_some() && health > Health::Ok && text != health.label()
        };
        let shown = |cell: &Cell| {
            let text = escaped(&cell.text).into_owned();
            match cell.health {
                Some(health) if is_marked(health, &text) => {
                    (format!("{} {text}", health.symbol()), cell.health)
                }
                health => (text, health),
            }
        };
        let cells =
            table.rows.iter().map(|row| places.iter().map(|place| shown(&row.cells[*place])).collect());
        let titles: Vec<Shown> = columns.iter().map(|column| (column.title.to_owned(), None)).collect();
        let has_titles = titles.iter().any(|(title, _)| !title.is_empty());
        let rows: Vec<Vec<Shown>> = has_titles.then_some(titles).into_iter().chain(cells).collect();
        let widest = |column: usize| rows.iter().map(|row| row[column].0.width()).max().unwrap_or(0);
        Self { widths: (0..columns.len()).map(widest).collect(), columns, rows, omitted: Vec::new() }
    }

    /// Omits columns, one after the other, while the table is too wide.
    fn omit(&mut self, too_wide: impl Fn(&Self) -> bool) {
        let weight = |place: &usize| self.columns[*place].weight;
        let mut omittable: Vec<usize> = (0..self.columns.len()).filter(|place| weight(place) > 0).collect();
        omittable.sort_by_key(|place| std::cmp::Reverse(weight(place)));
        for column in omittable {
            if too_wide(self) {
                self.omitted.push(column);
            }
        }
    }

    /// Width of columns that are not omitted, with the gaps before them.
    fn width_of(&self, columns: impl std::ops::RangeBounds<usize>) -> usize {
        let kept = |column: &usize| columns.contains(column) && !self.omitted.contains(column);
        (0..self.widths.len()).filter(kept).map(|column| self.widths[column] + GAP).sum()
    }

    /// The cells of a row whose columns are not omitted.
    fn kept<'a>(&'a self, row: &'a [Shown]) -> impl Iterator<Item = (usize, &'a Shown)> {
        row.iter().enumerate().filter(|(column, _)| !self.omitted.contains(column))
    }

    /// Writes a cell with its padding; its color has no width.
    fn cell(&self, line: &mut String, column: usize, cell: &str, health: Option<Health>, page: Page) {
        let width = self.widths[column];
        let cell = if column == 0 { shortened(cell, width) } else { cell.to_owned() };
        let pad = " ".repeat(width.saturating_sub(cell.width()));
        let shown = health.map_or_else(|| cell.clone(), |health| page.painted(health, &cell));
        line.push_str(&" ".repeat(GAP));
        let is_number = self.columns[column].kind == CellKind::Number;
        let parts = if is_number { [&pad, &shown] } else { [&shown, &pad] };
        parts.into_iter().for_each(|part| line.push_str(part));
    }

    /// States which columns were omitted.
    fn name_omitted(&self, out: &mut String) {
        if !self.omitted.is_empty() {
            let titles: Vec<&str> = self.omitted.iter().map(|column| self.columns[*column].title).collect();
            out.push_str(&format!("  (columns omitted: {})\n", titles.join(", ")));
        }
    }
}

fn end(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Divides a text into lines of at most `most` columns: between words, and inside a word that is longer than a line.
pub fn wrap(text: &str, most: usize) -> Vec<&str> {
    let most = most.max(1);
    let mut lines = Vec::new();
    let mut rest = text;
    while visible_width(rest) > most {
        let (mut width, mut end, mut space, mut escape) = (0, 0, None, false);
        for (at, letter) in rest.char_indices() {
            escape |= letter == '\x1b';
            width += if escape { 0 } else { letter.width().unwrap_or(0) };
            escape &= letter != 'm';
            if width > most && end > 0 {
                // A space may be the first letter that has no place.
                space = if letter == ' ' { Some(at) } else { space };
                break;
            }
            if letter == ' ' && at > 0 {
                space = Some(at);
            }
            end = at + letter.len_utf8();
        }
        let at = space.unwrap_or(end);
        lines.push(rest[..at].trim_end());
        rest = rest[at..].trim_start();
    }
    if lines.is_empty() || !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Width in columns of a terminal, without color sequences (ECMA-48 SGR).
fn visible_width(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let plain = parts.next().map_or(0, |part| part.width());
    plain + parts.map(|part| part.split_once('m').map_or(0, |(_, shown)| shown.width())).sum::<usize>()
}

/// Ends all colors (ECMA-48 SGR).
const RESET: &str = "\x1b[0m";

/// The color sequence that holds at the end of a text, empty after [`RESET`]; absent if the text has none.
fn last_color(text: &str) -> Option<&str> {
    let rest = &text[text.rfind('\x1b')?..];
    let color = &rest[..=rest.find('m')?];
    Some(if color == RESET { "" } else { color })
}

/// Wraps the lines of a report that are wider than the page; the rest of a line is indented like its beginning.
pub fn wrapped(text: &str, page: Page) -> Cow<'_, str> {
    let Some(most) = page.columns.filter(|most| text.lines().any(|line| visible_width(line) > *most)) else {
        return text.into();
    };
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for line in text.lines() {
        let words = line.trim_start();
        let indent = line.len() - words.len();
        let indent = if indent + NARROWEST_PROSE > most { 0 } else { indent };
        let mut color = "";
        for part in wrap(words, most - indent) {
            // A color ends with its line, and begins again in the next one.
            let before = color;
            color = last_color(part).unwrap_or(before);
            let reset = if color.is_empty() { "" } else { RESET };
            end(&mut out, &format!("{}{before}{part}{reset}", " ".repeat(indent)));
        }
    }
    out.into()
}

/// Shortens a name to at most `most` columns; keeps its beginning and its end, which distinguish names.
pub fn shortened(name: &str, most: usize) -> String {
    const CUT: &str = "...";
    if name.width() <= most {
        return name.to_owned();
    }
    let kept = most.saturating_sub(CUT.len());
    let taken = |letters: &mut dyn Iterator<Item = char>, most: usize| {
        let mut width = 0;
        let fits = |letter: &char| {
            width += letter.width().unwrap_or(0);
            width <= most
        };
        letters.take_while(fits).collect::<Vec<_>>()
    };
    let tail = taken(&mut name.chars().rev(), kept.div_ceil(2));
    let head = taken(&mut name.chars(), kept - kept.div_ceil(2));
    head.into_iter().chain(CUT.chars()).chain(tail.into_iter().rev()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_on_terminals_only_and_color_is_never_alone() {
        let shown = |page: Page| Health::ALL.map(|level| page.marked(level, "It leaks.")).join("\n");
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
        assert_eq!(page.painted(Health::Critical, "problem"), "\x1b[1;31mproblem\x1b[0m");
        assert_eq!(Page::default().painted(Health::Critical, "problem"), "problem");
    }

    #[test]
    fn columns_stand_under_each_other_whatever_their_color() {
        let own = || {
            Row::default()
                .text("", 0, "host")
                .text("health", 0, Cell::text("critical").of(Health::Critical))
                .value("x", 0, Some(1.0), |one| one.to_string())
        };
        let mut out = String::new();
        rows(&mut out, [own()], Paint::Plain.into());
        assert_eq!(out, "        health    x\n  host  critical  1\n");
        let mut colored = String::new();
        rows(&mut colored, [own()], Paint::Colors.into());
        assert_ne!(colored, out);
        assert_eq!(colored.replace("\x1b[1;31m", "").replace("\x1b[0m", ""), out);
    }

    /// A table of a text, a number of some weight, and prose.
    fn prose(rows: &[[&str; 3]], columns: Option<usize>, weight: u8) -> String {
        let [titles, cells @ ..] = rows else { return String::new() };
        let [first, second, last] = titles.map(|title| &*Box::leak(title.to_owned().into_boxed_str()));
        let row = |[one, two, three]: &[&str; 3]| {
            let row =
                Row::default().text(first, 0, Cell::plain(*one)).number(second, weight, Cell::plain(*two));
            row.prose(last, Cell::plain(*three))
        };
        let mut out = String::new();
        super::rows(&mut out, cells.iter().map(row), Page { columns, ..Page::default() });
        out
    }

    #[test]
    fn text_is_aligned_to_the_left_and_numbers_to_the_right() {
        let rows = [["id", "3", "what"], ["a longer id", "12", ""]];
        assert_eq!(prose(&rows, None, 0), "  id            3  what\n  a longer id  12\n");
        let untitled = [["", "", ""], ["id", "3", "what"]];
        assert_eq!(prose(&untitled, None, 0), "  id  3  what\n");
        let mut out = String::new();
        table(&mut out, &Table::default(), Page::default());
        assert_eq!(out, "");
    }

    #[test]
    fn the_last_column_is_wrapped_and_loses_nothing() {
        let rows =
            [["id", "steps", "summary"], ["a-1", "3", "the kernel killed python3 in the group of job 17"]];
        let wide = prose(&rows, Some(70), 0);
        assert_eq!(
            wide,
            "  id   steps  summary\n  a-1      3  the kernel killed python3 in the group of job 17\n"
        );
        let narrow = prose(&rows, Some(40), 1);
        assert_eq!(
            narrow,
            "  id   steps  summary\n  a-1      3  the kernel killed python3\n              in the group of job 17\n"
        );
        // Too narrow for all: a column is omitted, and then the last one is written below.
        let narrower = prose(&rows, Some(36), 1);
        assert!(narrower.contains("  a-1  the kernel killed python3 in\n       the group"), "{narrower}");
        assert!(narrower.ends_with("  (columns omitted: steps)\n"), "{narrower}");
        let below = prose(&rows, Some(28), 0);
        assert!(below.contains("  a-1      3\n      the kernel killed\n      python3"), "{below}");
        for text in [wide, narrow, narrower, below] {
            let words: Vec<&str> = text.split_whitespace().collect();
            assert!(words.join(" ").contains("the kernel killed python3 in the group of job 17"), "{text}");
        }
    }

    #[test]
    fn widths_are_those_of_a_terminal() {
        // CJK letters take two columns, a combining accent none.
        let rows = [["", "", ""], ["訓練", "1", ""], ["e\u{301}t", "2", ""], ["abcd", "3", ""]];
        assert_eq!(prose(&rows, None, 0), "  訓練  1\n  e\u{301}t    2\n  abcd  3\n");
        assert_eq!(shortened("訓練訓練訓練訓練", 9), "訓...練");
        assert_eq!(wrap("訓練訓練", 5), ["訓練", "訓練"]);
        assert_eq!(visible_width("\x1b[1;31mhigh\x1b[0m risk"), 9);
    }

    #[test]
    fn lines_wider_than_the_page_are_wrapped_with_their_indent() {
        let page = |columns| Page { columns, ..Page::default() };
        let text = "title\n    a line of several words that is wider\n\nend\n";
        assert_eq!(wrapped(text, page(None)), text);
        assert_eq!(wrapped(text, page(Some(80))), text);
        assert_eq!(
            wrapped(text, page(Some(30))),
            "title\n    a line of several words\n    that is wider\n\nend\n"
        );
        // A word longer than a line is divided, and colors have no width.
        assert_eq!(wrapped("abcdefgh\n", page(Some(5))), "abcde\nfgh\n");
        let colored = "\x1b[1mtwo words\x1b[0m\n";
        assert_eq!(wrapped(colored, page(Some(9))), colored);
        assert_eq!(wrapped(colored, page(Some(5))), "\x1b[1mtwo\x1b[0m\n\x1b[1mwords\x1b[0m\n");
    }

    proptest::proptest! {
        #[test]
        fn wrapping_keeps_every_letter_and_fits(text in "[a-z訓é ]{0,60}", most in 2_usize..30) {
            let lines = wrap(&text, most);
            proptest::prop_assert!(lines.iter().all(|line| line.width() <= most), "{lines:?}");
            let letters = |text: &str| text.chars().filter(|letter| *letter != ' ').collect::<String>();
            proptest::prop_assert_eq!(letters(&lines.concat()), letters(&text));
        }
    }

    #[test]
    fn a_table_fits_its_page_and_keeps_what_matters() {
        let row = Row::default()
            .text("", 0, "workload a-name-that-is-longer-than-most-slurm-17")
            .number("used", 1, "5.0 GiB")
            .number("p10 to p90", 2, "1 min 40 s to 4 min")
            .text("risk", 0, "high");
        let own = Table::new("", [row], "");
        let at = |columns| {
            let mut out = String::new();
            table(&mut out, &own, Page { columns: Some(columns), ..Page::default() });
            let mut lines = out.lines().filter(|line| !line.contains("columns omitted"));
            assert!(lines.all(|line| line.chars().count() <= columns), "{columns}: {out}");
            out
        };
        assert!(at(100).contains(
            "workload a-name-that-is-longer-than-most-slurm-17  5.0 GiB  1 min 40 s to 4 min  high"
        ));
        let narrow = at(42);
        assert!(narrow.contains("  workload a-...st-slurm-17  5.0 GiB  high\n"), "{narrow}");
        assert!(narrow.ends_with("  (columns omitted: p10 to p90)\n"), "{narrow}");
        assert!(at(24).contains("high"), "{}", at(24));
    }
}
