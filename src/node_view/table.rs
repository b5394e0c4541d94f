//! Tables: columns with weights, and rows of cells. The page, the terminal and reports render them; none has its own.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::problem::Link;
use crate::history::recent::{Quantity, Subject};
use crate::model::format::{self, UNKNOWN};
use crate::model::health::Health;

/// What a column contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// Text, aligned to the left.
    Text,
    /// Numbers, aligned to the right.
    Number,
    /// Sentences, the last column: it takes the width that is left.
    Prose,
    /// Small charts of the recent past, which only a page draws.
    Trail,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub title: &'static str,
    /// What it contains.
    pub kind: CellKind,
    /// Where there is less room, columns with a larger weight are left out first; 0 never.
    pub weight: u8,
}

/// The recent past of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Trail {
    pub subject: Subject,
    pub quantity: Quantity,
    /// The limit in bytes.
    pub limit: Option<f64>,
}

/// A cell. Its text is as it was read: a renderer escapes it.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Cell {
    /// What it says.
    pub text: String,
    /// The number by which it is sorted.
    pub number: Option<f64>,
    /// The health that its text names.
    pub health: Option<Health>,
    /// Where more is shown.
    pub link: Option<Link>,
    /// A share of a whole, which a page draws as a bar.
    pub share: Option<f64>,
    /// The recent past, which a page draws.
    pub trail: Option<Trail>,
}

impl Cell {
    /// Text; unknown where it is empty.
    pub fn text<'a>(text: impl Into<Cow<'a, str>>) -> Self {
        let text = text.into();
        let text = if text.is_empty() { UNKNOWN.to_owned() } else { text.into_owned() };
        Self { text, ..Self::default() }
    }

    /// A number; absent where it is not known.
    pub fn number(value: Option<f64>, show: impl Fn(f64) -> String) -> Self {
        Self { text: format::shown(value, show), number: value, ..Self::default() }
    }

    /// A time left, which sorts the shortest first, and its text.
    pub fn time_left<'a>(seconds: Option<f64>, text: impl Into<Cow<'a, str>>) -> Self {
        Self { number: seconds.map(|seconds| -seconds), ..Self::text(text) }
    }

    /// An index, which sorts in ascending order.
    pub fn index(index: &str) -> Self {
        Self { number: index.parse::<f64>().ok().map(|index| -index), ..Self::text(index) }
    }

    /// Text as it is, also where it is empty.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    pub fn of(self, health: Health) -> Self {
        Self { health: Some(health), ..self }
    }

    pub fn to(self, link: Link) -> Self {
        Self { link: Some(link), ..self }
    }

    /// The same cell with a share of a whole.
    pub fn share(self, share: Option<f64>) -> Self {
        Self { share, ..self }
    }
}

impl<'a, T: Into<Cow<'a, str>>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::text(text)
    }
}

/// A row of a table. A cell is added with its column, which is the same in all rows of a table.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Row {
    /// What it is about, the same in each update.
    pub id: String,
    pub health: Health,
    /// One cell for each column.
    pub cells: Vec<Cell>,
    /// Where more is shown.
    pub link: Option<Link>,
    columns: Vec<Column>,
}

impl Row {
    /// A row without cells.
    pub fn new(id: impl Into<String>, health: Health) -> Self {
        Self { id: id.into(), health, ..Self::default() }
    }

    pub fn to(self, link: Link) -> Self {
        Self { link: Some(link), ..self }
    }

    fn with(mut self, title: &'static str, kind: CellKind, weight: u8, cell: Cell) -> Self {
        self.columns.push(Column { title, kind, weight });
        self.cells.push(cell);
        self
    }

    pub fn text(self, title: &'static str, weight: u8, cell: impl Into<Cell>) -> Self {
        self.with(title, CellKind::Text, weight, cell.into())
    }

    /// Adds a cell of a column of numbers.
    pub fn number(self, title: &'static str, weight: u8, cell: impl Into<Cell>) -> Self {
        self.with(title, CellKind::Number, weight, cell.into())
    }

    /// Adds a number; absent where it is not known.
    pub fn value(
        self,
        title: &'static str,
        weight: u8,
        value: Option<f64>,
        show: impl Fn(f64) -> String,
    ) -> Self {
        self.number(title, weight, Cell::number(value, show))
    }

    /// Adds an amount of memory in bytes.
    pub fn bytes(self, title: &'static str, weight: u8, value: Option<f64>) -> Self {
        self.value(title, weight, value, format::bytes)
    }

    pub fn count(self, title: &'static str, weight: u8, value: Option<f64>) -> Self {
        self.value(title, weight, value, format::whole)
    }

    /// Adds the last cell, of sentences.
    pub fn prose(self, title: &'static str, cell: impl Into<Cell>) -> Self {
        self.with(title, CellKind::Prose, 0, cell.into())
    }

    /// Adds a small chart of the last minutes; `limit` is in bytes.
    pub fn trail(self, subject: Subject, quantity: Quantity, limit: Option<f64>) -> Self {
        let cell = Cell { trail: Some(Trail { subject, quantity, limit }), ..Cell::default() };
        self.with("last 10 min", CellKind::Trail, 3, cell)
    }
}

#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Table {
    pub name: &'static str,
    /// Its columns; none where it has no rows.
    pub columns: Vec<Column>,
    /// Its rows, in the order in which they are shown first.
    pub rows: Vec<Row>,
    /// What is shown in place of no rows.
    pub empty: String,
    /// What is not in it, in a sentence; empty where nothing is left out.
    pub rest: String,
}

/// By which column rows are sorted, and whether the order is reversed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sort {
    /// The place of the column.
    pub column: usize,
    /// Whether the order is reversed.
    pub is_reversed: bool,
}

impl Table {
    /// A table of these rows; `empty` is shown where there are none.
    pub fn new(name: &'static str, rows: impl IntoIterator<Item = Row>, empty: impl Into<String>) -> Self {
        let mut rows: Vec<Row> = rows.into_iter().collect();
        let columns = rows.iter_mut().map(|row| std::mem::take(&mut row.columns)).reduce(|first, _| first);
        let columns = columns.unwrap_or_default();
        Self { name, columns, rows, empty: empty.into(), rest: String::new() }
    }

    /// The table without the small charts, which only a page draws.
    pub fn without_trails(mut self) -> Self {
        let is_kept: Vec<bool> = self.columns.iter().map(|column| column.kind != CellKind::Trail).collect();
        let mut kept = is_kept.iter();
        self.columns.retain(|_| *kept.next().unwrap_or(&true));
        for row in &mut self.rows {
            let mut kept = is_kept.iter();
            row.cells.retain(|_| *kept.next().unwrap_or(&true));
        }
        self
    }

    /// Keeps the rows that contain `filter` in any cell, without regard to case.
    pub fn filter(&mut self, filter: &str) {
        if filter.is_empty() {
            return;
        }
        let filter = filter.to_lowercase();
        self.rows.retain(|row| {
            row.health.label().contains(&filter)
                || row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&filter))
        });
        if self.rows.is_empty() {
            "No row matches the filter.".clone_into(&mut self.empty);
        }
    }

    /// Sorts the rows: the largest numbers first, text in alphabetical order; what is not known comes last.
    pub fn sort(&mut self, sort: Sort) {
        let turned = |order: Ordering| if sort.is_reversed { order.reverse() } else { order };
        let is_number = self.columns.get(sort.column).is_some_and(|column| column.kind == CellKind::Number);
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

    /// Keeps the first `most` rows.
    pub fn truncate(&mut self, most: usize) {
        if self.rows.len() > most {
            self.rest = format!("{} more are not shown.", self.rows.len() - most);
            self.rows.truncate(most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let row = |name: &'static str, value: Option<f64>| {
            Row::new(name, Health::Ok)
                .text("name", 0, name)
                .value("value", 0, value, |value| value.to_string())
        };
        Table::new("", [row("b", None), row("a", Some(1.0)), row("C", Some(2.0)), row("", Some(0.0))], "")
    }

    fn names(table: &Table) -> Vec<&str> {
        table.rows.iter().map(|row| row.cells[0].text.as_str()).collect()
    }

    #[test]
    fn what_is_not_known_comes_last_in_each_order() {
        let mut table = table();
        for (is_reversed, order) in [(false, ["C", "a", "–", "b"]), (true, ["–", "a", "C", "b"])] {
            table.sort(Sort { column: 1, is_reversed });
            assert_eq!(names(&table), order);
        }
        table.sort(Sort { column: 0, is_reversed: false });
        assert_eq!(names(&table), ["C", "a", "b", "–"]);
    }

    #[test]
    fn a_filter_looks_into_each_cell() {
        for (filter, left) in [("c", 1), ("2", 1), ("OK", 4), ("nothing", 0)] {
            let mut table = table();
            table.filter(filter);
            assert_eq!(table.rows.len(), left, "{filter}");
            assert_eq!(table.empty.is_empty(), left > 0);
        }
    }
    #[test]
    fn rows_that_are_left_out_are_counted() {
        let mut table = table();
        table.truncate(4);
        assert_eq!((table.rows.len(), table.rest.as_str()), (4, ""));
        table.truncate(1);
        assert_eq!((names(&table), table.rest.as_str()), (vec!["b"], "3 more are not shown."));
    }
}
