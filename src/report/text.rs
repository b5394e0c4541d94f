//! Formatting of report texts: quantities, tables, colors.

use crate::plot;

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
            "critical" | "high" | "leaking" => "1;31",
            "medium" | "growing" | "warming" => "33",
            _ => return word.to_owned(),
        };
        if self == Self::Colors { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
    }

    /// A heading in bold.
    pub(super) fn heading(self, text: &str) -> String {
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

/// Formats bytes; a decrease has a minus sign.
pub(super) fn bytes(bytes: f64) -> String {
    const STEPS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes.abs() < 1024.0 {
        return format!("{bytes:.0} B");
    }
    let (mut amount, mut step) = (bytes / 1024.0, 0);
    while amount.abs() >= 1023.95 && step + 1 < STEPS.len() {
        (amount, step) = (amount / 1024.0, step + 1);
    }
    format!("{amount:.1} {}", STEPS[step])
}

/// Formats a rate with its sign: per second from 1 MiB/s on, else per hour.
pub(super) fn rate(per_second: f64) -> String {
    let sign = if per_second > 0.0 { "+" } else { "" };
    let (amount, per) =
        if per_second.abs() >= 1_048_576.0 { (per_second, "s") } else { (per_second * 3600.0, "h") };
    format!("{sign}{}/{per}", bytes(amount))
}

/// Formats a share in percent; small shares have a decimal place.
pub(super) fn percent(share: f64) -> String {
    let digits = usize::from(share > 0.0 && share < 0.1);
    format!("{:.digits$} %", share * 100.0)
}

/// Text for an unknown value.
pub(super) const UNKNOWN: &str = "-";

/// Formats a value, or [`UNKNOWN`].
pub(super) fn or_unknown(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), show)
}

/// Formats a duration.
pub(super) fn time(seconds: f64) -> String {
    plot::duration(seconds)
}

/// Formats a time since the start as `00:01:02`.
pub(super) fn clock(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; the watch is short"
    )]
    let whole = seconds.max(0.0) as u64;
    format!("{:02}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}

/// Minimum length of a shortened name.
const SHORTEST_NAME: usize = 8;
/// Columns are omitted before a name is shortened below this length.
const NAME: usize = 16;
/// Between two columns, and before the first.
const GAP: usize = 2;

/// Writes an aligned table: the columns in `left` left-aligned, the others right-aligned.
pub(crate) fn aligned(out: &mut String, rows: &[Vec<String>], left: &[usize]) {
    lay_out(out, rows, left, Page::default(), &[]);
}

/// Writes an aligned table: the first column left-aligned, the others right-aligned.
///
/// If the table is wider than the page, the columns in `spare` are omitted in that order, and then names are
/// shortened in the middle.
pub(super) fn table(out: &mut String, rows: &[Vec<String>], page: Page, spare: &[usize]) {
    lay_out(out, rows, &[0], page, spare);
}

fn lay_out(out: &mut String, rows: &[Vec<String>], left: &[usize], page: Page, spare: &[usize]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns).map(width).collect();
    let mut left_out: Vec<usize> = Vec::new();
    if let Some(most) = page.columns {
        let named = widths.first().copied().unwrap_or(0);
        let others = |left_out: &[usize]| -> usize {
            let kept = (1..columns).filter(|column| !left_out.contains(column));
            kept.map(|column| widths[column] + GAP).sum()
        };
        for column in spare.iter().filter(|column| **column < columns) {
            if GAP + named.min(NAME) + others(&left_out) > most {
                left_out.push(*column);
            }
        }
        let room = most.saturating_sub(GAP + others(&left_out)).max(SHORTEST_NAME);
        if let Some(first) = widths.first_mut() {
            *first = room.min(named);
        }
    }
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate().filter(|(column, _)| !left_out.contains(column)) {
            let cell = if column == 0 { shortened(cell, widths[0]) } else { cell.clone() };
            let pad = " ".repeat(widths[column] - cell.chars().count());
            // The padding is computed without color sequences, which have no width.
            let shown = page.paint.word(&cell);
            let to_the_left = left.contains(&column);
            let parts: [&str; 3] = if to_the_left { ["  ", &shown, &pad] } else { ["  ", &pad, &shown] };
            parts.into_iter().for_each(|part| line.push_str(part));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    if let Some(head) = rows.first().filter(|_| !left_out.is_empty()) {
        let names: Vec<&str> =
            left_out.iter().filter_map(|column| head.get(*column)).map(String::as_str).collect();
        out.push_str(&format!("  (columns omitted: {})\n", names.join(", ")));
    }
}

/// Shortens a name to at most `most` columns; keeps its beginning and its end, which distinguish names.
fn shortened(name: &str, most: usize) -> String {
    const CUT: &str = "...";
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= most {
        return name.to_owned();
    }
    let kept = most.saturating_sub(CUT.len());
    let end = kept.div_ceil(2);
    letters[..kept - end]
        .iter()
        .chain(&CUT.chars().collect::<Vec<_>>())
        .chain(&letters[letters.len() - end..])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_for_people() {
        let shown = [0.0, 1023.0, 1048.0, 1_048_575.0, -5e9].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "-4.7 GiB"]);
        assert_eq!([2e7, 1000.0, -1000.0].map(rate), ["+19.1 MiB/s", "+3.4 MiB/h", "-3.4 MiB/h"]);
        assert_eq!([0.0, 0.034, 0.5, 1.0].map(percent), ["0 %", "3.4 %", "50 %", "100 %"]);
        assert_eq!(clock(3725.9), "01:02:05");
    }

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

    #[test]
    fn columns_stand_to_the_left_where_they_are_to() {
        let rows = [["id", "3", "what"], ["a longer id", "12", ""]];
        let rows: Vec<Vec<String>> = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        let mut out = String::new();
        aligned(&mut out, &rows, &[0, 2]);
        assert_eq!(out, "  id            3  what\n  a longer id  12\n");
        out.clear();
        aligned(&mut out, &rows, &[1]);
        assert_eq!(out, "           id  3   what\n  a longer id  12\n");
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
