//! Tables: columns that are left out by their weight, rows that are sorted and filtered.

use std::cmp::Ordering;

use crate::model::format::UNKNOWN;
use crate::model::printable::escaped;
use crate::node_view::Health;

use super::state::Screen;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    /// Its title.
    pub(super) title: &'static str,
    /// Maximum number of terminal columns; the last column takes what is left.
    pub(super) widest: usize,
    /// Columns with the largest weight are left out first; 0 never.
    pub(super) weight: u8,
    /// Whether it is aligned to the right.
    pub(super) is_number: bool,
}

/// A column of text.
pub(super) const fn text(title: &'static str, widest: usize, weight: u8) -> Column {
    Column { title, widest, weight, is_number: false }
}

/// A column of numbers.
pub(super) const fn number(title: &'static str, weight: u8) -> Column {
    Column { title, widest: 24, weight, is_number: true }
}

/// A cell: its text, and the number by which it is sorted if it has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) number: Option<f64>,
}

impl Cell {
    /// Text of any origin, which is made printable.
    pub(super) fn text(text: &str) -> Self {
        let text = if text.is_empty() { UNKNOWN.to_owned() } else { escaped(text).into_owned() };
        Self { text, number: None }
    }

    /// A number as text; absent where it is not known.
    pub(super) fn number(value: Option<f64>, show: impl Fn(f64) -> String) -> Self {
        Self { text: value.map_or_else(|| UNKNOWN.to_owned(), show), number: value }
    }
}

/// A row of a table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// What it is about, the same in each update.
    pub(super) id: String,
    /// How it is.
    pub(super) health: Health,
    /// One cell for each column.
    pub(super) cells: Vec<Cell>,
    /// What Enter opens.
    pub(super) opens: Option<Screen>,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Row>,
    /// What is shown in place of no rows.
    pub(super) empty: String,
}

/// By which column rows are sorted, and whether the order is reversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) is_reversed: bool,
}

impl Table {
    /// Keeps the rows that contain `filter` in any cell, without regard to case.
    pub(super) fn filter(&mut self, filter: &str) {
        if filter.is_empty() {
            return;
        }
        let filter = filter.to_lowercase();
        self.rows.retain(|row| {
            row.health.word().contains(&filter)
                || row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&filter))
        });
        if self.rows.is_empty() {
            self.empty = "No row matches the filter.".to_owned();
        }
    }

    /// Sorts the rows: the largest numbers first, text in alphabetical order; what is not known comes last.
    pub(super) fn sort(&mut self, sort: Sort) {
        let turned = |order: Ordering| if sort.is_reversed { order.reverse() } else { order };
        let is_number = self.columns.get(sort.column).is_some_and(|column| column.is_number);
        self.rows.sort_by(|one, next| {
            let (Some(one), Some(next)) = (one.cells.get(sort.column), next.cells.get(sort.column)) else {
                return Ordering::Equal;
            };
            match (one.number, next.number) {
                (Some(one), Some(next)) => turned(next.total_cmp(&one)),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) if is_number => Ordering::Equal,
                (None, None) => match (one.text == UNKNOWN, next.text == UNKNOWN) {
                    (false, false) => turned(one.text.cmp(&next.text)),
                    (one, next) => one.cmp(&next),
                },
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |name: &str, value: Option<f64>| Row {
            id: name.to_owned(),
            health: Health::Ok,
            cells: vec![Cell::text(name), Cell::number(value, |value| value.to_string())],
            opens: None,
        };
        Table {
            columns: vec![text("name", 20, 0), number("value", 0)],
            rows: vec![row("b", None), row("a\x1b[2J", Some(1.0)), row("C", Some(2.0)), row("", Some(0.0))],
            empty: String::new(),
        }
    }

    fn names(table: &Table) -> Vec<&str> {
        table.rows.iter().map(|row| row.cells[0].text.as_str()).collect()
    }

    #[test]
    fn what_is_not_known_comes_last_in_each_order() {
        let mut table = table();
        for (is_reversed, order) in
            [(false, ["C", "a\\x1b[2J", "–", "b"]), (true, ["–", "a\\x1b[2J", "C", "b"])]
        {
            table.sort(Sort { column: 1, is_reversed });
            assert_eq!(names(&table), order);
        }
        table.sort(Sort { column: 0, is_reversed: false });
        assert_eq!(names(&table), ["C", "a\\x1b[2J", "b", "–"]);
    }

    #[test]
    fn a_filter_looks_into_each_cell() {
        for (filter, left) in [("c", 1), ("2", 2), ("OK", 4), ("nothing", 0)] {
            let mut table = table();
            table.filter(filter);
            assert_eq!(table.rows.len(), left, "{filter}");
            assert_eq!(table.empty.is_empty(), left > 0);
        }
    }
}
