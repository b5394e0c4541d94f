//! Tables, lines and colors of report texts.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

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
    /// Colors critical words red and warnings yellow; others are unchanged.
    pub(super) fn word(self, word: &str) -> String {
        let code = match word {
            "critical" => "1;31",
            "high" | "leaking" | "medium" | "growing" | "warming" => "33",
            _ => return word.to_owned(),
        };
        if self == Self::Colors { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
    }

    /// A heading in bold.
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

/// Writes a table of figures: the first column left-aligned, the others right-aligned.
///
/// If the table is wider than the page, the columns in `omittable` are omitted in that order, and then the names in the
/// first column are shortened in the middle.
pub(super) fn table(out: &mut String, rows: &[Vec<String>], page: Page, omittable: &[usize]) {
    let mut layout = Layout::new(rows);
    if let Some(most) = page.columns {
        let name = layout.widths.first().copied().unwrap_or(0);
        layout.omit(omittable, |layout| GAP + name.min(NAME) + layout.width_of(1..) > most);
        let room = most.saturating_sub(GAP + layout.width_of(1..)).max(SHORTEST_NAME);
        if let Some(first) = layout.widths.first_mut() {
            *first = room.min(name);
        }
    }
    for row in rows {
        let mut line = String::new();
        for (column, cell) in layout.kept(row) {
            let cell = if column == 0 { shortened(cell, layout.widths[0]) } else { cell.to_owned() };
            layout.cell(&mut line, column, &cell, column == 0, page.paint);
        }
        end(out, &line);
    }
    layout.name_omitted(out, rows);
}

/// Writes a table whose last column is prose, or names of any length: the columns in `left` and the last one
/// left-aligned, the others right-aligned.
///
/// If the table is wider than the page, the columns in `omittable` are omitted in that order while the last column has
/// less than [`NARROWEST_PROSE`] columns, and then its cells are wrapped, beside the others or below them.
pub(crate) fn prose_table(
    out: &mut String,
    rows: &[Vec<String>],
    left: &[usize],
    page: Page,
    omittable: &[usize],
) {
    let mut layout = Layout::new(rows);
    let Some(last) = layout.widths.len().checked_sub(1) else { return };
    let room = |layout: &Layout| page.columns.map(|most| most.saturating_sub(GAP + layout.width_of(..last)));
    let needed = layout.widths[last].min(NARROWEST_PROSE);
    layout.omit(omittable, |layout| room(layout).is_some_and(|room| room < needed));
    let beside = room(&layout).is_none_or(|room| room >= needed);
    for row in rows {
        let mut line = String::new();
        for (column, cell) in layout.kept(row).filter(|(column, _)| *column < last) {
            layout.cell(&mut line, column, cell, left.contains(&column), page.paint);
        }
        let prose = row.get(last).map_or("", String::as_str);
        let (indent, room) = match page.columns {
            None => (0, usize::MAX),
            Some(_) if beside => (GAP + layout.width_of(..last), room(&layout).unwrap_or(usize::MAX)),
            Some(most) => (BELOW, most.saturating_sub(BELOW)),
        };
        let mut lines = wrap(prose, room).into_iter();
        if beside {
            line.push_str(&" ".repeat(GAP));
            line.push_str(&page.paint.word(lines.next().unwrap_or_default()));
        }
        end(out, &line);
        for rest in lines {
            end(out, &format!("{}{rest}", " ".repeat(indent)));
        }
    }
    layout.name_omitted(out, rows);
}

/// Widths of the columns of a table, and which of them are omitted.
struct Layout {
    widths: Vec<usize>,
    omitted: Vec<usize>,
}

impl Layout {
    fn new(rows: &[Vec<String>]) -> Self {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widest = |column: usize| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| visible_width(cell)).max().unwrap_or(0)
        };
        Self { widths: (0..columns).map(widest).collect(), omitted: Vec::new() }
    }

    /// Omits columns, one after the other, while the table is too wide.
    fn omit(&mut self, omittable: &[usize], too_wide: impl Fn(&Self) -> bool) {
        for column in omittable.iter().filter(|column| **column < self.widths.len()) {
            if too_wide(self) {
                self.omitted.push(*column);
            }
        }
    }

    /// Width of columns that are not omitted, with the gaps before them.
    fn width_of(&self, columns: impl std::ops::RangeBounds<usize>) -> usize {
        let kept = |column: &usize| columns.contains(column) && !self.omitted.contains(column);
        (0..self.widths.len()).filter(kept).map(|column| self.widths[column] + GAP).sum()
    }

    /// The cells of a row whose columns are not omitted.
    fn kept<'a>(&'a self, row: &'a [String]) -> impl Iterator<Item = (usize, &'a str)> {
        let cells = row.iter().map(String::as_str).enumerate();
        cells.filter(|(column, _)| !self.omitted.contains(column))
    }

    /// Writes a cell with its padding, which is computed without color sequences, as these have no width.
    fn cell(&self, line: &mut String, column: usize, cell: &str, left: bool, paint: Paint) {
        let pad = " ".repeat(self.widths[column].saturating_sub(visible_width(cell)));
        let shown = paint.word(cell);
        line.push_str(&" ".repeat(GAP));
        let parts = if left { [&shown, &pad] } else { [&pad, &shown] };
        parts.into_iter().for_each(|part| line.push_str(part));
    }

    /// States which columns were omitted, by the heads in the first row.
    fn name_omitted(&self, out: &mut String, rows: &[Vec<String>]) {
        if let Some(head) = rows.first().filter(|_| !self.omitted.is_empty()) {
            let heads = self.omitted.iter().filter_map(|column| head.get(*column));
            let heads: Vec<&str> = heads.map(String::as_str).collect();
            out.push_str(&format!("  (columns omitted: {})\n", heads.join(", ")));
        }
    }
}

fn end(out: &mut String, line: &str) {
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Divides a text into lines of at most `most` columns: between words, and inside a word that is longer than a line.
pub(crate) fn wrap(text: &str, most: usize) -> Vec<&str> {
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
pub(crate) fn wrapped(text: &str, page: Page) -> Cow<'_, str> {
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
pub(crate) fn shortened(name: &str, most: usize) -> String {
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
    fn columns_stand_under_each_other_whatever_their_color() {
        let rows = [["", "risk", "x"], ["host", "critical", "1"]];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|c| (*c).to_owned()).collect()).collect();
        let mut out = String::new();
        table(&mut out, &rows, Paint::Plain.into(), &[]);
        assert_eq!(out, "            risk  x\n  host  critical  1\n");
        let mut colored = String::new();
        table(&mut colored, &rows, Paint::Colors.into(), &[]);
        assert_eq!(colored.replace("\x1b[1;31m", "").replace("\x1b[0m", ""), out);
    }

    fn prose(rows: &[[&str; 3]], left: &[usize], columns: Option<usize>, omittable: &[usize]) -> String {
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        let mut out = String::new();
        prose_table(&mut out, &rows, left, Page { columns, ..Page::default() }, omittable);
        out
    }

    #[test]
    fn columns_are_aligned_to_the_left_where_asked() {
        let rows = [["id", "3", "what"], ["a longer id", "12", ""]];
        assert_eq!(prose(&rows, &[0], None, &[]), "  id            3  what\n  a longer id  12\n");
        assert_eq!(prose(&rows, &[1], None, &[]), "           id  3   what\n  a longer id  12\n");
        assert_eq!(prose(&[], &[1], Some(10), &[]), "");
    }

    #[test]
    fn the_last_column_is_wrapped_and_loses_nothing() {
        let rows =
            [["id", "steps", "summary"], ["a-1", "3", "the kernel killed python3 in the group of job 17"]];
        let wide = prose(&rows, &[0], Some(70), &[]);
        assert_eq!(
            wide,
            "  id   steps  summary\n  a-1      3  the kernel killed python3 in the group of job 17\n"
        );
        let narrow = prose(&rows, &[0], Some(40), &[1]);
        assert_eq!(
            narrow,
            "  id   steps  summary\n  a-1      3  the kernel killed python3\n              in the group of job 17\n"
        );
        // Too narrow for all: a column is omitted, and then the last one is written below.
        let narrower = prose(&rows, &[0], Some(36), &[1]);
        assert!(narrower.contains("  a-1  the kernel killed python3 in\n       the group"), "{narrower}");
        assert!(narrower.ends_with("  (columns omitted: steps)\n"), "{narrower}");
        let below = prose(&rows, &[0], Some(28), &[]);
        assert!(below.contains("  a-1      3\n      the kernel killed\n      python3"), "{below}");
        for text in [wide, narrow, narrower, below] {
            let words: Vec<&str> = text.split_whitespace().collect();
            assert!(words.join(" ").contains("the kernel killed python3 in the group of job 17"), "{text}");
        }
    }

    #[test]
    fn widths_are_those_of_a_terminal() {
        // CJK letters take two columns, a combining accent none.
        let rows = [["訓練", "1", ""], ["e\u{301}t", "2", ""], ["abcd", "3", ""]];
        assert_eq!(prose(&rows, &[0], None, &[]), "  訓練  1\n  e\u{301}t    2\n  abcd  3\n");
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
        let head = ["", "used", "p10 to p90", "risk"];
        let row =
            ["workload a-name-that-is-longer-than-most-slurm-17", "5.0 GiB", "1 min 40 s to 4 min", "high"];
        let rows: Vec<Vec<String>> = [head, row].iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        let at = |columns| {
            let mut out = String::new();
            table(&mut out, &rows, Page { columns: Some(columns), ..Page::default() }, &[2, 1]);
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
