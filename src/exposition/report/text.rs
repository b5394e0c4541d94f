//! How reports are written for people: amounts, tables, color.

use crate::exposition::plot;

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
    /// Bad news in red, warnings in yellow; words that are neither stay as they are.
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

/// Bytes for people; a fall has its sign.
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

/// A rate for people, with its sign: per second where that is much, else per hour.
pub(super) fn rate(per_second: f64) -> String {
    let sign = if per_second > 0.0 { "+" } else { "" };
    let (amount, per) =
        if per_second.abs() >= 1_048_576.0 { (per_second, "s") } else { (per_second * 3600.0, "h") };
    format!("{sign}{}/{per}", bytes(amount))
}

/// A share in percent, with the place that small ones need.
pub(super) fn percent(share: f64) -> String {
    let digits = usize::from(share > 0.0 && share < 0.1);
    format!("{:.digits$} %", share * 100.0)
}

/// What is not known.
pub(super) const UNKNOWN: &str = "-";

/// Or a dash where it is not known.
pub(super) fn or_unknown(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), show)
}

/// A time that something takes.
pub(super) fn time(seconds: f64) -> String {
    plot::duration(seconds)
}

/// A moment since the start, as `00:01:02`.
pub(super) fn clock(seconds: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates; the watch is short"
    )]
    let whole = seconds.max(0.0) as u64;
    format!("{:02}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}

/// The columns of a row, the first to the left and the others to the right, under each other.
pub(super) fn table(out: &mut String, rows: &[Vec<String>], paint: Paint) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            // Padding is counted on the bare word: colors take no place.
            let shown = paint.word(cell);
            let parts: [&str; 3] = if column == 0 { ["  ", &shown, &pad] } else { ["  ", &pad, &shown] };
            parts.into_iter().for_each(|part| line.push_str(part));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
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
        table(&mut out, &rows, Paint::Plain);
        assert_eq!(out, "            risk  x\n  host  critical  1\n");
        let mut colored = String::new();
        table(&mut colored, &rows, Paint::Colors);
        assert_eq!(colored.replace("\x1b[1;31m", "").replace("\x1b[0m", ""), out);
    }
}
