//! A series from CSV: `t_s,bytes[,limit]`, or columns by their names.
//!
//! A header names the columns, in any order: `t_s`, `bytes`, and optionally `limit`, `anon`, `shmem`, `alloc`; other
//! columns are ignored. Without a header the columns are time, bytes and limit. An empty cell or `nan` is unknown. Rows
//! out of order are sorted, and of rows at the same time the last one is used; both are noted. Other problems are
//! errors that name the line.

use std::collections::TryReserveError;

use csv::StringRecord;

use super::cells::Rows;
use crate::model::series::{Row, Series};

/// Maximum number of rows: 190 days at one per second.
const MOST_ROWS: usize = 1 << 24;
/// Maximum value in bytes: 8 PiB, below which a double is exact.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// The reason why a file is not a recorded series. Lines count from 1.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CsvError {
    #[error("{0}: the file is empty")]
    Empty(String),
    /// The file has no row with a value.
    #[error("{0}: there is no row with a value")]
    NoRow(String),
    /// A line is not as expected.
    #[error("{name}:{line}: {why}")]
    Line { name: String, line: usize, why: String },
    /// Allocating memory for the rows failed.
    #[error("{name}: no memory for the rows: {why}")]
    Memory {
        name: String,
        /// The error of the allocator.
        why: TryReserveError,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct Columns {
    at: usize,
    used: usize,
    limit: Option<usize>,
    anon: Option<usize>,
    shmem: Option<usize>,
    alloc: Option<usize>,
}

/// Reads a series; `name` is the name of the file.
///
/// # Errors
/// [`CsvError`], with the first invalid line.
pub fn read(name: &str, bytes: &[u8]) -> Result<Series, CsvError> {
    let broken = |line: usize, why: String| CsvError::Line { name: name.to_owned(), line, why };
    let mut rows = Rows::new(bytes);
    let mut series = Series { name: name.to_owned(), ..Series::default() };
    let mut unknown = 0_usize;
    let mut columns = None;
    while let Some((line, cells)) = rows.next_row().map_err(|error| broken(error.line, error.to_string()))? {
        let columns = match &columns {
            Some(columns) => columns,
            None if is_header(cells) => {
                columns = Some(header(cells).map_err(|why| broken(line, why))?);
                continue;
            }
            None => columns.insert(Columns { at: 0, used: 1, limit: Some(2), ..Columns::default() }),
        };
        match row(cells, columns).map_err(|why| broken(line, why))? {
            Some(_) if series.rows.len() == MOST_ROWS => {
                return Err(broken(line, format!("more than {MOST_ROWS} rows")));
            }
            Some(row) => {
                let why = |why| CsvError::Memory { name: name.to_owned(), why };
                series.rows.try_reserve(1).map_err(why)?;
                series.rows.push(row);
            }
            None => unknown += 1,
        }
    }
    if columns.is_none() {
        return Err(CsvError::Empty(name.to_owned()));
    }
    if series.rows.is_empty() {
        return Err(CsvError::NoRow(name.to_owned()));
    }
    remark(&mut series, unknown, "without a value left out");
    put_in_order(&mut series);
    Ok(series)
}

fn remark(series: &mut Series, rows: usize, what: &str) {
    if rows > 0 {
        series.remarks.push(format!("{rows} {} {what}", if rows == 1 { "row" } else { "rows" }));
    }
}

fn put_in_order(series: &mut Series) {
    let late = series.rows.windows(2).filter(|pair| pair[1].at < pair[0].at).count();
    if late > 0 {
        series.rows.sort_by(|one, next| one.at.total_cmp(&next.at));
        remark(series, late, "out of order sorted by time");
    }
    let before = series.rows.len();
    let mut kept: usize = 0;
    for i in 0..before {
        if i + 1 < before && series.rows[i + 1].at == series.rows[i].at {
            continue;
        }
        series.rows[kept] = series.rows[i];
        kept += 1;
    }
    series.rows.truncate(kept);
    remark(series, before - kept, "at a time that comes again left out");
}

/// Whether the first row is a header: its first cell is not a number.
fn is_header(cells: &StringRecord) -> bool {
    cells.get(0).is_some_and(|first| !first.is_empty() && first.parse::<f64>().is_err())
}

fn header(names: &StringRecord) -> Result<Columns, String> {
    let find = |wanted: &str| {
        let mut places = names.iter().enumerate().filter(|(_, own)| *own == wanted).map(|(place, _)| place);
        match (places.next(), places.next()) {
            (_, Some(_)) => Err(format!("the column {wanted} is listed twice")),
            (place, None) => Ok(place),
        }
    };
    let need = |wanted: &str| {
        let listed = || names.iter().map(shown).collect::<Vec<_>>().join(", ");
        find(wanted)?.ok_or_else(|| format!("no column {wanted}; it has {}", shown(&listed())))
    };
    Ok(Columns {
        at: need("t_s")?,
        used: need("bytes")?,
        limit: find("limit")?,
        anon: find("anon")?,
        shmem: find("shmem")?,
        alloc: find("alloc")?,
    })
}

/// The first 40 characters.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

/// One row; nothing if its time or value is unknown.
fn row(cells: &StringRecord, columns: &Columns) -> Result<Option<Row>, String> {
    let number = |place: Option<usize>, column: &str, negative: bool| {
        let found = place.and_then(|place| cells.get(place)).filter(|found| !found.is_empty());
        let Some(found) = found else { return Ok(None) };
        let wrong = |wanted: &str| Err(format!("{column} is {:?}, expected {wanted}", shown(found)));
        match found.parse::<f64>() {
            Err(_) => wrong("a number"),
            Ok(value) if value.is_nan() => Ok(None),
            Ok(value) if value.is_infinite() => wrong("a finite number"),
            Ok(value) if value < 0.0 && !negative => wrong("a number of bytes that is not negative"),
            Ok(value) if value.abs() > LARGEST => wrong("at most 2^53"),
            Ok(value) => Ok(Some(value)),
        }
    };
    if cells.get(columns.used).is_none() {
        let found = shown(&cells.iter().collect::<Vec<_>>().join(","));
        return Err(format!("row is {found:?}, expected time and bytes, with a comma between"));
    }
    let (at, used) = (number(Some(columns.at), "t_s", true)?, number(Some(columns.used), "bytes", false)?);
    let limit = number(columns.limit, "limit", false)?.filter(|limit| *limit > 0.0);
    let (anon, shmem) = (number(columns.anon, "anon", false)?, number(columns.shmem, "shmem", false)?);
    let allocated = number(columns.alloc, "alloc", false)?;
    // If shared memory has no column, no value includes it.
    let shared = if columns.shmem.is_some() { shmem } else { Some(0.0) };
    let unreclaimable = anon.zip(shared).map(|(anon, shared)| anon + shared);
    Ok(at.zip(used).map(|(at, used)| Row { at, used, limit, unreclaimable, allocated }))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    fn check(text: &[u8], wanted: Expect) {
        let shown = match read("run.csv", text) {
            Ok(series) => {
                let rows: Vec<String> = series.rows.iter().map(|r| format!("{r:?}")).collect();
                format!("{}\n{}", rows.join("\n"), series.remarks.join("\n"))
            }
            Err(error) => error.to_string(),
        };
        wanted.assert_eq(&shown);
    }

    #[test]
    fn columns_are_selected_by_name_or_position() {
        check(
            b"t_s,bytes,limit\n0,10,100\n1,11,100\n",
            expect![[r#"
                Row { at: 0.0, used: 10.0, limit: Some(100.0), unreclaimable: None, allocated: None }
                Row { at: 1.0, used: 11.0, limit: Some(100.0), unreclaimable: None, allocated: None }
            "#]],
        );
        check(
            b"\xEF\xBB\xBFalloc,\"bytes\",anon,t_s,shmem,x\r\n5,10,7,0,1,?\r\n",
            expect![[r#"
                Row { at: 0.0, used: 10.0, limit: None, unreclaimable: Some(8.0), allocated: Some(5.0) }
            "#]],
        );
        // A quoted cell of an ignored column contains a comma and a line end.
        check(
            b"t_s,note,bytes\n0,\"a, \"\"b\"\"\n\",\"10\"\n1,c,11\n",
            expect![[r#"
                Row { at: 0.0, used: 10.0, limit: None, unreclaimable: None, allocated: None }
                Row { at: 1.0, used: 11.0, limit: None, unreclaimable: None, allocated: None }
            "#]],
        );
        check(
            b"0,10\n\n1,1e1,100",
            expect![[r#"
                Row { at: 0.0, used: 10.0, limit: None, unreclaimable: None, allocated: None }
                Row { at: 1.0, used: 10.0, limit: Some(100.0), unreclaimable: None, allocated: None }
            "#]],
        );
    }

    #[test]
    fn corrected_problems_are_noted() {
        check(
            b"t_s,bytes\n2,12\n1,11\n1,13\n3,nan\n4,\n",
            expect![[r#"
                Row { at: 1.0, used: 13.0, limit: None, unreclaimable: None, allocated: None }
                Row { at: 2.0, used: 12.0, limit: None, unreclaimable: None, allocated: None }
                2 rows without a value left out
                1 row out of order sorted by time
                1 row at a time that comes again left out"#]],
        );
    }

    #[test]
    fn errors_have_the_line() {
        check(b"", expect!["run.csv: the file is empty"]);
        check(b"\n \n", expect!["run.csv: the file is empty"]);
        check(b"t_s,bytes\n", expect!["run.csv: there is no row with a value"]);
        check(b"t_s,rss\n0,1\n", expect!["run.csv:1: no column bytes; it has t_s, rss"]);
        check(b"t_s,bytes,bytes\n", expect!["run.csv:1: the column bytes is listed twice"]);
        check(
            b"0,1\n1,-5\n",
            expect![[r#"run.csv:2: bytes is "-5", expected a number of bytes that is not negative"#]],
        );
        check(b"0,1\n1,many\n", expect![[r#"run.csv:2: bytes is "many", expected a number"#]]);
        check(b"0,1\n1,1e300\n", expect![[r#"run.csv:2: bytes is "1e300", expected at most 2^53"#]]);
        check(b"0,1\ninf,1\n", expect![[r#"run.csv:2: t_s is "inf", expected a finite number"#]]);
        check(
            b"0,1\n7\n",
            expect![[r#"run.csv:2: row is "7", expected time and bytes, with a comma between"#]],
        );
        check(b"0,1\n1,\xFF\n", expect!["run.csv:2: not UTF-8 text"]);
        check(b"0,1\n1,\"2\n3,4\n", expect!["run.csv:2: a quotation mark is opened and never closed"]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read("x", &bytes);
        }

        #[test]
        fn no_cells_panic(text in "(t_s,bytes\n)?([-0-9.,naife\"\n]{0,200})") {
            if let Ok(series) = read("x", text.as_bytes()) {
                prop_assert!(series.rows.windows(2).all(|pair| pair[0].at < pair[1].at));
            }
        }
    }
}
