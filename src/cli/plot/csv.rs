//! Recordings as CSV: a column of times, and columns of numbers.

use std::str;

/// Names of the column of times; without one it is the first.
const TIMES: [&str; 7] = ["t_s", "time_s", "time", "timestamp", "timestamp_s", "t", "seconds"];
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

/// The columns of a recording.
#[derive(Debug, PartialEq)]
pub(super) struct Table {
    /// The time of each row, in seconds.
    pub(super) times: Vec<f64>,
    /// The other columns, as long as the times.
    pub(super) columns: Vec<Column>,
}

/// One column of numbers.
#[derive(Debug, PartialEq)]
pub(super) struct Column {
    /// As the header has it.
    pub(super) name: String,
    /// Empty cells are missing.
    pub(super) values: Vec<Option<f64>>,
}

/// Why a file is no recording.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum CsvError {
    #[error("line {line}: not UTF-8 text")]
    NotText { line: usize },
    #[error("line {line}: {found} cells, but the header has {wanted}")]
    Cells { line: usize, found: usize, wanted: usize },
    #[error("line {line}, column {column}: {cell:?} is no number")]
    Number { line: usize, column: String, cell: String },
    #[error("line {line}: a row without a time")]
    Time { line: usize },
    #[error("there is a header and nothing else")]
    Empty,
}

/// Whether the first line is a header with times, or numbers separated by commas.
pub(super) fn is_csv(bytes: &[u8]) -> bool {
    let first =
        bytes.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    let Ok(first) = str::from_utf8(first) else { return false };
    let cells: Vec<String> = cells(first).map(|cell| cell.to_ascii_lowercase()).collect();
    let header = cells.iter().any(|cell| TIMES.contains(&cell.as_str()));
    cells.len() > 1 && (header || cells.iter().all(|cell| cell.parse::<f64>().is_ok()))
}

/// Whether a column of that name counts bytes.
pub(super) fn counts_bytes(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.ends_with("_bytes") || BYTES.contains(&name.as_str())
}

/// Reads a recording.
pub(super) fn read(bytes: &[u8]) -> Result<Table, CsvError> {
    let mut rows = Vec::new();
    for (line, row) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        let row = str::from_utf8(row).map_err(|_| CsvError::NotText { line })?;
        if !row.trim().is_empty() {
            rows.push((line, row));
        }
    }
    let mut rows = rows.into_iter().peekable();
    let front = rows.peek().map(|(_, row)| cells(row).collect::<Vec<_>>()).unwrap_or_default();
    let names: Vec<String> = if front.iter().all(|cell| cell.parse::<f64>().is_ok()) {
        let usual = ["t_s", "bytes", "limit"].map(str::to_owned).into_iter();
        usual.chain((4..).map(|at| format!("column {at}"))).take(front.len()).collect()
    } else {
        rows.next();
        front.iter().map(|cell| (*cell).to_owned()).collect()
    };
    let time_at =
        names.iter().position(|name| TIMES.contains(&name.to_ascii_lowercase().as_str())).unwrap_or(0);
    let mut times = Vec::new();
    let mut columns: Vec<Column> =
        names.iter().map(|name| Column { name: name.clone(), values: Vec::new() }).collect();
    for (line, row) in rows {
        let found = cells(row).count();
        if found != names.len() {
            return Err(CsvError::Cells { line, found, wanted: names.len() });
        }
        for (column, cell) in columns.iter_mut().zip(cells(row)) {
            column.values.push(number(cell).ok_or_else(|| CsvError::Number {
                line,
                column: column.name.clone(),
                cell: cell.chars().take(40).collect(),
            })?);
        }
        let time = columns.get(time_at).and_then(|column| *column.values.last()?);
        times.push(time.ok_or(CsvError::Time { line })?);
    }
    if times.is_empty() {
        return Err(CsvError::Empty);
    }
    columns.remove(time_at);
    Ok(Table { times, columns })
}

fn cells(row: &str) -> impl Iterator<Item = &str> {
    row.trim_end_matches('\r').split(',').map(|cell| cell.trim().trim_matches('"'))
}

/// A number, or a missing one; nothing where the cell is neither.
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

    fn said(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    #[test]
    fn columns_are_found_by_name() {
        let table = read(b"bytes,t_s,step\r\n10,1.5,\r\nNaN,2.5,7\r\n\r\n").unwrap();
        assert_eq!(table.times, [1.5, 2.5]);
        assert_eq!(table.columns[0], Column { name: "bytes".to_owned(), values: vec![Some(10.0), None] });
        assert_eq!(table.columns[1].values, [None, Some(7.0)]);
        let bare = read(b"0,5\n1,6\n").unwrap();
        assert_eq!((bare.times, bare.columns[0].name.as_str()), (vec![0.0, 1.0], "bytes"));
    }

    #[test]
    fn damage_is_named_with_its_line() {
        assert_eq!(said(b"t_s,bytes\n1,2\n\n3,x\n"), "line 4, column bytes: \"x\" is no number");
        assert_eq!(said(b"t_s,bytes\n1,2\n3\n"), "line 3: 1 cells, but the header has 2");
        assert_eq!(said(b"t_s,bytes\n1,2\n3,\xff\n"), "line 3: not UTF-8 text");
        assert_eq!(said(b"t_s,bytes\n,2\n"), "line 2: a row without a time");
        assert_eq!(said(b"t_s,bytes\n"), "there is a header and nothing else");
    }

    #[test]
    fn other_files_are_no_csv() {
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
            let _ = read(&bytes);
            let _ = read(text.as_bytes());
        }
    }
}
