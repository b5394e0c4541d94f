//! Recordings as CSV: a column of times, and columns of numbers.

use crate::recording::cells::{RowError, Rows};
use memwarden::formats::stamp;

/// Names of the column of times; without one, the first column has the times.
const TIMES: [&str; 16] = [
    "t_s",
    "time_s",
    "time",
    "timestamp",
    "timestamp_s",
    "t",
    "seconds",
    "date",
    "datetime",
    "date_time",
    "time_ms",
    "t_ms",
    "timestamp_ms",
    "elapsed_ms",
    "ms",
    "elapsed_s",
];
/// Maximum number of rows: 190 days at one per second.
const MOST_ROWS: usize = 1 << 24;
/// Names, or ends of names, of columns that count bytes.
const BYTES: [&str; 20] = [
    "bytes",
    "anon",
    "file",
    "shmem",
    "pss",
    "rss",
    "uss",
    "swap",
    "cache",
    "alloc",
    "allocated",
    "reserved",
    "active",
    "used",
    "free",
    "available",
    "limit",
    "total",
    "value",
    "memory",
];

#[derive(Debug, PartialEq)]
pub(crate) struct Table {
    /// The time of each row, in seconds.
    pub(crate) times: Vec<f64>,
    /// The other columns, as long as the times.
    pub(crate) columns: Vec<Column>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Empty cells are missing values.
    pub(crate) values: Vec<Option<f64>>,
}

/// The reason why a file is not a recording.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct CsvError(String);

impl From<RowError> for CsvError {
    fn from(RowError { line, problem }: RowError) -> Self {
        Self(format!("line {line}: {problem}"))
    }
}

/// Whether the first row is a header with times, or numbers separated by commas.
pub(crate) fn is_csv(bytes: &[u8]) -> bool {
    let mut rows = Rows::new(bytes);
    let Ok(Some((_, cells))) = rows.next_row() else { return false };
    let header = cells.iter().any(is_time);
    cells.len() > 1 && (header || cells.iter().all(|cell| cell.parse::<f64>().is_ok()))
}

fn is_time(name: &str) -> bool {
    TIMES.contains(&name.to_ascii_lowercase().as_str())
}

pub(crate) fn counts_bytes(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("_bytes") || BYTES.contains(&name.as_str())
}

/// Reads the columns whose names are `wanted`; the cells of others may have any text.
pub(crate) fn read(bytes: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Table, CsvError> {
    let mut rows = Rows::new(bytes);
    let empty = || CsvError("there are no rows after the header".to_owned());
    let (mut line, mut row) = rows.next_row()?.ok_or_else(empty)?;
    let bare = row.iter().all(|cell| cell.parse::<f64>().is_ok());
    let names: Vec<String> = if bare {
        let usual = ["t_s", "bytes", "limit"].map(str::to_owned).into_iter();
        usual.chain((4..).map(|at| format!("column {at}"))).take(row.len()).collect()
    } else {
        row.iter().map(str::to_owned).collect()
    };
    let time_at = names.iter().position(|name| is_time(name)).unwrap_or(0);
    let millis = names[time_at]
        .to_ascii_lowercase()
        .rsplit(|letter: char| !letter.is_alphanumeric())
        .find(|word| !word.is_empty())
        == Some("ms");
    let mut times = Vec::new();
    let mut columns: Vec<Column> =
        names.iter().map(|name| Column { name: name.clone(), values: Vec::new() }).collect();
    let mut is_header = !bare;
    loop {
        if !is_header {
            let found = row.len();
            if found != names.len() {
                let wanted = names.len();
                return Err(CsvError(format!("line {line}: {found} cells, but the header has {wanted}")));
            }
            if times.len() == MOST_ROWS {
                return Err(CsvError(format!("line {line}: more than 16,777,216 rows")));
            }
            for (at, (column, cell)) in columns.iter_mut().zip(row).enumerate() {
                if at != time_at && !wanted(&column.name) {
                    continue;
                }
                let value = if at == time_at { time(cell, millis) } else { number(cell) };
                column.values.push(value.ok_or_else(|| {
                    let cell: String = cell.chars().take(40).collect();
                    let what = if at == time_at { "a time" } else { "a number" };
                    CsvError(format!("line {line}, column {}: {cell:?} is not {what}", column.name))
                })?);
            }
            let time = columns.get(time_at).and_then(|column| *column.values.last()?);
            times.push(time.ok_or_else(|| CsvError(format!("line {line}: a row without a time")))?);
        }
        is_header = false;
        let Some(next) = rows.next_row()? else { break };
        (line, row) = next;
    }
    if times.is_empty() {
        return Err(empty());
    }
    columns.remove(time_at);
    columns.retain(|column| wanted(&column.name));
    Ok(Table { times, columns })
}

/// A time in seconds, or a missing one; nothing if the cell is neither.
fn time(cell: &str, millis: bool) -> Option<Option<f64>> {
    match number(cell) {
        // Milliseconds since 1970 are told by their size, those since the start by the name of the column.
        Some(Some(at)) if millis && at < 1e11 => Some(Some(at / 1000.0)),
        Some(None) => Some(None),
        _ => stamp::cell(cell).map(Some),
    }
}

/// A number or a missing value; nothing if the cell is neither.
fn number(cell: &str) -> Option<Option<f64>> {
    if cell.is_empty() {
        return Some(None);
    }
    let value: f64 = cell.parse().ok()?;
    Some(value.is_finite().then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(bytes: &[u8]) -> String {
        read(bytes, |_| true).unwrap_err().to_string()
    }

    #[test]
    fn columns_are_found_by_name() {
        let table = read(b"bytes,t_s,step\r\n10,1.5,\r\nNaN,2.5,7\r\n\r\n", |_| true).unwrap();
        assert_eq!(table.times, [1.5, 2.5]);
        assert_eq!(table.columns[0], Column { name: "bytes".to_owned(), values: vec![Some(10.0), None] });
        assert_eq!(table.columns[1].values, [None, Some(7.0)]);
        let bare = read(b"0,5\n1,6\n", |_| true).unwrap();
        assert_eq!((bare.times, bare.columns[0].name.as_str()), (vec![0.0, 1.0], "bytes"));
    }

    #[test]
    fn times_are_dates_or_numbers_of_a_unit() {
        let times = |text: &[u8]| read(text, |_| true).unwrap().times;
        assert_eq!(
            times(b"timestamp,x\n2026-09-01 10:00:00,1\n2026-09-01T10:00:01Z,2\n"),
            [1_788_256_800.0, 1_788_256_801.0]
        );
        assert_eq!(times(b"time_ms,x\n0,1\n120000,2\n"), [0.0, 120.0]);
        assert_eq!(times(b"Time (ms),x\n0,1\n120000,2\n"), [0.0, 120.0]);
        assert_eq!(times(b"timestamp,x\n1790000000000,1\n"), [1_790_000_000.0]);
        assert_eq!(times(b"timestamp_ms,x\n1790000000000,1\n"), [1_790_000_000.0]);
        assert_eq!(error(b"t_s,bytes\nnoon,2\n"), "line 2, column t_s: \"noon\" is not a time");
    }

    #[test]
    fn quoted_cells_hold_commas_and_line_ends() {
        let table = read(b"t_s,\"rss, \"\"host\"\"\",\"b\ny\"\n\"0\",5,\"6\"\n", |_| true).unwrap();
        let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["rss, \"host\"", "b\ny"]);
        assert_eq!(table.columns[1].values, [Some(6.0)]);
        assert_eq!(
            error(b"t_s,bytes\n\n\"1\n\",2\n3,\"x,y\"\n"),
            "line 5, column bytes: \"x,y\" is not a number"
        );
    }

    #[test]
    fn errors_have_the_line() {
        assert_eq!(error(b"t_s,bytes\n1,2\n\n3,x\n"), "line 4, column bytes: \"x\" is not a number");
        assert_eq!(error(b"t_s,bytes\n1,2\n3\n"), "line 3: 1 cells, but the header has 2");
        assert_eq!(error(b"t_s,bytes\n1,2\n3,\xff\n"), "line 3: not UTF-8 text");
        assert_eq!(error(b"t_s,bytes\n1,\"2\n3,4"), "line 2: a quotation mark is opened and never closed");
        assert_eq!(error(b"t_s,bytes\n,2\n"), "line 2: a row without a time");
        assert_eq!(error(b"t_s,bytes\n"), "there are no rows after the header");
    }

    #[test]
    fn other_files_are_not_csv() {
        assert!(is_csv(b"\nt_s,bytes\n") && is_csv(b"1,2\n") && is_csv(b"Time,rss\n"));
        assert!(
            !is_csv(b"2025-06-24 11:27:22,455 - INFO - x\n")
                && !is_csv(b"")
                && !is_csv(b"{\"a\": 1, \"t\": 2}")
        );
    }

    proptest::proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>, text in "[0-9,.\\n\"eN-]{0,80}") {
            is_csv(&bytes);
            let _ = read(&bytes, |_| true);
            let _ = read(text.as_bytes(), |_| true);
        }
    }
}
